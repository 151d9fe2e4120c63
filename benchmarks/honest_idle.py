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
    numerics=lambda _options: Numerics.EXACT,
    why_not=lambda _task, _host, _options: None,
    apply=lambda target, _options: target,
    proof=lambda _target, _options: Proof("applied", "it does nothing, and says so"),
    candidates=lambda _task, _host: ({},),
)
