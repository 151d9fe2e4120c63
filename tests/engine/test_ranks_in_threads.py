"""What ranks do together in steps, evaluations and saves; here they are threads of one process."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.checkpoint.layout import own_tensors
from hotlap.distributed.ranks import Ranks
from hotlap.distributed.reduce import Reduce
from hotlap.engine.build import BuiltRun, build
from hotlap.engine.evaluate import evaluate
from hotlap.engine.state.agreeing import agree_on_parts
from hotlap.engine.state.content import capture
from hotlap.engine.state.position import Position
from hotlap.engine.step import learned_buffers
from hotlap.engine.step.learned_buffers import LearnedBuffers
from hotlap.engine.step.passes import Passes
from hotlap.engine.step.sharded_sum import ShardedSum
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.techniques import StepTarget
from tests.checkpoint.rank_threads import on_ranks
from tests.distributed.cases import BATCH, Numbers, exact
from tests.engine import lattice


def built_on(reduce: Reduce, plan: Plan | None = None, **options: Any) -> BuiltRun:
    return build(exact(**options), plan or Plan(), device="cpu", reduce=reduce)


def size_of_gradient(model: Any, batch: Any) -> Any:
    """A loss that takes gradients itself."""
    inputs = batch[0].clone().requires_grad_()
    (found,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return found.square().mean()


@pytest.mark.parametrize("count", [1, 22])
def test_all_ranks_measure_again_if_one_of_them_must(count: int) -> None:
    # Of one held-out sample, the second rank has none.
    both: list[Any] = on_ranks(
        2,
        lambda reduce: evaluate(
            built_on(reduce, loss=size_of_gradient, held_out=lattice.data(count))
        ),
    )
    alone = evaluate(built_on(Reduce(), loss=size_of_gradient, held_out=lattice.data(count)))
    assert both[0] == both[1] == pytest.approx(alone)


def test_without_such_a_loss_nobody_measures_again() -> None:
    calls: list[int] = []

    def loss(model: Any, batch: Any) -> Any:
        calls.append(len(batch[0]))
        return lattice.mean(model, batch)

    on_ranks(2, lambda reduce: evaluate(built_on(reduce, loss=loss, held_out=lattice.data(22))))
    assert sum(calls) == 22


def tensor_rate(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=torch.tensor(0.25), momentum=0.5, foreach=False)


def test_a_learning_rate_that_is_a_tensor_is_saved_once_where_state_is_shared() -> None:
    def work(reduce: Reduce) -> Any:
        plan = Plan({"sharding": {"level": "optimizer"}})
        built = built_on(reduce, plan, optimizer=tensor_rate)
        for parameter in built.model.parameters():
            if built.sharding.keeps(parameter):
                built.optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
        tensors, state = capture(built, Position())
        own = own_tensors(tensors, reduce.rank)
        return agree_on_parts(own, state, 0, None, reduce).layout

    first, second = on_ranks(2, work)
    assert first == second
    rate = first["optimizer"]["group 0/lr"]
    assert [piece["file"] for piece in rate["pieces"]] == ["optimizer-00001-of-00002.safetensors"]
    files = {p["file"] for name in first["optimizer"].values() for p in name["pieces"]}
    # State is still written by who keeps it.
    assert len(files) == 2


class Codebook(nn.Module):
    """Keeps a mean of its samples, a count of its calls, a table and running statistics."""

    mean: torch.Tensor
    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.norm = nn.BatchNorm1d(3)

    def see(self, samples: torch.Tensor) -> None:
        # As much code does it: nothing counts this as a write.
        self.mean.data.mul_(0.5).add_(samples.mean(0), alpha=0.5)
        self.calls += 1
        self.norm(samples)


def test_buffers_that_are_learned_from_samples_are_those_of_the_first_rank(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_buffers, "_said", set())
    caplog.set_level(logging.WARNING, "hotlap")
    sent: list[int] = []

    def work(reduce: Reduce) -> list[Any]:
        model, samples = Codebook(), torch.full((4, 3), 1.0 + reduce.rank)
        learned, seen = LearnedBuffers(model, reduce), []
        send = reduce.send_tensors

        def counted(tensors: Sequence[torch.Tensor], ranks: Sequence[int]) -> None:
            sent.append(len(tensors))
            send(tensors, ranks)

        monkeypatch.setattr(reduce, "send_tensors", counted)
        for _ in range(6):
            learned.take_first_ranks()
            seen.append(model.mean.tolist())
            model.see(samples)
        return seen

    first, second = on_ranks(2, work)
    assert first == second
    assert first[-1][0] == pytest.approx(1 - 0.5**5)
    # Before each step but the first one; neither the count nor the table nor the statistics.
    assert sent == [1] * 10
    told = [each for each in caplog.messages if "each rank's own samples" in each]
    assert len(told) == 1 and "'mean'" in told[0]


def test_a_buffer_that_is_written_to_late_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_buffers, "_said", set())

    def work(reduce: Reduce) -> list[float]:
        model = Codebook()
        learned, seen = LearnedBuffers(model, reduce), []
        for step in range(9):
            learned.take_first_ranks()
            seen.append(float(model.mean[0]))
            if step >= 5:
                model.see(torch.full((4, 3), 1.0 + reduce.rank))
        return seen

    first, second = on_ranks(2, work)
    assert first[:6] == second[:6]
    # After 8 steps.
    assert first[7] != second[7] and first[8] == second[8]


def test_a_buffer_whose_shape_differs_between_ranks_is_left_to_each_of_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_buffers, "_said", set())
    caplog.set_level(logging.WARNING, "hotlap")
    # As the last batch is kept: of a short step the second rank has fewer samples.
    sizes = [(4, 4)] * 4 + [(4, 3)] + [(5, 5)] * 3 + [(0, 0)] * 2

    def work(reduce: Reduce) -> list[Any]:
        model = nn.Linear(1, 1)
        model.register_buffer("last", torch.zeros(4))
        learned, seen = LearnedBuffers(model, reduce), []
        for each in sizes:
            learned.take_first_ranks()
            seen.append(None if model.last is None else model.last.tolist())
            size = each[reduce.rank]
            model.last = torch.full((size,), 1.0 + reduce.rank) if size else None
        return seen

    first, second = on_ranks(2, work)
    assert first[:5] == second[:5] == [[0.0] * 4, *[[1.0] * 4] * 4]
    assert (first[5], second[5]) == ([1.0] * 4, [2.0] * 3)
    assert first[-1] is second[-1] is None
    assert any("'last' has another shape on other ranks" in each for each in caplog.messages)


def test_buffers_of_other_forms_are_evaluated_as_each_rank_has_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_buffers, "_said", set())
    caplog.set_level(logging.WARNING, "hotlap")

    def work(reduce: Reduce) -> tuple[list[Any], dict[str, float]]:
        built, rank = built_on(reduce), reduce.rank
        model: Any = built.model
        if rank:
            # Only here, and before the others.
            model.register_buffer("extra", torch.ones(2))
        model.register_buffer("table", torch.eye(2 + rank).to_sparse())
        model.register_buffer("last", torch.full((3 + rank,), float(rank)))
        model.register_buffer("count", torch.tensor(rank, dtype=[torch.int64, torch.int32][rank]))
        model.register_buffer("offset", torch.full((2,), float(rank)))
        found = evaluate(built)
        return [each.tolist() for each in (model.last, model.count, model.offset)], found

    (first, measured), (second, other) = on_ranks(2, work)
    assert first == [[0.0] * 3, 0, [0.0] * 2]
    assert second == [[1.0] * 4, 1, [0.0] * 2]
    assert measured == other
    told = [each.split()[3] for each in caplog.messages if "another shape" in each]
    assert told == ["'last'", "'count'", "'extra'"]


def test_equal_buffers_and_models_without_any_cost_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    lock = threading.Lock()

    def work(reduce: Reduce) -> None:
        gather = reduce.gather

        def counted(value: Any) -> list[Any]:
            with lock:
                told.append(value)
            return gather(value)

        monkeypatch.setattr(reduce, "gather", counted)
        for model in (nn.Linear(2, 2), Codebook()):
            learned = LearnedBuffers(model, reduce)
            for _ in range(6):
                learned.take_first_ranks()
                if isinstance(model, Codebook):
                    model.see(torch.ones(4, 3))

    assert on_ranks(2, work) == [None, None]
    # Of the second one, after 1, 2 and 4 steps.
    assert len(told) == 2 * 3


class OneOfTwo(Reduce):
    """Stands for the second of two ranks, whose first one has one micro-batch and a loss of 1."""

    def __init__(self) -> None:
        super().__init__(Ranks(1, 2))

    def most(self, numbers: Sequence[float]) -> list[float]:
        return [max(numbers[0], 1.0), *numbers[1:]]

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        first = [1.0, 4.0, 1.0, 0.0, 0.0, 0.0, 0.0]
        used = [1.0] * (len(numbers) - len(first))
        return [mine + theirs for mine, theirs in zip(numbers, [*first, *used], strict=True)]


class Unshared:
    """Stands for a sharded model that is whole on this rank."""

    updates = 0

    def __init__(self) -> None:
        self.used: set[str] = set()

    def begin_step(self) -> None:
        self.used.clear()

    def begin_pass(self, *, is_last: bool) -> None:
        del is_last


def sharded_sum() -> tuple[nn.Linear, ShardedSum]:
    layer = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def loss(model: Any, batch: Any) -> Any:
        return model(batch).square().sum(), len(batch)

    target = StepTarget(layer, optimizer, "cpu")
    passes = Passes(layer, loss, optimizer, target)
    found = ShardedSum(passes, optimizer, OneOfTwo(), 0, Unshared(), lambda: torch.ones(2, 3))
    found.samples = 4
    return layer, found


def stepped(layer: nn.Linear, ranks: ShardedSum, *batches: torch.Tensor) -> tuple[float, bool]:
    """Return the loss of a step, and whether its gradients are finite."""
    layer.zero_grad()
    loss = float(ranks([(len(batch), batch) for batch in batches]))
    assert layer.weight.grad is not None
    return loss, bool(layer.weight.grad.isfinite().all())


GOOD, BROKEN = torch.ones(2, 3), torch.full((2, 3), float("inf"))


def test_a_batch_whose_step_was_skipped_is_not_gone_through_idly() -> None:
    layer, ranks = sharded_sum()
    assert stepped(layer, ranks, GOOD)[1]
    loss, is_finite = stepped(layer, ranks, BROKEN)
    assert loss != loss or loss == float("inf")
    assert not is_finite
    # This rank has no sample of the short last step.
    loss, is_finite = stepped(layer, ranks)
    assert is_finite and loss == 0.25


def test_a_step_is_skipped_where_an_idle_pass_has_spoiled_its_gradients() -> None:
    layer, ranks = sharded_sum()
    # There is no other batch yet.
    stepped(layer, ranks, BROKEN)
    loss, is_finite = stepped(layer, ranks)
    assert not is_finite and loss != loss
    # The next one is a step like others.
    assert stepped(layer, ranks, GOOD)[1]
    assert stepped(layer, ranks) == (0.25, True)


def test_batch_norm_of_a_stream_that_ranks_share_is_refused() -> None:
    def model() -> nn.Module:
        return nn.Sequential(lattice.model(), nn.BatchNorm1d(2))

    found = on_ranks(2, lambda reduce: built_on(reduce, data=Numbers(), model=model))
    assert all(isinstance(each, UsageError) for each in found), found
    assert "is shared by 2 ranks, and batch norm (1)" in str(found[0])
    # A rank's whole share is one micro-batch, of which half is tried first where memory runs out.
    stream: Any = on_ranks(2, lambda reduce: built_on(reduce, data=Numbers()).source.micro)
    assert stream == [BATCH // 2, BATCH // 2]
