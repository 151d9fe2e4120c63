"""A schedule that steps with the optimizer follows on the device, and no step waits to ask."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import hotlap
from hotlap.checkpoint.read import find_newest
from hotlap.engine.build import build
from hotlap.engine.roles.verify import _Delivered, _FeedDigests, _Recorded
from hotlap.engine.state.content import restore
from hotlap.engine.step import rates_ahead
from hotlap.engine.step.device_decision import DeviceDecision, TakenFlag
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan
from hotlap.schedules import warmup_cosine
from tests.engine.test_device_runs import FUSED, GRAPH, Steady, task
from tests.engine.test_resume import loss
from tests.fake_device import FakeCuda

STEPS = 40
BOTH = pytest.mark.parametrize("plan", [Plan(FUSED), Plan(GRAPH)], ids=["fused", "graph"])


@pytest.fixture(autouse=True, params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fake":
        monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: FakeCuda())
    return request.param


class Broken(Steady):
    """A batch of each epoch is not finite."""

    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs + (float("nan") if index == 23 else 0.0), label


def known(optimizer: Any) -> Any:
    return warmup_cosine(total=STEPS, warmup=5)(optimizer)


def asked(optimizer: Any) -> Any:
    """The same rates, by a function that nobody may call ahead."""
    ahead = known(torch.optim.SGD([torch.zeros(1)], lr=1.0))
    return lr_scheduler.LambdaLR(optimizer, ahead.lr_lambdas)


def learned(plan: Plan, schedule: Any) -> tuple[list[torch.Tensor], Any, int]:
    """Return the weights after all steps, the schedule, and how many updates were left out."""
    built = build(task(data=Broken(), schedule=schedule, steps=STEPS), plan, device="cuda")
    *_, last = steps_of(built)
    scheduler, skipped = last.scheduler, built.step.skipped
    return [p.detach().cpu() for p in built.model.parameters()], scheduler, skipped


@BOTH
def test_rates_on_the_device_are_those_of_the_schedule(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, theirs, left_out = learned(plan, asked)
    assert left_out > 1

    def waits(flag: TakenFlag) -> bool:
        raise AssertionError("a step waited for the device")

    monkeypatch.setattr(TakenFlag, "__bool__", waits)
    weights, mine, skipped = learned(plan, known)
    assert skipped == left_out
    assert mine.last_epoch == theirs.last_epoch == STEPS - left_out
    assert mine.get_last_lr() == theirs.get_last_lr()
    for weight, other in zip(weights, expected, strict=True):
        # The rates on the device are float32.
        assert torch.allclose(weight, other, rtol=1e-5, atol=1e-7)


@BOTH
def test_a_run_that_is_gone_through_again_keeps_the_last_rate(plan: Plan) -> None:
    given = task(schedule=lambda made: lr_scheduler.StepLR(made, 5, 0.5), steps=12)
    built = build(given, plan, device="cuda")
    *_, last = steps_of(built)
    rate = last.scheduler.get_last_lr()
    assert rate == [0.0025]
    built.stop_schedule()
    found = []
    # More than the table holds.
    for _ in range(25):
        for _ in steps_of(built):
            decision = built.step.decision
            assert isinstance(decision, DeviceDecision)
            found.append([float(each) for each in decision._rates.tensors])
    assert len(found) == 300
    assert all(each == pytest.approx(rate, rel=1e-6) for each in found)


@BOTH
def test_more_updates_than_the_table_holds(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, theirs, _ = learned(plan, asked)
    monkeypatch.setattr(rates_ahead, "_SIZE", 7)
    weights, mine, _ = learned(plan, known)
    assert mine.last_epoch == theirs.last_epoch
    for weight, other in zip(weights, expected, strict=True):
        assert torch.allclose(weight, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("length", [1, 4])
@pytest.mark.parametrize("techniques", [FUSED, GRAPH], ids=["fused", "graph"])
def test_a_rate_that_is_set_between_two_epochs_is_that_of_the_next_step(
    techniques: dict[str, Any], length: int
) -> None:
    if length > 1:
        techniques = {"cuda_graph": {"warm_up": 2, "steps": length}, "resident": {}}

    def trained(schedule: Any) -> list[torch.Tensor]:
        optimizers: list[Any] = []

        def make(model: Any) -> Any:
            optimizers.append(torch.optim.AdamW(model.parameters(), lr=0.01))
            return optimizers[-1]

        def lower(epoch: Any) -> None:
            if epoch.epoch == 2:
                seen.append(optimizers[-1].param_groups[0]["lr"])
                optimizers[-1].param_groups[0]["lr"] *= 0.1

        seen: list[float] = []
        given = task(data=Steady(), schedule=schedule, optimizer=make, steps=28)
        done = hotlap.train(given, Plan(techniques), device="cuda", progress=lower)
        assert seen == pytest.approx([0.01 * 0.9**14])
        return [each.detach().cpu() for each in done.model.parameters()]

    class Asked(lr_scheduler.ExponentialLR):
        """One that nobody may ask ahead."""

    mine = trained(lambda made: lr_scheduler.ExponentialLR(made, 0.9))
    theirs = trained(lambda made: Asked(made, 0.9))
    for weight, other in zip(mine, theirs, strict=True):
        assert torch.allclose(weight, other, rtol=1e-5, atol=1e-7)


@BOTH
def test_in_a_loop_of_ones_own_rates_and_schedule_are_those_of_the_next_step(plan: Plan) -> None:
    made: list[Any] = []

    def optimizer(model: Any) -> Any:
        made.append(torch.optim.AdamW(model.parameters(), lr=0.01))
        return made[-1]

    given = task(
        data=Steady(),
        optimizer=optimizer,
        schedule=lambda each: lr_scheduler.ExponentialLR(each, 0.5),
        steps=6,
    )
    rates = []
    for step in hotlap.steps(given, plan, device="cuda"):
        rates.append(made[0].param_groups[0]["lr"])
        if step.number == 3:
            step.scheduler.gamma = 1.0
    assert rates == pytest.approx([0.005, 0.0025, 0.00125, 0.00125, 0.00125, 0.00125])


@BOTH
def test_parameters_may_join_later(plan: Plan) -> None:
    extra = torch.nn.Parameter(torch.ones(2))

    def with_extra(model: Any, batch: Any) -> torch.Tensor:
        return loss(model, batch) + extra.to(batch[0].device).square().sum()

    given = task(
        data=Steady(), loss=with_extra, schedule=lambda each: lr_scheduler.StepLR(each, 4, 0.5)
    )
    built = build(given, plan, device="cuda")
    with torch.no_grad():
        extra.data = extra.data.to(next(built.model.parameters()).device)
    for step in steps_of(built):
        if step.number == 6:
            built.optimizer.add_param_group({"params": [extra], "lr": 0.1})
    decision = built.step.decision
    assert isinstance(decision, DeviceDecision)
    assert not torch.equal(extra.detach().cpu(), torch.ones(2))
    assert [float(each) for each in decision._rates.tensors][1] == pytest.approx(0.1 * 0.5**8)


def rates_of_a_proof(plan: Plan, folder: Path) -> list[float]:
    """Return the rate that a proof has seen before each step."""
    channel = SimpleNamespace(send=lambda *_, **__: None, receive=lambda: None)
    options = {"samples": [], "folder": str(folder)}
    trial: Any = SimpleNamespace(channel=channel, config=SimpleNamespace(options=options))
    built = build(task(data=Broken(), schedule=known, steps=STEPS), plan, device="cuda")
    run = _Recorded(trial, built, _FeedDigests(), _Delivered(0))
    run.take(STEPS)
    return [json.loads(each)[0]["lr"] for each in run.hyperparameters[:STEPS]]


@BOTH
def test_a_proof_sees_the_rate_of_each_step(plan: Plan, tmp_path: Path) -> None:
    expected = rates_of_a_proof(Plan(), tmp_path)
    assert len({*expected}) > STEPS / 2
    assert rates_of_a_proof(plan, tmp_path) == expected


def test_a_schedule_that_is_set_back_is_followed_from_there(tmp_path: Path) -> None:
    given = task(schedule=known, steps=STEPS)
    hotlap.train(given, Plan(FUSED), device="cuda", run_dir=tmp_path, save_every="10steps", keep=99)
    checkpoint, _ = find_newest(tmp_path / "ckpt")
    assert checkpoint is not None
    built = build(given, Plan(FUSED), device="cuda")
    steps = steps_of(built)
    for _ in range(3):
        next(steps)
    restore(built, checkpoint)
    expected = [group["lr"] for group in built.optimizer.param_groups]
    next(steps)
    decision = built.step.decision
    assert isinstance(decision, DeviceDecision)
    found = [float(rate) for rate in decision._rates.tensors]
    assert found == pytest.approx(expected, rel=1e-6)
    assert built.step.follows_schedule
