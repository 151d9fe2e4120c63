"""Python's cyclic garbage collector runs between steps, when the run says so.

What it does   after the first step: collects once, takes all that is alive out of later searches
               (gc.freeze), and switches automatic collection off; then collects after every
               `every` steps.
When it helps  a process with many Python objects (large data sets of Python objects, big models)
               and short steps: a full collection in the middle of a step stops it for tens of ms.
               Among several processes each pauses at another time, and all wait for each.
When it hurts  a loop that makes reference cycles holding tensors: they live for up to `every`
               steps more, on the GPU too. Beliefs to correct: gc.collect in the loop frees no
               memory that has no cycles (counting references has done that), and costs more than it
               saves; and most steps of a plain loop trigger no collection at all.
Numerics       exact: nothing that is alive is touched.
Measured       not yet measured.
Source         Python documentation, gc.freeze; CPython's Modules/gcmodule.c.
"""

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hotlap.task import TaskFacts
from hotlap.techniques.record import Live, Numerics, ProcessTarget, Proof, Technique


@dataclass(frozen=True)
class Options:
    every: int = 1000
    """Steps from one collection to the next."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every={self.every} is not allowed. Expected: 1 or more.")


def why_not(task: TaskFacts) -> str | None:
    if task.planned_steps is not None and task.planned_steps <= 1:
        return (
            f"the run has {task.planned_steps} steps, and garbage_collector acts only between "
            "steps. Expected: 2 steps or more. Use a plan without garbage_collector."
        )
    return None


def apply(target: ProcessTarget, options: Options) -> ProcessTarget:
    collector = _Collector(options.every)
    target.notes["garbage_collector"] = collector
    target.switch = collector.begin
    target.after_step.append(collector.after_step)
    return target


class _Collector:
    """Collects when it is told to, and counts who else does."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.steps = 0
        self.own = 0
        """Collections between steps, the first one left out."""
        self.others = 0
        """Collections that came by themselves, or by the script's own call."""
        self.frozen = 0
        """Objects that later collections do not look at."""
        self._was_enabled = False
        self._is_held = self._is_ours = False

    def begin(self) -> Callable[[], None]:
        gc.callbacks.append(self._count)
        # A worker that is forked takes the switch along, and has no steps to collect after.
        os.register_at_fork(after_in_child=self.release)
        return self.end

    def after_step(self) -> None:
        self.steps += 1
        if self.steps == 1:
            self.hold()
        elif self._is_held and (self.steps - 1) % self.every == 0:
            self._collect()
            self.own += 1

    def end(self) -> None:
        """Leave the collector as it was."""
        if self._count in gc.callbacks:
            gc.callbacks.remove(self._count)
        self.release()

    def hold(self) -> None:
        """Take all that is alive out of later searches, and collect between steps only."""
        if self._is_held:
            return
        self._was_enabled = gc.isenabled()
        self._collect()
        gc.freeze()
        self.frozen = gc.get_freeze_count()
        gc.disable()
        self._is_held = True

    def release(self) -> None:
        """Let Python collect by itself again."""
        if self._is_held:
            gc.unfreeze()
            if self._was_enabled:
                gc.enable()
            self._is_held = False

    def _collect(self) -> None:
        self._is_ours = True
        gc.collect()
        self._is_ours = False

    def _count(self, phase: str, info: Mapping[str, int]) -> None:
        del info
        self.others += phase == "start" and self._is_held and not self._is_ours


def proof(target: ProcessTarget) -> Proof:
    collector = target.notes.get("garbage_collector")
    if collector is None or not collector.frozen:
        return Proof("no_effect", "no step was taken")
    counted = (
        f"{collector.own} collections between {collector.steps} steps, {collector.others} others, "
        f"{collector.frozen:,} objects frozen"
    )
    # One that the script asks for is the script's; many mean that it switched them on again.
    if collector.others > collector.steps // 2:
        return Proof("no_effect", f"{counted}: the script calls gc.enable or gc.collect")
    return Proof("applied", counted)


def _switch_on(target: ProcessTarget, options: Options) -> None:
    del options
    target.notes["garbage_collector"].hold()


def _switch_off(target: ProcessTarget, options: Options) -> None:
    del options
    target.notes["garbage_collector"].release()


TECHNIQUE = Technique(
    name="garbage_collector",
    seam="process",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=lambda: (),
    live=Live(_switch_on, _switch_off),
    on_ranks=True,
)
