"""Several ranks learn what one process learns, to the bit where the arithmetic is exact."""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hotlap
from hotlap.distributed.launch import launch
from hotlap.distributed.ranks import ALONE, STORE, Ranks, check_mpi, detect_ranks
from hotlap.distributed.reduce import Reduce
from hotlap.engine.checks.same_on_ranks import check_model
from hotlap.engine.checks.splitting import check_statistics
from hotlap.errors import UsageError
from tests.distributed.cases import tasks
from tests.distributed.rank import OVERLAPS, SHORT_IN_CLIPPING, outcome

ROOT = Path(__file__).parents[2]
RUNNER = (
    "import sys; from hotlap.distributed.launch import launch; "
    "sys.exit(launch([sys.executable, '-m', 'tests.distributed.rank'], int(sys.argv[1])))"
)


def on_ranks(world: int, **variables: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(world)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def two() -> dict[str, Any]:
    return on_ranks(2)


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: outcome(*given) for name, given in tasks(0, 1).items()}
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [name for name in tasks(0, 1) if "one rank" not in name])
def test_two_ranks_learn_what_one_process_learns(name: str, two: Any, alone: Any) -> None:
    assert two[name]["weights"] == alone[name]["weights"]
    assert two[name]["losses"] == alone[name]["losses"]
    assert two[name]["refused"] == []
    for mine, theirs in zip(two[name]["held_out"], alone[name]["held_out"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-6)
    assert len(set(alone[name]["losses"])) > 1


def test_a_rank_that_runs_out_of_memory_costs_no_bit(two: Any, alone: Any) -> None:
    found = two["out of memory on one rank"]
    assert found["retries"] > 0
    assert found["weights"] == alone["sum and count"]["weights"]
    assert found["losses"] == alone["sum and count"]["losses"]


@pytest.mark.slow
def test_a_rank_that_runs_out_of_memory_after_its_passes_ends_the_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, "2"],
        cwd=ROOT,
        env={**os.environ, SHORT_IN_CLIPPING: "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert "step 3 ran out of memory on rank 1 (no memory for norms) after the" in done.stderr


def test_one_rank_that_is_not_finite_is_skipped_by_all(two: Any) -> None:
    found = two["not finite on one rank"]
    assert found["skipped"] == 1
    assert all(torch.isfinite(torch.tensor(each)).all() for each in found["weights"])


@pytest.fixture(scope="module")
def four() -> dict[str, Any]:
    return on_ranks(4)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sums go through the process group")
@pytest.mark.parametrize("name", ["ordinary", "ordinary, clipped"])
def test_four_ranks_of_one_machine_round_as_one_process_does(name: str, four: Any) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = outcome(*tasks(0, 1, parts=4)[name])
    finally:
        torch.set_num_threads(threads)
    assert four[name]["weights"] == alone["weights"]
    assert four[name]["losses"] == pytest.approx(alone["losses"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("world", [3, 4])
def test_more_ranks_learn_the_same_where_the_arithmetic_is_exact(
    world: int, alone: Any, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue("four") if world == 4 else on_ranks(world)
    # Which layer is used hangs on how samples are dealt, and that is here other than for two.
    other = ("one rank", "some ranks", "ordinary", "fused")
    for name in found:
        if not any(words in name for words in other):
            assert found[name]["weights"] == alone[name]["weights"], name
            assert found[name]["losses"] == alone[name]["losses"], name


@pytest.mark.slow
def test_sums_that_begin_during_the_backward_pass_change_no_bit(two: Any) -> None:
    assert on_ranks(2, **{OVERLAPS: "1"}) == two


@pytest.mark.slow
def test_they_change_nothing_on_three_ranks_where_the_arithmetic_is_exact(alone: Any) -> None:
    found = on_ranks(3, **{OVERLAPS: "1"})
    assert found["accumulated"]["weights"] == alone["accumulated"]["weights"]
    assert found["out of memory on one rank"]["weights"] == alone["sum and count"]["weights"]


def test_who_started_a_rank_is_known() -> None:
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    slurm = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
    assert detect_ranks(torchrun) == Ranks(3, 4, 1, 2)
    assert detect_ranks({**slurm, "SLURM_NTASKS_PER_NODE": "2"}) == Ranks(3, 4, 1, 2)
    assert detect_ranks({}) == detect_ranks({"RANK": "0"}) == ALONE
    assert detect_ranks({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) == ALONE


def test_a_batch_script_of_slurm_is_no_rank() -> None:
    # What it has is the number of tasks that it may start.
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
    assert detect_ranks(batch) == ALONE
    step = {**batch, "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}
    assert detect_ranks(step).rank == 2
    # torchrun with one process, in a step of srun with four tasks.
    assert detect_ranks({**step, "RANK": "0", "WORLD_SIZE": "1"}) == ALONE


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_a_process_of_mpirun_without_a_rank_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"one of 4 \({name}\), but RANK and WORLD_SIZE"):
        check_mpi({name: "4"})
    check_mpi({name: "1"})
    check_mpi({name: "4", "RANK": "3", "WORLD_SIZE": "4"})
    check_mpi({name: "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"})


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "Expected: RANK from 0 to 1"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'. Expected: a whole number"),
    ],
)
def test_variables_that_cannot_be_are_an_error(variables: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        detect_ranks(variables)


def test_a_loop_of_ones_own_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="one of 2 ranks"):
        hotlap.steps(tasks(0, 1)["mean"][0])


WAITS = """
import os, sys, time
rank = os.environ["RANK"]
print("rank", rank, "is here", file=sys.stderr, flush=True)
if rank == "1":
    {fault}
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("os.kill(os.getpid(), 9)", "rank 1 was ended by SIGKILL"),
        ("raise ValueError('a wrong sample')", "ValueError: a wrong sample"),
        ("sys.exit(7)", "rank 1 ended with exit code 7"),
    ],
)
def test_a_rank_that_dies_ends_the_others_with_its_last_words(
    fault: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotlap.distributed import processes
    from hotlap.errors import RunError

    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    script = tmp_path / "waits.py"
    script.write_text(WAITS.format(fault=fault))
    with contextlib.redirect_stderr(io.StringIO()) as shown, pytest.raises(RunError) as error:
        launch([sys.executable, str(script)], 2, logs=tmp_path / "logs")
    assert words in str(error.value)
    assert "rank 0 is here" in shown.getvalue()
    assert "rank 1 is here" in (tmp_path / "logs" / "rank-1.log").read_text()


def test_what_another_rank_refuses_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hotlap.distributed import processes

    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    script = tmp_path / "refuses.py"
    script.write_text(WAITS.format(fault="print('the batch is empty'); sys.exit(2)"))
    with pytest.raises(UsageError, match=r"(?s)rank 1 ended with exit code 2.*the batch is empty"):
        launch([sys.executable, str(script)], 2, logs=tmp_path)


def test_what_ranks_cannot_share_is_refused() -> None:
    ranks = Reduce(Ranks(0, 2))
    with pytest.raises(UsageError, match="'0' has sparse gradients"):
        check_model(nn.Sequential(nn.Embedding(3, 4, sparse=True)), ranks)
    normal = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match="shared by 2 ranks, and batch norm \\(1\\)"):
        check_statistics(tasks(0, 1)["mean"][0], normal, 8, 2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
def test_no_thread_of_a_process_group_outlives_the_training() -> None:
    runner = RUNNER.replace("tests.distributed.rank", "tests.distributed.group_threads")
    done = subprocess.run(
        [sys.executable, "-c", runner, "2"], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "while it trained: True left: []"


def test_all_ranks_that_end_well_end_well(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(f"import os; assert os.environ[{STORE!r}] and os.environ['RANK'] in '012'")
    assert launch([sys.executable, str(script)], 3, logs=tmp_path) == 0
