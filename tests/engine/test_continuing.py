"""A run that a plain script began is continued as the script would have continued it."""

import copy
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hotlap
from hotlap.checkpoint.foreign_run import read_run
from hotlap.engine.build import build
from hotlap.engine.continuing.continuing import continue_run
from hotlap.engine.state.position import Position
from hotlap.engine.steps import steps_of
from hotlap.errors import CheckpointCorrupt, UsageError

EPOCHS, SAVED, EACH = 6, 3, 7
"""Epochs of the script, those before its checkpoint, and the steps of each."""


def data() -> TensorDataset:
    inputs = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def adam(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.02)


def momentum(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def plain_sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def two_groups(model: nn.Module) -> Any:
    decayed = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 0.01}]
    return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.0)


def step_rate(optimizer: Any) -> Any:
    return lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * EACH)


def sequence(optimizer: Any) -> Any:
    warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    later = lr_scheduler.MultiStepLR(optimizer, [6, 20])
    return lr_scheduler.SequentialLR(optimizer, [warm, later], milestones=[5])


def plateau(optimizer: Any) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)


def task(**options: Any) -> hotlap.Task:
    given = {
        "model": network,
        "loss": loss,
        "data": data(),
        "optimizer": adam,
        "batch_size": 16,
        "epochs": EPOCHS,
        "shuffle": False,
        "schedule": step_rate,
        "schedule_per": "epoch",
    }
    return hotlap.Task(**{**given, **options})


@functools.cache
def train_plainly(**options: Any) -> tuple[dict[str, Any], list[float], list[list[float]]]:
    """Train as a plain script; return its checkpoint, and loss and rates of each later step."""
    own = task(**options)
    torch.manual_seed(3)
    model = own.model()
    optimizer = own.optimizer(model)
    scheduler: Any = None if own.schedule is None else own.schedule(optimizer)
    losses: list[float] = []
    rates: list[list[float]] = []
    content: dict[str, Any] = {}
    for epoch in range(EPOCHS):
        mean = 0.0
        for batch in DataLoader(data(), 16):
            now = [group["lr"] for group in optimizer.param_groups]
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
            if scheduler is not None and own.schedule_per == "step":
                scheduler.step()
            value = value.detach()
            mean += float(value) * len(batch[0]) / 100
            if epoch >= SAVED:
                losses.append(float(value))
                rates.append(now)
        if scheduler is not None and own.schedule_per == "epoch":
            scheduler.step(*([mean] if own.schedule is plateau else []))
        if epoch == SAVED - 1:
            state = {
                "epoch": epoch,
                "model_state_dict": model.state_dict(),
                "optimizer_state_dict": optimizer.state_dict(),
            }
            if scheduler is not None:
                state["scheduler_state_dict"] = scheduler.state_dict()
            content = copy.deepcopy(state)
    return content, losses, rates


class Script:
    """A plain script: the checkpoint of its third epoch, and how it trained after that."""

    def __init__(self, path: Path, **options: Any) -> None:
        content, losses, rates = train_plainly(**options)
        self.path, self.content = path, copy.deepcopy(content)
        self.losses: list[float] = losses
        """Of each step after the checkpoint."""
        self.rates: list[list[float]] = rates
        """Before each of these steps, of each group."""
        self.save()

    def save(self) -> None:
        torch.save(self.content, self.path)


def continued(path: Path, of: hotlap.Task, **options: Any) -> tuple[Any, Position, list[str]]:
    lines: list[str] = []
    built = build(of, hotlap.Plan(options.pop("plan", {})), device="cpu")
    position = continue_run(built, read_run(path, **options), lines.append)
    return built, position, lines


def train_further(built: Any, position: Position) -> tuple[list[float], list[list[float]]]:
    """Train to the end; return the loss of each step, and the rates before it."""
    losses, rates = [], []
    now = [group["lr"] for group in built.optimizer.param_groups]
    for step in steps_of(built, position):
        losses.append(float(step.loss))
        rates.append(now)
        now = [group["lr"] for group in built.optimizer.param_groups]
    return losses, rates


