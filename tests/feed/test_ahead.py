"""Small batches that are gathered several at once are those that reading gives."""

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from hotlap.engine.build import build
from hotlap.feed.memory import gather
from hotlap.plan import Plan
from hotlap.task import Task

COUNT = 103


class Points(Dataset):
    """Samples of 12 bytes, and a number that reading adds."""

    def __init__(self, kind: str = "list") -> None:
        self.values = torch.arange(COUNT * 3.0).view(COUNT, 3)
        self.kind, self.added = kind, 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        value = self.values[index] + self.added
        return {"x": value, "y": index} if self.kind == "dict" else (value, index)


def source(data: Any, plan: Plan, batch: int = 5) -> Any:
    task = Task(
        model=lambda: torch.nn.Linear(3, 1),
        loss=lambda model, batch: model(batch[0]).mean(),
        data=data,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=batch,
        epochs=1,
    )
    return build(task, plan, device="cpu").source


def leaves(batch: Any) -> list[torch.Tensor]:
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("batch", [1, 5, 16, COUNT, 200])
@pytest.mark.parametrize("first", [0, 3])
def test_every_batch_is_the_one_that_reading_gives(kind: str, batch: int, first: int) -> None:
    served = source(Points(kind), Plan({"resident": {}}), batch)
    read = source(Points(kind), Plan(), batch)
    for epoch in range(4):
        theirs = list(read.epoch(epoch, first if epoch == 3 else 0))
        mine = list(served.epoch(epoch, first if epoch == 3 else 0))
        assert len(mine) == len(theirs)
        for [(n, left)], [(m, right)] in zip(mine, theirs, strict=True):
            assert n == m
            assert type(left) is type(right)
            for a, b in zip(leaves(left), leaves(right), strict=True):
                assert torch.equal(a, b)
                assert a.is_contiguous()
                # As a tensor of its own: sums may depend on where a row of numbers begins.
                assert a.data_ptr() % 64 == 0
    assert served.notes["resident"].served > 0


class Images(Points):
    """A large tensor beside a small one."""

    def __init__(self, kind: str = "list") -> None:
        super().__init__(kind)
        self.values = torch.arange(COUNT * 4096.0).view(COUNT, 4096)


@pytest.mark.parametrize("kind", [Points, Images])
def test_several_are_really_gathered_at_once(
    monkeypatch: pytest.MonkeyPatch, kind: type[Points]
) -> None:
    counts, plain = [], gather.BatchGatherer._gather_part

    def counted(self: Any, row: torch.Tensor, index: torch.Tensor, count: int) -> Any:
        counts.append(count)
        return plain(self, row, index, count)

    monkeypatch.setattr(gather.BatchGatherer, "_gather_part", counted)
    served = source(kind(), Plan({"resident": {}}))
    read = source(kind(), Plan())
    for epoch in range(3):
        for [(_, mine)], [(_, theirs)] in zip(served.epoch(epoch), read.epoch(epoch), strict=True):
            assert all(map(torch.equal, mine, theirs))
            assert all(leaf.data_ptr() % 64 == 0 for leaf in mine)
    assert max(counts) > 10


@pytest.mark.parametrize("kind", [Points, Images])
def test_a_loop_may_write_into_its_batch_also_with_something_it_learns(kind: type[Points]) -> None:
    served = source(kind(), Plan({"resident": {}}))
    for epoch in range(3):
        scale = torch.ones((), requires_grad=True)
        losses = []
        for [(_, batch)] in served.epoch(epoch):
            batch[1] = batch[1].float() if epoch else batch[1]
            batch[0].mul_(scale)
            losses.append(batch[0].sum())
        sum(losses).backward()
        assert scale.grad is not None


def test_a_data_set_that_is_changed_between_two_steps_is_read_anew() -> None:
    points = Points()
    served = source(points, Plan({"resident": {}}))
    for epoch in range(2):
        list(served.epoch(epoch))
    seen = []
    for number, [(_, batch)] in enumerate(served.epoch(2)):
        seen.append(float((batch[0] - points.values[batch[1]]).max()))
        if number == 7:
            points.added = 1000
    assert seen[:8] == [0.0] * 8
    assert seen[8:] == [1000.0] * (len(seen) - 8)


def test_what_a_loop_writes_into_one_batch_is_not_seen_in_another() -> None:
    points = Points()
    served = source(points, Plan({"resident": {}}))
    for epoch in range(3):
        for [(_, batch)] in served.epoch(epoch):
            assert torch.equal(batch[0], points.values[batch[1]])
            batch[0].fill_(-1.0)
