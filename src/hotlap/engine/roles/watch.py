"""Watches a recipe's run: where the milliseconds of each step go, evaluation between epochs too."""

import collections
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from hotlap.device.accelerator import device_of
from hotlap.engine.build import Built
from hotlap.engine.evaluate import evaluate
from hotlap.engine.roles.trial import Trial
from hotlap.engine.run import steps_of
from hotlap.feed.sources.source import Source
from hotlap.feed.sources.stream import Stream
from hotlap.task import LoaderFacts, Task, TaskFacts
from hotlap.trace.clock import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, PhaseClock, phase_clock
from hotlap.trace.facts import getitem_of, optimizer_facts
from hotlap.trace.lines import SLOW_STEP_S, LineSampler
from hotlap.trace.paging import Paging
from hotlap.trace.schema import Anchor, HotLine, Trace


def observe(trial: Trial) -> None:
    """Record a `Trace` of whole epochs, as far as the seconds that were given reach.

    Then lines are sampled for a while, in further steps that are not timed.

    Options: `seconds`, `epochs`, `steps`, `naming_s`.
    """
    clock = phase_clock(device_of(trial.config.options.get("device")).name)
    built = trial.build(replace(trial.task, loss=_timed_loss(trial.task, clock)))
    watched = _Watched(trial, built, clock)
    built.source = _TimedSource(built.source, watched.timed_training)  # pyright: ignore[reportAttributeAccessIssue]
    if built.held_out is not None:
        built.held_out = _TimedSource(built.held_out, watched.timed)  # pyright: ignore[reportAttributeAccessIssue]
    _time_the_step(built, clock)
    ended = watched.run()
    trace = watched.trace()
    trial.report(built, steps=len(watched.rows), ended=ended, trace=trace.to_json())


def _timed_loss(task: Task, clock: PhaseClock) -> Callable[[Any, Any], Any]:
    """Return the task's loss; the engine goes backward as soon as it has it."""

    def loss(model: Any, batch: Any) -> Any:
        if not torch.is_grad_enabled():
            return task.loss(model, batch)
        clock.enter(FORWARD)
        value = task.loss(model, batch)
        clock.enter(BACKWARD)
        return value

    return loss


def _time_the_step(built: Built, clock: PhaseClock) -> None:
    built.step.target.after_backward.append(lambda: clock.enter(OTHER))
    built.optimizer.register_step_pre_hook(lambda *_: clock.enter(OPTIMIZER))
    built.optimizer.register_step_post_hook(lambda *_: clock.enter(OTHER))


