"""The range test undoes what it did, and says when it found no answer."""

import json
import math
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap import cli
from hotlap.errors import UsageError
from hotlap.search.range_test import judge, name_of_rate, space_text

RATES = [10 ** (-6 + 7 * n / 99) for n in range(100)]


class Noisy(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + np.random.random() + torch.rand(3)
        return torch.full((3,), index / 64) + 0.01 * noise, int(index < 32)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def task_of_one_model(**changes: Any) -> hotlap.Task:
    """Return a task that gives the same model each time: what is not put back is seen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
    given = {
        "model": lambda: model,
        "loss": loss,
        "data": Noisy(),
        "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
        "batch_size": 8,
        "steps": 30,
        "schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 10),
    }
    return hotlap.Task(**{**given, **changes})


def trained(task: hotlap.Task) -> tuple[list[torch.Tensor], float, float, float, float]:
    report = hotlap.train(task)
    weights = [value.clone() for value in report.model.state_dict().values()]
    drawn = random.random(), float(np.random.random()), float(torch.rand(()))
    return weights, report.epochs[-1].loss, *drawn


def test_a_training_after_a_range_test_is_the_one_without_it() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    plain = trained(task_of_one_model())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    tested = task_of_one_model()
    before = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
    found = hotlap.find_learning_rate(tested, steps=25)
    after = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    assert len(found.rates) == len(found.losses) >= 10
    again = trained(tested)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], again[0], strict=True))
    assert plain[1:] == again[1:]


def warm_up(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20))


@pytest.mark.parametrize("schedule", [None, warm_up], ids=["no schedule", "warm-up"])
@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ((0.1, 0.01), (1, 0.1)),
        ((0.0, 0.01), (0, 1)),
        ((0.0, 0.0), (1, 1)),
        ((torch.tensor(0.1), torch.tensor(0.01)), (1, 0.1)),
    ],
    ids=["ratio 10", "first frozen", "all zero", "tensors"],
)
def test_groups_have_the_rates_that_are_reported_and_keep_their_ratio(
    given: tuple[Any, Any], shares: tuple[float, float], schedule: Any
) -> None:
    seen: list[list[float]] = []
    made: list[torch.optim.Optimizer] = []

    def optimizer(model: Any) -> torch.optim.Optimizer:
        parts = [list(model[0].parameters()), list(model[3].parameters())]
        rates = [rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in given]
        groups = [{"params": p, "lr": rate} for p, rate in zip(parts, rates, strict=True)]
        made.append(torch.optim.SGD(groups, lr=rates[0]))
        made[0].register_step_pre_hook(
            lambda o, *_: seen.append([float(group["lr"]) for group in o.param_groups])
        )
        return made[0]

    task = task_of_one_model(optimizer=optimizer, schedule=schedule)
    found = hotlap.find_learning_rate(task, steps=25)
    assert len(seen) == len(found.rates) >= 10
    for rates, rate in zip(seen, found.rates, strict=True):
        assert rates == pytest.approx([rate * share for share in shares], rel=1e-5)
    # The warm-up begins at 0 again.
    left = [float(group["lr"]) for group in made[0].param_groups]
    assert left == pytest.approx([0.0, 0.0] if schedule else [float(rate) for rate in given])
    assert [isinstance(group["lr"], torch.Tensor) for group in made[0].param_groups] == [
        isinstance(rate, torch.Tensor) for rate in given
    ]


def curve(of: Callable[[float], float], noise: float = 0.02) -> list[float]:
    generator = random.Random(0)
    return [of(rate) + noise * generator.gauss(0, 1) for rate in RATES]


def test_the_rate_lies_below_the_one_with_the_least_loss() -> None:
    # Falls from 1e-4 on, is least at 1e-1, and rises steeply.
    def loss_at(rate: float) -> float:
        fall = min(max(math.log10(rate) + 4, 0.0), 3.0)
        return 2.3 - 0.5 * fall + max(0.0, math.log10(rate) + 1) * 20

    found = judge(RATES, curve(loss_at))
    assert found.largest is not None and 0.05 < found.largest < 0.3
    assert found.rate == pytest.approx(found.largest / 10, rel=0.06)


def test_a_loss_that_jumps_while_it_still_falls_has_risen() -> None:
    falling = curve(lambda rate: 2.3 - 0.3 * max(0.0, math.log10(rate) + 4))[:60]
    assert judge(RATES[:60], falling).rate is None
    found = judge(RATES[:61], [*falling, 1e4])
    assert found.largest == pytest.approx(RATES[59], rel=0.06)
    assert "and rose beyond" in found.reason


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (curve(lambda rate: 2.3, noise=0.1), "fell by .* at most"),
        (curve(lambda rate: 2.3 - 0.3 * max(0.0, math.log10(rate) + 4)), "still fell at the high"),
        ([math.nan], "not finite after 0 steps"),
        ([2.3, 2.2, 2.3, math.inf], "not finite after 3 steps"),
        ([2.302585] * 100, "was 2.3025. at every rate: check"),
        ([0.0] * 100, "was 0 at every rate"),
        ([2.3] * 60 + [math.nan], "was 2.3 at every rate before it was not finite after 60 steps"),
        ([2.302585 + 2e-7 * (n % 3 == 2 or n > 60) for n in range(100)], "was 2.3025. at every"),
        ([-0.1] * 60 + [-0.1 - 1e-8] * 20 + [9.0] * 20, "fell by .* at most"),
        ([2.3, 2.2, 2.3, 2.2, 2.3, 1e3], "rose to 1e.03 after 5 steps"),
        ([2.3, 2.2, 2.3, 2.2, 2.3, 2.2], "the task ended after 6 steps"),
        # The least is one of the first, by chance.
        ([1.0, 2.3, 2.2, 2.4, 2.3, 2.2, 2.4, 2.3, 2.2, 2.4, *[2.4] * 90], "fell by .* at most"),
    ],
    ids=[
        "flat",
        "still falling",
        "nan at once",
        "diverges at once",
        "constant",
        "zero",
        "constant, then NaN",
        "constant but for rounding",
        "constant, then rising",
        "rises at once",
        "no more data",
        "least at first",
    ],
)
def test_it_says_when_it_found_no_answer(losses: list[float], words: str) -> None:
    found = judge(RATES[: len(losses)], losses)
    assert found.rate is None and found.largest is None
    assert re.search(words, found.reason)


@pytest.mark.parametrize("offset", [0.0, -2.0, -2.3, -9.0, 50.0])
def test_a_loss_of_any_sign_and_offset_has_the_same_answer(offset: float) -> None:
    def loss_at(rate: float) -> float:
        fall = min(max(math.log10(rate) + 4, 0.0), 3.0)
        return 2.3 - 0.6 * fall + max(0.0, math.log10(rate) + 1) ** 2 * 20

    plain = judge(RATES, curve(loss_at))
    found = judge(RATES, [loss + offset for loss in curve(loss_at)])
    assert plain.largest is not None and found.largest == plain.largest


def test_a_loss_that_is_shifted_or_noisy_is_not_ended_before_it_diverges() -> None:
    def shifted(by: float) -> Callable[[nn.Module, Any], torch.Tensor]:
        return lambda model, batch: loss(model, batch) - by

    # Near 0, of both signs: its first loss says nothing of its scale.
    for by in (0.0, 0.8, 3.0):
        found = hotlap.find_learning_rate(task_of_one_model(loss=shifted(by)), highest=0.1)
        assert len(found.losses) == 30
    # Losses of single samples, of which the first one is tiny.
    noisy = iter([0.01, *[abs(random.Random(n).gauss(0, 3)) for n in range(100)]])
    task = task_of_one_model(loss=lambda m, b: 0 * loss(m, b) + next(noisy))
    found = hotlap.find_learning_rate(task)
    assert found.rate is None and len(found.losses) == 30 and "not finite" not in found.reason
    # One that does not depend on the model.
    found = hotlap.find_learning_rate(task_of_one_model(loss=lambda m, b: 0 * loss(m, b) + 1.5))
    assert found.rate is None and "was 1.5 at every rate" in found.reason
    # One that does diverge ends the test.
    rising = iter([*[-3.0, -3.1] * 8, 1e3, 1e5, 1e7])
    task = task_of_one_model(loss=lambda m, b: 0 * loss(m, b) + next(rising))
    found = hotlap.find_learning_rate(task)
    assert len(found.losses) == 17 and "before it rose to 1e+03" in found.reason


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"base_lr": 0.1, "lr": None, "epochs": 3}, "lr"),
        ({"learning_rate": 1e-3, "epochs": 3}, "learning_rate"),
        ({"base_lr": None, "lr_decay": 0.5, "lr_schedule": "cosine"}, "base_lr"),
        ({"head_lr": 0.1, "body_lr": 0.01}, None),
        ({"find_lr": True, "rate": 0.1}, None),
        ({}, None),
    ],
)
def test_the_space_names_the_parameter_that_is_the_rate(values: Any, name: str | None) -> None:
    assert name_of_rate(values) == name
    words = space_text({"range": [0.001, 0.1]}, name)
    expected = f"--space '{name or 'NAME'}=loguniform(0.001,0.1)'"
    assert words == expected if name else words.startswith(f"{expected}, where NAME is the param")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lowest": 0.0}, "lowest=0.0"),
        ({"lowest": 1.0, "highest": 0.1}, "lowest=1.0 and highest=0.1"),
        ({"steps": 5}, "range test of 5 steps"),
    ],
)
def test_what_is_no_range_is_refused(options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        hotlap.find_learning_rate(task_of_one_model(), **options)


def test_the_command_prints_a_rate_or_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(Path(__file__).with_name("searched_recipe.py"), tmp_path / "recipe.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    argv = ["search", "recipe.py", "--range-test", "--json"]
    assert cli.main([*argv, "--epochs", "12"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["range"]
    assert low < found["rate"] < high
    space = f"lr=loguniform({low:g},{high:g})"
    assert cli.main([*argv[:3], "--epochs", "12"]) == 0
    assert space in capsys.readouterr().out
    # The parameter has the name that the recipe gives it.
    text = (tmp_path / "recipe.py").read_text()
    renamed = text.replace("lr: Annotated", "peak_lr: Annotated").replace("lr=lr", "lr=peak_lr")
    (tmp_path / "recipe.py").write_text(renamed)
    assert cli.main([*argv[:3], "--epochs", "12"]) == 0
    assert f"--space 'peak_{space}'" in capsys.readouterr().out
    # With a loss that does not depend on it, no rate is right.
    text = text.replace("return loss(", "return torch.rand(()) + 0 * loss(")
    (tmp_path / "recipe.py").write_text(text)
    assert cli.main([*argv, "--epochs", "12"]) == 1
    assert json.loads(capsys.readouterr().out)["rate"] is None
    assert not (tmp_path / "recipe.search").exists()
