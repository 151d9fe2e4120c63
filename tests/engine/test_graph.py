"""The step that a device decides on, repeats or is asked about early is the step of the CPU."""

import _thread
import contextlib
import copy
import gc
import inspect
import math
import random
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import hotlap
from hotlap import rng
from hotlap.device import capture
from hotlap.device.accelerator import Cuda, cannot_leave_out, device_of
from hotlap.engine.step.async_decision import AsyncDecision
from hotlap.engine.step.choosing import make_step
from hotlap.engine.step.device_decision import TakenFlag
from hotlap.engine.step.graph import CapturedGraph, tensors_in_attributes
from hotlap.engine.step.step import Step
from hotlap.techniques import Refusal, StepTarget, get
from hotlap.techniques.cuda_graph import Wish, obstacle
from tests.fake_device import FakeCuda

OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
}


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def summed(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
    return (model(batch[0]) - batch[1]).square().sum(), batch[1].numel()


def batches(count: int = 12, size: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    made = []
    for number in range(count):
        n = size - 2 if number % 4 == 3 else size
        made.append([torch.randn(n, width, generator=generator) for width in (4, 2)])
    return made


def split(batch: Any, parts: int) -> list[tuple[int, Any]]:
    columns = zip(*[leaf.chunk(parts) for leaf in batch], strict=True)
    return [(len(leaves[0]), list(leaves)) for leaves in columns]


def trained(
    kind: Any,
    optimizer: str = "adam",
    *,
    device: FakeCuda | None = None,
    what: Any = loss,
    parts: int = 1,
    scaled: bool = False,
    spoil: tuple[int, ...] = (),
    rates: Any = None,
    steps: Any = None,
    **options: Any,
) -> tuple[list[torch.Tensor], list[float], list[bool], Step]:
    """Take twelve steps; return weights and state, losses, which were taken, and the step."""
    model = network()
    made = OPTIMIZERS[optimizer](model.parameters())
    if kind != "graph":
        for group in made.param_groups:
            group["fused"] = True
    target = StepTarget(None, None, "cpu")
    target.graph = Wish(warm_up=2) if kind == "graph" else None
    if scaled:
        target.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    step = make_step(
        model,
        what,
        made,
        target=target,
        hardware=device or FakeCuda(),
        decides_on="device" if kind == "graph" else kind,
        **options,
    )
    losses, taken = [], []
    for number, batch in enumerate(batches() if steps is None else steps):
        if number in spoil:
            batch = [torch.full_like(batch[0], float("nan")), batch[1]]
        if rates is not None:
            made.param_groups[0]["lr"] = rates(number)
        value, is_taken = step(split(batch, parts))
        assert (None if step.items is None else float(step.items)) == (
            batch[1].numel() if what is summed else None
        )
        losses.append(float(value))
        taken.append(bool(is_taken))
    values = [p.detach() for p in model.parameters()]
    for parameter in model.parameters():
        values += [made.state[parameter][key] for key in sorted(made.state[parameter])]
    return values, losses, taken, step


def check(kind: Any, *args: Any, **options: Any) -> Step:
    expected, expected_losses, expected_taken, plain = trained("host", *args, **options)
    found, losses, taken, step = trained(kind, *args, **options)
    assert taken == expected_taken
    assert step.skipped == plain.skipped
    assert losses == pytest.approx(expected_losses, rel=1e-6, nan_ok=True)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)
    return step


KINDS = ["async", "device", "graph"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("spoil", [(), (0, 5), (0, 1, 2, 3, 4)])
def test_the_same_updates_are_taken_and_left_out(kind: Any, optimizer: str, spoil: Any) -> None:
    check(kind, optimizer, spoil=spoil)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.1},
        {"clip_value": 0.01},
        {"parts": 2},
        {"parts": 2, "what": summed, "clip_norm": 0.1},
        {"scaled": True},
        {"scaled": True, "clip_norm": 0.1, "parts": 2},
        {"what": summed},
    ],
)
def test_under_every_kind_of_step(kind: Any, options: dict[str, Any]) -> None:
    step = check(kind, spoil=(4,), **options)
    scaler = step.target.scaler
    if scaler is not None:
        plain = trained("host", spoil=(4,), **options)[3]
        assert scaler.get_scale() == plain.target.scaler.get_scale()


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_alone_may_be_what_is_not_finite(kind: Any) -> None:
    def steep(model: nn.Module, batch: Any) -> torch.Tensor:
        # The root of nothing has a loss of nothing, and an infinite slope.
        return (model(batch[0]) * batch[1]).sum().abs().sqrt()

    flat = [[batch[0], batch[1] * (number != 3)] for number, batch in enumerate(batches())]
    step = check(kind, what=steep, clip_norm=1.0, steps=flat)
    assert step.skipped == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"parts": 2}, {"what": summed}])
