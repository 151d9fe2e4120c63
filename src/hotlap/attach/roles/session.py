"""`Session`: receives the seams' events, applies the plan, and calls the parts of its role."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.listener import Listener
from hotlap.attach.live import LiveTechniques
from hotlap.attach.on_ranks import rank_in_group, ranks_in_group
from hotlap.techniques.record import MakeIterator
from hotlap.trace.clock import OTHER
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_STOPPED, OF_COMMAND, Config

_LOOKS = 20
"""Steps after which models are looked for no more: an optimizer may never be stepped, as one that
another wraps."""
_BEGINNINGS = (
    "batch_begins",
    "evaluation_forward_begins",
    "evaluation_forward_ends",
    "other_forward_ends",
    "gradients_unscaled",
    "loss_scaled",
    "event_happens",
    "schedule_steps",
    "object_saved",
    "file_loaded_unsafely",
)


class Part(Listener):
    """One part of a role; it hears what the script does, and every method may be left as it is.

    What begins is heard in the order of the parts, what ends in the opposite order: a part that
    comes later sees the step as the earlier ones have prepared it.
    """

    def hears(self, name: str) -> bool:
        """Return whether a method of this name does anything now.

        Asked again after a loader has made an iterator, after a root was found, and whenever the
        session is told to `bind`.
        """
        return getattr(type(self), name) is not getattr(Part, name)

    def hearer(self, name: str) -> Callable[..., Any]:
        """Return what is called for a method of this name, if `hears` says that it is heard."""
        return getattr(self, name)

    def root_found(self, module: Any) -> None:
        """A module that an optimizer trains is about to run for the first time."""

    def other_called(self, module: Any) -> None:
        """A module that no optimizer trains is about to run in training, in the first steps."""

    def step_done(self, optimizer: Any) -> None:
        """Every part has heard that the step has ended: here one may wait, or stop the trial."""

    def report(self) -> dict[str, Any]:
        """Return what the part has to say at its end."""
        return {}


class Session(Listener):
    """Applies the plan and, at the end, says what took effect and what the parts have found.

    Args:
        config: what the process was told.
        channel: to whoever started it.
        plan: what is applied, or switched on and off.
    """

    def __init__(
        self, config: Config, channel: Channel, plan: PlanInProcess | LiveTechniques
    ) -> None:
        self.config = config
        self.channel = channel
        self.plan = plan
        self.random_before: list[str] | None = None
        """Digests of the states of the random generators before the plan was made."""
        self.steps = 0
        """Steps of all optimizers."""
        self.ranks = 1
        """Processes that train one model, as seen at the first step."""
        self.parts: Sequence[Part] = ()
        self._at_end: Sequence[Callable[[Any], None]] = ()
        self._once_done: Sequence[Callable[[Any], None]] = ()
        self.wants_roots = plan.wants("model")
        self._pid = os.getpid()
        self._finished = False
        self._stepped: set[int] | None = set()
        """Identities of the optimizers that have stepped, None once models are found."""

    def play(self, *parts: Part) -> None:
        """Let these parts hear what the script does."""
        self.parts = parts
        self.wants_phases = any(part.wants_phases for part in parts)
        self.wants_losses = any(part.wants_losses for part in parts)
        self.wants_events = any(part.wants_events for part in parts)
        self.wants_evaluation = any(part.wants_evaluation for part in parts)
        self.wants_others = any(part.wants_others for part in parts)
        self.bind()

    def bind(self) -> None:
        """Let the seams call what the parts hear of now, and nothing in between.

        Each function is paid for in every step: after a model's kernels it is in no cache.
        """
        for name in _BEGINNINGS:
            setattr(self, name, _telling(self._hearers(name)))
        self.batch_ends = _passing_on(self._hearers("batch_ends"))
        self.other_forward_begins = _passing_on(self._hearers("other_forward_begins"))
        self.after_backward = self._hearers("backward_ends")[::-1]
        self.after_zeroing = self._hearers("zeroing_ends")[::-1]
        self.clock = next((part.clock for part in self.parts if part.clock is not None), None)
        self._at_end = self._hearers("step_ends")[::-1]
        self.bind_steps()

    def bind_steps(self) -> None:
        """Do what `bind` does for those that sleep through some steps."""
        self.at_forward = self._hearers("forward_begins")
        self.after_forward = self._hearers("forward_ends")[::-1]
        self.at_backward = self._hearers("backward_begins")
        self.at_zeroing = self._hearers("zeroing_begins")
        self.events = next((part.events for part in self.parts if part.events is not None), None)
        of_plan = (self.plan.step_begins,) if self.plan.follows_steps else ()
        self.at_step = (*of_plan, *self._hearers("step_begins"))
        self._once_done = self._hearers("step_done")

    def _hearers(self, name: str) -> Sequence[Callable[..., Any]]:
        return tuple(part.hearer(name) for part in self.parts if part.hears(name))

    def iterator_wanted(self, loader: Any) -> MakeIterator | None:
        return self.plan.iterator_wanted(loader)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        self.plan.iterator_made(loader, iterator)
        for part in self.parts:
            part.iterator_made(loader, iterator)
        self.bind()

    def pass_begun(self, loader: Any, iterator: Any) -> None:
        for part in self.parts:
            part.pass_begun(loader, iterator)
        self.bind()

    def optimizer_made(self, optimizer: Any) -> None:
        for part in self.parts:
            part.optimizer_made(optimizer)

    def other_wanted(self, module: Any) -> bool:
        tensors = [*module.parameters(), *module.buffers()]
        return bool(tensors) and not _is_any_trained(tensors)

    def root_wanted(self, module: Any) -> bool:
        if not _is_any_trained(module.parameters()):
            for part in self.parts:
                part.other_called(module)
            return False
        self.plan.root_found(module)
        for part in self.parts:
            part.root_found(module)
        self.bind()
        return True

    def step_ends(self, optimizer: Any) -> None:
        for hear in self._at_end:
            hear(optimizer)
        if self.plan.follows_steps:
            if self.clock is not None:
                self.clock.enter(OTHER)
            self.plan.step_ends()
        self.steps += 1
        if self._stepped is not None:
            self._look_for_roots(optimizer, self._stepped)
        if self.steps == 1:
            # A script that ends well has taken its process group down by then.
            self.ranks = ranks_in_group()
            self.channel.send("trains", rank=rank_in_group(), ranks=self.ranks)
        for hear in self._once_done:
            hear(optimizer)

    def _look_for_roots(self, optimizer: Any, stepped: set[int]) -> None:
        """Go on until each optimizer has stepped: before, its model may have been called without
        gradients only, as a generator for the first step of a discriminator."""
        stepped.add(id(optimizer))
        if self.steps >= _LOOKS or stepped.issuperset(map(id, seams.known_optimizers())):
            seams.stop_looking_for_roots()
            self._stepped = None

    def step_failed(self, optimizer: Any) -> None:
        self.plan.step_failed(optimizer)
        for part in self.parts:
            part.step_failed(optimizer)

    def go_on(self, plan: LiveTechniques, *parts: Part) -> None:
        """Take another role from the next step on, after a report."""
        self.plan = plan
        self.play(*parts)
        self._finished = False

    def finish(self, ended: str = "script") -> None:
        """Send the report, once, from the process that was attached to."""
        if self._finished or os.getpid() != self._pid:
            return
        self._finished = True
        found: dict[str, Any] = {"steps": self.steps}
        for part in self.parts:
            found |= part.report()
        if not self.steps and self.config.options.get(OF_COMMAND) and self.config.role != "run":
            self.channel.send("idle")
            return
        techniques = self.plan.proofs() if found["steps"] else []
        # What is heard of a trial is its first rank.
        rank = self.config.options.get("follows")
        kind = "report" if rank is None else "followed"
        found |= {"ranks": self.ranks, "rank": rank}
        self.channel.send(kind, ended=ended, techniques=techniques, **found)

    def leave_to_ranks(self) -> bool:
        """Return True if ranks that are about to start train in place of this process.

        In a trial they are measured then, and this process reports nothing any more.
        """
        if self.steps:
            return False
        self._finished = self._finished or self.config.role != "run"
        return True

    def stop(self) -> None:
        """End this trial here and now: no clean-up of the script's may run, nothing is saved."""
        self.finish("limit")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_STOPPED)


def _is_any_trained(tensors: Iterable[Any]) -> bool:
    """Return whether an optimizer of the script has one of these."""
    trained = {
        id(parameter)
        for optimizer in seams.known_optimizers()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return any(id(tensor) in trained for tensor in tensors)


def _telling(hearers: Sequence[Callable[..., None]]) -> Callable[..., None]:
    """Return a function that calls all of these, or the only one itself."""
    if len(hearers) == 1:
        return hearers[0]

    def tell(*told: Any) -> None:
        for hear in hearers:
            hear(*told)

    return tell


def _passing_on(hearers: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that gives a value to all of these, each time as the one before left it."""
    if len(hearers) == 1:
        return hearers[0]

    def pass_on(about: Any, value: Any) -> Any:
        for hear in hearers:
            value = hear(about, value)
        return value

    return pass_on
