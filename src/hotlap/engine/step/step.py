"""`Step`: one optimizer step made of passes, decision and executor, and protocols of these parts.

| part | question | kinds |
|---|---|---|
| passes | how do gradients come about? | in micro-batches, on one rank or several |
| decision | is this update taken? | on the host, on the host behind the forward, on the device |
| executor | how is it all run? | as it is, or as a captured graph |

`Update` changes the weights, and is what the decision takes or leaves out.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from hotlap.engine.step.blocks import Blocks
from hotlap.engine.step.passes import MicroBatches, Passes
from hotlap.engine.step.rank_sum import RankSum
from hotlap.engine.step.rates_ahead import RatesAhead
from hotlap.engine.step.update import Update


class Decision(Protocol):
    """Decides whether a step's update is taken."""

    skipped: Any
    """Updates that were left out because something was not finite."""

    def decide(self, loss: torch.Tensor) -> Any:
        """Take the update or leave it out, given a loss whose gradients are there."""
        ...

    def report(self, decided: Any) -> tuple[torch.Tensor, Any]:
        """Return (loss, is taken) of what `decide` returned, on the host and behind the step."""
        ...

    def forget(self) -> None:
        """Forget a step that failed before its update."""
        ...


class Executor(Protocol):
    """Runs attempts at a step."""

    blocks: Blocks | None
    """Takes several steps at once; None where the executor takes each by itself."""
    replayed: MicroBatches | None
    """What the newest step has read, if it was a replay; None if not."""

    def __call__(self, micros: MicroBatches) -> Any:
        """Return what the decision returned."""
        ...

    def on_stream(self) -> AbstractContextManager[Any]:
        """Return a context manager in which work is queued where steps are."""
        ...

    def forget(self) -> None:
        """Forget a step that failed before its update."""
        ...


class Attempt:
    """Passes, then the decision; the executor that runs every step as it is.

    Args:
        passes: makes the gradients.
        update: changes the weights.
        decision: says whether it does.
    """

    replayed: MicroBatches | None = None
    blocks: Blocks | None = None

    def __init__(
        self,
        passes: Callable[[MicroBatches], torch.Tensor],
        update: Update,
        decision: Decision,
    ) -> None:
        self._passes, self._begin, self._decide = passes, update.begin, decision.decide

    def __call__(self, micros: MicroBatches) -> Any:
        self._begin()
        return self._decide(self._passes(micros))

    def on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def forget(self) -> None:
        """Nothing is kept from one step to the next."""


class Step:
    """Takes optimizer steps of one model.

    Args:
        passes: makes the gradients.
        update: changes the weights.
        decision: says whether it does.
        executor: runs them.
        ranks: adds up what several ranks found; None if this process is alone.
        ahead: the rates of a schedule that steps with the optimizer, where the device counts which
            updates are taken; None where the host does, and steps the schedule.
    """

    def __init__(
        self,
        passes: Passes,
        update: Update,
        decision: Decision,
        executor: Executor,
        ranks: RankSum | None = None,
        ahead: RatesAhead | None = None,
    ) -> None:
        self.passes, self.update, self.ranks = passes, update, ranks
        self._ahead = ahead
        self.decision, self.executor = decision, executor
        self.target, self.model = passes.target, passes.model

    def __call__(self, micros: MicroBatches) -> tuple[torch.Tensor, Any]:
        """Take a step; return its loss, a scalar on the device, and whether it was taken.

        Where the device decides, that is a flag which waits for the device if it is asked.
        """
        self.update.has_begun = False
        ahead = self._ahead
        if ahead is None:
            return self.decision.report(self.executor(micros))
        ahead.begin(1)
        done = self.executor(micros)
        ahead.count(1)
        return self.decision.report(done)

    @property
    def items(self) -> Any:
        """What the loss of the newest step counted, None if it gave a mean."""
        return self.passes.items

    @property
    def skipped(self) -> int:
        """Updates that were left out because something was not finite."""
        return self.decision.skipped

    @skipped.setter
    def skipped(self, value: int) -> None:
        self.decision.skipped = value

    def roll_back(self) -> None:
        """Forget a step that failed before its update."""
        self.executor.forget()
        self.decision.forget()
        self.update.roll_back()

    def kept_buffers(self) -> set[int]:
        """Return the ids of the buffers that `roll_back` makes what they were."""
        statistics = self.update.statistics
        return set() if statistics is None else statistics.ids

    @property
    def follows_schedule(self) -> bool:
        """True where the device follows the schedule: nobody else steps it."""
        return self._ahead is not None and self._ahead.problem is None

    def settle(self) -> None:
        """Let a schedule that steps with the optimizer follow the updates that were taken."""
        if self._ahead is not None:
            self._ahead.settle()

    def hold_rates(self) -> None:
        """Let the rates stay as they are: nobody steps the schedule any more."""
        if self._ahead is not None:
            self._ahead.hold()

    def forget_rates(self) -> None:
        """Forget what was known of a schedule's next rates: it was set to another place."""
        if self._ahead is not None:
            self._ahead.forget()

    def try_out(self, batch: Any) -> None:
        """Go forward and backward with a micro-batch, and forget the gradients."""
        with self.executor.on_stream():
            self.passes.try_out(batch)
        self.update.zero()
