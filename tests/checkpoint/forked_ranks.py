"""Real ranks that save, fail and are killed: each case is two processes that gloo connects.

    python -m tests.checkpoint.forked_ranks FOLDER KIND

makes every case of a kind in a folder of its own, and prints what became of each rank.
"""

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hotlap
from hotlap.checkpoint import write, write_shards
from hotlap.distributed.ranks import STORE, detect_ranks
from hotlap.distributed.reduce import Reduce, joined
from hotlap.engine.state import saving
from tests.checkpoint.rank_threads import parts_of
from tests.checkpoint.sharded import save
from tests.checkpoint.test_sharded_steps import FAULTS, failing
from tests.distributed.cases import OnGrid, exact

WORLD = 2
_PATIENCE_S = 60.0
Work = Callable[[Path], Any]
"""What one rank does in the folder of its case."""


def outcomes(folder: Path, work: Work) -> list[dict[str, Any]]:
    """Return what became of each rank that did some work in a folder of its case."""
    folder.mkdir(parents=True)
    pids = [_fork(folder, rank, work) for rank in range(WORLD)]
    until, ended = time.monotonic() + _PATIENCE_S, {}
    while len(ended) < WORLD:
        for rank, pid in enumerate(pids):
            if rank not in ended:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    ended[rank] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > until:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [_outcome(folder, rank, ended[rank]) for rank in range(WORLD)]


def _outcome(folder: Path, rank: int, code: int) -> dict[str, Any]:
    said = folder / f"rank-{rank}.json"
    return {"code": code, **(json.loads(said.read_text()) if said.exists() else {})}


def _fork(folder: Path, rank: int, work: Work) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        names = {"RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": WORLD}
        os.environ.update({name: str(value) for name, value in names.items()})
        os.environ[STORE] = str(folder / "store")
        said: dict[str, Any] = {}
        try:
            said["done"] = str(work(folder))
        except Exception as error:
            said = {"kind": type(error).__name__, "said": str(error)}
        (folder / f"rank-{rank}.json").write_text(json.dumps(said))
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def saving_twice(arm: Callable[[pytest.MonkeyPatch, Reduce], None]) -> Work:
    """Return work that saves a step, and another one under a fault."""

    def work(folder: Path) -> Any:
        ranks = detect_ranks(os.environ)
        with joined(ranks, timeout_s=20.0) as reduce, pytest.MonkeyPatch.context() as patch:
            root = folder / "ckpt"
            save(root, 1, reduce, keep=1)
            reduce.wait()
            arm(patch, reduce)
            try:
                return save(root, 2, reduce, keep=1)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    return work


def fault(where: Any) -> Work:
    """Return work that fails as `FAULTS` says."""
    return saving_twice(lambda patch, _: failing(patch, *FAULTS[where]))


def _no_room(_: pytest.MonkeyPatch, reduce: Reduce) -> None:
    if reduce.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(module: Any, name: str, ranks: tuple[int, ...], count: int, *, after: bool) -> Work:
    """Return work in which ranks are killed at a call of a function.

    Args:
        module: that calls it.
        name: its name there.
        ranks: that are killed.
        count: how many calls pass before.
        after: kill at the end of the call, not at its beginning.
    """

    def arm(patch: pytest.MonkeyPatch, reduce: Reduce) -> None:
        real, calls = getattr(module, name), iter(range(10**6))

        def wrapped(*given: Any, **options: Any) -> Any:
            is_it = next(calls) == count and reduce.rank in ranks
            if is_it and not after:
                _die()
            result = real(*given, **options)
            if is_it:
                _die()
            return result

        patch.setattr(module, name, wrapped)

    return saving_twice(arm)


def kills() -> dict[str, Work]:
    """Return where ranks are killed: at each phase any, and at what only the first one does."""
    found: dict[str, Work] = {}
    for ranks in ((0,), (1,), (0, 1)):
        for number, phase in enumerate(("prepare", "make", "write", "commit")):
            name = f"{phase} of {' and '.join(map(str, ranks))}"
            found[f"before {name}"] = dying(write_shards, "_together", ranks, number, after=False)
        found[f"within write of {ranks}"] = dying(write_shards, "write_new", ranks, 1, after=False)
    first = {
        "before mkdir": (write_shards.os, "mkdir", 0, False),
        "before the manifest": (write_shards, "manifest_of", 0, False),
        "after the manifest": (write_shards, "sync_folder", 1, False),
        "before rename": (write_shards.os, "rename", 0, False),
        "after rename": (write_shards.os, "rename", 0, True),
        "before LATEST": (write_shards, "name_latest", 0, False),
        "before retiring": (write_shards, "retire", 0, False),
        "within retiring": (write, "delete", 0, False),
        "after retiring": (write_shards, "retire", 0, True),
    }
    for name, (module, function, count, after) in first.items():
        found[name] = dying(module, function, (0,), count, after=after)
    return found


class Remembering(OnGrid):
    """Keeps of each weight what it was, and how often it was changed."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                kept = self.state[weight]
                kept["before"] = weight.detach().clone()
                kept["count"] = kept.get("count", torch.zeros(())) + 1
        super().step(closure)


def task(epochs: int) -> hotlap.Task:
    """Return the exact task, with an optimizer that has a state."""
    return exact(epochs=epochs, optimizer=lambda m: Remembering(m.parameters(), lr=1 / 64))


def training(epochs: int, every: str = "1epoch") -> Work:
    """Return work that trains, where each rank holds a half of what a checkpoint has of it."""

    def work(folder: Path) -> Any:
        real, ranks = saving.capture, detect_ranks(os.environ)

        def capture(*given: Any) -> Any:
            tensors, state = real(*given)
            return parts_of(tensors, ranks.rank, ranks.world), state

        saving.capture = capture
        options: dict[str, Any] = {"device": "cpu", "save_every": every, "keep": 9}
        run = folder.parent / ("run" if every == "1epoch" else "timed")
        return hotlap.train(task(epochs), run_dir=run, resume="auto", **options).steps

    return work


CASES: dict[str, Callable[[], dict[str, Work]]] = {
    "faults": lambda: {
        **{f"{phase} {ranks}": fault((phase, ranks)) for phase, ranks in FAULTS},
        "no room": saving_twice(_no_room),
    },
    "kills": kills,
    "training": lambda: {
        "first": training(2),
        "second": training(3),
        "by the clock": training(3, "1s"),
    },
}


def main() -> None:
    torch.set_num_threads(1)
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    found = {}
    for number, (name, work) in enumerate(CASES[kind]().items()):
        found[name] = {"folder": str(number), "ranks": outcomes(folder / str(number), work)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
