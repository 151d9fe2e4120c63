"""Live techniques for `napping.py`: some of which change its nap."""

import os
from typing import Any

from hotlap.techniques import Numerics, ProcessTarget, Proof, Refusal, Technique
from hotlap.techniques.record import Live


def _technique(name: str, longer_ms: float) -> Technique:
    variable = f"NAP_{name.upper()}"

    def on(target: Any, options: Any) -> None:
        del target, options
        os.environ[variable] = str(longer_ms)

    def off(target: Any, options: Any) -> None:
        del target, options
        os.environ[variable] = "0"

    def switch() -> Any:
        on(None, None)
        return lambda: off(None, None)

    def apply(target: ProcessTarget) -> ProcessTarget:
        target.switch = switch
        return target

    return Technique(
        name=name,
        seam="process",
        numerics=lambda: Numerics.EXACT,
        apply=apply,
        proof=lambda: Proof("applied", "so it says"),
        live=Live(on, off),
    )


SHORT = _technique("short", -2)
IDLE = _technique("idle", 0)
LONG = _technique("long", 5)


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
