"""Role `observe` of a recipe: measures where the milliseconds of each step and evaluation go."""

import collections
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from hotlap.device import process_settings
from hotlap.device.accelerator import device_of
from hotlap.engine.build import BuiltRun
from hotlap.engine.evaluate import evaluate
from hotlap.engine.evaluation_batches import enlarge_batches
from hotlap.engine.roles.trial import Trial
from hotlap.engine.steps import steps_of
from hotlap.feed.sources.source import Source
from hotlap.feed.sources.stream import Stream
from hotlap.task import LoaderFacts, Task, TaskFacts
from hotlap.trace import event_kinds, store
from hotlap.trace.clock import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER, PhaseClock
from hotlap.trace.denormals import count_denormals
from hotlap.trace.facts import getitem_of, optimizer_facts
from hotlap.trace.recorder import Limits, Recorder
from hotlap.trace.schema import Anchor, Trace
from hotlap.trial.autocast_gate import AutocastGate, AutocastTurns
from hotlap.usercode import files_to_report

_WHERE = "the recipe's task()"


def observe(trial: Trial) -> None:
    """Record a `Trace` of whole epochs, as far as the seconds that were given reach.

    Then lines are sampled for a while, in further steps that are not timed.

    Options: `folder`, where the trace is written; `autocast` and `autocast_turns`, see
    `hotlap.trial.autocast_gate`; and those of `hotlap.trace.recorder.Limits`.
    """
    options = trial.config.options
    recorder = Recorder(
        Limits.from_options(options),
        options["started"],
        lambda seconds: trial.channel.send("step_time", seconds=seconds),
    )
    recorder.run_on(device_of(options.get("device")).name)
    built = trial.build(replace(trial.task, loss=_timed_loss(trial.task, recorder.clock)))
    watched = _Watched(trial, built, recorder)
    built.source = _TimedSource(built.source, watched.timed_training)  # pyright: ignore[reportAttributeAccessIssue]
    if built.held_out is not None:
        if built.hardware.tells_needed_bytes:
            # As `hotlap.train` does it.
            evaluate(built, batches=1)
            enlarge_batches(built)
        built.held_out = _TimedSource(built.held_out, watched.time_epoch)  # pyright: ignore[reportAttributeAccessIssue]
    watched.time_the_step()
    ended = watched.run()
    trace = watched.trace()
    store.write(trace, Path(options["folder"]))
    trial.report(built, steps=len(trace.steps), ended=ended, files=files_to_report())


def _turns_of(trial: Trial) -> AutocastTurns | None:
    """Return what switches autocast in turns, None where nothing is to be switched."""
    options = trial.config.options
    if not options.get("autocast"):
        return None
    gate = AutocastGate()
    gate.install()
    return AutocastTurns(gate, options["autocast"], options["autocast_turns"])


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


class _TimedSource:
    """A source whose epochs are on the clock; in all else it is the source itself."""

    def __init__(self, source: Source | Stream, timed: Callable[..., Any]) -> None:
        self._source = source
        self.epoch = timed(source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class _Watched:
    """A run, and what was seen of it."""

    def __init__(self, trial: Trial, built: BuiltRun, recorder: Recorder) -> None:
        self.trial, self.built, self.recorder = trial, built, recorder
        self.clock = recorder.clock
        self.starts: list[int] = []
        self.threads = torch.get_num_threads()
        self._turns = _turns_of(trial)
        # Before anything hangs hooks onto it.
        self.optimizer = optimizer_facts(built.optimizer, _WHERE)

    def time_the_step(self) -> None:
        """Move the clock with the step that the engine takes."""
        step_hooks = self.built.optimizer
        self.built.step.target.after_backward.append(self._backward_ended)
        step_hooks.register_step_pre_hook(lambda *_: self._update_begins())
        step_hooks.register_step_post_hook(lambda *_: self.clock.enter(OTHER))

    def _backward_ended(self) -> None:
        self.clock.enter(OTHER)
        self.recorder.events.note(event_kinds.BACKWARD, None)

    def _update_begins(self) -> None:
        self.clock.enter(OPTIMIZER)
        self.recorder.events.note(event_kinds.OPTIMIZER_STEP, None)

    def time_epoch(self, source: Source | Stream) -> Callable[..., Iterator[Any]]:
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
        timed = self.time_epoch(source)

        def epoch(*args: Any) -> Iterator[Any]:
            self.recorder.begin()
            self.starts.append(self.recorder.steps)
            return timed(*args)

        return epoch

    def run(self) -> str:
        """Train as `hotlap train` does, until enough was seen; return what ended the timing."""
        recorder = self.recorder
        self._train()
        ended = "limit" if recorder.is_timed else "script"
        if not recorder.is_timed:
            recorder.end_timing()
        while not recorder.is_over:
            # A task that came to its end is gone through again, to see its lines.
            self.built.stop_schedule()
            self._train()
        recorder.close()
        return ended

    def _train(self) -> None:
        """Take the run's steps, evaluation between epochs too."""
        for step in steps_of(self.built):
            self.recorder.count_step()
            self.recorder.mark_step()
            if self._turns is not None:
                self._turns.begin(self.recorder.steps)
            self.recorder.commit()
            self.recorder.note_loss(step.loss)
            if step.ends_epoch and self.built.held_out is not None:
                evaluate(self.built)
            self.recorder.tell_step()
            self.recorder.check_limits([self.starts])
            if self.recorder.is_over:
                return

    def trace(self) -> Trace:
        """Return what was seen."""
        votes = {"optimizer_steps": self.recorder.steps}
        anchor = Anchor("the engine's own step", "high", votes)
        return self.recorder.trace(self._facts(), anchor, [self.starts])

    def _facts(self) -> TaskFacts:
        built, task = self.built, self.trial.task
        layers = collections.Counter(type(module).__name__ for module in built.model.modules())
        epochs = f"{task.epochs} epochs of " if task.epochs is not None else ""
        page_faults, system_share = self.recorder.page_means()
        device_bytes, device_room = process_settings.memory_of_process()
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
            system_share=system_share,
            denormals=count_denormals([built.optimizer]),
            device_bytes=device_bytes,
            device_room=device_room,
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
        where=_WHERE,
        getitem=getitem_of(kind),
        batches=task.steps_per_epoch,
    )
