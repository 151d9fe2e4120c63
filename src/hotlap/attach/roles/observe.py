"""Watches a run: where the milliseconds of each step go, and which lines they are spent below."""

import collections
import time
from typing import Any

import torch

from hotlap.attach.roles.run import RunRole
from hotlap.task import TaskFacts
from hotlap.trace import frames
from hotlap.trace.clock import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, PhaseClock, phase_clock
from hotlap.trace.facts import (
    WatchedLoader,
    count_steps_per_epoch,
    device_of,
    loader_facts,
    optimizer_facts,
    plan_steps,
)
from hotlap.trace.lines import SLOW_STEP_S, LineSampler
from hotlap.trace.paging import Paging
from hotlap.trace.schema import Anchor, HotLine, Trace
from hotlap.trace.steppers import Stepper, Steppers

_LOOPS_AT_STEP = 3
_TELLING_STEPS = 2
"""Without a loader the first step is timed from its forward on only: the second one tells too."""


class ObserveRole(RunRole):
    """Records a `Trace` without a profiler, then samples lines in a window of its own."""

    wants_phases = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.clock = PhaseClock()
        self.rows: list[Any] = []
        self.losses: list[torch.Tensor] = []
        self.lines: tuple[HotLine, ...] = ()
        self.setup_s = 0.0
        self._loaders: dict[int, WatchedLoader] = {}
        self._last_loader: WatchedLoader | None = None
        self._roots: list[Any] = []
        self._steppers = Steppers()
        self._open = False
        self._step_began = 0.0
        self._began = 0.0
        self._backwards = 0
        self._paging = Paging()
        self._loops: list[frames.Loop] = []
        self._stack: list[frames.Function] = []
        self._line_sampler: LineSampler | None = None
        self._is_naming = False
        """True in the window whose steps are sampled, and not timed."""
        self._naming_until = 0.0

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        super().iterator_made(loader, iterator)
        known = self._loaders.setdefault(id(loader.dataset), WatchedLoader(loader))
        known.starts.append(self.steps)
        iterator._hotlap_loader = known

    def batch_begins(self, iterator: Any) -> None:
        self._training_begins()
        self.clock.enter(DATA)
        known = getattr(iterator, "_hotlap_loader", None)
        if known is not None and not known.where:
            known.where = frames.where(frames.caller(3))
            known.function = next(iter(frames.stack(frames.caller(3))), None)

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        known = getattr(iterator, "_hotlap_loader", None)
        if known is not None and batch is not None:
            known.batches += 1
            self._last_loader = known
        self.clock.enter(OTHER)
        return batch

    def _training_begins(self) -> None:
        """Everything before the first batch, or the first forward, is set-up."""
        if self.setup_s == 0.0:
            self._step_began = time.monotonic()
            self.setup_s = self._step_began - self.config.options["started"]
            if self.config.options.get("names_from_start"):
                self._begin_naming(self.config.options["seconds"])
            self.clock.reset()

    def root_found(self, module: Any) -> None:
        if not self._roots:
            self._run_on(device_of([module]))
        self._roots.append(module)

    def _run_on(self, device: str) -> None:
        """Go on with the clock of the device that the model is on: before, nobody touches one."""
        clock = phase_clock(device)
        if clock.name != self.clock.name:
            self.clock = clock
            if self._line_sampler is not None:
                self._line_sampler.clock = clock

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        del root
        self._training_begins()
        self.clock.enter(FORWARD)
        return inputs

    def backward_begins(self, loss: Any) -> None:
        self.clock.enter(BACKWARD)
        self._backwards += 1
        if self._last_loader is not None:
            self._last_loader.training = True
        if loss.numel() == 1:
            self.losses.append(loss.detach())

    def backward_ends(self) -> None:
        self.clock.enter(OTHER)

    def zeroing_begins(self) -> None:
        self.clock.enter_nested(OPTIMIZER)

    def zeroing_ends(self) -> None:
        self.clock.leave_nested()

    def step_begins(self, optimizer: Any) -> None:
        super().step_begins(optimizer)
        stepper = self._steppers.find(optimizer)
        if stepper is None:
            facts = optimizer_facts(optimizer, frames.where(frames.caller(2)))
            stepper = self._steppers.place(optimizer, facts)
        # With several optimizers an iteration ends at the last step before the first one's next.
        if self._open and stepper.number == 0:
            self._commit()
        self.clock.enter(OPTIMIZER)

    def step_ends(self, optimizer: Any) -> None:
        self.clock.enter(OTHER)
        stepper: Stepper | None = self._steppers.find(optimizer)
        assert stepper is not None, "a step ended that had not begun"
        stepper.steps += 1
        if stepper.number == 0:
            super().step_ends(optimizer)
            self._paging.step_ends()
        else:
            self.plan.step_ends()
        self.clock.mark_boundary()
        self._open = True
        if self.steps == _LOOPS_AT_STEP and not self._loops:
            self._loops = frames.counted_loops(frames.caller(2))
            self._stack = frames.stack(frames.caller(2))
        if stepper.number == 0 and stepper.steps <= _TELLING_STEPS:
            self._tell_step_time()
        if len(self._steppers.all) == 1:
            self._commit()
        self._check_limits()

    def _tell_step_time(self) -> None:
        """Tell how long a step takes, so that whoever waits knows what cannot be interrupted."""
        now = time.monotonic()
        if self.steps == 1:
            self._began = now
        seconds = now - self._step_began
        self._step_began = now
        self.channel.send("step_time", seconds=seconds)
        names = self.config.options.get("naming_s") and self._line_sampler is None
        if names and seconds >= SLOW_STEP_S:
            self._line_sampler = LineSampler(self.clock, coarse=True)

    def _commit(self) -> None:
        row = self.clock.take()
        self._open = False
        if not self._is_naming:
            self.rows.append(row)

    def _begin_naming(self, seconds: float) -> None:
        self._line_sampler = LineSampler(self.clock)
        self._is_naming = True
        self._naming_until = time.monotonic() + seconds

    def _check_limits(self) -> None:
        limits = self.config.options
        now = time.monotonic()
        if self._is_naming:
            if now >= self._naming_until:
                self.stop()
            return
        training = [known for known in self._loaders.values() if known.training]
        whole = max((len(known.starts) for known in training), default=0) - 1
        settled = whole >= limits["epochs"] and self.steps > max(
            known.starts[-1] for known in training
        )
        if settled or now - self._began >= limits["seconds"] or self.steps >= limits["steps"]:
            self.clock.flush(self.rows)
            if self._line_sampler is not None or not limits["naming_s"]:
                self.stop()
            else:
                self._begin_naming(limits["naming_s"])

    def report(self) -> dict[str, Any]:
        if self._open:
            self._commit()
        self.clock.flush(self.rows)
        if self._line_sampler is not None:
            self.lines = self._line_sampler.stop()
        return {"trace": self._trace().to_json()}

    def _trace(self) -> Trace:
        rows = [tuple(ns / 1e6 for ns in row) for row in self.rows]
        starts = [
            start
            for known in self._loaders.values()
            if known.training
            for start in known.starts
            if start < len(rows)
        ]
        votes = {
            "optimizer_steps": self.steps,
            "backwards": self._backwards,
            "training_batches": sum(k.batches for k in self._loaders.values() if k.training),
        }
        return Trace(
            steps=rows,
            epoch_starts=sorted(starts),
            facts=self._facts(),
            anchor=_anchor(votes, len(self._steppers.all)),
            setup_s=self.setup_s,
            lines=self.lines,
            losses=[float(loss) for loss in self.losses],
            clock=self.clock.name,
        )

    def _facts(self) -> TaskFacts:
        layers = collections.Counter(
            type(module).__name__ for root in self._roots for module in root.modules()
        )
        training = [known for known in self._loaders.values() if known.training]
        per_epoch = count_steps_per_epoch(training, self.steps)
        planned, why = plan_steps(self._loops, self._stack, training, per_epoch)
        page_faults, system_ms = self._paging.each()
        return TaskFacts(
            device=device_of(self._roots),
            threads=torch.get_num_threads(),
            layers=dict(layers),
            loaders=tuple(loader_facts(known) for known in self._loaders.values()),
            optimizers=tuple(stepper.facts for stepper in self._steppers.all),
            steps_per_epoch=per_epoch,
            planned_steps=planned,
            planned_why=why,
            page_faults=page_faults,
            system_ms=system_ms,
        )


def _anchor(votes: dict[str, int], optimizers: int) -> Anchor:
    steps, backwards, batches = votes.values()
    if optimizers == 1 and abs(backwards - steps) <= 1 and abs(batches - steps) <= 3:
        confidence = "high"
    elif steps and backwards >= steps:
        confidence = "medium"
    else:
        confidence = "low"
    return Anchor("optimizer.step", confidence, votes)
