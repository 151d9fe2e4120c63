"""hotlap makes PyTorch training fast, and proves it."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "hotlap does not run on Windows: it needs the process groups, signals and locks of POSIX. "
        "Use Linux, for example under WSL."
    )

from hotlap.errors import HotlapError, PlanError, RunError, UsageError

if TYPE_CHECKING:
    from hotlap import schedules
    from hotlap.diagnosis.call import diagnose
    from hotlap.diagnosis.memory import diagnose_memory
    from hotlap.engine.export.exporting import export
    from hotlap.engine.memory.estimate import estimate
    from hotlap.engine.steps import steps
    from hotlap.engine.train import train
    from hotlap.host.facts import Host
    from hotlap.kernels.cross_entropy import chunked_cross_entropy
    from hotlap.plan import Plan
    from hotlap.search.range_test import find_learning_rate
    from hotlap.search.space import Choice, Derived, IntRange, LogUniform, PowerOfTwo, Uniform
    from hotlap.sequences.lengths import buckets
    from hotlap.sequences.padding import pad
    from hotlap.task import Task
    from hotlap.tuning.call import tune
    from hotlap.tuning.micro_batches.call import find_micro_batch

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Derived",
    "Host",
    "HotlapError",
    "IntRange",
    "LogUniform",
    "Plan",
    "PlanError",
    "PowerOfTwo",
    "RunError",
    "Task",
    "Uniform",
    "UsageError",
    "__version__",
    "buckets",
    "chunked_cross_entropy",
    "diagnose",
    "diagnose_memory",
    "estimate",
    "export",
    "find_learning_rate",
    "find_micro_batch",
    "pad",
    "schedules",
    "steps",
    "train",
    "tune",
]

_WHERE = {
    "Choice": "hotlap.search.space",
    "Derived": "hotlap.search.space",
    "Host": "hotlap.host.facts",
    "IntRange": "hotlap.search.space",
    "LogUniform": "hotlap.search.space",
    "Plan": "hotlap.plan",
    "PowerOfTwo": "hotlap.search.space",
    "Task": "hotlap.task",
    "Uniform": "hotlap.search.space",
    "buckets": "hotlap.sequences.lengths",
    "chunked_cross_entropy": "hotlap.kernels.cross_entropy",
    "diagnose": "hotlap.diagnosis.call",
    "diagnose_memory": "hotlap.diagnosis.memory",
    "estimate": "hotlap.engine.memory.estimate",
    "export": "hotlap.engine.export.exporting",
    "find_learning_rate": "hotlap.search.range_test",
    "find_micro_batch": "hotlap.tuning.micro_batches.call",
    "pad": "hotlap.sequences.padding",
    "steps": "hotlap.engine.steps",
    "train": "hotlap.engine.train",
    "tune": "hotlap.tuning.call",
}
"""Name -> its module, imported on first use: torch takes a second, `hotlap --help` needs none."""


def __getattr__(name: str) -> Any:
    if name in ("ray", "schedules"):
        return importlib.import_module(f"hotlap.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'hotlap' has no attribute '{name}'")
    return getattr(importlib.import_module(_WHERE[name]), name)
