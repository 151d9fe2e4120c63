"""Steps of several ranks, for tests: what each rank holds of a small state, and how it saves it."""

from pathlib import Path
from typing import Any

import torch

from hotlap.checkpoint.layout import describe, layout_of, own_tensors
from hotlap.checkpoint.read import read
from hotlap.checkpoint.write_shards import Commit, commit_shards
from hotlap.distributed.reduce import Reduce
from tests.checkpoint.rank_threads import on_ranks, parts_of
from tests.checkpoint.whole import is_whole

STATE = {"position": {"epoch": 2}, "rate": 0.1}


def state_of(step: int) -> dict[str, dict[str, torch.Tensor]]:
    """Return the whole tensors of a step; their dimensions do not divide by the ranks."""
    generator = torch.Generator().manual_seed(step)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    model = {"0.weight": draw(5, 3), "0.bias": draw(5), "1.weight": draw(1, 5).bfloat16()}
    optimizer = {f"{name}/exp_avg": draw(*weight.shape) for name, weight in model.items()}
    optimizer |= {f"{name}/step": torch.tensor(float(step)) for name in model}
    return {"model": model, "optimizer": optimizer, "random": {"torch": torch.arange(8)}}


def save(root: Path, step: int, reduce: Reduce, **options: Any) -> Path:
    """Save a step, as one of the ranks that hold it in parts."""
    parts = own_tensors(parts_of(state_of(step), reduce.rank, reduce.world), reduce.rank)
    layout = layout_of(reduce.gather(describe(parts)))
    given: dict[str, Any] = {"is_whole": is_whole, "keep": 9, **options}
    return commit_shards(Commit(root, step, layout), parts, STATE, reduce, **given)


def saved(root: Path, step: int = 1, world: int = 2, **options: Any) -> Path:
    """Save a step on ranks that are threads, and return its folder."""
    found = on_ranks(world, lambda reduce: save(root, step, reduce, **options))
    assert len(set(map(str, found))) == 1, found
    assert isinstance(found[0], Path), found
    return found[0]


def holds(path: Path, step: int) -> bool:
    """True if a folder is read as that step, to the bit."""
    found, wanted = read(path), state_of(step)
    return found.tensors.keys() == wanted.keys() and all(
        found.tensors[group].keys() == names.keys()
        and all(
            torch.equal(found.tensors[group][name], tensor)
            and found.tensors[group][name].dtype == tensor.dtype
            for name, tensor in names.items()
        )
        for group, names in wanted.items()
    )