def test_statistics_are_left_alone_where_the_update_is(
    kind: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def normal() -> nn.Sequential:
        torch.manual_seed(1)
        first = nn.Linear(4, 8, bias=False)
        return nn.Sequential(first, nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, 2))

    monkeypatch.setitem(globals(), "network", normal)
    _, _, _, step = trained(kind, spoil=(0, 5), **options)
    clean = [batch for number, batch in enumerate(batches()) if number not in (0, 5)]
    _, _, _, other = trained("host", steps=clean, **options)
    mine, theirs = step.model.state_dict(), other.model.state_dict()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-5, atol=1e-6)


def test_without_the_check_what_is_not_finite_is_learned() -> None:
    values, *_ = trained("device", spoil=(2,), check_finite=False)
    assert not torch.isfinite(values[0]).any()


def test_a_step_is_captured_once_and_replayed() -> None:
    device = FakeCuda()
    _, _, _, step = trained("graph", device=device)
    assert device.calls.count("capture") == 1
    wish = step.target.graph
    # Of twelve steps three are shorter, and two warmed up.
    assert (wish.replays, wish.other_steps) == (device.calls.count("replay"), 5) == (7, 5)
    proof = get("cuda_graph").proof(step.target, get("cuda_graph").options({}))
    assert (proof.state, proof.why) == ("applied", "7 steps replayed, 5 run without a graph")


def test_a_replay_reads_the_batch_and_the_rate_of_its_own_step() -> None:
    check("graph", rates=lambda number: 0.01 * 0.9**number)
    right = trained("host", rates=lambda number: 0.01 * 0.9**number)[0]
    wrong = trained("graph")[0]
    assert not torch.allclose(right[0], wrong[0], rtol=1e-4)


def test_a_momentum_that_moves_is_not_replayed() -> None:
    device = FakeCuda()
    model = network()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    target = StepTarget(None, None, "cpu", graph=Wish(warm_up=2))
    step = make_step(model, loss, optimizer, target=target, hardware=device, decides_on="device")
    for number in range(10):
        if number == 6:
            optimizer.param_groups[0]["momentum"] = 0.5
        step([(6, batches()[0])])
    assert device.calls.count("replay") == 4
    assert target.graph.other_steps == 6
    assert "the optimizer's momentum changed" in target.graph.refused


def test_parameters_that_join_later_end_the_replays() -> None:
    model, device = network(), FakeCuda()
    optimizer = OPTIMIZERS["sgd"](model[0].parameters())
    target = StepTarget(None, None, "cpu", graph=Wish(warm_up=2))
    step = make_step(model, loss, optimizer, target=target, hardware=device, decides_on="device")
    last = model[2].weight.detach().clone()
    for number in range(10):
        if number == 6:
            assert torch.equal(model[2].weight, last)
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.1})
        step([(6, batches()[0])])
    assert device.calls.count("replay") == 4
    assert "the optimizer's parameter groups changed" in target.graph.refused
    assert not torch.equal(model[2].weight, last)


def mixed_by(draw: Any) -> Any:
    return lambda model, batch: loss(model, [batch[0] * (0.5 + draw()), batch[1]])


@pytest.mark.parametrize(
    ("draw", "name"),
    [(lambda: numpy.random.beta(0.2, 0.2), "numpy's"), (random.random, "Python's")],
    ids=["numpy", "python"],
)
def test_a_number_that_the_host_draws_is_not_repeated(draw: Any, name: str) -> None:
    def seeded(kind: str) -> Any:
        rng.reseed(3)
        return trained(kind, what=mixed_by(draw))

    expected, losses, _, _ = seeded("host")
    found, mine, _, step = seeded("graph")
    assert mine == pytest.approx(losses, rel=1e-6)
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-7)
    proof = get("cuda_graph").proof(step.target, get("cuda_graph").options({}))
    assert proof.state == "refused" and f"draws from {name} global RNG" in proof.why


