"""MLflow: the server of `MLFLOW_TRACKING_URI`, without it a database in the run's folder."""

import importlib
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotlap.host.probes import version
from hotlap.track.tracker import TrackedRun, Tracker

_ID = "run-id"
_MOST = 1000
"""Metrics of one request: MLflow takes no more."""
_MOST_PARAMS = 100
_LONGEST = 6000
"""Characters of a parameter's value: MLflow takes no more."""
_NOT_IN_NAMES = re.compile(r"[^/\w.\- :]")
"""Characters that MLflow refuses in the name of a parameter or metric."""
_LONGEST_NAME = 250
_AT_FIRST = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Of the first request, unless the user has set them: MLflow says nothing while it tries again, by
default for minutes. A server that has answered once may be restarted meanwhile."""
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "killed": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    """Logs batches of metrics to a run of MLflow.

    Args:
        run: what is tracked. A resumed one goes on under the same id.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._tracked = run
        self._id_file: Path = run.files / _ID
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        uri = _tracking_uri(run.files)
        self._client = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
        self._entities = importlib.import_module("mlflow.entities")
        self._id = ""
        self._waiting: list[Any] = []
        self._names: dict[str, str] = {}

    def begin(self, config: Mapping[str, Any]) -> None:
        if self._tracked.resumed_step is not None and self._id_file.exists():
            self._id = self._id_file.read_text().strip()
            with _less_patience():
                self._client.update_run(self._id, status="RUNNING")
            return
        with _less_patience():
            experiment = self._experiment()
        made = self._client.create_run(experiment, run_name=self._tracked.name)
        self._id = made.info.run_id
        self._id_file.write_text(self._id)
        params = [self._entities.Param(self._name(k), str(v)[:_LONGEST]) for k, v in config.items()]
        for begin in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._id, params=params[begin : begin + _MOST_PARAMS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now, kind = int(time.time() * 1000), self._entities.Metric
        named = {self._name(each): value for each, value in values.items()}
        self._waiting += [kind(name, value, now, step) for name, value in named.items()]
        if len(self._waiting) >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Send what has not been sent."""
        while self._waiting:
            self._client.log_batch(self._id, metrics=self._waiting[:_MOST])
            del self._waiting[:_MOST]

    def end(self, state: str) -> None:
        self.flush()
        self._client.set_terminated(self._id, status=_STATES.get(state, "FAILED"))

    def _name(self, given: str) -> str:
        """Return a name that MLflow takes, another one for each that is given."""
        name = self._names.get(given)
        if name is None:
            plain = _NOT_IN_NAMES.sub("_", given)[:_LONGEST_NAME]
            taken = set(self._names.values())
            others = (f"{plain[: _LONGEST_NAME - 4]}_{number}" for number in itertools.count(2))
            name = next(each for each in itertools.chain([plain], others) if each not in taken)
            self._names[given] = name
        return name

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", self._tracked.project)
        found = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if found is None else found.experiment_id


@contextmanager
def _less_patience() -> Iterator[None]:
    """Let requests to a server that does not answer fail before the end of a run waits for them."""
    ours = [name for name in _AT_FIRST if name not in os.environ]
    # MLflow reads them at each request.
    os.environ.update({name: _AT_FIRST[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


def _tracking_uri(files: Path) -> str:
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return given
    # The whole package, not mlflow-skinny, which refuses a database.
    if version("mlflow") is not None:
        return f"sqlite:///{(files / 'mlflow.db').resolve()}"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return (files / "mlruns").resolve().as_uri()


ADAPTER = MLflow
