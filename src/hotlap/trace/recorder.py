"""`Recorder`: clock, lines and events of one run, fed by the seams or by the engine's step."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from hotlap.distributed.shares import is_share
from hotlap.task import TaskFacts
from hotlap.trace.clock import OTHER, PhaseClock, phase_clock
from hotlap.trace.events import Events
from hotlap.trace.lines import LineSampler
from hotlap.trace.paging import SETTLED, Paging
from hotlap.trace.process_counts import ProcessCounter
from hotlap.trace.schema import ENOUGH_STEPS, Anchor, HotLine, Trace
from hotlap.trace.spots import Chain, SpotSampler, chain_of

SLOW_STEP_S = 0.5
"""Where a step takes this long, its lines are those that were seen while it was timed."""


_LOOKS_EVERY_S = 0.2
"""How often limits of time and of epochs are looked at."""
_ENOUGH_S = 2.0
"""After this time whole epochs are enough, however few steps they hold."""
_MANY_STEPS = 10**6
"""No limit of steps is reached between two looks."""
_monotonic = time.monotonic


@dataclass(frozen=True)
class Limits:
    """When enough of a run has been seen. Without any it is recorded to its end."""

    seconds: float = float("inf")
    """Steps are timed for so long at most."""
    epochs: float = float("inf")
    """Whole epochs that are enough, if they are not over in a few short steps."""
    steps: float = float("inf")
    naming_s: float = 0.0
    """Seconds of further steps, which are not timed, in which lines are sampled."""
    names_from_start: bool = False
    """Time nothing, and sample lines from the first batch on."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Limits":
        """Return those among the options of a role."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in options.items() if name in known})


class Recorder:
    """Records a `Trace` without a profiler, by instruments that know nothing of each other.

    `clock` gives each instant to a phase, `events` notes what the loop does, and the pages that a
    step asks for are counted; a sampler of lines works in a window of its own. Whoever feeds it
    calls `begin` before the first batch, moves the clock, and ends each step with `end_step`, or
    with `mark_step` and `commit`; `is_over` says when enough has been seen.

    Args:
        limits: when enough has been seen.
        started: when the process was started, as `time.monotonic()` counts.
        tell_step_s: told the seconds of the first steps, so that whoever waits knows what cannot be
            interrupted.
    """

    _TOLD = 2
    """Without a loader the first step is timed from its forward on only: the second tells too."""

    def __init__(
        self, limits: Limits, started: float, tell_step_s: Callable[[float], object]
    ) -> None:
        self.clock = PhaseClock()
        self.events = Events()
        self._paging = Paging()
        self._process = ProcessCounter()
        self._counted = 0
        self.is_beginning = True
        """True in the first steps, which are told, and whose parts are noted."""
        self.is_over = False
        """True once enough has been seen."""
        self.is_timed = False
        """True once enough steps have been timed."""
        self.setup_s = 0.0
        self.thread = threading.main_thread().ident
        """Identity of the thread that trains, as far as is known: others may read ahead."""
        self.keeps_losses = True
        """False where memory is observed: a loss may be a view of a whole batch's."""
        self.reads_losses = False
        """True if the number of a loss on the CPU is read at once, by an operator of its own."""
        self._limits, self._started, self._tell_step_s = limits, started, tell_step_s
        self._rows: list[Any] = []
        self._losses: list[torch.Tensor | float] = []
        self.add_loss = self._losses.append
        """Given a number: what `note_loss` does with that of a plain loss on the CPU."""
        self._lines: LineSampler | None = None
        self._hottest: tuple[HotLine, ...] = ()
        self._spots: SpotSampler | None = None
        self._stepping: set[Chain] = set()
        self._evaluating: set[Chain] = set()
        self._evaluated_at: set[int] = set()
        self._is_slow = False
        """True if a step takes so long that its own lines are all that there is time for."""
        self._is_open = False
        """True while a step that has been marked may go on."""
        self._is_naming = False
        self._naming_until = 0.0
        self._step_began = 0.0
        self._began = 0.0
        self.looks_at = 0.0
        """When the end of a step has to be looked at, as `time.monotonic()` counts."""
        self.at_looks: Callable[[], object] = bool
        """Called now and then at a step's end."""

    @property
    def steps(self) -> int:
        """Steps taken, whether they are timed or not."""
        return self._counted + self.clock.ended

    def run_on(self, device: str) -> None:
        """Go on with the clock of the device that the model is on: before, nobody touches one."""
        clock = phase_clock(device)
        if clock.name != self.clock.name:
            self._take_ended()
            self.clock = clock
            for sampler in (self._lines, self._spots):
                if sampler is not None:
                    sampler.clock = clock

    def begin(self) -> None:
        """Say that training begins; what was before is set-up. Further calls do nothing."""
        if self.setup_s == 0.0:
            self.thread = threading.get_ident()
            self._step_began = time.monotonic()
            self.setup_s = self._step_began - self._started
            if self._limits.names_from_start:
                self._begin_naming(self._limits.seconds)
            elif self._limits.naming_s:
                self._spots = SpotSampler(self.clock)
            # Of a model that is not called, steps may have ended before a loader is read.
            self._take_ended()
            self.clock.reset()

    def note_loss(self, loss: torch.Tensor) -> None:
        """Keep the loss of a backward, if it is one number, and not a share of one.

        To read a share may be a collective, which only this rank would call.
        """
        if not self.keeps_losses or loss.numel() != 1:
            return
        is_plain = type(loss) is torch.Tensor
        if is_plain and self.reads_losses and loss.is_cpu:
            self._losses.append(loss.item())
        elif is_plain or not is_share(loss):
            self._losses.append(number_of(loss))

    def losses(self) -> list[float]:
        """Return the losses so far. Waits for the device."""
        return [float(loss) for loss in self._losses]

    def note_part(self, frame: FrameType | None) -> None:
        """Note where the first steps call a backward or an update."""
        if self._spots is not None and self.is_beginning:
            self._stepping.add(chain_of(frame))

    def note_evaluation(self, frame: FrameType | None, *, is_training: bool) -> None:
        """Note where the model is called without gradients, or in evaluation mode."""
        if self._spots is not None and not self.is_timed:
            self._evaluating.add(chain_of(frame))
            if not is_training:
                self._evaluated_at.add(self.steps)

    def count_step(self) -> None:
        """Count a step."""
        self._counted += 1
        self.events.step = self.steps
        self._note_count()

    def _note_count(self) -> None:
        """Note what depends on how many steps were counted."""
        self.is_beginning = self.steps <= self._TOLD
        if self.steps == SETTLED:
            self._paging.begin()
            if not self.is_timed:
                self._process.begin(self.steps)

    def mark_step(self) -> None:
        """Everything up to now belongs to the step that is being made."""
        self._take_ended()
        self.clock.mark_boundary()
        self._is_open = True

    def tell_step(self) -> None:
        """Tell how long a step has taken, of the first ones."""
        if not self.is_beginning:
            return
        now = time.monotonic()
        if self.steps == 1:
            self._began = now
        seconds, self._step_began = now - self._step_began, now
        self._tell_step_s(seconds)
        self._is_slow = self._is_slow or seconds >= SLOW_STEP_S

    def end_step(self, epochs: Sequence[Sequence[int]]) -> None:
        """Count, mark, tell and close a step that nothing goes on with, and check the limits.

        No phase goes on after it. What need not be done in every step is done for many at once:
        what a step runs next to a model's kernels is in no cache.

        Args:
            epochs: see `check_limits`.
        """
        clock = self.clock
        clock.note_end(len(clock.marks))
        clock.note((OTHER, clock.now()))
        steps = self.events.step = self.steps
        now = _monotonic()
        if now < self.looks_at and SETTLED < steps < self._limits.steps:
            return
        self.looks_at = now + _LOOKS_EVERY_S
        self._note_count()
        self._take_ended()
        if self.is_beginning:
            self.tell_step()
        self.at_looks()
        self.check_limits(epochs)

    def page_means(self) -> tuple[float, float]:
        """Return page faults of a step, and the system's own share, see `Paging.step_means`."""
        self._paging.steps = self.steps - SETTLED
        return self._paging.step_means()

    def look_soon(self) -> None:
        """Check the limits at the end of the next step: an epoch of a loader has begun."""
        self.looks_at = 0.0

    def may_be_quiet(self) -> bool:
        """Return whether the end of each step need only be noted until `looks_at`."""
        has_many = self._limits.steps - self.steps > _MANY_STEPS
        return self.events.is_asleep and self.steps > SETTLED and has_many

    def _take_ended(self) -> None:
        rows = self.clock.take_ended()
        self._counted += len(rows)
        if not self._is_naming:
            self._rows += rows

    def commit(self) -> None:
        """Close the step that was marked, if there is one."""
        if not self._is_open:
            return
        row = self.clock.take()
        self._is_open = False
        if not self._is_naming:
            self._rows.append(row)

    def check_limits(self, epochs: Sequence[Sequence[int]]) -> None:
        """Set `is_over`, or begin to sample lines, if enough has been seen.

        Args:
            epochs: of each training loader, how many steps were done when an epoch of it began.
        """
        now = time.monotonic()
        if self._is_naming:
            self.is_over = now >= self._naming_until
            return
        limits = self._limits
        whole = max(map(len, epochs), default=0) - 1
        is_settled = whole >= limits.epochs and self.steps > max(starts[-1] for starts in epochs)
        if is_settled and now - self._began < _ENOUGH_S:
            is_settled = max(starts[-1] - starts[0] for starts in epochs) >= ENOUGH_STEPS
        if is_settled or now - self._began >= limits.seconds or self.steps >= limits.steps:
            self.end_timing()

    def end_timing(self) -> None:
        """Time no more steps; sample lines in further ones, if that is wanted and not yet done."""
        self.is_timed = True
        self._process.end(self.steps)
        self._take_ended()
        self.clock.flush(self._rows)
        if self._spots is not None:
            self._spots.stop()
        if self._is_slow or not self._limits.naming_s:
            self.is_over = True
        else:
            self._begin_naming(self._limits.naming_s)

    def _begin_naming(self, seconds: float) -> None:
        self._lines = LineSampler(self.clock)
        self._is_naming = True
        self._naming_until = time.monotonic() + seconds

    def close(self) -> None:
        """Close the last step, wait for the device, and end the sampling of lines."""
        self.commit()
        self._process.end(self.steps)
        self._take_ended()
        self.clock.flush(self._rows)
        if self._lines is not None:
            self._hottest = self._lines.stop()
            self._lines = None
        if self._spots is not None:
            self._spots.stop()
            self._hottest = self._hottest or self._spots.lines()

    def means_ms(self) -> tuple[float, ...]:
        """Return the ms of each phase in the mean step so far, the first one not counted."""
        self._take_ended()
        rows = self._rows[1:] or self._rows
        return tuple(sum(column) / len(rows) / 1e6 for column in zip(*rows, strict=True))

    def trace(self, facts: TaskFacts, anchor: Anchor, epochs: Sequence[Sequence[int]]) -> Trace:
        """Return what was recorded, once it is closed.

        Args:
            facts: what the run has shown of its task.
            anchor: how steps were recognised.
            epochs: see `check_limits`, of the loader whose epochs are the run's.
        """
        taken = len(self._rows)
        return Trace(
            steps=[tuple(ns / 1e6 for ns in row) for row in self._rows],
            epoch_starts=sorted({start for starts in epochs for start in starts if start < taken}),
            facts=facts,
            anchor=anchor,
            setup_s=self.setup_s,
            lines=self._hottest,
            losses=self.losses(),
            clock=self.clock.name,
            events=self.events.as_tuple(),
            spots=()
            if self._spots is None
            else self._spots.spots(self._stepping, self._evaluating),
            evaluations=len(self._evaluated_at),
            process=self._process.counts(),
        )


def number_of(loss: torch.Tensor) -> torch.Tensor:
    """Return the loss without its graph, in memory that is its own alone.

    The storage of a mean, as `mse_loss` gives it, may be as large as what it is the mean of.
    """
    number = loss.detach()
    if type(number) is not torch.Tensor:
        return number
    if number.is_cuda:
        # A graph that is replayed, as compiled code may be, writes its next loss where this one is.
        # In one that is being captured, a copy would become a part of it.
        return number if torch.cuda.is_current_stream_capturing() else number.clone()
    if number.untyped_storage().nbytes() == number.nbytes:
        return number
    return number.clone()
