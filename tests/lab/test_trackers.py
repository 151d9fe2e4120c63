"""Trackers in trials: nothing is published, nothing crashes, nothing stays. The real packages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.lab.scratch import Protection, Scratch
from hotlap.trial.environment import TRACKERS_FOLDERS
from hotlap.trial.protocol import Config

COPY = Protection("copy", (), "forced")
LOG = {
    "mlflow": """
import mlflow
with mlflow.start_run():
    mlflow.log_metric("loss", 1.0)
""",
    "trackio": """
import trackio
trackio.init(project="hotlap-test")
trackio.log({"loss": 1.0})
trackio.finish()
import os
assert any("hotlap-test" in name for name in os.listdir(os.environ["TRACKIO_DIR"]))
""",
}


def trial_environment(**given: str) -> dict[str, str]:
    return Script(path="x.py").environment(Config("observe"), os.environ | given)


def test_a_trial_is_told_not_to_publish() -> None:
    env = trial_environment(
        TRACKIO_SPACE_ID="me/runs",
        TRACKIO_SERVER_URL="https://x",
        TRACKIO_DIR="/home/me",
        TMPDIR="/t",
    )
    assert "TRACKIO_SPACE_ID" not in env and "TRACKIO_SERVER_URL" not in env
    assert env["TRACKIO_DIR"] == "/t/hotlap-trackio"
    assert env["MLFLOW_TRACKING_URI"] == "file:/t/hotlap-mlflow"
    assert env["CLEARML_OFFLINE_MODE"] == "1" and env["SWANLAB_MODE"] == "disabled"
    assert env["MLFLOW_ALLOW_FILE_STORE"] == env["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.parametrize("protection", [None, COPY], ids=["view", "copy"])
def test_what_trackers_write_goes_with_the_trial(
    tmp_path: Path, protection: Protection | None
) -> None:
    env = trial_environment(TMPDIR=str(tmp_path))
    script = 'mkdir -p "$TRACKIO_DIR" "${MLFLOW_TRACKING_URI#file:}" && echo "$TRACKIO_DIR $TMPDIR"'
    with Scratch(tmp_path, protection=protection, in_temporary=TRACKERS_FOLDERS) as scratch:
        process = scratch.popen(
            ["/bin/sh", "-c", script], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        folder, temporary = process.communicate(timeout=60)[0].decode().split()
    assert process.returncode == 0
    assert os.path.dirname(folder) == temporary
    assert not os.path.exists(folder) and list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("package", sorted(LOG))
def test_the_real_package_logs_and_leaves_nothing(tmp_path: Path, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    env = trial_environment(TMPDIR=str(tmp_path))
    with Scratch(tmp_path, in_temporary=TRACKERS_FOLDERS) as scratch:
        process = scratch.popen(
            [sys.executable, "-W", "ignore", "-c", LOG[package]],
            env={name: value for name, value in env.items() if name != "HOTLAP_ATTACH"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = process.communicate(timeout=200)[0].decode()
    assert process.returncode == 0, said
    assert list(tmp_path.iterdir()) == []
