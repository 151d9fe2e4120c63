"""hotlap makes PyTorch training fast, and proves it."""

from hotlap.errors import HotlapError, PlanError, RunError, UsageError
from hotlap.host import Host
from hotlap.plan import Plan

__version__ = "0.1.0"

__all__ = [
    "Host",
    "HotlapError",
    "Plan",
    "PlanError",
    "RunError",
    "UsageError",
    "__version__",
]
