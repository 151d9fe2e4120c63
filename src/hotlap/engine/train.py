"""`hotlap.train`: a whole training, from its arguments over evaluation and saving to its report."""

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotlap.checkpoint.foreign_run import ForeignRun, read_run
from hotlap.distributed.ranks import TIMEOUT_S
from hotlap.engine.build import build
from hotlap.engine.checks.same_on_ranks import check_given
from hotlap.engine.clock import EpochClock
from hotlap.engine.continuing.continuing import continue_run
from hotlap.engine.epoch_end import (
    check_learning,
    ends_at,
    measure_epoch,
    report_epoch,
    try_measures,
)
from hotlap.engine.evaluate import Stopped, evaluate
from hotlap.engine.evaluation_batches import enlarge_batches
from hotlap.engine.evaluation_guard import kept_random_states
from hotlap.engine.export.stored_weights import weights_of
from hotlap.engine.memory.rank_bytes import announce
from hotlap.engine.rank_device import joined_on_device
from hotlap.engine.recording import RunRecording
from hotlap.engine.retries import Retries
from hotlap.engine.state.beginning import Beginning, begin
from hotlap.engine.state.content import capture
from hotlap.engine.state.finding import find, name_newest, run_folder, run_of
from hotlap.engine.state.interval import Every
from hotlap.engine.state.saving import Saver, check_keep
from hotlap.engine.state.weights import load_weights
from hotlap.engine.steps import StepDone
from hotlap.engine.train_arguments import check_beginnings, check_timeout
from hotlap.engine.train_loop import take_steps
from hotlap.engine.training_report import EpochDone, TrainingReport
from hotlap.errors import RunError, UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN
from hotlap.track.recording import Request
from hotlap.track.sampler import EVERY_S

log = logging.getLogger("hotlap")


