"""Whole runs on a device: the same on every tier, captured or not, resumed or not.

Each test runs under the fake device, which is late but computes on the CPU, and on a real one.
"""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

import hotlap
from hotlap.checkpoint.read import find_newest
from hotlap.engine.build import build
from hotlap.engine.roles.observe import observe
from hotlap.engine.roles.verify import _Delivered, _FeedDigests, _Recorded, _Sampler
from hotlap.engine.step.async_decision import AsyncDecision
from hotlap.engine.step.device_decision import DeviceDecision
from hotlap.engine.step.graph import CapturedGraph
from hotlap.engine.step.step import Attempt
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan
from hotlap.techniques import OptimizerTarget, get
from hotlap.trace import store
from hotlap.trace.clock import DevicePhaseClock
from tests.engine.test_resume import Noisy, loss
from tests.engine.test_run import Fixed
from tests.fake_device import FakeCuda

FUSED = {"optimizer": {"implementation": "fused"}}
GRAPH = {"cuda_graph": {"warm_up": 2}}


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fake":
        monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: FakeCuda())
    return request.param


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))


def task(**options: Any) -> hotlap.Task:
    given: dict[str, Any] = {
        "model": network,
        "loss": loss,
        "data": Noisy(),
        "optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
        "batch_size": 8,
        "steps": 40,
        "clip_norm": 1.0,
    }
    return hotlap.Task(**{**given, **options})


