"""Every technique, with the options of its row in the conformance tables."""

from typing import Any

ROWS: dict[str, dict[str, Any]] = {
    "resident": {},
    "workers": {"count": 1},
    "reader_threads": {"count": 2},
    "optimizer foreach": {"implementation": "foreach"},
    "optimizer fused": {"implementation": "fused"},
    "threads": {"count": 1},
    "channels_last": {},
    "autocast bf16": {"dtype": "bf16"},
    "autocast fp16": {"dtype": "fp16"},
    "master_weights": {},
    "micro_batch": {"size": 2},
    "chunked_loss": {"rows": 2},
    "recompute": {},
    "compile": {},
    "attention flash": {"kernel": "flash"},
    "attention products": {"kernel": "products"},
    "fp8": {},
    "pinned": {},
    "cuda_graph": {},
}
"""A technique without a row fails a test. The row's first word is the technique."""

IN_THE_ENGINE_ONLY = (
    "autocast",
    "master_weights",
    "micro_batch",
    "compile",
    "pinned",
    "cuda_graph",
    "reader_threads",
)
"""Techniques that act on the step itself, which a script does not offer."""

NEED_CUDA = ("fp8", "pinned", "cuda_graph")
"""Techniques that refuse a machine without a CUDA device."""

NEED_ATTENTION = ("attention",)
"""Techniques that have no effect on the small CNN of the scripts' table."""

NOT_FOR_TINY = ("chunked_loss", "recompute")
"""Techniques that ask for another model; `tests/attach/test_memory.py` has a script for them."""
