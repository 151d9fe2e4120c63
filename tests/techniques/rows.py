"""Every technique, with the options of its row in the conformance tables."""

import importlib.util
from typing import Any

import torch

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
    "attention math": {"kernel": "math"},
    "attention products": {"kernel": "products"},
    "fp8": {},
    "pinned": {},
    "cuda_graph": {},
    "eight_bit_optimizer": {"compiled": False},
    "sharding": {"level": "optimizer"},
    "flush_denormal": {},
    "host_allocator": {},
    "garbage_collector": {"every": 5},
    "deterministic": {},
    "allocator": {},
    "cudnn_benchmark": {},
    "matmul_precision": {},
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
    "eight_bit_optimizer",
    "sharding",
)
"""Techniques that act on the step itself, which a script does not offer."""

SETTINGS = ("flush_denormal", "host_allocator", "garbage_collector", "deterministic")
"""Switches of the process: all at once in `make test`, in groups in `make test-all`."""

NEED_RANKS = ("sharding",)
NEED_CUDA = (
    "fp8",
    "pinned",
    "cuda_graph",
    "allocator",
    "cudnn_benchmark",
    "matmul_precision",
)
"""Techniques that refuse on a CPU; `matmul_precision` where the CPU has no AMX."""

ELSEWHERE = ("eight_bit_optimizer",)
"""Techniques that the small model has nothing for; `test_eight_bit.py` has a larger one."""

NEED_ATTENTION = ("attention",)
"""Techniques that have no effect on the small CNN of the scripts' table."""

NOT_FOR_TINY = ("chunked_loss", "recompute")
"""Techniques that ask for another model; `tests/attach/test_memory.py` has a script for them."""


def refuses(refused: set[frozenset[str]], *rows: str) -> bool:
    """True if techniques of these rows are refused: together, by what is not here, by one rank."""
    names = frozenset(row.split()[0] for row in rows)
    if not names.isdisjoint(NEED_RANKS):
        return True
    if "fp8" in names and importlib.util.find_spec("transformer_engine") is None:
        return True
    return names in refused or (not torch.cuda.is_available() and not names.isdisjoint(NEED_CUDA))
