"""`Session`: receives the seams' events, applies the plan, and calls the parts of its role."""

import os
import sys
from collections.abc import Sequence
from typing import Any

from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.listener import Listener
from hotlap.attach.live import LiveTechniques
from hotlap.attach.on_ranks import rank_in_group, ranks_in_group
from hotlap.techniques.record import MakeIterator
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_STOPPED, OF_COMMAND, Config


class Part(Listener):
    """One part of a role; it hears what the script does, and every method may be left as it is.

    What begins is heard in the order of the parts, what ends in the opposite order: a part that
    comes later sees the step as the earlier ones have prepared it.
    """

    def root_found(self, module: Any) -> None:
        """A module that an optimizer trains is about to run for the first time."""

    def other_called(self, module: Any) -> None:
        """A module that no optimizer trains is about to run in training, before the first step."""

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
        self.steps = 0
        """Steps of all optimizers."""
        self.ranks = 1
        """Processes that train one model, as seen at the first step."""
        self.parts: Sequence[Part] = ()
        self.wants_roots = plan.wants("model")
        self._pid = os.getpid()
        self._finished = False

    def play(self, *parts: Part) -> None:
        """Let these parts hear what the script does."""
        self.parts = parts
        self.wants_phases = any(part.wants_phases for part in parts)
        self.wants_losses = any(part.wants_losses for part in parts)
        self.wants_events = any(part.wants_events for part in parts)
        self.wants_evaluation = any(part.wants_evaluation for part in parts)

    def iterator_wanted(self, loader: Any) -> MakeIterator | None:
        return self.plan.iterator_wanted(loader)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        self.plan.iterator_made(loader, iterator)
        for part in self.parts:
            part.iterator_made(loader, iterator)

    def optimizer_made(self, optimizer: Any) -> None:
        for part in self.parts:
            part.optimizer_made(optimizer)

    def batch_begins(self, iterator: Any) -> None:
        for part in self.parts:
            part.batch_begins(iterator)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        for part in self.parts:
            batch = part.batch_ends(iterator, batch)
        return batch

    def root_wanted(self, module: Any) -> bool:
        trained = {
            id(parameter)
            for optimizer in seams.known_optimizers()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        if not any(id(parameter) in trained for parameter in module.parameters()):
            for part in self.parts:
                part.other_called(module)
            return False
        self.plan.root_found(module)
        for part in self.parts:
            part.root_found(module)
        return True

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for part in self.parts:
            inputs = part.forward_begins(root, inputs)
        return inputs

    def forward_ends(self, root: Any, output: Any) -> None:
        for part in reversed(self.parts):
            part.forward_ends(root, output)

    def evaluation_forward_ends(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        for part in self.parts:
            part.evaluation_forward_ends(module, args, kwargs, output)

    def backward_begins(self, loss: Any) -> None:
        for part in self.parts:
            part.backward_begins(loss)

    def backward_ends(self) -> None:
        for part in reversed(self.parts):
            part.backward_ends()

    def zeroing_begins(self) -> None:
        for part in self.parts:
            part.zeroing_begins()

    def zeroing_ends(self) -> None:
        for part in reversed(self.parts):
            part.zeroing_ends()

    def gradients_unscaled(self, optimizer: Any, scaler: Any) -> None:
        for part in self.parts:
            part.gradients_unscaled(optimizer, scaler)

    def loss_scaled(self, scaled: Any, given: Any) -> None:
        for part in self.parts:
            part.loss_scaled(scaled, given)

    def event_happens(self, kind: str) -> None:
        for part in self.parts:
            part.event_happens(kind)

    def schedule_steps(self, schedule: Any) -> None:
        for part in self.parts:
            part.schedule_steps(schedule)

    def object_saved(self, value: Any) -> None:
        for part in self.parts:
            part.object_saved(value)

    def file_loaded_unsafely(self) -> None:
        for part in self.parts:
            part.file_loaded_unsafely()

    def step_begins(self, optimizer: Any) -> None:
        self.plan.step_begins(optimizer)
        for part in self.parts:
            part.step_begins(optimizer)

    def step_ends(self, optimizer: Any) -> None:
        for part in reversed(self.parts):
            part.step_ends(optimizer)
        self.plan.step_ends()
        self.steps += 1
        if self.steps == 1:
            seams.stop_looking_for_roots()
            # A script that ends well has taken its process group down by then.
            self.ranks = ranks_in_group()
            self.channel.send("trains", rank=rank_in_group(), ranks=self.ranks)
        for part in self.parts:
            part.step_done(optimizer)

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