CASES: list[tuple[Callable[..., Any], Any, str]] = [
    (adam, step_rate, "epoch"),
    (momentum, step_rate, "epoch"),
    (two_groups, sequence, "step"),
    (adam, one_cycle, "step"),
    (momentum, one_cycle, "step"),
    (two_groups, None, "step"),
    (plain_sgd, None, "epoch"),
]


@pytest.mark.parametrize(("optimizer", "schedule", "per"), CASES)
def test_every_step_is_that_of_the_script_which_did_not_stop(
    optimizer: Any, schedule: Any, per: Any, tmp_path: Path
) -> None:
    options = {"optimizer": optimizer, "schedule": schedule, "schedule_per": per}
    script = Script(tmp_path / "old.pth", **options)
    built, position, _ = continued(script.path, task(**options))
    assert position == Position(SAVED * EACH, SAVED, 0)
    losses, rates = train_further(built, position)
    assert rates == script.rates
    # With the same order of samples and the same arithmetic, to the bit.
    assert losses == script.losses
    # The control: another seed alone leads elsewhere.
    fresh = build(task(**options), hotlap.Plan({}), device="cpu")
    assert train_further(fresh, position)[0] != script.losses


def test_weights_and_optimizer_state_are_those_of_the_file_to_the_bit(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    weights = script.content["model_state_dict"]
    script.content["model_state_dict"] = {f"_orig_mod.{k}": v for k, v in weights.items()}
    script.save()
    built, _, lines = continued(script.path, task())
    own = built.model.state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in weights.items())
    saved, now = script.content["optimizer_state_dict"], built.optimizer.state_dict()
    assert saved["state"].keys() == now["state"].keys() == {0, 1, 2, 3, 4, 5}
    for index, state in saved["state"].items():
        assert state.keys() == now["state"][index].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key, value in state.items():
            assert torch.equal(value, now["state"][index][key])
            assert value.dtype == now["state"][index][key].dtype
    assert lines == [
        f"continuing from '{script.path}', step 21",
        "model: from 'model_state_dict', 9 tensors",
        "optimizer: from 'optimizer_state_dict', 6 parameters of Adam, 6 with state; matched "
        "by order, which 'model_state_dict' has too",
        "scheduler: from 'scheduler_state_dict', StepLR, last_epoch 3; learning rate 0.01",
        "epoch: from 'epoch' = 2, 3 epochs done, numbered from 0, as 21 steps were counted and an "
        "epoch has 7",
        "not restored: RNG state, order of samples (the recipe's from epoch 4 on)",
    ]


