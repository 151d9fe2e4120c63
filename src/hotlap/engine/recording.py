"""`RunRecording`: passes losses, epochs and a task's description to `hotlap.track.recording`."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hotlap.checkpoint.codec import decode
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.position import Position
from hotlap.engine.state.same_task import fingerprint
from hotlap.engine.steps import StepDone
from hotlap.engine.training_report import EpochDone
from hotlap.track.kept_documents import check_no_script
from hotlap.track.losses import DeferredLosses
from hotlap.track.recording import Recording, Request
from hotlap.track.records import EPOCH, EVALUATION
from hotlap.track.run_file import FAILED, FINISHED, MEASURED, STOPPED, RunInfo
from hotlap.track.runs import read_run


class RunRecording:
    """Records the losses of steps, epochs and evaluations; until it begins, nothing is written.

    Args:
        folder: the run's; None to record nothing.
        request: what is to be recorded.
        notice: called with what the user should know.

    Raises:
        UsageError: the folder holds the run of a script.
    """

    def __init__(
        self, folder: Path | None, request: Request, notice: Callable[[str], None]
    ) -> None:
        if folder is not None:
            check_no_script(folder)
        self._folder, self._request, self._notice = folder, request, notice
        self._recording: Recording | None = None
        self._losses: DeferredLosses | None = None

    def begin(self, built: BuiltRun, resumed_step: int | None) -> None:
        """Begin to record.

        Args:
            built: the run.
            resumed_step: the step that it resumes from, None if it begins.

        Raises:
            UsageError: the folder cannot be written into.
            StorageError: `run.json` cannot be written.
        """
        if self._folder is None:
            return
        recording = self._recording = Recording(self._folder, self._request, self._notice)
        recording.begin(describe_task(built), built.plan, resumed_step)
        self._losses = DeferredLosses(built.hardware, recording.add_loss, recording.now)

    def begin_again(self, built: BuiltRun, step: int) -> None:
        """Begin to record a run of which all steps are saved, if its records do not say so.

        It was stopped, killed or failed after its last step: while that was evaluated or saved.

        Args:
            built: the run.
            step: its last one.
        """
        info = None if self._folder is None else RunInfo.read(self._folder)
        if info is not None and info.state not in (FINISHED, MEASURED):
            self.begin(built, step)

    def last_evaluation(self, position: Position, held_out: Mapping[str, float]) -> None:
        """Record what evaluation gives at the end of a run, if it was not recorded before."""
        if self._recording is None or not held_out:
            return
        records = read_run(self._recording.folder).records
        if not any(each.kind == EVALUATION and each.step == position.step for each in records):
            epoch = position.epoch + bool(position.in_epoch)
            self._recording.add(EVALUATION, position.step, epoch, dict(held_out))

    def step(self, step: StepDone) -> None:
        """Record a step's loss, as soon as it is known without waiting for it."""
        if self._losses is not None:
            self._losses.add(step.number, step.epoch, step.loss)

    def epoch(self, step: StepDone, done: EpochDone) -> None:
        """Record an epoch, and what evaluation gave.

        Args:
            step: the last one; the device was waited for.
            done: the epoch.
        """
        if self._recording is None or self._losses is None:
            return
        self._losses.flush()
        values = {
            "loss": done.loss,
            "seconds": done.seconds,
            "samples_per_s": done.samples_per_s,
            "skipped_steps": done.skipped_steps,
            "peak_memory_bytes": done.peak_memory_bytes,
            "peak_host_memory_bytes": done.peak_host_memory_bytes,
        }
        self._recording.add(EPOCH, step.number, done.epoch, values)
        if done.held_out:
            self._recording.add(EVALUATION, step.number, done.epoch, dict(done.held_out))
        self._recording.look_after_trackers()

    def before_save(self) -> None:
        """Write what was recorded: a run that is resumed from a checkpoint takes no step before it
        again, so what was not written when it was killed would be missing for good."""
        if self._recording is None or self._losses is None:
            return
        self._losses.flush()
        self._recording.write_now()

    def end(self, *, is_stopped: bool = False, error: BaseException | None = None) -> None:
        """End the record; a second call does nothing.

        Args:
            is_stopped: it was asked to stop, and something is left to do.
            error: what it failed with.
        """
        recording, self._recording = self._recording, None
        if recording is None:
            return
        if self._losses is not None:
            # A device that has failed gives nothing any more.
            with contextlib.suppress(RuntimeError):
                self._losses.flush()
        if error is not None:
            words = f"{type(error).__name__}: {error}".partition("\n")[0]
            recording.end(FAILED, words)
        else:
            recording.end(STOPPED if is_stopped else FINISHED)


def describe_task(built: BuiltRun) -> Mapping[str, Any]:
    """Return what `run.json` says of a task: what is learned, without the names of the weights."""
    task, found = built.task, fingerprint(built)
    weights, hyperparameters = found.pop("weights"), found.pop("hyperparameters")
    schedule = found.pop("schedule's values").get("hotlap_values")
    return {
        "model": type(built.model).__qualname__,
        "weight_tensors": len(weights),
        "parameter_count": sum(parameter.numel() for parameter in built.model.parameters()),
        "loss": getattr(task.loss, "__qualname__", type(task.loss).__name__),
        "epochs": task.epochs,
        "steps": task.total_steps,
        "device": built.hardware.name,
        "ranks": built.reduce.world,
        **found,
        # Which group holds which parameters takes pages.
        "hyperparameters": {
            name: value
            for name, value in hyperparameters.items()
            if not name.endswith(", parameters")
        },
        "schedule_values": decode(schedule),
    }