def test_what_is_drawn_once_or_between_steps_is_no_obstacle() -> None:
    drawn: list[float] = []

    def draw_once() -> float:
        drawn.extend([random.random()] if not drawn else [])
        return drawn[0]

    _, _, _, step = trained("graph", what=mixed_by(draw_once), rates=lambda _: random.random())
    assert (step.target.graph.refused, step.target.graph.replays) == (None, 7)


def test_draws_of_the_hosts_generators_are_noted() -> None:
    device = Cuda("cuda")
    for draw, name in (
        (lambda: torch.rand([]), "torch's global RNG"),
        (random.random, "Python's global RNG"),
        (numpy.random.random, "numpy's global RNG"),
    ):
        with device.host_draws() as drawn:
            draw()
        assert drawn == [name]
    with device.host_draws() as drawn:
        torch.rand(2, generator=torch.Generator())
    assert drawn == []


def with_norm() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model[0].requires_grad_(True), "requires_grad of the parameter '0.weight'"),
        (lambda model: model[1].eval(), "the mode (train or eval) of module '1'"),
        (lambda model: model.eval(), "the mode (train or eval) of the model"),
        (lambda model: model.eval().train(), None),
    ],
    ids=["thawed", "one module", "all", "none"],
)
def test_a_mode_that_is_set_between_steps_is_not_missed(change: Any, words: str | None) -> None:
    def run(graph: Wish | None) -> tuple[nn.Module, FakeCuda]:
        device, model = FakeCuda(), with_norm()
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
        target = StepTarget(None, None, "cpu", graph=graph)
        decides_on = "host" if graph is None else "device"
        step = make_step(
            model, loss, optimizer, target=target, hardware=device, decides_on=decides_on
        )
        for number in range(10):
            if number == 6:
                change(model)
            step([(6, batches()[number // 4 * 4])])
        return model, device

    wish = Wish(warm_up=2)
    (plain, _), (model, device) = run(None), run(wish)
    for mine, theirs in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)
    assert device.calls.count("replay") == (8 if words is None else 4)
    assert wish.refused is None if words is None else words in str(wish.refused)


def test_what_the_host_reads_of_a_packed_sequence_is_not_replayed() -> None:
    device, model = FakeCuda(), network()
    target = StepTarget(None, None, "cpu", graph=Wish(warm_up=2))
    step = make_step(
        model,
        lambda model, batch: model(batch.data).square().mean(),
        OPTIMIZERS["sgd"](model.parameters()),
        target=target,
        hardware=device,
        decides_on="device",
    )
    packed = pack_sequence([torch.ones(2, 4), torch.ones(3, 4)], enforce_sorted=False)
    for _ in range(5):
        step([(2, packed)])
    assert "replay" not in device.calls
    assert "a PackedSequence, which is read on the host" in target.graph.refused


def test_a_schedule_that_moves_more_than_the_rate_is_named() -> None:
    model = network()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=20)
    target = StepTarget(None, None, "cpu", graph=Wish(warm_up=2))
    step = make_step(
        model, loss, optimizer, target=target, hardware=FakeCuda(), decides_on="device"
    )
    for _ in range(8):
        step([(6, batches()[0])])
        schedule.step()
    proof = get("cuda_graph").proof(target, get("cuda_graph").options({}))
    assert proof.state == "refused"
    assert "the optimizer's betas changed" in proof.why
    assert "cycle_momentum=False" in proof.why


def test_the_groups_stay_those_of_the_plain_run() -> None:
    _, _, _, step = trained("graph")
    group = step.update.optimizer.param_groups[0]
    assert (group["lr"], group["fused"], group["capturable"]) == (0.01, None, False)


def test_a_copied_optimizer_is_captured_without_a_warning() -> None:
    # Torch checks every step of it; of one that was not copied, only those that are captured.
    model, optimizer = copy.deepcopy((net := network(), OPTIMIZERS["adam"](net.parameters())))
    target = StepTarget(None, None, "cpu", graph=Wish(warm_up=2))
    device = FakeCuda()
    step = make_step(model, loss, optimizer, target=target, hardware=device, decides_on="device")
    for _ in range(5):
        step([(6, batches()[0])])
    assert device.calls == ["capture", "replay", "replay", "replay"]


def test_the_fake_device_checks_optimizers_as_torch_does() -> None:
    optimizer = copy.deepcopy(OPTIMIZERS["adam"](network().parameters()))
    with pytest.raises(RuntimeError, match="capturable is False"):
        FakeCuda().capture(optimizer.step, None)
    optimizer.param_groups[0]["capturable"] = True
    with pytest.warns(UserWarning, match="without CUDA graph capture"):
        optimizer.step()


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (FakeCuda(reads=("model.py:7",)), "the step synchronizes with the device at model.py:7"),
        (FakeCuda(broken="operation not permitted"), "capture failed: operation not permitted"),
    ],
)
def test_what_cannot_be_captured_runs_as_it_is_and_says_why(device: FakeCuda, words: str) -> None:
    step = check("graph", device=device)
    proof = get("cuda_graph").proof(step.target, get("cuda_graph").options({}))
    assert proof.state == "refused"
    assert words in proof.why
    assert "replay" not in device.calls
    assert device.pool_bytes == 0


