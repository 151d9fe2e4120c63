"""Denormal numbers, below 1.2e-38 in float32, are computed as zero.

What it does   sets the processor's mode with `torch.set_flush_denormal`, as soon as torch is
               imported: the threads that torch makes later take it over. In the engine, whose
               threads exist by then, new ones are made; the run's end restores the mode.
When it helps  training on an Intel CPU with an optimizer that keeps averages, where some gradients
               are always zero, as those of pixels that are always black. Adam's average of such a
               gradient shrinks by a tenth in each step, and is denormal after 660 to 830 steps.
When it hurts  no such case is known. It gains nothing where there are no such numbers, on a GPU,
               and on CPUs that compute with them at full speed, as AMD's EPYC does.
Numerics       rounding: what is smaller than 1.2e-38 becomes 0. It shows late in a run, so it is
               raced and proven at the age at which the watched run held such numbers, or in that
               run's process.
Measured       benchmarks/results/2026-11-23_denormals_amd-epyc.md;
               benchmarks/results/2026-11-27_minute-again_intel-xeon-2-cores.md
Source         PyTorch documentation, torch.set_flush_denormal; Intel 64 manual, MXCSR (FTZ, DAZ).
"""

import platform
from collections.abc import Callable
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques.record import Live, Numerics, ProcessTarget, Proof, Refusal, Technique
from hotlap.trace.denormals import MANY

_SMALL = 2e-38
"""Normal, and half of it is denormal."""
_ELEMENTS = 2**18
"""Enough for torch to compute them in all its threads."""


def why_not(task: TaskFacts) -> str | None:
    if task.device != "cpu":
        return (
            f"the model trains on '{task.device}', and denormal numbers slow down CPUs only. Use a "
            "plan without flush_denormal."
        )
    if task.denormals < MANY:
        return (
            f"the optimizer's state held about {task.denormals} denormal numbers, too few to slow "
            f"down the run. Expected: {MANY} or more. Use a plan without flush_denormal."
        )
    return None


def apply(target: ProcessTarget) -> ProcessTarget:
    target.switch = _set
    return target


def _set() -> Callable[[], None]:
    import torch

    before = _flushes(1)
    if not torch.set_flush_denormal(True):
        raise Refusal(
            f"this CPU ('{platform.machine()}') cannot flush denormal numbers: "
            "`torch.set_flush_denormal(True)` returned False. Use a plan without flush_denormal, "
            "or a CPU with SSE3 or of the ARM architecture."
        )
    _renew()
    return lambda: _switch(on=before)


def _switch(*, on: bool) -> None:
    import torch

    torch.set_flush_denormal(on)
    _renew()


def _renew() -> None:
    from hotlap.host.openmp import renew_threads

    # Where they cannot be ended they keep their mode, and the proof says so.
    renew_threads()


def _flushes(elements: int) -> bool:
    """True if a product of so many numbers that is denormal is zero everywhere."""
    import torch

    return not bool((torch.full((elements,), _SMALL) * 0.5).view(torch.int32).any())


def proof() -> Proof:
    if _flushes(_ELEMENTS):
        return Proof("applied", "a product below 1.2e-38 is zero in all threads")
    if _flushes(1):
        return Proof("refused", "threads that torch had made before keep denormals")
    return Proof("no_effect", "a product below 1.2e-38 is not zero: the script resets the mode")


def _switch_on(target: Any, options: Any) -> None:
    del target, options
    _switch_live(on=True)


def _switch_off(target: Any, options: Any) -> None:
    del target, options
    _switch_live(on=False)


def _switch_live(*, on: bool) -> None:
    _switch(on=on)
    if _flushes(_ELEMENTS) != on:
        raise Refusal(
            "flush_denormal could not be switched in threads that run already "
            "(`omp_pause_resource_all` failed). Use a plan without it; or, for a recipe, add "
            "[techniques.flush_denormal] to a plan file and pass that file to `hotlap train "
            "--plan`, which applies it before the first step."
        )


TECHNIQUE = Technique(
    name="flush_denormal",
    seam="process",
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    phases=("optimizer",),
    live=Live(_switch_on, _switch_off),
    acts_late=True,
    on_ranks=True,
)
