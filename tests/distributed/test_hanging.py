"""A rank that hangs or was stopped ends the run in time, and is named."""

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hotlap.distributed import absent
from hotlap.distributed.absent import Meeting, name_ranks
from hotlap.distributed.ranks import Ranks
from hotlap.errors import UsageError
from tests.distributed.cases import exact
from tests.distributed.runs import (
    are_gone,
    ended,
    ranks_of,
    saved_steps,
    started,
    wait_for,
    weights,
)

TIMEOUT_S = 4.0
OPTIONS = ["--devices", "2", "--rank-timeout", f"{TIMEOUT_S:g}s"]


def log_of(run_dir: Path, rank: int) -> str:
    return (run_dir / "logs" / f"rank-{rank}.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_stopped_rank_ends_the_run_in_time_and_is_named(
    number: int, alone: Any, tmp_path: Path
) -> None:
    options = ["--run-dir", str(tmp_path), "--save-every", "1steps"]
    run = started(*OPTIONS, *options, "--pause_ms", "100")
    wait_for(lambda: saved_steps(tmp_path))
    ranks = ranks_of(run)
    ranks[number].send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    # Ended, and reaped: a process that is dead and not reaped would count.
    wait_for(lambda: are_gone(ranks))
    assert TIMEOUT_S - 1 < time.monotonic() - begun < TIMEOUT_S + 5
    code, said = ended(run)
    assert code == 1
    words = f"rank {number} did not answer within 4 s: it was stopped by a signal"
    assert (said.count(words), said.count("did not answer")) == (1, 1), said
    for rank in (0, 1):
        assert re.search(r'File ".*", line \d+ in ', log_of(tmp_path, rank)), rank
    assert f"rank {number} did not answer within 4 s (" in log_of(tmp_path, 1 - number)
    code, said = ended(started(*options, "--resume", "auto"))
    assert code == 0, said
    assert weights(tmp_path) == alone


@pytest.mark.slow
def test_a_rank_that_is_stopped_for_less_than_the_time_out_costs_nothing(
    alone: Any, tmp_path: Path
) -> None:
    options = ["--run-dir", str(tmp_path), "--save-every", "1steps"]
    run = started(*OPTIONS, *options, "--pause_ms", "100")
    wait_for(lambda: saved_steps(tmp_path))
    rank = ranks_of(run)[1]
    rank.send_signal(signal.SIGSTOP)
    time.sleep(TIMEOUT_S / 2)
    rank.send_signal(signal.SIGCONT)
    code, said = ended(run)
    assert code == 0, said
    assert weights(tmp_path) == alone


@pytest.mark.slow
def test_the_stack_of_a_rank_that_hangs_is_in_its_log(tmp_path: Path) -> None:
    options = ["--run-dir", str(tmp_path), "--fault", "hang"]
    code, said = ended(started("--devices", "2", "--rank-timeout", "2s", *options))
    assert code == 1
    assert said.count("rank 1 did not answer within 2 s: it was still running") == 1, said
    assert re.search(r"recipe\.py\", line \d+ in fail", log_of(tmp_path, 1))
    assert re.search(r"reduce\.py\", line \d+ in _collective", log_of(tmp_path, 0))


@pytest.mark.slow
def test_a_rank_that_never_joins_is_named(tmp_path: Path) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "HOTLAP_RANK_STORE": str(tmp_path / "store")}
    code, said = ended(started("--rank-timeout", "2s", **variables))
    assert (code, said.count("rank 1 did not join within 2 s")) == (1, 1), said


def meeting(store: Any, rank: int) -> Meeting:
    return Meeting(store, Ranks(rank, 4), 60.0)


def test_ranks_that_left_no_note_are_those_that_others_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(absent, "_PATIENCE_S", 0.0)
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    assert meeting(store, 0).not_waiting() == [1, 2, 3]
    assert meeting(store, 2).not_waiting() == [1, 3]
    meeting(store, 3).arrive()
    assert meeting(store, 0).never_arrived() == [1, 2]
    assert name_ranks([1, 2, 3]) == "ranks 1, 2 and 3"


def test_a_store_that_is_gone_names_no_rank() -> None:
    class Gone:
        def set(self, *_: str) -> None:
            raise RuntimeError("Broken pipe")

    assert meeting(Gone(), 0).not_waiting() == []
    assert name_ranks([]) == "another rank"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_out_that_is_none_is_refused(seconds: float) -> None:
    import hotlap

    with pytest.raises(UsageError, match="rank_timeout_s="):
        hotlap.train(exact(), rank_timeout_s=seconds)
