"""Live techniques for `napping.py`: some of which change its nap."""

import os
from typing import Any

from hotlap.techniques import Numerics, ProcessTarget, Proof, Refusal, Technique
from hotlap.techniques.record import Live

NAP_MS = "NAP_MS"


def _technique(name: str, ms: str) -> Technique:
    def switch(target: Any) -> Any:
        before = target.notes[name] = os.environ[NAP_MS]
        os.environ[NAP_MS] = ms or before
        return lambda: os.environ.update({NAP_MS: before})

    def apply(target: ProcessTarget) -> ProcessTarget:
        target.switch = lambda: switch(target)
        return target

    def on(target: Any, options: Any) -> None:
        del options
        os.environ[NAP_MS] = ms or target.notes[name]

    def off(target: Any, options: Any) -> None:
        del options
        os.environ[NAP_MS] = target.notes[name]

    return Technique(
        name=name,
        seam="process",
        numerics=lambda: Numerics.EXACT,
        apply=apply,
        proof=lambda: Proof("applied", "so it says"),
        live=Live(on, off),
    )


SHORT = _technique("short", "2")
IDLE = _technique("idle", "")
LONG = _technique("long", "9")


def _refuse(target: ProcessTarget) -> ProcessTarget:
    def switch() -> Any:
        raise Refusal("never here")

    target.switch = switch
    return target


REFUSING = Technique(
    name="refusing",
    seam="process",
    numerics=lambda: Numerics.EXACT,
    apply=_refuse,
    proof=lambda: Proof("applied", "it never is"),
    live=Live(lambda target, options: None, lambda target, options: None),
)