def test_a_continued_run_is_saved_and_resumed_as_any_other(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    options: Any = {"continue_from": script.path, "resume": "auto"}
    whole = hotlap.train(task(), run_dir=tmp_path / "whole", **options)
    assert [done.epoch for done in whole.epochs] == [4, 5, 6]
    per_epoch = [script.losses[i : i + EACH] for i in (0, EACH, 2 * EACH)]
    sizes = torch.tensor([16.0] * 6 + [4.0]) / 100
    means = [float((torch.tensor(each) * sizes).sum()) for each in per_epoch]
    assert [done.loss for done in whole.epochs] == pytest.approx(means, rel=1e-5)
    stops = iter([False] * 9 + [True])
    first = hotlap.train(
        task(), run_dir=tmp_path / "parts", stop=lambda: next(stops, False), **options
    )
    assert first.is_stopped and first.steps < whole.steps == EPOCHS * EACH
    # The file is used where nothing was saved, and only there.
    script.path.unlink()
    notes: list[str] = []
    rest = hotlap.train(task(), run_dir=tmp_path / "parts", notice=notes.append, **options)
    assert any(note.startswith("resuming from") for note in notes)
    assert rest.steps == whole.steps
    own, other = whole.model.state_dict(), rest.model.state_dict()
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_a_file_of_lightning_is_continued_with_the_scheduler_step_that_it_lacks(
    tmp_path: Path,
) -> None:
    script = Script(tmp_path / "old.ckpt")
    weights = script.content["model_state_dict"]
    scheduler = script.content["scheduler_state_dict"]
    optimizer = script.content["optimizer_state_dict"]
    # Lightning saves before the scheduler's step at the end of the epoch.
    scheduler.update(last_epoch=1, _step_count=2, _last_lr=[0.02])
    optimizer["param_groups"][0]["lr"] = 0.02
    script.content = {
        "epoch": 1,
        "global_step": 14,
        "state_dict": {f"net.{name}": weight for name, weight in weights.items()},
        "optimizer_states": [optimizer],
        "lr_schedulers": [scheduler],
    }
    for state in optimizer["state"].values():
        state["step"] = torch.tensor(14.0)
    script.save()
    built, position, lines = continued(script.path, task())
    assert position == Position(14, 2, 0)
    assert built.scheduler.last_epoch == 2
    assert built.optimizer.param_groups[0]["lr"] == 0.01
    assert any("saved before its last step, which is taken now" in line for line in lines)


def test_a_schedule_that_the_file_lacks_is_the_recipes_at_that_place(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    del script.content["scheduler_state_dict"]
    script.save()
    built, position, lines = continued(script.path, task())
    assert any("StepLR was set to epoch 3; learning rate 0.01" in line for line in lines)
    assert train_further(built, position) == (script.losses, script.rates)
    # A rate that is not the file's is told.
    slow = task(schedule=lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    _, _, lines = continued(script.path, slow)
    assert any("learning rate 0.0025, although the file has 0.01" in line for line in lines)


def test_a_plateau_is_continued_and_needs_its_state(tmp_path: Path) -> None:
    options: Any = {"schedule": plateau}
    script = Script(tmp_path / "old.pth", **options)
    seen: list[Any] = []

    def schedule(optimizer: Any) -> Any:
        seen.append(plateau(optimizer))
        return seen[-1]

    rates: list[float] = []
    hotlap.train(
        task(schedule=schedule),
        continue_from=script.path,
        progress=lambda _: rates.append(seen[-1].optimizer.param_groups[0]["lr"]),
    )
    assert rates[:2] == [script.rates[EACH][0], script.rates[2 * EACH][0]]
    assert rates[0] < 0.02
    with pytest.raises(UsageError, match="ReduceLROnPlateau needs the state with its measurements"):
        continued(script.path, task(**options), keys={"scheduler": "none"})


def test_states_of_older_versions_of_torch_are_understood(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    optimizer = script.content["optimizer_state_dict"]
    for state in optimizer["state"].values():
        state["step"] = int(state["step"])
    for key in ("maximize", "foreach", "capturable", "differentiable", "fused"):
        del optimizer["param_groups"][0][key]
    del optimizer["param_groups"][0]["decoupled_weight_decay"]
    scheduler = script.content["scheduler_state_dict"]
    del scheduler["_is_initial"]
    scheduler["verbose"] = False
    script.save()
    built, position, _ = continued(script.path, task())
    assert train_further(built, position) == (script.losses, script.rates)


def test_states_of_another_format_are_those_that_torch_loads(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    states = script.content["optimizer_state_dict"]["state"]
    for state in states.values():
        state["exp_avg"] = state["exp_avg"].bfloat16()
    script.save()
    built, position, _ = continued(script.path, task())
    for parameter, state in zip(built.model.parameters(), states.values(), strict=True):
        average = built.optimizer.state[parameter]["exp_avg"]
        assert average.dtype == torch.float32 and torch.equal(average, state["exp_avg"].float())
    losses, _ = train_further(built, position)
    assert losses == pytest.approx(script.losses, rel=1e-2)


def test_master_weights_get_the_state_in_full_precision(tmp_path: Path) -> None:
    def small() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))

    script = Script(tmp_path / "old.pth", model=small)
    built, _, _ = continued(script.path, task(model=small), plan={"master_weights": {}})
    weights, saved = script.content["model_state_dict"], script.content["optimizer_state_dict"]
    parameters = built.optimizer.param_groups[0]["params"]
    for index, (name, parameter) in enumerate(zip(weights, parameters, strict=True)):
        assert torch.equal(parameter, weights[name])
        average = built.optimizer.state[parameter]["exp_avg"]
        assert torch.equal(average, saved["state"][index]["exp_avg"])
    built.end()


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 2))


def other_betas(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.02, betas=(0.8, 0.999))


def adamw(model: nn.Module) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)


