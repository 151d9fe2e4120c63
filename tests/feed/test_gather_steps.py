"""Batches of several steps are gathered at once, and are those that are gathered one by one."""

import pytest
import torch

from hotlap.feed.memory import gather
from hotlap.feed.memory.gather import gather_steps
from hotlap.nested import flatten_into

ROWS = [torch.randn(50, 128), torch.arange(50)]


def spec_of(batch: object) -> object:
    return flatten_into(batch, [])


@pytest.mark.parametrize(
    ("batch", "micro"), [(64, 64), (64, 32), (64, 48), (8, 8), (6, 4)], ids=str
)
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_steps_are_those_that_are_gathered_one_by_one(batch: int, micro: int, kind: type) -> None:
    order = torch.randint(50, (5 * batch,))
    keys = ("x", "y")
    spec = spec_of(dict(zip(keys, ROWS, strict=True)) if kind is dict else kind(ROWS))
    steps = list(gather_steps(spec, ROWS, order, batch, micro))
    assert len(steps) == 5
    for step, positions in zip(steps, order.split(batch), strict=True):
        for (samples, found), part in zip(step, positions.split(micro), strict=True):
            assert samples == len(part)
            assert type(found) is kind
            leaves = list(found.values()) if isinstance(found, dict) else list(found)
            for leaf, rows in zip(leaves, ROWS, strict=True):
                assert torch.equal(leaf, rows[part])
                # Of its own: a loss may write into it.
                assert leaf._base is None


def test_what_would_begin_elsewhere_or_is_large_is_gathered_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    plain = torch.Tensor.index_select

    def seen(rows: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        calls.append(len(index))
        return plain(rows, dim, index)

    monkeypatch.setattr(torch.Tensor, "index_select", seen)
    spec, order = spec_of(tuple(ROWS)), torch.arange(50).repeat(10)[:192]
    list(gather_steps(spec, ROWS, order, 64, 64))
    assert calls == [192, 192]
    calls.clear()
    # 8 labels are 64 bytes: a tensor of its own would begin at a multiple of 512.
    list(gather_steps(spec, ROWS, order[:24], 8, 8))
    assert calls == [8] * 6
    calls.clear()
    monkeypatch.setattr(gather, "_AT_ONCE_ON_DEVICE", 2 * 64 * (128 * 4 + 8))
    list(gather_steps(spec, ROWS, order, 64, 64))
    assert calls == [128, 128, 64, 64]
