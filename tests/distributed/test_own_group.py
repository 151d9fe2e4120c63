"""A process group that the user's own code has made is used, whatever launcher made it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hotlap
from hotlap.distributed import reduce as module
from hotlap.distributed.own_group import ranks_here
from hotlap.distributed.ranks import ALONE, Ranks
from hotlap.distributed.reduce import joined
from hotlap.errors import RunError, UsageError
from tests.distributed.cases import exact

ROOT = Path(__file__).parents[2]
BOTH = "cpu:gloo,cuda:nccl"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for rank 2 of 4 in a group that no variable of the environment tells of."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "get_backend_config", lambda: BOTH)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("devices", "environ", "expected"),
    [
        (0, {}, Ranks(2, 4, 2, 4)),
        (8, {}, Ranks(2, 4, 2, 4)),
        # Two machines with two devices each.
        (2, {}, Ranks(2, 4, 0, 2)),
        (
            2,
            {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3"},
            Ranks(2, 4, 1, 3),
        ),
        # It has made its group by what mpirun says.
        (0, {"OMPI_COMM_WORLD_SIZE": "4"}, Ranks(2, 4, 2, 4)),
    ],
)
def test_the_group_says_which_rank_this_is(
    devices: int, environ: dict[str, str], expected: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert ranks_here(environ) == expected
    with joined(ALONE, environ=environ) as found:
        assert found.ranks == expected


def test_without_a_group_the_environment_says_it() -> None:
    assert ranks_here({}) == ALONE
    assert ranks_here({"RANK": "1", "WORLD_SIZE": "2"}).rank == 1
    with pytest.raises(UsageError, match="one of 4"):
        ranks_here({"OMPI_COMM_WORLD_SIZE": "4"})
    with joined(ALONE, environ={}) as found:
        assert found.world == 1


@pytest.mark.usefixtures("group")
def test_a_loop_of_ones_own_is_no_rank_of_ones_own_group() -> None:
    with pytest.raises(UsageError, match="one of 4 ranks"):
        hotlap.steps(exact())


@pytest.mark.usefixtures("group")
def test_a_group_without_a_back_end_for_the_cpu_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(UsageError, match="'cuda:nccl', and none for tensors"), joined(ALONE):
        pass
    # Of one rank, as the same script has on one GPU, it is asked for nothing.
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    with joined(ALONE, environ={}) as found:
        assert found.sum_numbers([3.0]) == [3.0]


@pytest.mark.parametrize(
    ("error", "is_loss"),
    [
        (RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:1234"), True),
        (dist.DistBackendError("NCCL error"), True),
        (RuntimeError("No backend type associated with device type cpu"), False),
    ],
)
def test_only_what_says_so_is_a_lost_rank(error: RuntimeError, *, is_loss: bool) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(RuntimeError if not is_loss else RunError) as found:
        module._collective(fail)
    assert is_loss or found.value is error


SPAWNED = """
import sys
import torch.distributed as dist
import torch.multiprocessing as mp
import hotlap
from tests.distributed.cases import exact

def run(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    done = hotlap.train(exact(), device="cpu")
    weights = [each.tolist() for each in done.model.state_dict().values()]
    found = [None, None]
    dist.all_gather_object(found, weights)
    alone = None
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        alone = hotlap.train(exact(), device="cpu")
        expected = [each.tolist() for each in alone.model.state_dict().values()]
        print(found[0] == found[1] == expected)

if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.slow
def test_ranks_that_spawn_has_started_train_one_model(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"