def test_shapes_that_never_come_again_are_refused() -> None:
    shapes = [[torch.randn(n, 4), torch.randn(n, 2)] for n in range(1, 13)]
    _, _, _, step = trained("graph", steps=shapes)
    assert "different shapes" in step.target.graph.refused


def test_a_shorter_first_batch_is_not_what_is_captured() -> None:
    device = FakeCuda()
    steps = [batches()[3], *([batches()[0]] * 8)]
    trained("graph", device=device, steps=steps)
    assert device.calls.count("replay") == 6


def test_to_ask_late_is_to_be_told_whether_the_update_was_taken() -> None:
    left_out, taken = TakenFlag(torch.tensor(1.0)), TakenFlag(torch.tensor(0.0))
    assert not left_out
    assert taken


def target_of(module: nn.Module, make: Any = None, device: str = "cuda") -> StepTarget:
    make = make or OPTIMIZERS["adam"]
    return StepTarget(module, make(module.parameters()), device)


def hooked() -> nn.Sequential:
    model = network()
    model[1].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (target_of(network(), device="cpu"), "no CUDA device"),
        (target_of(hooked()), "module '1' has a hook"),
        (target_of(network(), lambda p: torch.optim.RMSprop(p)), "RMSprop"),
        (target_of(network(), lambda p: torch.optim.SGD(p, momentum=1, dampening=1)), "dampening"),
        (target_of(nn.Sequential(nn.Embedding(3, 4, sparse=True))), "sparse=True"),
    ],
)
def test_what_stands_against_a_graph_is_said(target: StepTarget, words: str) -> None:
    technique = get("cuda_graph")
    with pytest.raises(Refusal, match=words):
        technique.apply(target, technique.options({}))


def test_nothing_stands_against_an_ordinary_model() -> None:
    assert obstacle(target_of(network())) is None
    assert cannot_leave_out(OPTIMIZERS["sgd"](network().parameters())) is None


@pytest.mark.parametrize(
    ("name", "words"), [("gpu", "not known"), ("cuda:7", "sees"), ("meta", "cannot run a model")]
)
def test_a_device_that_is_not_there_is_an_error(name: str, words: str) -> None:
    with pytest.raises(hotlap.UsageError, match=words):
        device_of(name)


