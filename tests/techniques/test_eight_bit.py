"""8-bit Adam: hyperparameters and schedule go on, and a resumed run has the bits of a whole one."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hotlap
from hotlap.checkpoint.read import find_newest
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.techniques import Refusal, StepTarget, get
from hotlap.techniques.eight_bit_optimizer import _kind
from tests.engine.test_conformance import Images, loss

TECHNIQUE = get("eight_bit_optimizer")
needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
)
EIGHT = {"eight_bit_optimizer": {"compiled": False}}


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 3))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    first, second = list(model.parameters())[:2], list(model.parameters())[2:]
    groups: list[dict[str, Any]] = [
        {"params": first, "lr": 0.02, "weight_decay": 0.3},
        {"params": second, "betas": (0.8, 0.9)},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def task(steps: int = 12, optimizer: Any = adam) -> hotlap.Task:
    return hotlap.Task(
        model=network,
        loss=loss,
        data=Images(),
        optimizer=optimizer,
        batch_size=8,
        steps=steps,
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.7),
    )


@needs_torchao
@pytest.mark.parametrize("extra", [{}, {"master_weights": {}}], ids=["alone", "with masters"])
def test_a_resumed_run_has_the_bits_of_a_whole_one(extra: Any, tmp_path: Path) -> None:
    plan = Plan({**EIGHT, **extra})
    whole = hotlap.train(task(), plan, run_dir=tmp_path / "whole")
    states = {row["name"]: row for row in whole.techniques}
    assert states["eight_bit_optimizer"]["state"] == "applied"
    hotlap.train(task(steps=5), plan, run_dir=tmp_path / "parts")
    parts = hotlap.train(task(), plan, run_dir=tmp_path / "parts", resume="auto")
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, parts.model.state_dict()[name]), name


@needs_torchao
def test_it_learns_what_the_plain_optimizer_learns_and_not_bit_by_bit(tmp_path: Path) -> None:
    plain = hotlap.train(task(), Plan())
    done = hotlap.train(task(), Plan(EIGHT), run_dir=tmp_path)
    assert done.epochs[-1].loss == pytest.approx(plain.epochs[-1].loss, rel=0.01)
    weights = (done.model.state_dict()["1.weight"], plain.model.state_dict()["1.weight"])
    assert not torch.equal(*weights)
    found, _ = find_newest(tmp_path / "ckpt")
    assert found is not None
    saved = found.tensors["optimizer"]
    assert saved["1.weight/exp_avg#codes"].dtype == torch.uint8
    assert all(type(tensor) is torch.Tensor for tensor in saved.values())
    # Three steps of the schedule, and each group's own numbers.
    groups = found.state["optimizer"]["groups"]
    assert groups[0]["lr"] == pytest.approx(0.02 * 0.7**6)
    assert groups[1]["lr"] == pytest.approx(0.01 * 0.7**6)
    assert groups[0]["weight_decay"] == 0.3


@needs_torchao
def test_a_checkpoint_of_it_is_refused_without_it(tmp_path: Path) -> None:
    hotlap.train(task(steps=5), Plan(EIGHT), run_dir=tmp_path)
    with pytest.raises(UsageError, match="optimizer was AdamW8bit"):
        hotlap.train(task(), Plan(), run_dir=tmp_path, resume="auto")


@needs_torchao
def test_small_parameters_only_are_no_effect() -> None:
    small = hotlap.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
        loss=loss,
        data=Images(),
        optimizer=lambda model: torch.optim.Adam(model.parameters()),
        batch_size=8,
        steps=2,
    )
    (row,) = hotlap.train(small, Plan(EIGHT)).techniques
    assert row["state"] == "no_effect" and "all optimizer state is in float32" in row["why"]


@needs_torchao
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_it_ends_near_the_same(tmp_path: Path) -> None:
    plain = hotlap.train(task(steps=4), Plan(EIGHT))
    done = hotlap.train(task(steps=4), Plan({"eight_bit_optimizer": {}}))
    assert done.epochs[-1].loss == pytest.approx(plain.epochs[-1].loss, rel=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "torch.optim.sgd.SGD"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad=True"),
        (lambda p: torch.optim.Adam(p, maximize=True), "maximize=True"),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), "learning rate is a tensor"),
    ],
)
def test_what_it_cannot_stand_in_for_is_refused(optimizer: Any, words: str) -> None:
    model = network()
    target = StepTarget(model, optimizer(model.parameters()), "cpu")
    with pytest.raises(Refusal, match=words):
        TECHNIQUE.apply(target, TECHNIQUE.options({}))


def test_groups_that_decay_in_two_ways_are_refused() -> None:
    first, second = list(network().parameters())[:2], list(network().parameters())[2:]
    optimizer = torch.optim.Adam([{"params": first}, {"params": second}])
    assert _kind(optimizer) == "Adam"
    optimizer.param_groups[1]["decoupled_weight_decay"] = True
    with pytest.raises(Refusal, match="different values of `decoupled_weight_decay`"):
        _kind(optimizer)


def test_an_absent_package_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    model = network()
    target = StepTarget(model, adam(model), "cpu")
    for package in ("torchao", "bitsandbytes"):
        with pytest.raises(Refusal, match=f"pip install {package}"):
            TECHNIQUE.apply(target, TECHNIQUE.options({"package": package}))
