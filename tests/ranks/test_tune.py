"""`hotlap tune` and `verify` with scripts that train on ranks: each rank is raced, and proven."""

import json
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.lab.heard_ranks import Ranks
from hotlap.lab.rank_records import merge_ranks

Call = Callable[..., subprocess.CompletedProcess[str]]
DDP = str(Path(__file__).parent / "ddp.py")
TORCHRUN = ("torchrun", "--standalone", "--nproc_per_node", "2", DDP)
RESIDENT = "schema = 1\n\n[techniques.resident]\n"


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["torchrun", "spawn"])
def test_a_plan_is_proven_on_every_rank(how: str, hotlap: Call, tmp_path: Path) -> None:
    (tmp_path / "fast.toml").write_text(RESIDENT)
    script = TORCHRUN if how == "torchrun" else (DDP, "--spawn", "2", "--port", free_port())
    ended = hotlap(
        "verify", "--json", "--steps", "64", "plain", "fast.toml", *script, "--epochs", "30",
        timeout_s=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(ended.stdout)["verdict"]
    assert verdict["tier"] == "exact", verdict
    assert "in each of 2 ranks" in verdict["evidence"]


@pytest.mark.slow
def test_what_differs_on_another_rank_than_the_first_is_no_proof(
    hotlap: Call, tmp_path: Path
) -> None:
    # The batches of rank 1 alone are multiplied: those of the first rank are the plain run's.
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "planted.toml").write_text("schema = 1\n\n[techniques.doubled]\n")
    ended = hotlap(
        "verify", "--json", "--technique", "planted:TECHNIQUE", "--steps", "64", "plain",
        "planted.toml", *TORCHRUN, "--epochs", "30", timeout_s=240, PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    verdict = json.loads(ended.stdout)["verdict"]
    assert verdict["tier"] == "changed", ended.stderr
    failed = [check["name"] for check in verdict["checks"] if check["state"] == "failed"]
    assert "batches" in failed


@pytest.mark.slow
def test_a_plan_is_found_on_ranks_or_it_is_said_why_not(hotlap: Call, tmp_path: Path) -> None:
    out = tmp_path / "ddp.toml"
    ended = hotlap(
        "tune", "--json", "--for", "steady", "--only", "resident", "--budget", "120s",
        "--out", str(out), *TORCHRUN, "--epochs", "100000", timeout_s=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    (row,) = found["techniques"]
    assert (row["name"], row["state"]) not in {("resident", "refused"), ("resident", "failed")}
    if found["outcome"] == "gain":
        assert "resident" in out.read_text()
        assert 'tier = "exact"' in out.read_text()
    else:
        # Beside other busy processes, nothing can be told apart from noise.
        assert found["outcome"] == "could_not_tell" and found["reason"], ended.stdout
        assert not out.exists()


def test_records_of_ranks_are_equal_only_if_each_rank_is() -> None:
    first = {"weights": ["a", "b"], "losses": [1.0], "buffers": None, "start": {"0.w": ["x", True]}}
    other = {
        "weights": ["c", "d"],
        "losses": [2.0],
        "buffers": ["e"],
        "start": {"0.w": ["y", True]},
    }
    merged = merge_ranks(first, [other])
    assert merged["weights"] == ["a c", "b d"] and merged["ranks"] == 2
    assert merged["buffers"] is None and merged["losses"] == [1.0]
    assert merged["start"] == {"0.0.w": ["x", True], "1.0.w": ["y", True]}
    assert merge_ranks(first, [{**other, "weights": ["c", "z"]}])["weights"] != merged["weights"]
    assert merge_ranks(first, []) == first
    # What one rank did not record is not proven by the others.
    assert merge_ranks(first, [{**other, "weights": None}])["weights"] == []


PLANTED = """
import os
from hotlap.techniques import Numerics, Proof, Technique

def apply(target, options):
    def doubled(dataset, read):
        def fetch(indices):
            x, y = read(indices)
            return (x * 2 if os.environ["RANK"] == "1" else x), y
        return fetch
    target.fetchers.append(doubled)
    return target

TECHNIQUE = Technique(
    name="doubled", seam="feed", apply=apply, numerics=lambda: Numerics.EXACT,
    proof=lambda target: Proof("applied", "it did"), on_ranks=True,
)
"""
"""A technique that claims to be exact, and changes what rank 1 reads."""


def test_whom_the_others_wait_for_is_named() -> None:
    ranks = Ranks()
    ranks.hear({"kind": "attached"})
    assert not ranks.are_there and ranks.whom_they_wait_for() == ""
    for rank in (0, 1):
        ranks.hear({"kind": "attached", "is_rank": True, "rank": rank})
    ranks.hear({"kind": "trains", "rank": 0})
    assert ranks.are_there
    assert ranks.whom_they_wait_for() == ". No optimizer step was seen on rank 1"
    ranks.hear({"kind": "trains", "rank": 1})
    assert ranks.whom_they_wait_for() == ""
    ranks.hear({"kind": "followed", "rank": 1, "steps": 7})
    assert "Rank 1 ended after 7 steps" in ranks.whom_they_wait_for()