def train(
    task: Task,
    plan: Plan | None = None,
    *,
    device: str | None = None,
    run_dir: str | Path | None = None,
    resume: str | None = None,
    weights: str | Path | None = None,
    continue_from: str | Path | None = None,
    keys: Mapping[str, str] | str | None = None,
    epochs_done: int | None = None,
    save_every: str | None = None,
    keep: int = 2,
    techniques: tuple[str, ...] = (),
    rank_timeout_s: float = TIMEOUT_S,
    rank_overlap: bool = False,
    track: Sequence[str] = (),
    system_every_s: float = EVERY_S,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[EpochDone], None] = lambda _: None,
    saved: Callable[[EpochDone, Path], None] = lambda _epoch, _folder: None,
    notice: Callable[[str], None] = log.info,
    stop: Callable[[], bool] = lambda: False,
    until: int | None = None,
) -> TrainingReport:
    """Train to the end, evaluate after every epoch, and save as often as was asked for.

    In a process that `torchrun`, Slurm or `hotlap train --devices` has started as one of several
    ranks, or that is in a process group of `torch.distributed`, all ranks train one model: each
    takes its share of every step. What is learned is the same for any number of ranks.

    Args:
        task: what is learned.
        plan: how it is executed; exact techniques only if None.
        device: as torch names it; the first accelerator if None, else the CPU.
        run_dir: the run's folder, for its checkpoints and its records (`run.json` and
            `metrics.jsonl`, see `hotlap.track`). If None that of the run that is resumed; of a run
            that begins nothing is then saved or recorded.
        resume: continue from this folder `step-...` or this run's folder; `auto`: from `run_dir`,
            or begin there if nothing was saved yet.
        weights: begin with these: a run's folder, a folder `step-...`, or a file that people have,
            see `hotlap.checkpoint.foreign`. The optimizer begins without state. With
            `resume="auto"` they are taken where nothing was saved yet.
        continue_from: continue a run that a plain script saved with `torch.save`: weights,
            optimizer, scheduler and epoch. With `resume="auto"` it is used where nothing was saved
            yet.
        keys: part of that run -> its key in the file, see `hotlap.checkpoint.foreign_run.PARTS`;
            parts that are missing are looked for. Or as text: `model=net,optimizer=opt`.
        epochs_done: epochs of that run; None to find out from the file.
        save_every: `500steps`, `2epochs`, `10m`; every epoch if None. The end of the run is saved
            in any case.
        keep: how many steps are kept, the newest ones.
        techniques: techniques from outside that the plan names, as `module:NAME`.
        rank_timeout_s: seconds after which one of several ranks that waits for another one gives
            up, and the run ends. What they wait for one rank with, such as saving, must take less.
        rank_overlap: sum the gradients of several ranks while the backward pass still runs.
        track: trackers that get the records too: `tensorboard`, `wandb`, `mlflow`, `trackio`, or
            `module:NAME`. Each runs in a process of its own; needs `run_dir`.
        system_every_s: seconds between two samples of system metrics in the records.
        about: what `run.json` says of the task beside what is known of it.
        progress: called after every epoch, before it is saved; of several ranks, by the first one.
        saved: called after an epoch whose checkpoint was committed, with the epoch and the folder
            of the step; of several ranks, by the first one. Not called for an epoch that is not
            saved, or whose checkpoint could not be written. What it and `progress` draw from the
            global random generators, and how they seed them, changes nothing of the run.
        notice: called with what the user should know, in words: before the first step what the run
            continues from, later what went wrong with a save that does not end the run.
        stop: asked after every step, and while held-out samples are looked at; once it says True
            the run is saved where it stands, and returned. Signal handlers are the caller's: here
            none is set.
        until: pause after this step of the run: it is evaluated and saved there, as at the end of
            an epoch, whatever `stop` says, and returned as stopped. With `resume="auto"` a later
            call continues from it.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: something in the task is not what it says it is, the checkpoint is of another
            task, or the folder holds what this run's steps would be mixed with; ranks do not begin
            alike.
        MissingFile: there is nothing to resume from.
        CheckpointCorrupt: the step that is to be resumed is damaged, or no step of a run.
        RunError: another rank is gone, or did not answer in time; steps that cannot be taken.
        StorageError: the last checkpoint could not be written. Of an earlier one that could not,
            `notice` says so, and the next one is tried.
    """
    begun = time.monotonic()
    folder = run_folder(run_dir) if run_dir is not None else None
    every = Every.parse("1epoch" if save_every is None else save_every)
    check_keep(keep)
    check_timeout(rank_timeout_s)
    if folder is None and resume is None:
        _check_unsaved(save_every, track)
    request = Request(about or {}, tuple(track), system_every_s)
    check_beginnings(resume, weights, continue_from, keys, epochs_done)
    checkpoint, passed = find(resume, folder) if resume is not None else (None, [])
    for why in passed:
        notice(f"skipped: {why}")
    if resume is not None and checkpoint is None:
        notice(f"no checkpoint in '{folder}' yet: starting a new run")
    foreign = None
    if continue_from is not None and checkpoint is None:
        foreign = read_run(Path(continue_from), keys, epochs_done)
    if folder is None and checkpoint is not None:
        folder = run_of(checkpoint.path)
    ranks = joined_on_device(device, timeout_s=rank_timeout_s, overlaps=rank_overlap)
    with ranks as (reduce, device):
        if reduce.rank:
            progress = saved = notice = _say_nothing
        saver = None if folder is None else Saver(folder, every, keep, notice, reduce)
        recording = RunRecording(None if reduce.rank else folder, request, notice)
        chosen = EXACT_PLAN if plan is None else plan
        beginning = None
        try:
            if saver is not None:
                # Before anything that takes long; what is not there yet nobody else saves into.
                saver.open(makes=False)
            beginning = begin(
                lambda: build(task, chosen, device=device, techniques=techniques, reduce=reduce),
                checkpoint,
                resume,
                folder,
                notice,
            )
            # Nobody is still reading what the first rank may delete.
            reduce.wait()
            run = _Run(beginning, saver, recording, progress, saved, notice, stop, begun, until)
            report = run.train(weights, foreign)
            recording.end(is_stopped=report.is_stopped)
            return report
        except BaseException as error:
            recording.end(error=error)
            if isinstance(error, RunError) and reduce.world > 1:
                name_newest(error, folder)
            raise
        finally:
            try:
                if beginning is not None:
                    beginning.built.end()
            finally:
                if saver is not None:
                    saver.close()