class _TimedSource:
    """A source whose epochs are on the clock; in all else it is the source itself."""

    def __init__(self, source: Source | Stream, timed: Callable[..., Any]) -> None:
        self._source = source
        self.epoch = timed(source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class _Watched:
    """A run, and what was seen of it."""

    def __init__(self, trial: Trial, built: Built, clock: PhaseClock) -> None:
        self.trial, self.built, self.clock = trial, built, clock
        self.rows: list[Any] = []
        self.losses: list[Any] = []
        self.starts: list[int] = []
        self.lines: tuple[HotLine, ...] = ()
        self.setup_s = 0.0
        self.threads = torch.get_num_threads()
        self.paging = Paging()
        # Before anything hangs hooks onto it.
        self.optimizer = optimizer_facts(built.optimizer, "the recipe's task()")

    def timed(self, source: Source | Stream) -> Callable[..., Iterator[Any]]:
        """Return the source's `epoch`, with the wait for each batch on the clock."""
        original = source.epoch

        def epoch(*args: Any) -> Iterator[Any]:
            self.clock.enter(DATA)
            for given in original(*args):
                self.clock.enter(OTHER)
                yield given
                self.clock.enter(DATA)
            self.clock.enter(OTHER)

        return epoch

    def timed_training(self, source: Source | Stream) -> Callable[..., Iterator[Any]]:
        """Like `timed`; each call begins an epoch, the first one ends the set-up."""
        timed = self.timed(source)

        def epoch(*args: Any) -> Iterator[Any]:
            if not self.starts:
                self.setup_s = time.monotonic() - self.trial.config.options["started"]
                self.clock.reset()
            self.starts.append(len(self.rows))
            return timed(*args)

        return epoch

    def run(self) -> str:
        """Train as `hotlap train` does, up to a limit; return what ended it."""
        training = self._steps()
        ended = self._time_steps(training)
        naming_s = self.trial.config.options.get("naming_s", 0.0)
        if naming_s and not self.lines:
            self._name_lines(training, naming_s)
        return ended

    def _time_steps(self, training: Iterator[None]) -> str:
        begun = time.monotonic()
        sampler, ended = None, "script"
        for _ in training:
            if len(self.rows) == 1:
                sampler = self._first_step_ended(time.monotonic() - begun)
            if self._is_over(begun):
                ended = "limit"
                break
        if sampler is not None:
            self.lines = sampler.stop()
        return ended

    def _name_lines(self, training: Iterator[None], seconds: float) -> None:
        """Sample lines in further steps; a task that came to its end is gone through again."""
        until = time.monotonic() + seconds
        timed = len(self.rows)
        sampler = LineSampler(self.clock)
        while time.monotonic() < until:
            for _ in training:
                if time.monotonic() >= until:
                    break
            else:
                self.built.scheduler = None
                training = self._steps()
        self.lines = sampler.stop()
        del self.rows[timed:], self.losses[timed:]

    def _steps(self) -> Iterator[None]:
        """Take the run's steps, evaluation between epochs too."""
        for step in steps_of(self.built):
            self.clock.mark_boundary()
            self.rows.append(self.clock.take())
            self.losses.append(step.loss.detach())
            self.paging.step_ends()
            if step.ends_epoch and self.built.held_out is not None:
                evaluate(self.built)
            yield

    def _first_step_ended(self, seconds: float) -> LineSampler | None:
        """Tell how long a step takes; sample lines along with the timing where that is long."""
        self.trial.channel.send("step_time", seconds=seconds)
        if seconds >= SLOW_STEP_S and self.trial.config.options.get("naming_s"):
            return LineSampler(self.clock, coarse=True)
        return None

    def _is_over(self, begun: float) -> bool:
        limits = self.trial.config.options
        settled = len(self.starts) - 1 >= limits["epochs"] and len(self.rows) > self.starts[-1]
        is_long = time.monotonic() - begun >= limits["seconds"]
        return settled or is_long or len(self.rows) >= limits["steps"]

    def trace(self) -> Trace:
        """Return what was seen."""
        self.clock.flush(self.rows)
        taken = len(self.rows)
        return Trace(
            steps=[tuple(ns / 1e6 for ns in row) for row in self.rows],
            epoch_starts=[start for start in self.starts if start < taken],
            facts=self._facts(),
            anchor=Anchor("the engine's own step", "high", {"optimizer_steps": taken}),
            setup_s=self.setup_s,
            lines=self.lines,
            losses=[float(loss) for loss in self.losses],
            clock=self.clock.name,
        )

    def _facts(self) -> TaskFacts:
        built, task = self.built, self.trial.task
        layers = collections.Counter(type(module).__name__ for module in built.model.modules())
        epochs = f"{task.epochs} epochs of " if task.epochs is not None else ""
        page_faults, system_ms = self.paging.each()
        return TaskFacts(
            device=built.device.partition(":")[0],
            threads=self.threads,
            layers=dict(layers),
            loaders=(_loader_facts(task),),
            optimizers=(self.optimizer,),
            steps_per_epoch=task.steps_per_epoch,
            planned_steps=task.total_steps,
            planned_why=f"the recipe's task: {epochs}{task.steps_per_epoch} steps"
            if epochs
            else f"the recipe's task: {task.total_steps} steps",
            page_faults=page_faults,
            system_ms=system_ms,
        )


def _loader_facts(task: Task) -> LoaderFacts:
    kind = type(task.data)
    return LoaderFacts(
        dataset=f"{kind.__module__}.{kind.__qualname__}",
        length=task.samples,
        batch_size=task.most_samples,
        num_workers=0,
        map_style=not task.is_stream,
        plain_collate=task.collate in (None, default_collate),
        training=True,
        where="the recipe's task()",
        getitem=getitem_of(kind),
        batches=task.steps_per_epoch,
    )
