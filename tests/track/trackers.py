"""Trackers of the tests' own: one that writes down what it gets, others that fail or hang."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from hotlap.track.tracker import TrackedRun


class Writes:
    """Writes each call into a file of JSON lines."""

    def __init__(self, run: TrackedRun) -> None:
        self.path = run.files / "calls.jsonl"
        self.resumed_step = run.resumed_step

    def begin(self, config: Mapping[str, Any]) -> None:
        self._write("begin", self.resumed_step, dict(config))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._write("log", step, dict(values))

    def end(self, state: str) -> None:
        self._write("end", state)

    def _write(self, *call: Any) -> None:
        with self.path.open("a") as stream:
            stream.write(json.dumps(call) + "\n")


class Hides(Writes):
    """Is given again what it has of the steps that a resumed run takes again."""

    hides_later_steps = True


class Fails:
    """Raises on every call but the first."""

    def __init__(self, run: TrackedRun) -> None:
        del run

    def begin(self, config: Mapping[str, Any]) -> None:
        del config

    def log(self, step: int, values: Mapping[str, float]) -> None:
        raise ConnectionError("the server is down")

    def end(self, state: str) -> None:
        raise ConnectionError("the server is down")


class Hangs:
    """Never returns from any call."""

    def __init__(self, run: TrackedRun) -> None:
        del run

    def begin(self, config: Mapping[str, Any]) -> None:
        del config
        time.sleep(1000)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        time.sleep(1000)

    def end(self, state: str) -> None:
        time.sleep(1000)


class Dies:
    """Ends its process in the middle."""

    def __init__(self, run: TrackedRun) -> None:
        del run

    def begin(self, config: Mapping[str, Any]) -> None:
        del config

    def log(self, step: int, values: Mapping[str, float]) -> None:
        os._exit(9)

    def end(self, state: str) -> None:
        del state


class BeginsSlowly(Writes):
    """Takes longer to begin than the run does to end."""

    def begin(self, config: Mapping[str, Any]) -> None:
        time.sleep(2)
        super().begin(config)


class Slow(Writes):
    """Takes longer for its records than the run does."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        time.sleep(0.1)
        super().log(step, values)
