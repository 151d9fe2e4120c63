"""`hotlap diagnose` of scripts that train on ranks: the first is measured."""

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., subprocess.CompletedProcess[str]]
DDP = str(Path(__file__).parent / "ddp.py")
TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node", "2", DDP)


def spawning() -> tuple[str, ...]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return (DDP, "--spawn", "2", "--port", str(taken.getsockname()[1]))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torchrun", "spawn"])
@pytest.mark.parametrize("epochs", ["2", "1000"], ids=["to its end", "cut off"])
def test_the_first_rank_is_measured_and_the_others_run_along(
    how: str, epochs: str, hotlap: Call
) -> None:
    script = TORCHRUN if how == "torchrun" else spawning()
    ended = hotlap(
        "diagnose", "--json", "--budget", "20s", *script, "--epochs", epochs, timeout_s=240
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["notes"][0].startswith("2 ranks train; the first one was measured")
    # 100 samples, 50 of them in each rank, 8 in a batch.
    assert found["planned_steps"] == 7 * int(epochs)
    where = [each["where"] for each in (*found["findings"], *found["suspects"])]
    assert any("ddp.py" in each for each in where) or epochs == "2"


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["1", "0"])
def test_a_wait_for_a_slower_rank_is_named(slow: str, hotlap: Call) -> None:
    script = (*TORCHRUN, "--epochs", "1000", "--slow", slow)
    ended = hotlap("diagnose", "--json", "--budget", "15s", *script, timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    named = {each["rule"]: each for each in found["suspects"]}
    (said,) = [note for note in found["notes"] if "is the slowest" in note]
    # It sleeps before its forward, which is in none of the phases that have a name.
    assert said.startswith(f"rank {slow} is the slowest") and "is in other:" in said
    if slow == "0":
        # The negative control: the rank that is measured is the slow one, and waits for nobody.
        assert "exposed_communication" not in named
    else:
        assert "ddp.py:" in named["exposed_communication"]["where"]


@pytest.mark.slow
def test_the_first_rank_is_recorded(hotlap: Call, tmp_path: Path) -> None:
    options = ("--json", "--budget", "35s", "--trace", "traces")
    ended = hotlap("diagnose", *options, *TORCHRUN, "--epochs", "1000", timeout_s=240)
    assert ended.returncode == 0, ended.stderr
    profile = json.loads(ended.stdout)["profile"]
    assert len(list((tmp_path / "traces").iterdir())) == 1
    assert profile["steps"] == 6
    # The sums of gradients are in the backward, and the wrapper is in no name.
    assert profile["phases"]["backward"] > 0
    names = {region["name"] for region in profile["regions"]}
    assert "DistributedDataParallel.forward" in names
    assert not any(name.startswith("module") for name in names)


@pytest.mark.slow
def test_what_cannot_be_done_on_ranks_is_refused(hotlap: Call) -> None:
    ended = hotlap("diagnose", "--memory", *TORCHRUN, "--epochs", "1000", timeout_s=240)
    assert ended.returncode == 2, ended.stderr
    assert "the script trains on several ranks" in ended.stderr
