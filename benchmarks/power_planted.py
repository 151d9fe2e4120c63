"""A live technique whose effect is known: it takes a part of `power_script.py`'s nap away."""

import os
from dataclasses import dataclass
from typing import Any

from hotlap.techniques import Numerics, ProcessTarget, Proof, Technique
from hotlap.techniques.record import Live

_SAVED, _STEP = "PLANTED_SAVED_S", "PLANTED_STEP_S"


@dataclass(frozen=True)
class Options:
    effect: float = 1.0
    """How many times faster a step becomes, about."""


def _switch_on(target: Any, options: Options) -> None:
    del target
    os.environ[_SAVED] = str(float(os.environ.get(_STEP, "0")) * (1 - 1 / options.effect))


def _switch_off(target: Any, options: Options) -> None:
    del target, options
    os.environ[_SAVED] = "0"


def _apply(target: ProcessTarget, options: Options) -> ProcessTarget:
    def switch() -> Any:
        return lambda: None

    # A process that is not raced live sets it after each step, once the script knows its nap.
    target.switch = switch
    target.after_step.append(lambda: _switch_on(target, options))
    return target


PLANTED = Technique(
    name="planted",
    seam="process",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    apply=_apply,
    proof=lambda: Proof("applied", "a part of the nap was left out"),
    live=Live(_switch_on, _switch_off),
)
