"""Shorter naps between the batches of a script that takes some.

What it does   sets NAP_MS in the script's environment.
When it helps  a script that reads it.
When it hurts  never.
Numerics       exact: nothing is computed otherwise.
Measured       by its test.
Source         none.
"""

from dataclasses import dataclass
from typing import Any

from hotlap.techniques import Numerics, ProcessTarget, Proof, Technique


@dataclass(frozen=True)
class Options:
    ms: int = 0
    """How long it still naps."""

    def __post_init__(self) -> None:
        if self.ms < 0:
            raise ValueError(f"ms={self.ms} is negative. Expected: 0 or more.")


def why_not(task: Any) -> str | None:
    if not task.training_loaders:
        return "no DataLoader feeds the training loop. Use it with a script that has one"
    return None


def apply(target: ProcessTarget, options: Options) -> ProcessTarget:
    target.environment["NAP_MS"] = str(options.ms)
    return target


TECHNIQUE = Technique(
    name="no_nap",
    seam="process",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=lambda options: Proof("applied", f"naps of {options.ms} ms"),
    excludes=("workers",),
    phases=("data",),
    set_up_s=6.0,
    is_opportunity=True,
    by_hand="sleep for {ms} ms",
)
