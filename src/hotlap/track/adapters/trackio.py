"""trackio: a local database, in the run's folder unless `TRACKIO_DIR` names another place."""

import importlib
import os
from collections.abc import Mapping
from typing import Any

from hotlap.track.tracker import TrackedRun, Tracker


class Trackio(Tracker):
    """Logs to a run of trackio.

    Args:
        run: what is tracked. A resumed one goes on under the same name.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        os.environ.setdefault("TRACKIO_DIR", str(run.files))
        # It reads the variable when it is imported.
        self._trackio: Any = importlib.import_module("trackio")

    def begin(self, config: Mapping[str, Any]) -> None:
        self._trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", self._run.project),
            name=self._run.name,
            config=dict(config),
            # What a `Monitor` samples is of the training's process; these would be of this one.
            auto_log_cpu=False,
            auto_log_gpu=False,
            embed=False,
            resume="never" if self._run.resumed_step is None else "allow",
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._trackio.log(dict(values), step=step)

    def end(self, state: str) -> None:
        del state
        self._trackio.finish()


ADAPTER = Trackio
