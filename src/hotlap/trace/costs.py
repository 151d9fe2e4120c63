"""`StepCosts`: what a training step computes and moves, whatever the machine. No torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

CONVENTION = (
    "a multiply-add is 2 FLOPs; matrix products, convolutions and attention of forward and "
    "backward as they are executed, recomputed ones included; causal attention counts half"
)
"""How `StepCosts.flops` is counted."""


@dataclass(frozen=True)
class StepCosts:
    """Of one step of the optimizer, all its micro-batches included."""

    flops: Mapping[str, int] = field(default_factory=dict)
    """Format, as `float32` -> floating-point operations, see `CONVENTION`."""
    state_bytes: int = 0
    """Bytes that every step must read or write: parameters, gradients and the optimizer's state,
    each once read and once written."""
    cache_bytes: int | None = None
    """What the device's caches hold, None if not known."""
    uncounted: tuple[str, ...] = ()
    """Operators that were called and for which no formula is known."""
    is_reduced: bool = False
    """True if products of float32 may be computed in a shorter format, such as TF32."""
    device: str = "cpu"
    """`cpu` or `cuda`."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "StepCosts":
        """Read back what `to_json` wrote."""
        return cls(**{**data, "uncounted": tuple(data["uncounted"])})