class Steady(Fixed):
    """Fifty samples that are the same however often they are read."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return torch.arange(3.0).add(index).sin(), index % 2


def weights(done: Any) -> list[torch.Tensor]:
    return [parameter.detach().cpu() for parameter in done.model.parameters()]


def state(run_dir: Path) -> dict[str, bytes]:
    found, passed = find_newest(run_dir / "ckpt")
    assert found is not None and not passed
    return {
        f"{file}/{name}": tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        if tensor.dim()
        else repr(tensor).encode()
        for file, group in found.tensors.items()
        for name, tensor in group.items()
    }


TIERS = {
    "pinned": {"pinned": {}},
    "resident on the device": {"resident": {"where": "device"}},
    "resident on the host, pinned": {"resident": {"where": "host"}, "pinned": {"ahead": 3}},
    "workers, pinned": {"workers": {"count": 1}, "pinned": {}},
}


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("data", [Steady(), Noisy()], ids=["steady", "augmented"])
def test_every_tier_learns_the_same_to_the_bit(tier: str, data: Any, device: str) -> None:
    plain = hotlap.train(task(data=data, held_out=Steady()), Plan(), device=device)
    done = hotlap.train(task(data=data, held_out=Steady()), Plan(TIERS[tier]), device=device)
    for left, right in zip(weights(done), weights(plain), strict=True):
        assert torch.equal(left, right)
    assert [e.loss for e in done.epochs] == [e.loss for e in plain.epochs]
    assert [e.held_out for e in done.epochs] == [e.held_out for e in plain.epochs]
    states = {row["name"]: row["state"] for row in done.techniques}
    drawn = "resident" in states and isinstance(data, Noisy)
    assert states.pop("resident", None) == (
        None if "resident" not in TIERS[tier] else "refused" if drawn else "applied"
    )
    assert set(states.values()) <= {"applied"}, done.techniques


def test_rows_on_the_device_are_there(device: str) -> None:
    done = hotlap.train(task(data=Steady()), Plan({"resident": {}}), device=device)
    assert "of the memory of" in done.techniques[0]["why"]


@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "batch_size": 4}])
def test_a_captured_step_is_the_step_that_runs_as_it_is(
    options: dict[str, Any], device: str, tmp_path: Path
) -> None:
    never = {"cuda_graph": {"warm_up": 1000}}
    captured = hotlap.train(task(**options), Plan(GRAPH), device=device, run_dir=tmp_path / "a")
    running = hotlap.train(task(**options), Plan(never), device=device, run_dir=tmp_path / "b")
    assert captured.techniques[0]["state"] == "applied", captured.techniques
    assert running.techniques[0]["state"] == "no_effect"
    assert state(tmp_path / "a") == state(tmp_path / "b")
    assert [e.loss for e in captured.epochs] == [e.loss for e in running.epochs]


def schedule(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


@pytest.mark.parametrize("options", [{}, {"schedule": schedule}])
def test_a_captured_step_differs_from_the_plain_one_by_rounding(
    options: dict[str, Any], device: str
) -> None:
    plain = hotlap.train(task(steps=12, **options), Plan(), device=device)
    done = hotlap.train(task(steps=12, **options), Plan(GRAPH), device=device)
    for left, right in zip(weights(done), weights(plain), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stop", [2, 3, 21])
def test_resumed_under_a_graph_it_ends_with_the_same_bits(
    stop: int, device: str, tmp_path: Path
) -> None:
    plan = Plan({**GRAPH, "pinned": {}})
    hotlap.train(task(schedule=schedule), plan, device=device, run_dir=tmp_path / "whole")
    parts = tmp_path / "parts"
    hotlap.train(task(schedule=schedule, steps=stop), plan, device=device, run_dir=parts)
    hotlap.train(task(schedule=schedule), plan, device=device, run_dir=parts, resume="auto")
    assert state(parts) == state(tmp_path / "whole")


@pytest.mark.parametrize("techniques", [{}, FUSED, GRAPH], ids=["early", "fused", "graph"])
@pytest.mark.parametrize("options", [{}, {"schedule": schedule}])
def test_an_update_that_is_not_finite_is_left_out_and_counted(
    techniques: dict[str, Any], options: dict[str, Any], device: str
) -> None:
    class Broken(Steady):
        def __getitem__(self, index: int) -> Any:
            inputs, label = super().__getitem__(index)
            return inputs + (float("nan") if index == 23 else 0.0), label

    broken = task(data=Broken(), epochs=3, steps=None, **options)
    done = hotlap.train(broken, Plan(techniques), device=device)
    assert done.skipped_steps == 3
    assert all(torch.isfinite(value).all() for value in weights(done))
    assert all(0 < epoch.loss < 2 for epoch in done.epochs)
    if options:
        built = build(broken, Plan(techniques), device=device)
        *_, last = steps_of(built)
        assert last.scheduler.last_epoch == 18


@pytest.mark.parametrize(
    ("techniques", "options", "parts"),
    [
        ({}, {}, (AsyncDecision, Attempt)),
        (FUSED, {}, (DeviceDecision, Attempt)),
        (FUSED, {"schedule": schedule}, (DeviceDecision, Attempt)),
        (
            FUSED,
            {"schedule": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step)},
            (AsyncDecision, Attempt),
        ),
        (
            FUSED,
            {"optimizer": lambda m: torch.optim.Adagrad(m.parameters())},
            (AsyncDecision, Attempt),
        ),
        (GRAPH, {"schedule": schedule}, (DeviceDecision, CapturedGraph)),
    ],
)
def test_who_decides(techniques: Any, options: Any, parts: Any, device: str) -> None:
    step = build(task(**options), Plan(techniques), device=device).step
    assert (type(step.decision), type(step.executor)) == parts


def test_the_optimizer_technique_gives_way_to_the_graph(device: str) -> None:
    plan = Plan({**GRAPH, "optimizer": {"implementation": "foreach"}})
    states = {row["name"]: row for row in hotlap.train(task(), plan, device=device).techniques}
    assert states["cuda_graph"]["state"] == "applied"
    assert "`cuda_graph` chooses how the optimizer is implemented" in states["optimizer"]["why"]


@pytest.mark.gpu
@pytest.mark.parametrize("techniques", [{}, FUSED, GRAPH], ids=["early", "fused", "graph"])
def test_float16_and_its_scaler(techniques: dict[str, Any]) -> None:
    plan = Plan({**techniques, "autocast": {"dtype": "fp16"}})
    plain = hotlap.train(task(data=Steady()), Plan(), device="cuda")
    done = hotlap.train(task(data=Steady()), plan, device="cuda")
    assert "refused" not in {row["state"] for row in done.techniques}, done.techniques
    assert done.skipped_steps < 10
    assert done.epochs[-1].loss == pytest.approx(plain.epochs[-1].loss, rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("other", [{"autocast": {}}, {"master_weights": {}}])
def test_narrow_formats_under_a_graph(other: dict[str, Any]) -> None:
    done = hotlap.train(task(data=Steady()), Plan({**GRAPH, **other}), device="cuda")
    assert {row["state"] for row in done.techniques} == {"applied"}, done.techniques


@pytest.mark.gpu
@pytest.mark.parametrize("reads", [True, False])
def test_a_loss_that_reads_is_seen_before_it_is_captured(reads: bool) -> None:
    def reading(model: nn.Module, batch: Any) -> torch.Tensor:
        value = loss(model, batch)
        return value * (1.0 if not reads or value.item() > -1 else 2.0)

    done = hotlap.train(task(loss=reading), Plan(GRAPH), device="cuda")
    assert done.techniques[0]["state"] == ("refused" if reads else "applied")
    if reads:
        assert f"{Path(__file__).name}:" in done.techniques[0]["why"]


@pytest.mark.gpu
def test_a_graphs_step_waits_for_nothing() -> None:
    built = build(task(data=Steady(), epochs=9, steps=None), Plan({**GRAPH, "resident": {}}))
    steps = steps_of(built)
    # Into the fourth epoch: its samples were read again, its order is there.
    for _ in range(22):
        next(steps)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("stop", [1, 4])
def test_resumed_with_fused_kernels_and_a_schedule_it_ends_with_the_same_bits(
    stop: int, device: str, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    hotlap.train(task(schedule=schedule), Plan(FUSED), device=device, run_dir=whole)
    hotlap.train(task(schedule=schedule, steps=stop), Plan(FUSED), device=device, run_dir=parts)
    hotlap.train(task(schedule=schedule), Plan(FUSED), device=device, run_dir=parts, resume="auto")
    assert state(parts) == state(whole)


def test_counters_that_a_checkpoint_brings_are_put_beside_their_parameters() -> None:
    there = [nn.Parameter(torch.empty(3, device="meta"))]
    here = [nn.Parameter(torch.ones(3))]
    saved = torch.optim.Adam(here)
    here[0].grad = torch.ones(3)
    saved.step()
    optimizer = torch.optim.Adam(there)
    get("optimizer").apply(
        OptimizerTarget(optimizer), get("optimizer").options({"implementation": "fused"})
    )
    optimizer.load_state_dict(saved.state_dict())
    assert optimizer.state[there[0]]["step"].device.type == "meta"


def test_collections_go_on_where_steps_are_replayed(device: str) -> None:
    plan = Plan({**GRAPH, "garbage_collector": {"every": 4}})
    done = hotlap.train(task(), plan, device=device)
    why = {row["name"]: row["why"] for row in done.techniques}["garbage_collector"]
    # The first step freezes what is there.
    assert "9 collections between 40 steps" in why


def test_a_loss_that_reads_just_when_it_is_captured_spoils_nothing(device: str) -> None:
    calls = 0

    def reading(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal calls
        value = loss(model, batch)
        calls += 1
        return value * (1.0 if calls != 3 or value.item() > -1 else 2.0)

    plan = Plan({**GRAPH, "pinned": {}})
    done = hotlap.train(task(loss=reading), plan, device=device)
    assert done.techniques[1]["state"] == "refused", done.techniques
    never = Plan({"cuda_graph": {"warm_up": 1000}, "pinned": {}})
    plain = hotlap.train(task(), never, device=device)
    for mine, other in zip(weights(done), weights(plain), strict=True):
        assert torch.equal(mine, other)


def test_recomputing_is_named_where_it_stands_against_a_graph(device: str) -> None:
    def blocks() -> nn.Module:
        parts = [nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(2)]
        return nn.Sequential(nn.Sequential(*parts), nn.Linear(3, 2))

    done = hotlap.train(
        task(model=blocks, steps=6), Plan({**GRAPH, "recompute": {}}), device=device
    )
    rows = {row["name"]: row for row in done.techniques}
    assert rows["recompute"]["state"] == "applied", rows
    assert "recompute reads the RNG state" in rows["cuda_graph"]["why"]


@pytest.mark.parametrize("techniques", [GRAPH, {**GRAPH, "master_weights": {}}, FUSED])
def test_sampled_steps_are_those_that_are_taken(
    techniques: dict[str, Any], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(task(data=Steady()), Plan(techniques), device=device)
    during: list[str] = []
    keep = _Sampler._keep

    def watched(self: _Sampler, name: str, tensor: torch.Tensor) -> None:
        if built.hardware.is_capturing():
            during.append(name)
        keep(self, name, tensor)

    monkeypatch.setattr(_Sampler, "_keep", watched)
    channel = SimpleNamespace(send=lambda *_, **__: None, receive=lambda: None)
    options = {"samples": [1, 2, 3, 7], "folder": str(tmp_path)}
    trial: Any = SimpleNamespace(channel=channel, config=SimpleNamespace(options=options))
    run = _Recorded(trial, built, _FeedDigests(), _Delivered(0))
    run.take(9)
    assert not during
    proof = built.applied.proofs()[0]
    assert proof["state"] == "applied", proof
    for step in options["samples"]:
        with safe_open(tmp_path / f"step-{step:06d}.safetensors", framework="pt") as archive:
            names = [name for name in archive.keys() if name.startswith("gradient/")]  # noqa: SIM118
            assert len(names) == 4
            assert all(archive.get_tensor(name).abs().sum() > 0 for name in names)


def test_a_watched_run_is_timed_whether_its_steps_are_replayed_or_not(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "fake":
        fake = FakeCuda()
        clock = lambda _: DevicePhaseClock(fake.timed_mark, fake.is_capturing)  # noqa: E731
        monkeypatch.setattr("hotlap.trace.recorder.phase_clock", clock)
        monkeypatch.setattr("hotlap.engine.roles.observe.device_of", lambda _: fake)
    told: list[dict[str, Any]] = []
    trial: Any = SimpleNamespace(
        task=task(data=Steady(), held_out=Steady(), steps=20),
        channel=SimpleNamespace(send=lambda *_, **__: None),
        config=SimpleNamespace(
            options={"folder": str(tmp_path), "started": time.monotonic(), "device": device}
        ),
        build=lambda task: build(task, Plan(GRAPH), device=device),
        report=lambda built, **more: told.append({**more, "proofs": built.applied.proofs()}),
    )
    observe(trial)
    trace = store.read(tmp_path)
    assert told[0]["proofs"][0]["state"] == "applied", told
    assert (trace.clock, len(trace.steps), len(trace.losses)) == ("device", 20, 20)
    # A replay has no phases: its time is that of `other`, and none is lost.
    replayed = [row for row in trace.steps if not any(row[1:4])]
    assert f"{len(replayed)} steps replayed" in told[0]["proofs"][0]["why"]
    assert all(sum(row) > 0 for row in trace.steps)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_compiled_graphs_are_refused_where_a_step_is_split(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: FakeCuda())
    monkeypatch.setattr("hotlap.techniques.compile._no_back_end", lambda device: None)
    split = task(batch_size=4, accumulate=2)
    with pytest.raises(hotlap.UsageError, match="overwrites the gradients"):
        build(split, Plan({"compile": {"mode": mode}}))
    build(split, Plan({"compile": {}}))
    build(task(), Plan({"compile": {"mode": mode}}))