def test_a_replay_runs_no_python() -> None:
    calls = 0

    def counted(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss(model, batch)

    _, _, _, step = trained("graph", what=counted)
    # The captured step is run by Python once, without taking effect.
    assert calls == step.target.graph.other_steps + 1


@pytest.mark.parametrize("kind", ["host", *KINDS])
def test_what_follows_a_step_follows_a_replayed_one_too(kind: Any) -> None:
    model, seen = network(), []
    optimizer = torch.optim.Adam(model.parameters(), fused=kind == "device" or None)
    target = StepTarget(None, None, "cpu", after_step=[lambda: seen.append(0)])
    target.graph = Wish(warm_up=2) if kind == "graph" else None
    decides_on = "device" if kind == "graph" else kind
    step = make_step(
        model, loss, optimizer, target=target, hardware=FakeCuda(), decides_on=decides_on
    )
    for _ in range(6):
        step([(6, batches()[0])])
    assert len(seen) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_of_one_number_in_a_row_is_a_loss(kind: Any) -> None:
    check(kind, what=lambda model, batch: loss(model, batch).reshape(1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_nobody_holds_is_gone_at_once(kind: Any) -> None:
    gc.disable()
    try:
        step = trained(kind)[3]
        model = weakref.ref(step.model)
        del step
        assert model() is None
    finally:
        gc.enable()


def test_a_batch_that_is_tried_out_counts_for_nothing() -> None:
    device = FakeCuda()
    _, _, _, step = trained("async", device=device)
    step.try_out([torch.full((6, 4), float("nan")), batches()[0][1]])
    _, is_taken = step([(6, batches()[0])])
    assert is_taken


def test_a_capture_that_cannot_end_leaves_the_device_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[Any] = []
    before = SimpleNamespace(device_index=0)

    @contextlib.contextmanager
    def captured(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        except ValueError:
            raise RuntimeError("the capture was invalidated") from None

    class Generator:
        def clone_state(self) -> str:
            return "its own state"

        def graphsafe_set_state(self, state: str) -> None:
            said.append(state)

    for name, stand_in in {
        "CUDAGraph": object,
        "current_stream": lambda *_: before,
        "graph_pool_handle": lambda: (0, 7),
        "graph": captured,
        "set_stream": said.append,
        "default_generators": [Generator()],
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    is_over: list[bool] = []

    def find(name: str) -> Any:
        def called(*given: Any) -> None:
            if is_over and "end" in name:
                raise RuntimeError("not currently recording to that pool")
            said.append((name, *given))

        return called

    monkeypatch.setattr("hotlap.compat.find_optional", find)

    def work() -> None:
        raise ValueError("a dictionary has changed")

    with pytest.raises(RuntimeError, match="a dictionary has changed"):
        Cuda("cuda").capture(work, None)
    pool = 0, (0, 7)
    ended = ("_cuda_endAllocateToPool", *pool), ("_cuda_releasePool", *pool)
    assert said == [before, *ended, "its own state"]
    # Where the capture has ended by itself, the graph releases the pool: twice would end the
    # process.
    said.clear()
    is_over.append(True)
    with pytest.raises(RuntimeError, match="a dictionary has changed"):
        Cuda("cuda").capture(work, None)
    assert said == [before, "its own state"]


def missing_key() -> None:
    try:
        {}["scale"]
    except KeyError:
        raise RuntimeError("operation not permitted") from None


def failed_twice() -> None:
    try:
        raise RuntimeError("operation not permitted\nCUDA kernel errors might be reported later")
    finally:
        raise RuntimeError("a previous error during capture")


def stopped() -> None:
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("a previous error during capture")


def say_nothing() -> None:
    raise RuntimeError


@pytest.mark.parametrize(
    ("work", "kind", "words"),
    [
        (missing_key, RuntimeError, "operation not permitted"),
        (failed_twice, RuntimeError, "operation not permitted"),
        (say_nothing, RuntimeError, "RuntimeError"),
        (lambda: {}["scale"], RuntimeError, "KeyError: 'scale'"),
        (stopped, KeyboardInterrupt, ""),
    ],
    ids=["handled", "twice", "silent", "other", "stopped"],
)
@pytest.mark.parametrize("ends", [True, False])
def test_a_failed_capture_says_what_the_step_could_not_do(
    work: Any, kind: Any, words: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def captured(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # Torch cannot end a capture that was invalidated; others it does end.
            if ends and isinstance(error, RuntimeError):
                raise
            raise RuntimeError("the capture was invalidated") from error

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 7))
    monkeypatch.setattr(torch.cuda, "graph", captured)
    monkeypatch.setattr(capture, "_leave_capture", lambda before, pool: None)
    try:
        raise RuntimeError("a step before ran out of memory")
    except RuntimeError:
        with pytest.raises(kind) as found:
            Cuda("cuda").capture(work, None)
    assert str(found.value) == words


class Silent(FakeCuda):
    """A device whose captures fail without a word."""

    def capture(self, work: Any, stream: Any) -> Any:
        raise RuntimeError


def test_a_capture_that_fails_without_a_word_is_named_by_its_class() -> None:
    _, _, _, step = trained("graph", device=Silent())
    assert step.target.graph.refused == "the capture failed: RuntimeError"


@pytest.mark.gpu
def test_what_a_device_and_a_host_draw_in_a_step_are_told_apart() -> None:
    device = Cuda("cuda")
    with device.host_draws() as drawn:
        torch.nn.functional.dropout(torch.rand(9, device="cuda"))
    assert drawn == []
    with device.host_draws() as drawn:
        torch.rand(9).cuda()
    assert drawn == ["torch's global RNG"]


def test_pinned_memory_is_the_hosts_whatever_the_default_device_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch, "empty", lambda *size, **options: asked.append(options))
    Cuda("cuda").allocate_pinned(8)
    assert asked == [{"dtype": torch.uint8, "device": "cpu", "pin_memory": True}]


@pytest.mark.gpu
def test_a_failed_capture_gives_its_memory_back_and_another_one_succeeds() -> None:
    device, count = Cuda("cuda"), 2**26
    stream = device.new_stream()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()

    def failing() -> None:
        torch.empty(count, device="cuda").sum().item()

    with pytest.raises(RuntimeError):
        device.capture(failing, stream)
    gc.collect()
    device.release_memory()
    assert torch.cuda.memory_reserved() - before < count
    graph = device.capture(lambda: torch.rand(3, device="cuda"), stream)
    assert not torch.equal(graph.replay(), graph.replay())


@pytest.fixture
def sync_modes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    modes: list[Any] = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    return modes


def read(stacklevel: int = 2) -> None:
    warnings.warn("called a synchronizing CUDA operation", stacklevel=stacklevel)


def test_what_another_thread_waits_for_is_not_the_steps(sync_modes: list[Any]) -> None:
    with ThreadPoolExecutor(1) as feed:
        # It is there before.
        feed.submit(int).result()
        with Cuda("cuda").host_reads() as reads:
            feed.submit(read).result()
            line = inspect.currentframe().f_lineno + 1  # pyright: ignore
            read()
        assert reads == [f"{__file__}:{line}"]
    assert sync_modes == [0, "warn", 0]


def test_what_a_backward_in_a_thread_of_torchs_own_waits_for_is_the_steps(
    sync_modes: list[Any],
) -> None:
    del sync_modes
    is_done = threading.Event()

    def backward() -> None:
        read()
        is_done.set()

    with Cuda("cuda").host_reads() as reads:
        _thread.start_new_thread(backward, ())
        assert is_done.wait(5)
    assert len(reads) == 1


@pytest.mark.parametrize("folder", ["trial", "engine/roles", "engine/step"])
def test_what_watches_a_trial_may_read_inside_its_steps(folder: str, sync_modes: list[Any]) -> None:
    del sync_modes
    name = Path(capture.__file__).parents[1] / folder / "read.py"
    torchs = Path(torch.__file__).with_name("read.py")
    names: dict[str, Any] = {"read": read}
    # As the scale of a `GradScaler`, which torch's own code reads.
    exec(compile("def ask(how=read):\n how()", torchs, "exec"), names)
    exec(compile("def watch(step):\n read(); ask(); step()", name, "exec"), names)
    line = read_here.__code__.co_firstlineno + 1
    with Cuda("cuda").host_reads() as reads:
        names["watch"](lambda: names["ask"](read_here))
    ours = [] if folder != "engine/step" else [f"{name}:2", f"{torchs}:2"]
    assert reads == [*ours, f"{__file__}:{line}"]


def read_here() -> None:
    read()


def test_other_warnings_of_a_watched_step_are_warnings(sync_modes: list[Any]) -> None:
    del sync_modes
    with pytest.warns(UserWarning, match="deprecated"), Cuda("cuda").host_reads() as reads:
        warnings.warn("deprecated", stacklevel=1)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
    assert reads == []


@pytest.mark.parametrize("name", ["recompute", "compile_mode"])
def test_what_other_techniques_do_may_stand_against_a_graph(name: str) -> None:
    target = target_of(network())
    target.notes[name] = "reduce-overhead"
    assert obstacle(target) is not None


@pytest.mark.parametrize("kind", ["device", "graph"])
def test_a_first_update_that_is_left_out_leaves_no_odd_momentum_in_a_later_group(kind: Any) -> None:
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.01, momentum=0.9, fused=True)
    target = StepTarget(None, None, "cpu", graph=Wish(warm_up=2) if kind == "graph" else None)
    step = make_step(
        model, loss, optimizer, target=target, hardware=FakeCuda(), decides_on="device"
    )
    step([(6, batches()[0])])
    optimizer.add_param_group({"params": list(model[2].parameters())})
    _, is_taken = step([(6, [torch.full((6, 4), float("nan")), batches()[0][1]])])
    assert not is_taken
    assert all(not optimizer.state[p]["momentum_buffer"].any() for p in model[2].parameters())


def test_idle_memory_of_a_graph_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def segment(device: int, pool: tuple[int, int] | None, total: int, used: int) -> Any:
        made = {"device": device, "total_size": total, "allocated_size": used}
        return made if pool is None else {**made, "segment_pool_id": pool}

    found = [
        segment(1, (0, 0), 100, 40),
        segment(1, (0, 3), 70, 20),
        segment(0, (0, 3), 9, 0),
        segment(1, None, 30, 10),
    ]
    for name, stand_in in {
        "mem_get_info": lambda name: (1000, 5000),
        "memory_reserved": lambda name: 200,
        "memory_allocated": lambda name: 70,
        "memory_snapshot": lambda: found,
        "get_allocator_backend": lambda: "native",
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    assert Cuda("cuda:1").free_bytes() == 1000 + 130 - 50
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert Cuda("cuda").free_bytes() == 1000 + 130 - 9


def test_the_drivers_own_allocator_is_not_asked_for_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    for name, stand_in in {
        "mem_get_info": lambda name: (1000, 5000),
        "memory_reserved": lambda name: 200,
        "memory_allocated": lambda name: 70,
        "memory_snapshot": refuse,
        "get_allocator_backend": lambda: "cudaMallocAsync",
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    assert Cuda("cuda").free_bytes() == 1000 + 130


def test_whatever_makes_gradients_before_the_capture_does_so_on_its_stream() -> None:
    device, streams = FakeCuda(), list[Any]()

    def seen(model: nn.Module, batch: Any) -> torch.Tensor:
        streams.append(device.stream)
        return loss(model, batch)

    model = network()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    target = StepTarget(None, None, "cpu", graph=Wish(warm_up=2))
    step = make_step(model, seen, optimizer, target=target, hardware=device, decides_on="device")
    step.try_out(batches()[0])
    for batch in (batches()[3], *[batches()[0]] * 4, batches()[3]):
        step([(len(batch[0]), batch)])
    assert device.calls.count("replay") == 2
    # Tried, shorter, warmed up twice, captured, shorter.
    assert len(streams) == 6
    assert len(set(map(id, streams))) == 1 and streams[0] is not None


def test_a_capture_that_fails_for_something_before_it_says_what_that_may_be() -> None:
    device = FakeCuda(broken="operation failed due to a previous error during capture")
    _, _, _, step = trained("graph", device=device)
    assert "keeps an output of an earlier step" in step.target.graph.refused


def test_a_count_on_the_host_is_read_without_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the `batch_sizes` of packed sequences, which torch keeps on the CPU."""
    device = FakeCuda()
    decision = AsyncDecision(SimpleNamespace(), device)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(device, "name", "cuda:0")
    for total, count, is_finite in ((6.0, 3, True), (6.0, 0, False), (math.nan, 3, False)):
        decision.read(torch.tensor(total), torch.tensor(count))
        assert decision._is_finite() is is_finite
    assert device.handed_over == 0


def test_what_a_model_keeps_in_attributes_is_found() -> None:
    model = network()
    first = next(model.children())
    held = {"mask": torch.ones(2), "tables": {"rope": [torch.ones(3), 1]}, "none": None}
    for name, value in held.items():
        object.__setattr__(first, name, value)
    loop: list[Any] = []
    loop.append(loop)
    object.__setattr__(first, "loop", loop)
    found = {id(each) for each in tensors_in_attributes(model)}
    assert {id(held["mask"]), id(held["tables"]["rope"][0])} <= found


@pytest.mark.parametrize("fails", [True, False])
def test_the_device_waits_for_what_a_failed_step_has_queued(fails: bool) -> None:
    device = FakeCuda()
    step = trained("graph", device=device)[3]
    executor = step.executor
    assert isinstance(executor, CapturedGraph)
    marks: list[Any] = []
    mark, wait = device.mark, device.wait
    device.mark = lambda: marks.append(mark()) or marks[-1]  # type: ignore[method-assign]
    waited: list[Any] = []
    device.wait = lambda event: waited.append(event) or wait(event)  # type: ignore[method-assign]
    with contextlib.suppress(ValueError), executor.on_stream():
        if fails:
            raise ValueError
    assert waited[-1] is marks[-1] and len(marks) == 2
