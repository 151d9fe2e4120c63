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
    "compile": {},
}
"""A technique without a row fails a test. The row's first word is the technique."""

IN_THE_ENGINE_ONLY = ("reader_threads", "autocast", "master_weights", "micro_batch", "compile")
"""Techniques that act on the step itself, which a script does not offer."""
