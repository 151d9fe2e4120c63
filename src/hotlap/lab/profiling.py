"""Runs a subject in the role `profile`, and reads the trace that it writes."""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import TrialError
from hotlap.lab.observing import LEAST_START_UP_S
from hotlap.lab.trial import Lab
from hotlap.trace.profile_reading import read_profile
from hotlap.trace.profile_schema import Profile

_SILENCE_S = 120.0
"""A step is slow under the profiler, and a long trace is written slowly."""


@dataclass(frozen=True)
class Profiled:
    """Some steps under the profiler."""

    profile: Profile
    profiled_ms: float
    """What it took with the profiler."""
    is_compiled: bool
    """True if a part of the model is compiled: what is inside it has no regions of its own."""
    file: str = ""
    """The trace, empty if it was not to be kept."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def profile_steps(
    lab: Lab, *, kinds: Sequence[str], seconds: float, folder: Path | None
) -> Profiled:
    """Profile some steps in a process of its own, whose times nobody else uses.

    Args:
        lab: where the trial is held.
        kinds: what is recorded: `cpu`, `cuda`, `memory`.
        seconds: that the start may take at least.
        folder: where the trace is kept, under a name that TensorBoard finds; None if nowhere.

    Raises:
        TrialError: the process crashed, hung, or ended before a step was profiled.
    """
    return lab.retry_if_address_in_use(lambda: _profile(lab, kinds, seconds, folder))


def _profile(lab: Lab, kinds: Sequence[str], seconds: float, folder: Path | None) -> Profiled:
    exchange = Path(tempfile.mkdtemp(prefix="profile-", dir=lab.exchange))
    written = exchange / "trace.json"
    trial = lab.start("profile", kinds=list(kinds), file=str(written))
    try:
        silence_s = max(LEAST_START_UP_S, seconds) + _SILENCE_S
        while (message := trial.message(["step_time", "report"], silence_s))["kind"] != "report":
            silence_s = _SILENCE_S + 20 * message["seconds"]
        if not message.get("profiled"):
            words = "the run ended before a step could be profiled: four steps are needed"
            raise TrialError(words, reason="ended_early")
        trial.check_exit()
        found = read_profile(written)
        file = "" if folder is None else str(_keep(written, folder))
        return Profiled(
            found,
            1e3 * message["profiled_s"],
            message["is_compiled"],
            file,
        )
    finally:
        trial.kill()
        shutil.rmtree(exchange)


def _keep(written: Path, folder: Path) -> Path:
    # As torch.profiler.tensorboard_trace_handler names it.
    name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns() // 10**6}.pt.trace.json"
    shutil.copyfile(written, folder / name)
    return folder / name