def _check_unsaved(save_every: str | None, track: Sequence[str]) -> None:
    """Refuse what needs a run's folder, where there is none."""
    if save_every is not None:
        raise UsageError(
            f"save_every={save_every!r} needs a folder for checkpoints. Pass --run-dir FOLDER "
            "(run_dir in hotlap.train), or remove --save-every."
        )
    if track:
        raise UsageError(
            f"tracker '{track[0]}' needs a folder to record the run in. Pass --run-dir FOLDER "
            "(run_dir in hotlap.train), or remove the tracker from --track."
        )


def _say_nothing(*_: object) -> None:
    return None


def _never() -> bool:
    return False


class _Run:
    """One run from where it begins to its end, or until it is stopped."""

    def __init__(
        self,
        beginning: Beginning,
        saver: Saver | None,
        recording: RunRecording,
        progress: Callable[[EpochDone], None],
        tell_saved: Callable[[EpochDone, Path], None],
        notice: Callable[[str], None],
        stop: Callable[[], bool],
        begun: float,
        until: int | None = None,
    ) -> None:
        self.built, self.saved = beginning.built, beginning.saved
        self.position = beginning.position
        self.unfit = beginning.unfit
        self.saver, self.progress, self.notice = saver, progress, notice
        self.tell_saved, self.recording, self.until = tell_saved, recording, until
        ranks = self.built.step.ranks
        if ranks is not None:
            # All of them stop after the same step, which they agree on while they take it.
            ranks.vote, stop = stop, lambda: ranks.is_stop_wanted
        self.stop, self.begun = stop, begun
        self.stop_measuring = stop if ranks is None else _never
        """Asked while held-out samples are looked at."""
        self.clock = EpochClock(self.built.hardware)
        self.epochs: list[EpochDone] = []
        self.retries: Retries | None = None

    def train(self, weights: str | Path | None, foreign: ForeignRun | None) -> TrainingReport:
        """Train, and return what that gave."""
        is_finished = self._prepare(weights, foreign)
        self.begun_step = self.position.step
        kept = None if self.saved is None else self.saved.state["clock"]
        self.clock = EpochClock(self.built.hardware, kept)
        if not is_finished:
            is_there = self.until is not None and self.position.step >= self.until
            return self._make_report(is_stopped=is_there or self.stop() or self._take_steps())
        held_out = {}
        if self.built.held_out is not None:
            try:
                held_out = evaluate(self.built, stop=self.stop_measuring)
            except Stopped:
                return self._make_report(is_stopped=True)
        self.recording.last_evaluation(self.position, held_out)
        saver, saved = self.saver, self.saved
        if saver is not None and not (saved is not None and saver.holds(saved)):
            saver.save(self.built, self.position, self.clock.to_json(), must=True)
        return self._make_report(held_out=held_out)

    def _prepare(self, weights: str | Path | None, foreign: ForeignRun | None) -> bool:
        """Do what is done before the first step; return whether nothing is left to train."""
        built, saved, saver = self.built, self.saved, self.saver
        if weights is not None and saved is None:
            found = weights_of(weights, built.model.state_dict(), self.notice)
            check_given(found, weights, built.reduce)
            load_weights(built, found)
        source = None if saved is None else saved.path
        if foreign is not None:
            source = foreign.path
            also = {"epoch": foreign.epoch, "step": foreign.step}
            check_given({**foreign.weights, **also}, source, built.reduce)
            self.position = continue_run(built, foreign, self.notice)
        is_finished = source is not None and ends_at(built.task, self.position, source)
        if saved is not None:
            end = ", the end of the run" if is_finished else ""
            self.notice(f"resuming from '{saved.path}', step {self.position.step}{end}")
        if not is_finished:
            announce(built, self.notice)
        # Last: nothing is written before everything that was given is known to be right.
        if saver is not None:
            # What cannot be saved is said now, not after an epoch.
            capture(built, self.position)
        if built.held_out is not None and not (
            is_finished and not built.hardware.tells_needed_bytes
        ):
            try_measures(built, is_finished=is_finished)
            enlarge_batches(built)
        if saver is not None:
            saver.unfit |= self.unfit
            saver.prepare(saved)
            if not is_finished:
                self.recording.begin(built, None if saved is None else self.position.step)
            elif saved is not None:
                self.recording.begin_again(built, self.position.step)
        return is_finished

    def _take_steps(self) -> bool:
        """Take the steps that are left; return whether the run was stopped before its end."""
        built, saver, task = self.built, self.saver, self.built.task
        total = task.total_steps
        self.retries = Retries(built, self.notice)
        record_step = self.recording.step
        for step in take_steps(
            built, self.position, self.retries, self._steps_left, lambda: self.clock.totals
        ):
            self.position = step.after
            self.clock.add(step)
            record_step(step)
            # Without a number of steps, the last epoch of a stream ends when the stream does.
            is_last = step.number == total or (
                total is None and step.ends_epoch and step.epoch == task.epochs
            )
            pauses = step.number == self.until
            measures = step.ends_epoch or is_last or pauses
            # What ends here, or is paused here, is not begun again for its measures alone.
            is_end = pauses or (is_last and self.until is not None)
            stop = _never if is_end else self.stop_measuring
            is_measured = measures and self._end_epoch(step, stop)
            is_whole = is_measured or not measures
            is_stopped = not is_whole or (not is_last and (pauses or self.stop()))
            must = is_last or is_stopped
            if saver is not None and (must or saver.is_due(built, step.after, step.ends_epoch)):
                clock = self.clock.to_json()
                self.recording.before_save()
                if saver.save(built, step.after, clock, must=must) and is_measured:
                    # What it draws, a run that is resumed from this step would not draw.
                    with kept_random_states():
                        self.tell_saved(self.epochs[-1], saver.step_folder(step.after))
            if is_stopped:
                return True
        return False

    def _steps_left(self, number: int) -> int:
        """Return how many steps one launch may take after so many."""
        left = sys.maxsize if self.saver is None else self.saver.steps_left(number)
        return left if self.until is None else min(left, self.until - number)

    def _end_epoch(self, step: StepDone, stop: Callable[[], bool]) -> bool:
        """Measure and report an epoch; return False if the run was stopped before."""
        self.built.step.settle()
        try:
            done = measure_epoch(self.built, step, self.clock, self.saver, stop)
        except Stopped:
            done = None
        if step.ends_epoch:
            self.clock = EpochClock(self.built.hardware)
        if done is None:
            return False
        self.epochs.append(done)
        self.recording.epoch(step, done)
        report_epoch(self.progress, done, self.built, step, self.clock, self.saver)
        check_learning(self.built, step, done)
        return True

    def _make_report(
        self, *, is_stopped: bool = False, held_out: Mapping[str, float] | None = None
    ) -> TrainingReport:
        built, epochs, saver = self.built, self.epochs, self.saver
        if held_out is None:
            held_out = epochs[-1].held_out if epochs and not is_stopped else {}
        built.model.eval()
        report = TrainingReport(
            model=built.model,
            epochs=tuple(epochs),
            steps=self.position.step,
            skipped_steps=built.step.skipped,
            seconds=time.monotonic() - self.begun,
            samples_per_s=_steady_rate(epochs),
            plan=built.plan,
            techniques=tuple(built.applied.proofs()) if epochs else (),
            peak_memory_bytes=built.hardware.peak_bytes(),
            run_dir=None if saver is None else str(saver.run_dir),
            warmed=built.warmed,
            retries=() if self.retries is None else tuple(self.retries.done),
            held_out=held_out,
            is_stopped=is_stopped,
            device_memory=built.hardware.memory_report(),
            begun_step=self.begun_step,
        )
        if built.sharding is not None:
            # While all ranks are here: one that failed could not be waited for.
            built.sharding.gather()
        return report


def _steady_rate(epochs: list[EpochDone]) -> float:
    counted = epochs[1:] or epochs
    if not counted:
        return math.nan
    return sum(e.samples_per_s * e.seconds for e in counted) / sum(e.seconds for e in counted)
