"""Gradients are summed in buckets, in one order, whatever a rank has gradients of."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.distributed.ranks import Ranks
from hotlap.distributed.reduce import Reduce
from hotlap.engine.step import bucket_sums
from hotlap.engine.step.bucket_sums import BucketSums


class Twofold:
    """Stands for two ranks with the same gradients; notes which sums have begun, and when."""

    def __init__(self) -> None:
        self.begun: list[list[tuple[int, ...]]] = []

    def begin_sum(self, tensors: Sequence[torch.Tensor], number: int) -> Any:
        del number
        self.begun.append([tuple(each.shape) for each in tensors])
        return Pending([each.detach() * 2 for each in tensors])


class Pending:
    def __init__(self, sums: list[torch.Tensor]) -> None:
        self._sums = sums

    def wait(self) -> None:
        return

    def parts(self) -> list[torch.Tensor]:
        return self._sums


@pytest.fixture
def reduce(monkeypatch: pytest.MonkeyPatch) -> Twofold:
    monkeypatch.setattr(bucket_sums, "BUCKET_BYTES", 32)
    monkeypatch.setattr(bucket_sums, "FIRST_BUCKET_BYTES", 8)
    return Twofold()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))


def taken(reduce: Any, model: nn.Module, backward: Any) -> BucketSums:
    found = BucketSums(reduce, in_backward=True)
    found.begin(list(model.parameters()))
    with found.watching():
        backward()
    return found


def test_all_sums_have_begun_when_the_backward_pass_ends(reduce: Twofold) -> None:
    model = network()
    found = taken(reduce, model, lambda: model(torch.randn(2, 3)).sum().backward())
    shapes = [[tuple(each.shape) for each in model.parameters()], reduce.begun]
    assert [shape for group in reduce.begun for shape in group] == shapes[0][::-1]
    assert len(reduce.begun) > 3
    before = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    found.begin_rest()
    found.wait()
    assert found.write(list(model.parameters())) == []
    for tensor, mine in zip(model.parameters(), before, strict=True):
        assert tensor.grad is not None and torch.equal(tensor.grad, 2 * mine)
    # Nothing stays on the user's model.
    assert not any(each._post_accumulate_grad_hooks for each in model.parameters())


def test_the_order_is_the_same_where_a_rank_uses_only_a_part(reduce: Twofold) -> None:
    model = network()
    found = taken(reduce, model, lambda: model[2](torch.randn(2, 5)).sum().backward())
    complete = len(reduce.begun)
    assert complete == 2
    found.begin_rest()
    partial, reduce.begun = reduce.begun, []
    taken(reduce, model, lambda: model(torch.randn(2, 3)).sum().backward())
    assert partial == reduce.begun
    found.wait()
    used = list(model[2].parameters()) + list(model[1].parameters())
    found.write(used)
    assert all(each.grad is not None for each in used)


def test_a_rank_that_fails_in_its_backward_pass_takes_part_in_every_sum(reduce: Twofold) -> None:
    model = network()

    def fail(_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    def backward() -> None:
        hidden = model[0](torch.randn(2, 3))
        hidden.register_hook(fail)
        model[2](model[1](hidden)).sum().backward()

    found = BucketSums(reduce, in_backward=True)  # pyright: ignore[reportArgumentType]
    found.begin(list(model.parameters()))
    with pytest.raises(torch.OutOfMemoryError), found.watching():
        backward()
    assert len(reduce.begun) > 0
    found.begin_rest()
    failed, reduce.begun = reduce.begun, []
    taken(reduce, model, lambda: model(torch.randn(2, 3)).sum().backward())
    assert failed == reduce.begun


class ShortOnce(Twofold):
    """Has no memory for its second sum at first."""

    def begin_sum(self, tensors: Sequence[torch.Tensor], number: int) -> Any:
        assert number == len(self.begun)
        if number == 1 and not self.is_short:
            self.is_short = True
            raise torch.OutOfMemoryError("no memory for a sum")
        return super().begin_sum(tensors, number)

    is_short = False


def test_a_sum_without_memory_is_begun_again_in_its_place(reduce: Twofold) -> None:
    model, short = network(), ShortOnce()

    def backward() -> None:
        model(torch.randn(2, 3)).sum().backward()

    found = BucketSums(short, in_backward=True)  # pyright: ignore[reportArgumentType]
    found.begin(list(model.parameters()))
    with pytest.raises(torch.OutOfMemoryError), found.watching():
        backward()
    found.begin_rest()
    found.wait()
    assert short.is_short
    taken(reduce, model, backward)
    assert short.begun == reduce.begun


def test_memory_for_a_sum_is_had_before_other_ranks_are_asked_for_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    class Shared:
        def write(self, tensors: Sequence[torch.Tensor]) -> None:
            del tensors

    def share(*_: Any) -> Shared:
        asked.append(1)
        return Shared()

    def no_memory(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("hotlap.distributed.reduce.share_memory", share)
    ranks = Reduce(Ranks(0, 2, 0, 2))
    with monkeypatch.context() as short, pytest.raises(torch.OutOfMemoryError):
        short.setattr(torch, "empty", no_memory)
        ranks.begin_sum([torch.ones(3)], 0)
    assert asked == []
    for _ in range(2):
        ranks.begin_sum([torch.ones(3)], 0)
    assert asked == [1]


def test_what_is_frozen_is_not_sent(reduce: Twofold) -> None:
    model = network()
    model[0].requires_grad_(False)
    taken(reduce, model, lambda: model(torch.randn(2, 3)).sum().backward())
    assert (4, 3) not in [shape for group in reduce.begun for shape in group]


def test_a_gradient_that_grows_after_its_sum_has_begun_is_noticed(reduce: Twofold) -> None:
    first, shared = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.ModuleList([first, shared])

    def backward() -> None:
        hidden = first(torch.randn(2, 3))
        for _ in range(2):
            hidden = checkpoint(shared, hidden, use_reentrant=True)
        hidden.sum().backward()

    assert taken(reduce, model, backward).is_stale
    assert not taken(reduce, first, lambda: first(torch.randn(2, 3)).sum().backward()).is_stale


def test_behind_the_backward_pass_there_is_one_sum(reduce: Twofold) -> None:
    model = network()
    found = BucketSums(reduce, in_backward=False)  # pyright: ignore[reportArgumentType]
    found.begin(list(model.parameters()))
    model[2](torch.randn(2, 5)).sum().backward()
    found.begin_rest()
    assert [len(group) for group in reduce.begun] == [6]
    found.wait()
    assert found.write(list(model[2].parameters())) == []
    # What no rank has used has no gradient, though zeros were sent for it.
    assert model[0].weight.grad is None
