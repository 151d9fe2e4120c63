"""The process of one job: trains a trial from where it stands to a rung, and writes the outcome.

`python -m hotlap.search.rung` reads its order as one line of JSON from standard input. Its end is
the end of the process that gave the order: this process and its children end with it.
"""

import contextlib
import json
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.engine.train import train
from hotlap.engine.training_report import EpochDone, TrainingReport
from hotlap.errors import DoesNotFit, StorageError
from hotlap.plan import Plan
from hotlap.recipe import as_command_line, load
from hotlap.search.job_order import EXIT_FULL, EXIT_STOPPED, FULL, Order, outcome_path, write_json
from hotlap.search.own_schedule import at_rung
from hotlap.search.space import Value

_MEASURED = "measured-{}.json"


class _NotNoted(BaseException):
    """What was measured could not be written.

    It is no `Exception`: training saves what was trained before one of these, and a step that was
    saved is not measured again.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Job:
    """One job, while it is done."""

    def __init__(self, order: Order) -> None:
        self.order, self.folder = order, Path(order.folder)
        self.is_asked_to_stop = False
        self.until = order.until
        self.whole_steps: int | None = None
        self.last: EpochDone | None = None
        self._seconds = self._seconds_before()

    def _seconds_before(self) -> dict[tuple[int, int], float]:
        """Return what earlier processes of the trial measured: (epoch, steps in it) -> seconds of
        training up to there."""
        found: dict[tuple[int, int], float] = {}
        for path in self.folder.glob(_MEASURED.format("*")):
            for epoch, steps, seconds in json.loads(path.read_text()).get("seconds_at", []):
                found[epoch, steps] = seconds
        return found

    def do(self) -> dict[str, Any] | None:
        """Train, and return the outcome; None if this process was asked to end before."""
        try:
            report = self._train()
        except (Exception, _NotNoted) as raised:
            error = raised.error if isinstance(raised, _NotNoted) else raised
            with contextlib.suppress(OSError):  # a log on a full disk
                traceback.print_exc()
            return {"state": self._state_of(error), "error": f"{type(error).__name__}: {error}"}
        if report.is_stopped and report.steps < self.until:
            return None
        return self._outcome(report)

    def _train(self) -> TrainingReport:
        order = self.order
        with as_command_line(order.recipe, order.words):
            recipe = load(order.recipe)
            task, values = recipe.task(order.words), recipe.values(order.words)
            self.whole_steps = task.total_steps
            self.until = steps_at_rung(order, self.whole_steps)
            if order.whole is not None:
                task = at_rung(task, self.until, order.whole)
            return train(
                replace(task, seed=task.seed + order.repeat),
                Plan(order.plan),
                device=_device_of(order),
                run_dir=self.folder,
                resume="auto",
                keep=1,
                about={
                    "recipe": str(Path(order.recipe).resolve()),
                    "parameters": {
                        name: value if isinstance(value, Value) else str(value)
                        for name, value in values.items()
                    },
                },
                progress=self._measure,
                notice=lambda words: print(f"hotlap: {words}", flush=True),  # noqa: T201
                stop=lambda: self.is_asked_to_stop,
                until=self.until,
            )

    def _measure(self, epoch: EpochDone) -> None:
        """Note what was measured, before it is saved: a run that was saved has its measures."""
        self.last, here = epoch, (epoch.epoch, epoch.steps)
        # A process that was killed may have measured what is trained again now.
        self._seconds = {at: seconds for at, seconds in self._seconds.items() if at < here}
        seconds = max(self._seconds.values(), default=0.0) + epoch.seconds
        self._seconds[here] = seconds
        found = {
            "measures": epoch.held_out or {"loss": epoch.loss},
            "seconds": seconds,
            "seconds_at": [[*at, each] for at, each in self._seconds.items()],
            "memory_bytes": epoch.peak_memory_bytes,
        }
        try:
            write_json(self.folder / _MEASURED.format(self.order.until), found)
        except Exception as error:
            raise _NotNoted(error) from error

    def _state_of(self, error: Exception) -> str:
        if isinstance(error, StorageError) or getattr(error, "errno", None) in FULL:
            return "storage"
        if isinstance(error, DoesNotFit | MemoryError) or is_out_of_memory(error):
            return "memory"
        if self.last is not None and math.isnan(self.last.loss):
            return "nan"
        return "crash"

    def _outcome(self, report: TrainingReport) -> dict[str, Any]:
        found = self._measured()
        named = {"seconds": found["seconds"], "memory": found["memory_bytes"], **found["measures"]}
        objectives = self.order.objectives
        for name in objectives:
            if named.get(name) is None:
                return {"state": "usage", "error": _not_measured(name, named)}
        wrong = next((name for name in objectives if not math.isfinite(named[name])), None)
        is_finite = wrong is None
        return {
            "state": "done" if is_finite else "nan",
            "step": report.steps,
            "value": named[objectives[0]] if is_finite else None,
            "measures": {k: v for k, v in found["measures"].items() if math.isfinite(v)},
            "seconds": found["seconds"],
            "memory_bytes": found["memory_bytes"],
            "error": "" if wrong is None else f"{wrong} is {named[wrong]}",
            "is_over": not report.is_stopped,
            "whole_steps": self.whole_steps,
        }

    def _measured(self) -> dict[str, Any]:
        """Return what was measured last."""
        path = self.folder / _MEASURED.format(self.order.until)
        if not path.exists():
            # Of a few steps, two shares may be the same step: it was measured at the rung before.
            earlier = self.folder.glob(_MEASURED.format("*"))
            path = max(earlier, key=lambda each: int(each.stem.partition("-")[2]))
        return dict(json.loads(path.read_text()))


def steps_at_rung(order: Order, own: int | None) -> int:
    """Return the steps after which a trial is compared.

    Args:
        order: of the job.
        own: steps of the trial's own task, None if it does not say.
    """
    if order.share_of is None or own is None:
        return order.until
    return -(-own * order.until // order.share_of)


def _not_measured(objective: str, measured: Mapping[str, Any]) -> str:
    return (
        f"--objective names '{objective}', which is not measured. Expected: "
        f"{', '.join(sorted(measured))}."
    )


def _device_of(order: Order) -> str | None:
    """Return the device of a trial: of several CUDA devices each worker has its own."""
    if order.device in (None, "cuda") and torch.cuda.device_count() > 1:
        return f"cuda:{order.slot % torch.cuda.device_count()}"
    return order.device


def _end_with_parent(stream: int) -> None:
    """Wait until the other end of standard input is closed, and end this process's group."""
    while os.read(stream, 4096):
        continue
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Do the job that standard input tells."""
    order = Order.from_json(json.loads(sys.stdin.readline()))
    # The recipe may read its standard input; it gets an empty one.
    told = os.dup(0)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    if os.getpgrp() == os.getpid():
        threading.Thread(target=_end_with_parent, args=(told,), daemon=True).start()
    torch.set_num_threads(order.threads)
    job = _Job(order)

    def stop(number: int, frame: object) -> None:
        del number, frame
        job.is_asked_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    outcome = job.do()
    if outcome is not None:
        try:
            write_json(outcome_path(order), {**outcome, "until": order.until})
        except OSError:
            os._exit(EXIT_FULL)
    with contextlib.suppress(OSError):  # a log on a full disk
        sys.stdout.flush()
    # Threads and children of the recipe have nothing left to do.
    os._exit(EXIT_STOPPED if outcome is None else 0)


if __name__ == "__main__":
    main()
