"""Trackers get what was recorded, and nothing that they do reaches the training."""

import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hotlap
from hotlap.errors import UsageError
from hotlap.track import follower_process
from hotlap.track.adapters import mlflow
from hotlap.track.feeding import files_of
from hotlap.track.recording import Recording, Request
from hotlap.track.records import EVALUATION, STEP
from hotlap.track.runs import read_run
from hotlap.track.tracker import TRACKERS, TrackedRun, check_trackers
from tests.engine.test_resume import task

OWN = "tests.track.trackers"
LOSSES = [1 / 3, 2.5e-8, 12345.678]


def needs(package: str) -> Any:
    found = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not found, reason=f"needs the package {package}")


def short(**options: Any) -> hotlap.Task:
    return task(**{"schedule": None, **options})


def calls(run_dir: Path) -> list[list[Any]]:
    return calls_of(run_dir, "Writes")


def calls_of(run_dir: Path, name: str) -> list[list[Any]]:
    path = files_of(run_dir, f"{OWN}:{name}") / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def record_with(name: str, folder: Path, resumed_step: int | None = None, begin: int = 1) -> None:
    """Record three steps and an evaluation, for one tracker."""
    notices: list[str] = []
    recording = Recording(folder, Request({"lr": 0.1}, (name,), 60.0), notices.append)
    about = {"batch_size": 8, "hyperparameters": {"group 0, lr": 0.1}}
    recording.begin(about, hotlap.Plan({"resident": {}}), resumed_step)
    for step, loss in enumerate(LOSSES, begin):
        recording.add(STEP, step, 1, {"loss": loss})
    recording.add(EVALUATION, begin + 2, 1, {"accuracy": 0.75})
    recording.end("finished")
    assert not notices, notices


@pytest.fixture(autouse=True)
def _at_the_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the tests' own trackers are found.
    monkeypatch.chdir(root)
    for name in ("MLFLOW_TRACKING_URI", "TRACKIO_DIR", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_tracker_gets_every_record_and_how_the_run_ended(tmp_path: Path) -> None:
    hotlap.train(short(steps=10), run_dir=tmp_path, track=(f"{OWN}:Writes",))
    first, *logged, last = calls(tmp_path)
    assert first[:2] == ["begin", None] and first[2]["task.logical_batch"] == 8
    assert first[2]["versions.torch"] and last == ["end", "finished"]
    expected = [
        ["log", each.step, {f"{each.kind}/{name}": value for name, value in each.values.items()}]
        for each in read_run(tmp_path).records
    ]
    assert logged == expected and len(logged) >= 12


def test_a_resumed_run_gives_its_tracker_only_what_is_new(tmp_path: Path) -> None:
    hotlap.train(short(steps=4), run_dir=tmp_path)
    hotlap.train(short(steps=6), run_dir=tmp_path, resume="auto", track=(f"{OWN}:Writes",))
    first, *logged, _ = calls(tmp_path)
    assert first[:2] == ["begin", 4] and [call[1] for call in logged] == [5, 6, 6]


@pytest.mark.parametrize(
    ("name", "words"),
    [("Fails", "failed (ConnectionError: the server is down)"), ("Dies", "exit code 9")],
)
def test_a_tracker_that_fails_is_said_once(name: str, words: str, tmp_path: Path) -> None:
    notices: list[str] = []
    done = hotlap.train(
        short(steps=30), run_dir=tmp_path, track=(f"{OWN}:{name}",), notice=notices.append
    )
    said = [notice for notice in notices if "tracker" in notice]
    assert done.steps == 30 and len(said) == 1
    assert words in said[0] and "training is not affected" in said[0]
    assert read_run(tmp_path).curves["step/loss"].steps == tuple(range(1, 31))


def test_a_tracker_that_hangs_is_said_once_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_process, "_BEGIN_S", 1.0)
    monkeypatch.setattr(follower_process, "_STALLED_S", 0.01)
    notices: list[str] = []
    begun = time.monotonic()
    done = hotlap.train(
        short(steps=30), run_dir=tmp_path, track=(f"{OWN}:Hangs",), notice=notices.append
    )
    assert done.steps == 30 and time.monotonic() - begun < 20
    said = [notice for notice in notices if "tracker" in notice]
    assert len(said) == 1 and "training is not affected" in said[0]


@pytest.mark.slow
def test_a_tracker_that_is_slow_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_process, "_PATIENCE_S", 2.5)
    notices: list[str] = []
    hotlap.train(short(steps=40), run_dir=tmp_path, track=(f"{OWN}:Slow",), notice=notices.append)
    assert not notices
    path = files_of(tmp_path, f"{OWN}:Slow") / "calls.jsonl"
    assert path.read_text().splitlines()[-1] == '["end", "finished"]'


