"""A technique that does nothing, for `benchmarks.honest`. No torch in here."""

from dataclasses import dataclass

from hotlap.techniques import Numerics, Proof, Technique


@dataclass(frozen=True)
class Options:
    pass


IDLE = Technique(
    name="idle",
    seam="optimizer",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    apply=lambda target: target,
    proof=lambda: Proof("applied", "it does nothing, and says so"),
)
