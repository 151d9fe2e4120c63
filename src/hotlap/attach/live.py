"""`LiveTechniques`: techniques that are switched between two steps of a process that trains."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.optimizer_states import OptimizerStates
from hotlap.plan import Plan

log = logging.getLogger("hotlap")


class LiveTechniques:
    """Techniques that say how they are switched (`Technique.live`), each prepared and off.

    A session hears the script, and tells this as it would tell a `PlanInProcess`.

    Args:
        plans: technique -> options, one technique in each.
        extra: techniques from outside, as `module:NAME`.
    """

    follows_steps = True

    def __init__(
        self, plans: Sequence[Mapping[str, Mapping[str, Any]]], extra: tuple[str, ...] = ()
    ) -> None:
        # A plan of its own for each: two of them may be the same technique with other options.
        self._parts = [PlanInProcess(Plan(plan), extra=extra, fill_ahead=True) for plan in plans]
        # The others hear nothing of steps: what listens is paid for in every step of every plan.
        self._on_optimizers = [n for n, part in enumerate(self._parts) if part.wants("optimizer")]
        self._targets = [0] * len(self._parts)
        self._on: tuple[int, ...] = ()
        self._failed: dict[int, str] = {}
        self._states: dict[int, OptimizerStates] = {}
        """Number of a technique that acts late -> what it found when it was switched on."""

    def wants(self, seam: str) -> bool:
        """True if one of the techniques acts at that seam."""
        return any(part.wants(seam) for part in self._parts)

    def start(self) -> None:
        """Do nothing: what is on before `prepare` would be there from the script's start."""

    def prepare(self) -> None:
        """Prepare the techniques of the process, once the script has set its own switches."""
        for number, part in enumerate(self._parts):
            # A data set that is made later would be read whole in the middle of a turn.
            part.fill_ahead = False
            part.start()
            self._switch(number, on=False)

    def iterator_wanted(self, loader: Any) -> None:
        """Prepare the feed techniques for a data set that is seen for the first time."""
        for number, part in enumerate(self._parts):
            # An iterator of a technique's own lives for an epoch: it cannot be switched in between.
            part.iterator_wanted(loader)
            self._switch_new(number)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        """Put the techniques' fetch around the iterator's."""
        for part in self._parts:
            part.iterator_made(loader, iterator)

    def root_found(self, module: Any) -> None:
        """Prepare the model techniques before a trained module's first forward."""
        for number, part in enumerate(self._parts):
            part.root_found(module)
            self._switch_new(number)

    def step_begins(self, optimizer: Any) -> None:
        """Prepare the optimizer techniques at an optimizer's first step."""
        for number in self._on_optimizers:
            self._parts[number].step_begins(optimizer)
            self._switch_new(number)

    def step_ends(self) -> None:
        """Let the techniques that are on follow the step."""
        # What recorded operators last is ended first.
        for number in sorted({*self._on_optimizers, *self._on}, reverse=True):
            self._parts[number].step_ends(follow=number in self._on)

    def step_failed(self, optimizer: Any) -> None:
        """Leave an optimizer whose step has raised as the script knows it."""
        for part in reversed(self._parts):
            part.step_failed(optimizer)

    def proofs(self) -> list[dict[str, str]]:
        """Return nothing: what a mixture of plans has done proves none of them."""
        return []

    def failures(self) -> dict[int, str]:
        """Return the number of each technique that cannot be switched here -> why."""
        found = self.switch_failures()
        for number, part in enumerate(self._parts):
            (proof,) = part.proofs()
            if proof["state"] == "refused" or not part.targets():
                found.setdefault(number, proof["why"])
        return found

    def switch_failures(self) -> dict[int, str]:
        """Return the number of each technique that could not be switched -> why."""
        return dict(self._failed)

    def use(self, wanted: Sequence[int]) -> None:
        """Switch on the techniques with these numbers and the others off, between two steps."""
        before, self._on = self._on, tuple(wanted)
        for number in reversed(before):
            if number not in self._on:
                self._switch(number, on=False)
        for number in self._on:
            if number not in before:
                self._switch(number, on=True)

    def _switch_new(self, number: int) -> None:
        """Switch what was just prepared: techniques act on a target as they are applied to it."""
        count = len(self._parts[number].targets())
        if count != self._targets[number]:
            self._targets[number] = count
            self._switch(number, on=number in self._on)

    def _switch(self, number: int, *, on: bool) -> None:
        try:
            for technique, options, target in self._parts[number].targets():
                assert technique.live is not None
                if technique.acts_late and on and number not in self._states:
                    self._states[number] = OptimizerStates(seams.known_optimizers())
                (technique.live.on if on else technique.live.off)(target, options)
                if technique.acts_late and not on and number in self._states:
                    # It has changed what it acts on: others must find that as it was.
                    self._states.pop(number).put_back()
        except Exception as error:
            # The script's own objects may do anything; the other plans can still be raced.
            self._failed[number] = f"{type(error).__name__}: {error}".splitlines()[0]
            log.info("technique %d cannot be switched", number, exc_info=True)