@pytest.mark.slow
def test_a_tracker_that_begins_slowly_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_process, "_PATIENCE_S", 0.5)
    record_with(f"{OWN}:BeginsSlowly", tmp_path)
    assert calls_of(tmp_path, "BeginsSlowly")[-1] == ["end", "finished"]
    # The negative control: one that is not given the time has not begun, and that is said.
    monkeypatch.setattr(follower_process, "_BEGIN_S", 0.1)
    with pytest.raises(AssertionError, match="BeginsSlowly did not begin; training is not"):
        record_with(f"{OWN}:BeginsSlowly", tmp_path / "again")


def test_a_tracker_hears_that_its_run_was_killed(tmp_path: Path) -> None:
    code = f"""
    import time
    from pathlib import Path
    import hotlap
    from hotlap.track.recording import Recording, Request
    recording = Recording(Path({str(tmp_path)!r}), Request(trackers=("{OWN}:Writes",)), print)
    recording.begin({{}}, hotlap.Plan(), None)
    recording.add("step", 1, 1, {{"loss": 0.5}})
    time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    until = time.monotonic() + 30
    path = files_of(tmp_path, f"{OWN}:Writes") / "calls.jsonl"
    while not (path.exists() and path.read_text().count("\n") == 2):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while calls(tmp_path)[-1][0] != "end":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert calls(tmp_path)[-1] == ["end", "killed"]
    info = read_run(tmp_path).info
    assert info is not None and info.state == "killed"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["tensorbord"], "tracker 'tensorbord' is not known"),
        (["nowhere_at_all:Tracker"], "module 'nowhere_at_all' was not found"),
        ([f"{OWN}:"], "Expected: module:NAME"),
        ([f"{OWN}:Writes", f"{OWN}:Writes"], "was given twice"),
    ],
)
def test_a_wrong_tracker_is_refused(names: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_trackers(names)
    check_trackers([f"{OWN}:Writes"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_missing_is_named_with_its_install_command(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"pip install {TRACKERS[name].package}"):
        check_trackers([name])


@needs("tensorboard")
@pytest.mark.slow
def test_tensorboards_own_reader_gives_back_what_was_recorded(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # As of a run that was killed before it was saved, and began anew.
    record_with("tensorboard", tmp_path, begin=3)
    record_with("tensorboard", tmp_path)
    # As of a run that was killed after step 3, and is resumed from step 1.
    record_with("tensorboard", tmp_path, resumed_step=1, begin=2)
    reader = EventAccumulator(str(tmp_path / "trackers/tensorboard"), {"scalars": 0})
    reader.Reload()
    rows = [(row.step, row.value) for row in reader.Scalars("step/loss")]
    steps = [1, 2, 3, 4]
    values = [np.float32(loss) for loss in (LOSSES[0], *LOSSES)]
    assert rows == list(zip(steps, values, strict=True))
    assert [(row.step, row.value) for row in reader.Scalars("evaluation/accuracy")] == [(4, 0.75)]
    text = reader.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| task.lr | 0.1 |" in text and "| task.batch_size | 8 |" in text


@needs("wandb")
@pytest.mark.slow
def test_wandbs_file_gives_back_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    record_with("wandb", tmp_path)
    record_with("wandb", tmp_path, resumed_step=3, begin=4)
    paths = sorted((tmp_path / "trackers/wandb").glob("wandb/offline-run-*/run-*.wandb"))
    # Two processes, one run: `wandb sync` joins what has the same id.
    assert len(paths) == 2 and len({path.name for path in paths}) == 1
    for path, steps in zip(paths, ([1, 2, 3], [4, 5, 6]), strict=True):
        found = list(wandb_history(path.read_bytes()))
        assert [row["_step"] for row in found] == steps
        assert [row["step/loss"] for row in found] == LOSSES
        assert found[-1]["evaluation/accuracy"] == 0.75


def wandb_history(content: bytes) -> Iterator[dict[str, Any]]:
    """Read what wandb has logged out of its file: records of protobuf in blocks of LevelDB's log.

    wandb has no reader of its own in Python any more.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    block, head, offset, parts = 32768, 7, 7, []
    while offset + head <= len(content):
        left = block - offset % block
        if left < head:
            offset += left
            continue
        length, kind = struct.unpack_from("<HB", content, offset + 4)
        parts.append(content[offset + head : offset + head + length])
        offset += head + length
        # 1: a whole record; 4: the last part of one; 2 and 3: parts before it.
        if kind in (1, 4):
            record = Record.FromString(b"".join(parts))
            parts = []
            if record.WhichOneof("record_type") == "history":
                yield {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json)
                    for item in record.history.item
                }


