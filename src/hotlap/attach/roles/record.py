"""In the role `run`: records the losses of a script's steps, taken where backward starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hotlap.attach.on_ranks import rank_in_group
from hotlap.attach.roles.session import Part, Session
from hotlap.device.accelerator import device_of
from hotlap.trace.recorder import number_of
from hotlap.trace.steppers import Steppers
from hotlap.track.losses import DeferredLosses
from hotlap.track.metrics_file import MetricsFile
from hotlap.track.records import BEGAN
from hotlap.track.run_file import seconds_since
from hotlap.track.sampler import Sampler, start_sampler
from hotlap.track.writer import Writer

_MOST_OTHERS = 100
"""Steps of each other optimizer in a row after which losses are no longer those of the first."""
_MOST_BACKWARDS = 10_000
"""Backward passes between two steps of the first one: each keeps a tensor."""


class RecordLosses(Part):
    """Records a loss for each step of the optimizer that steps first: the mean over its backwards.

    Of several ranks the first one records. Begins with the first step: what never trains, such as
    a launcher, records nothing.

    Args:
        session: what it is a part of. Its option `record` holds the run's folder, when it began,
            and the seconds between two samples of system metrics.
    """

    wants_losses = True

    def __init__(self, session: Session) -> None:
        self._options = session.config.options["record"]
        self._steps = self._others = 0
        self._most_others = 0
        """Steps of other optimizers between two of the first one, at most."""
        self._steppers = Steppers()
        self._seen: list[torch.Tensor] = []
        """Losses that were sent backward since the last step."""
        self._are_too_many = False
        """More losses than are kept were sent backward since then."""
        self._scaled: tuple[Any, Any] | None = None
        """What a `GradScaler` gave last, and what it was given."""
        self._writer: Writer | None = None
        self._sampler: Sampler | None = None
        self._losses: DeferredLosses | None = None
        self._problem: str | None = None
        self._is_off = False

    def loss_scaled(self, scaled: Any, given: Any) -> None:
        self._scaled = scaled, given

    def backward_begins(self, loss: Any) -> None:
        self._do(lambda: self._see(loss))

    def step_done(self, optimizer: Any) -> None:
        self._do(lambda: self._count(optimizer))

    def report(self) -> dict[str, Any]:
        # Also of what has stopped in the middle: what it has taken is written.
        self._is_off = False
        self._do(self._end)
        problems = [self._problem] if self._problem else []
        if self._writer is not None:
            problems += self._writer.problems
        return {"recorded": {"problems": problems}}

    def _do(self, work: Callable[[], None]) -> None:
        """Do a part of the recording; what goes wrong with it is no matter of the script."""
        if self._is_off:
            return
        try:
            work()
        except Exception as error:
            self._is_off = True
            self._seen.clear()
            words = f"{type(error).__name__}: {error}".partition("\n")[0]
            self._problem = (
                self._problem or f"after step {self._steps} nothing is recorded: {words}"
            )

    def _see(self, loss: Any) -> None:
        if self._are_too_many:
            return
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0] is loss:
            loss = scaled[1]
        is_captured = loss.is_cuda and torch.cuda.is_current_stream_capturing()
        # A gradient that is given for many numbers is no loss; a meta tensor has no number.
        if loss.numel() == 1 and not loss.is_meta and not loss.is_complex() and not is_captured:
            # A script may use the loss once more, and change it, before its step.
            number = number_of(loss).reshape(())
            self._seen.append(number if number.is_cuda else number.clone())
        if len(self._seen) >= _MOST_BACKWARDS:
            self._seen.clear()
            self._are_too_many = True

    def _count(self, optimizer: Any) -> None:
        stepper = self._steppers.find_or_place(optimizer)
        stepper.steps += 1
        if stepper.number == 0:
            self._steps += 1
            self._most_others = max(self._most_others, self._others)
            self._others = 0
            self._record()
            return
        self._others += 1
        if self._is_replaced:
            self._seen.clear()

    @property
    def _is_replaced(self) -> bool:
        """The first optimizer steps no more, so that losses are those of another one."""
        return self._others > _MOST_OTHERS * max(1, len(self._steppers.all) - 1)

    @property
    def _ends_with_others(self) -> bool:
        """More steps of others came after the last one of the first optimizer than between two."""
        return self._others > max(self._most_others, len(self._steppers.all) - 1)

    def _record(self) -> None:
        seen, self._seen = self._seen, []
        if self._are_too_many:
            self._are_too_many = False
            self._problem = self._problem or (
                f"the loss of step {self._steps} is not recorded: more than {_MOST_BACKWARDS:,} "
                "backward passes came before it"
            )
        if not seen:
            return
        if self._losses is None:
            self._begin(str(seen[0].device))
        if self._losses is not None:
            loss = seen[0] if len(seen) == 1 else torch.stack(seen).float().mean()
            self._losses.add(self._steps, None, loss)

    def _end(self) -> None:
        if self._is_replaced or self._ends_with_others:
            self._problem = self._problem or (
                f"losses after step {self._steps} are not recorded: from there on, another "
                "optimizer steps than the first one"
            )
        if self._sampler is not None:
            self._sampler.close()
        if self._losses is not None and self._writer is not None:
            self._losses.flush()
            self._writer.close()

    def _begin(self, device: str) -> None:
        if rank_in_group() not in (None, 0):
            self._is_off = True
            return
        # Of processes that know nothing of each other one records: the others wait for nothing.
        file = MetricsFile(Path(self._options["folder"]), patience_s=0.0)
        writer = self._writer = Writer(file, seconds_since(self._options["began"]))
        writer.add(BEGAN, 0, None, {})
        self._losses = DeferredLosses(device_of(device), writer.add_loss, writer.now)
        self._sampler = start_sampler(writer, self._options["every_s"])
