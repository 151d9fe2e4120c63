"""A technique that does nothing, for `benchmarks.honest`. No torch in here."""

from typing import Any

from hotlap.techniques import Live, Numerics, Proof, Technique


def _nothing(target: Any, options: Any) -> None:
    del target, options


IDLE = Technique(
    name="idle",
    seam="optimizer",
    numerics=lambda: Numerics.EXACT,
    apply=lambda target: target,
    proof=lambda: Proof("applied", "it does nothing, and says so"),
    live=Live(_nothing, _nothing),
)