def test_mlflow_gets_only_names_that_it_takes() -> None:
    adapter = object.__new__(mlflow.MLflow)
    adapter._names = {}
    given = ["step/loss", "acc@1", "acc(1", "group 0, lr", "acc@1", "x" * 300, "x" * 301]
    names = [adapter._name(each) for each in given]
    assert names[:4] == ["step/loss", "acc_1", "acc_1_2", "group 0_ lr"]
    # Each has its own, and keeps it.
    assert names[4] == "acc_1" and len(set(names)) == 6 and max(map(len, names)) == 250


RETRIES, TIMEOUT = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"


@pytest.mark.parametrize("resumed_step", [None, 3])
def test_only_mlflows_first_request_is_given_up_soon(
    resumed_step: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None, str | None]] = []

    class Client:
        def __getattr__(self, name: str) -> Any:
            def ask(*given: Any, **named: Any) -> Any:
                del given, named
                asked.append((name, os.environ.get(RETRIES), os.environ.get(TIMEOUT)))
                info = SimpleNamespace(run_id="1")
                return SimpleNamespace(info=info, experiment_id="1")

            return ask

    monkeypatch.delenv(RETRIES, raising=False)
    monkeypatch.setenv(TIMEOUT, "7")
    adapter = object.__new__(mlflow.MLflow)
    adapter._tracked = TrackedRun(tmp_path, tmp_path, "run", resumed_step)
    adapter._client, adapter._names, adapter._id_file = Client(), {}, tmp_path / "id"
    adapter._id_file.write_text("1")
    adapter.begin({})
    first, *others = asked
    # The user's own are kept.
    assert first[1:] == ("2", "7") and all(each[1:] == (None, "7") for each in others)
    assert len(asked) == (2 if resumed_step is None else 1)


@needs("mlflow")
@pytest.mark.slow
def test_a_server_of_mlflow_that_is_not_there_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(AssertionError) as raised:
        record_with("mlflow", tmp_path)
    said = str(raised.value)
    assert "failed (MlflowException: API request to http://127.0.0.1:9/" in said
    assert "Connection refused" in (tmp_path / "trackers/mlflow-log.txt").read_text()


@needs("mlflow")
@pytest.mark.slow
def test_mlflows_own_reader_gives_back_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    record_with("mlflow", tmp_path)
    # As of a run that was killed after step 3, and is resumed from step 2.
    record_with("mlflow", tmp_path, resumed_step=2, begin=3)
    from mlflow import MlflowClient

    files = tmp_path / "trackers/mlflow"
    database = files / "mlflow.db"
    uri = f"sqlite:///{database}" if database.exists() else (files / "mlruns").as_uri()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("hotlap")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["task.lr"] == "0.1"
    history = client.get_metric_history(run.info.run_id, "step/loss")
    rows = sorted((metric.step, metric.value) for metric in history)
    assert rows == list(zip(range(1, 6), [*LOSSES, *LOSSES[1:]], strict=True))
    (accuracy, _) = client.get_metric_history(run.info.run_id, "evaluation/accuracy")
    assert (accuracy.step, accuracy.value) == (3, 0.75)


@needs("trackio")
@pytest.mark.slow
def test_trackios_own_database_gives_back_what_was_recorded(tmp_path: Path) -> None:
    import sqlite3

    record_with("trackio", tmp_path)
    # As of a run that was killed after step 3, and is resumed from step 2.
    record_with("trackio", tmp_path, resumed_step=2, begin=3)
    (path,) = (tmp_path / "trackers/trackio").glob("*.db")
    connection = sqlite3.connect(path)
    query = "select step, metrics, run_name from metrics order by id"
    rows = connection.execute(query).fetchall()
    connection.close()
    assert len({name for *_, name in rows}) == 1
    expected: list[Any] = []
    for begin, losses in ((1, LOSSES), (4, LOSSES[1:])):
        expected += [(step, {"step/loss": loss}) for step, loss in enumerate(losses, begin)]
        expected.append((expected[-1][0], {"evaluation/accuracy": 0.75}))
    assert [(step, json.loads(text)) for step, text, _ in rows] == expected


def test_the_tracker_is_told_nothing_of_hotlaps_own_environment() -> None:
    os.environ["HOTLAP_TRIAL"] = "{}"
    try:
        assert "HOTLAP_TRIAL" not in follower_process._environment()
    finally:
        del os.environ["HOTLAP_TRIAL"]
