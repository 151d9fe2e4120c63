"""`--restarts N`: after a rank has died, all ranks are started again from the last checkpoint."""

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from hotlap.cli.ranks import RankRequest
from hotlap.distributed import processes
from hotlap.distributed.launch import launch
from hotlap.distributed.ranks import RESTARTS, STORE
from hotlap.errors import RunError, UsageError
from tests.distributed.runs import (
    are_gone,
    ended,
    ranks_of,
    saved_steps,
    started,
    wait_for,
    weights,
)

COUNTS = """
import os, sys
with open({counts!r}, "a") as file:
    file.write(os.environ["RANK"] + os.environ["HOTLAP_RANK_RESTARTS"] + " ")
print("attempt", os.environ["HOTLAP_RANK_RESTARTS"], file=sys.stderr)
{then}
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_whose_rank_was_killed_goes_on_from_its_last_checkpoint(
    devices: int, alone: Any, tmp_path: Path
) -> None:
    options = ["--run-dir", str(tmp_path), "--save-every", "1steps", "--restarts", "2"]
    run = started(*options, "--devices", str(devices), "--pause_ms", "300")
    wait_for(lambda: len(saved_steps(tmp_path)) > 1)
    ranks = ranks_of(run)
    ranks[-1].kill()
    code, said = ended(run)
    assert code == 0, said
    killed = f"rank {devices - 1} was ended by SIGKILL"
    assert (said.count(killed), said.count("Restart 1 of 2")) == (1, 1), said
    assert "resuming from" in said
    assert are_gone(ranks)
    assert weights(tmp_path) == alone


@pytest.mark.slow
def test_a_rank_that_dies_before_anything_was_saved_is_restarted_at_most_n_times(
    tmp_path: Path,
) -> None:
    options = ["--devices", "2", "--run-dir", str(tmp_path), "--fault", "at once"]
    code, said = ended(started(*options, "--restarts", "2"))
    assert code == 1
    assert said.count("no checkpoint in") == 2, said
    assert (said.count("Restart 1 of 2"), said.count("Restart 2 of 2")) == (1, 1)
    assert "The run was restarted 2 times" in said
    assert (tmp_path / "logs" / "rank-1.log").read_text().count("ValueError: a wrong sample") == 3


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["the launcher", "rank 1"])
def test_a_run_that_is_asked_to_end_is_not_restarted(
    asked: str, alone: Any, tmp_path: Path
) -> None:
    options = ["--devices", "2", "--run-dir", str(tmp_path), "--restarts", "2"]
    run = started(*options, "--save-every", "1steps", "--pause_ms", "300")
    wait_for(lambda: saved_steps(tmp_path))
    if asked == "rank 1":
        ranks_of(run)[1].send_signal(signal.SIGTERM)
    else:
        run.send_signal(signal.SIGTERM)
    code, said = ended(run)
    assert code == 128 + signal.SIGTERM, said
    assert "Restart" not in said and "Traceback" not in said
    assert ("a signal to another rank: ended after step" in said) == (asked == "rank 1"), said
    code, said = ended(started(*options, "--resume", "auto"))
    assert code == 0, said
    assert weights(tmp_path) == alone


@pytest.mark.slow
def test_of_a_sharded_model_the_rank_that_raised_is_the_only_one_to_be_explained(
    tmp_path: Path,
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('schema = 1\n[techniques.sharding]\nlevel = "parameters"\n')
    options = ["--devices", "2", "--run-dir", str(tmp_path / "run"), "--plan", str(plan)]
    code, said = ended(started(*options, "--fault", "raise"))
    assert code == 1
    assert "rank 1 ended with exit code 1" in said and "ValueError: a wrong sample" in said
    # The other one has lost contact in a collective of torch's own.
    assert said.count("raised by your code") == 1 and "Traceback" not in said, said


def launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, restarts: int
) -> tuple[list[str], list[str], str]:
    """Run a script on one rank; return its attempts, what was said, and what was raised."""
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    counts, script = tmp_path / "counts", tmp_path / "script.py"
    script.write_text(COUNTS.format(counts=str(counts), then=then))
    said: list[str] = []
    raised = ""
    try:
        command = [sys.executable, "-S", str(script)]
        launch(command, 1, logs=tmp_path / "logs", restarts=restarts, notice=said.append)
    except (RunError, UsageError) as error:
        raised = str(error)
    return counts.read_text().split(), said, raised


@pytest.mark.parametrize("code", [7, -1])
def test_what_dies_is_started_again_until_it_does_not(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The system sees -1 as 255, which no signal gives that asks a process to end.
    then = f"sys.exit({code} if os.environ[{RESTARTS!r}] == '0' else 0)"
    assert launched(tmp_path, monkeypatch, then, 3)[0] == ["00", "01"]


def test_what_dies_each_time_ends_after_n_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts, said, raised = launched(tmp_path, monkeypatch, "os.kill(os.getpid(), 9)", 1)
    assert attempts == ["00", "01"]
    assert len(said) == 1
    assert "rank 0 was ended by SIGKILL" in said[0]
    assert "Restart 1 of 1" in said[0]
    assert "The run was restarted 1 times" in raised
    assert (tmp_path / "logs" / "rank-0.log").read_text() == "attempt 0\nattempt 1\n"


@pytest.mark.parametrize("code", [2, 128 + signal.SIGTERM])
def test_what_is_refused_or_was_asked_to_end_is_not_started_again(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the first rank has said of it is not said again.
    assert launched(tmp_path, monkeypatch, f"sys.exit({code:d})", 3) == (["00"], [], "")


def asked(**options: Any) -> RankRequest:
    given = {"devices": 2, "device": None, "run_dir": "runs/1", "resume": None, "timeout": "5m"}
    return RankRequest(**{**given, "restarts": 2, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"restarts": -1}, "--restarts -1 is not valid. Expected: 0 or more"),
        ({"run_dir": None}, "--restarts 2 needs checkpoints to restart from"),
        ({"resume": "runs/0"}, "not with --resume 'runs/0'. Use --resume auto"),
        ({"timeout": "0s"}, "--rank-timeout '0s' is not a duration"),
    ],
)
def test_restarts_that_cannot_be_are_refused(options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        asked(**options)


def test_under_another_launcher_its_own_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="torchrun --max-restarts N"):
        asked()
    monkeypatch.setenv(STORE, "of hotlap's own launcher")
    assert asked().resumes_from is None
    monkeypatch.setenv(RESTARTS, "1")
    assert asked().resumes_from == "auto"


def test_ranks_share_the_cores_that_this_process_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotlap.distributed.launch.usable_cores", lambda: 6)
    code = "import os; open(os.environ['RANK'], 'w').write(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.chdir(tmp_path)
    for environ, threads in (({}, "3"), ({"OMP_NUM_THREADS": "5"}, "5")):
        assert launch([sys.executable, "-c", code], 2, environ=environ) == 0
        assert [Path(rank).read_text() for rank in "01"] == [threads, threads]