def backwards(model: nn.Module) -> Any:
    return torch.optim.Adam(list(model.parameters())[::-1], lr=0.02)


def half(model: nn.Module) -> Any:
    return torch.optim.Adam(list(model.parameters())[:4], lr=0.02)


def with_another(model: nn.Module) -> Any:
    own = list(model.parameters())
    return torch.optim.Adam([*own[:5], nn.Parameter(torch.zeros(2))], lr=0.02)


def cosine(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)


def faster(optimizer: Any) -> Any:
    return lr_scheduler.StepLR(optimizer, 2, gamma=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": wide}, r"0\.weight has shape \(8, 5\), in the model \(9, 5\)"),
        (
            {"optimizer": momentum},
            r"not the recipe's SGD: .* has 'amsgrad', 'betas'.*probably Adam",
        ),
        ({"optimizer": other_betas}, r"'betas' .* \(0\.9, 0\.999\) in .* \(0\.8, 0\.999\) in the"),
        ({"optimizer": adamw}, r"'decoupled_weight_decay' .*False in .*AdamW has True, Adam False"),
        ({"optimizer": two_groups}, "one group of 6 parameters.* has 2 groups of 2, 4 parameters"),
        ({"optimizer": half}, "one group of 6 parameters, and the recipe's has one group of 4"),
        ({"optimizer": backwards}, r"state of '3\.bias' has 'exp_avg' of shape \[8, 5\]"),
        (
            {"optimizer": with_another},
            r"holds a parameter of shape \(2,\) that is not in the model",
        ),
        (
            {"schedule": cosine},
            "has gamma, step_size and lacks T_max, eta_min, unlike",
        ),
        (
            {"schedule": faster},
            "'gamma' is 0.5, but 0.1 in the recipe's StepLR. Use the same schedule in the recipe",
        ),
        ({"schedule": None}, "the recipe has no schedule.*--keys scheduler=none"),
        ({"batch_size": 20}, "an epoch of the recipe has 5 steps.*--epochs-done 3"),
        ({"epochs": 2}, "was saved after 21 steps, but the task has only 14"),
    ],
)
def test_a_recipe_of_another_run_is_refused_before_anything_is_written(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    script = Script(tmp_path / "old.pth")
    with pytest.raises(UsageError, match=words):
        hotlap.train(task(**options), continue_from=script.path, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def changed(change: Callable[[Any, Any], Any]) -> Callable[[dict[str, Any]], Any]:
    """Return what changes the optimizer's state dict: its states and its first group."""

    def of(content: dict[str, Any]) -> Any:
        optimizer = content["optimizer_state_dict"]
        return change(optimizer["state"], optimizer["param_groups"][0])

    return of


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(lambda s, _: s.clear()), "no state for any of 6 parameters, although 21 steps"),
        (changed(lambda s, _: s[0].pop("exp_avg")), r"'0\.weight' lacks 'exp_avg'"),
        (changed(lambda s, _: s[0].update(sum=1.0)), r"'0\.weight' has an unknown 'sum'"),
        (changed(lambda s, _: s[0]["exp_avg"].fill_(torch.nan)), "'exp_avg', which contains NaN"),
        (changed(lambda s, _: s[0]["exp_avg_sq"].neg_()), "'exp_avg_sq', which is negative"),
        (changed(lambda s, _: s.update({9: {}})), "a state of parameter 9"),
        (changed(lambda s, g: g.update(lr=torch.nan)), "Invalid learning rate: nan in group 0"),
        (changed(lambda s, g: g.update(lr=-0.1)), "negative"),
        (changed(lambda s, g: g.update(lr="fast")), "'lr' of group 0 .* is 'fast'"),
        (changed(lambda s, g: g.update(params=[0, 0, 1, 2, 3, 4])), "parameter 5, which is in "),
        (changed(lambda s, g: g.update(params=None)), "not a state dict of an optimizer"),
        (
            changed(lambda s, g: g.update(param_names=["3.bias", *"abcde"])),
            r"has the parameter '3\.bias' where",
        ),
        (changed(lambda s, _: s.update({0: 3})), "cannot be continued: AttributeError"),
        (lambda c: c["scheduler_state_dict"].update(last_epoch=-3), "'last_epoch' .* is -3"),
        (
            lambda c: c["scheduler_state_dict"].update(base_lrs=[0.5]),
            r"'base_lrs' is \[0\.5\].*Use the lr with which the script's optimizer began",
        ),
        (lambda c: c["model_state_dict"]["0.weight"].fill_(torch.nan), "NaN or infinite values"),
        (lambda c: c.update(epoch=8), "were done is unclear"),
    ],
)
def test_a_state_that_no_such_run_has_is_refused(
    change: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path
) -> None:
    script = Script(tmp_path / "old.pth")
    continued(script.path, task())
    change(script.content)
    script.save()
    with pytest.raises(UsageError, match=words):
        hotlap.train(task(), continue_from=script.path, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names_of_parameters_in_a_file_are_compared(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    names = [f"module.{name}" for name, _ in network().named_parameters()]
    script.content["optimizer_state_dict"]["param_groups"][0]["param_names"] = names
    script.save()
    continued(script.path, task())


def test_without_a_scheduler_the_rate_is_the_recipes_and_must_be_the_files(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    keys = {"scheduler": "none"}
    # StepLR has halved it: to set it and to keep the script's schedule are two ways to go on.
    with pytest.raises(
        UsageError,
        match=r"'lr' .* is 0\.01 in .* but 0\.02 in the recipe.*Set `lr` in the recipe's .* to "
        r"0\.02, with which .* in the task; or set `lr` to 0\.01 to continue at a constant",
    ):
        continued(script.path, task(schedule=None), keys=keys)
    # A script without a schedule.
    del script.content["scheduler_state_dict"]
    del script.content["optimizer_state_dict"]["param_groups"][0]["initial_lr"]
    script.save()
    with pytest.raises(UsageError, match=r"Set `lr` in the recipe's .* to 0\.01\.$"):
        continued(script.path, task(schedule=None))
    script = Script(tmp_path / "old.pth")
    slower = task(
        schedule=None, optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01)
    )
    built, _, lines = continued(script.path, slower, keys=keys)
    assert built.optimizer.param_groups[0]["lr"] == 0.01
    assert "scheduler: none; learning rate 0.01" in lines


def test_a_plan_that_changes_what_the_optimizer_keeps_is_refused(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    built = build(task(), hotlap.Plan({}), device="cpu")
    built.plan = hotlap.Plan({"eight_bit_optimizer": {}})
    with pytest.raises(UsageError, match="eight_bit_optimizer"):
        continue_run(built, read_run(script.path), print)


def test_a_continued_run_that_is_done_is_measured_and_saved(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    done = hotlap.train(
        task(epochs=SAVED, held_out=data()), continue_from=script.path, run_dir=tmp_path / "run"
    )
    assert done.steps == SAVED * EACH and set(done.held_out) == {"loss"}
    assert (tmp_path / "run" / "ckpt" / "step-000000000021").is_dir()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "w.pt"}, "weights='w.pt' and continue_from=.* both given"),
        ({"resume": "runs/1"}, "resume='runs/1' and continue_from=.* both given"),
        ({"continue_from": None, "keys": {"model": "net"}}, "given without continue_from"),
        (
            {"continue_from": None, "epochs_done": 3},
            "epochs_done=3 was given without continue_from",
        ),
        ({"epochs_done": -1}, "epochs_done=-1 is not valid"),
        ({"epochs_done": 3.0}, r"epochs_done=3\.0 is not valid"),
        ({"keys": {"optimizer": "optim"}}, "no key 'optim'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    script = Script(tmp_path / "old.pth")
    with pytest.raises(UsageError, match=words):
        hotlap.train(task(), **{"continue_from": script.path, **options})


def test_a_folder_that_holds_a_run_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    folder = tmp_path / "run"
    hotlap.train(task(), continue_from=script.path, run_dir=folder)
    with pytest.raises(UsageError, match="already holds a run"):
        hotlap.train(task(), continue_from=script.path, run_dir=folder)
    script.path.write_bytes(script.path.read_bytes()[:-200])
    with pytest.raises(CheckpointCorrupt, match=r"old\.pth' is truncated or damaged"):
        hotlap.train(task(), continue_from=script.path)


class Signs(torch.optim.Optimizer):
    """An optimizer that hotlap knows nothing of."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                state["calls"] = state.get("calls", 0) + 1
                average.lerp_(parameter.grad, 0.1)
                parameter.sub_(average.sign(), alpha=group["lr"])


class Halves(lr_scheduler.LRScheduler):
    """A schedule that hotlap knows nothing of; it counts in an attribute of its own."""

    calls = 0

    def get_lr(self) -> Any:
        self.calls += 1
        return [rate * 0.5 ** (self.last_epoch // 2) for rate in self.base_lrs]


def test_an_optimizer_and_a_schedule_of_the_users_own_are_continued(tmp_path: Path) -> None:
    options: Any = {
        "optimizer": lambda model: Signs(model.parameters()),
        "schedule": lambda optimizer: type("Own", (Halves,), {})(optimizer),
    }
    script = Script(tmp_path / "old.pth", **options)
    built, position, lines = continued(script.path, task(**options))
    assert any("state of this class cannot be verified" in line for line in lines)
    assert built.scheduler.calls == 4
    assert train_further(built, position) == (script.losses, script.rates)


def test_a_schedule_of_hotlap_continues_a_lambda_schedule(tmp_path: Path) -> None:
    own = hotlap.schedules.warmup_cosine(total=EPOCHS * EACH, warmup=4)

    def by_hand(optimizer: Any) -> Any:
        def share(step: int) -> float:
            if step < 4:
                return (step + 1) / 4
            return 0.5 * (1 + math.cos(math.pi * (step - 4) / (EPOCHS * EACH - 4)))

        return lr_scheduler.LambdaLR(optimizer, share)

    script = Script(tmp_path / "old.pth", schedule=by_hand, schedule_per="step")
    built, position, _ = continued(script.path, task(schedule=own, schedule_per="step"))
    losses, rates = train_further(built, position)
    assert [rate for (rate,) in rates] == pytest.approx([rate for (rate,) in script.rates])
    assert losses == pytest.approx(script.losses, rel=1e-4)


def test_a_file_from_inside_an_epoch_is_continued_inside_it_and_can_be_resumed(
    tmp_path: Path,
) -> None:
    script = Script(tmp_path / "old.pth")
    for state in script.content["optimizer_state_dict"]["state"].values():
        state["step"] += 2
    script.save()
    options: Any = {"continue_from": script.path, "run_dir": tmp_path / "run"}
    with pytest.raises(UsageError, match="were done is unclear"):
        hotlap.train(task(), **options)
    done = hotlap.train(task(), epochs_done=SAVED, **options)
    assert done.steps == EPOCHS * EACH and [each.epoch for each in done.epochs] == [4, 5, 6]
    later = hotlap.train(task(epochs=EPOCHS + 1), resume="auto", run_dir=tmp_path / "run")
    assert later.steps == (EPOCHS + 1) * EACH


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(data())


def test_a_run_over_a_stream_is_continued_and_can_be_resumed(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth")
    options: Any = {"run_dir": tmp_path / "run", "resume": "auto"}
    done = hotlap.train(task(data=Stream()), continue_from=script.path, **options)
    assert done.steps == EPOCHS * EACH and [each.epoch for each in done.epochs] == [4, 5, 6]
    assert done.epochs[0].loss == pytest.approx(sum(script.losses[:EACH]) / EACH, rel=0.5)
    later = hotlap.train(task(data=Stream(), epochs=EPOCHS + 1), **options)
    assert later.steps == (EPOCHS + 1) * EACH
