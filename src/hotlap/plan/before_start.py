"""`EXACT_PLAN`, what is used by default, and which techniques may act before a process starts."""

from hotlap.plan.record import Plan

EXACT_PLAN = Plan({"resident": {}, "optimizer": {"implementation": "foreach"}})
"""What is used where nobody chose: techniques that leave every bit as it was."""

AT_PROCESS_SEAM = frozenset(
    (
        "allocator",
        "cudnn_benchmark",
        "deterministic",
        "flush_denormal",
        "garbage_collector",
        "host_allocator",
        "matmul_precision",
        "threads",
    )
)
"""Techniques that may act on a process before it starts; all others need not be loaded for that."""
