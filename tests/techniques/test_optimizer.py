"""`foreach` leaves every bit as it was, for each optimizer that it is offered for."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.attach.apply import PlanInProcess
from hotlap.plan import Plan
from hotlap.task.facts import FOREACH, FUSED
from hotlap.techniques import OptimizerTarget, Refusal, get
from hotlap.techniques import optimizer as optimizer_technique

TECHNIQUE = get("optimizer")


SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "Adam": ({}, {"weight_decay": 0.01, "amsgrad": True}, {"maximize": True}),
    "AdamW": ({}, {"amsgrad": True}, {"maximize": True}),
    "SGD": (
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "dampening": 0.1, "maximize": True},
    ),
    "Adagrad": ({}, {"weight_decay": 0.01, "lr_decay": 0.1}),
    "Adadelta": ({}, {"weight_decay": 0.01}),
    "Adamax": ({}, {"weight_decay": 0.01}),
    "RMSprop": ({}, {"momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    "Rprop": ({},),
}


def train(kind: str, implementation: str | None, **settings: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **settings)
    target = OptimizerTarget(optimizer)
    if implementation is not None:
        TECHNIQUE.apply(target, TECHNIQUE.options({"implementation": implementation}))
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(16, 20)).square().mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(kind, settings) for kind in FOREACH for settings in SETTINGS[kind]],
)
def test_foreach_is_bit_equal(kind: str, settings: dict[str, Any]) -> None:
    plain, _ = train(kind, None, **settings)
    other, _ = train(kind, "foreach", **settings)
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_comparison_can_fail_nadam_differs_and_is_refused() -> None:
    optimizer = torch.optim.NAdam(torch.nn.Linear(2, 2).parameters())
    with pytest.raises(Refusal, match="NAdam"):
        options = TECHNIQUE.options({"implementation": "foreach"})
        TECHNIQUE.apply(OptimizerTarget(optimizer), options)
    models = []
    for foreach in (None, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 5)
        optimizer = torch.optim.NAdam(model.parameters(), foreach=foreach)
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(16, 20)).square().mean().backward()
            optimizer.step()
        models.append(model)
    assert not torch.equal(models[0].weight, models[1].weight)


@pytest.mark.parametrize("kind", FUSED)
def test_fused_agrees_up_to_rounding(kind: str) -> None:
    plain, _ = train(kind, None)
    other, _ = train(kind, "fused")
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_the_state_dict_is_that_of_the_plain_run(implementation: str) -> None:
    _, plain = train("AdamW", None)
    _, other = train("AdamW", implementation)
    assert plain.state_dict()["param_groups"] == other.state_dict()["param_groups"]
    assert repr(plain) == repr(other)
    for key, state in plain.state_dict()["state"].items():
        for name, value in state.items():
            assert other.state_dict()["state"][key][name].dtype == value.dtype


def test_what_the_script_chose_itself_is_kept() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with pytest.raises(Refusal, match="was created with foreach=False"):
        TECHNIQUE.apply(OptimizerTarget(optimizer), TECHNIQUE.options({"implementation": "fused"}))


def test_an_optimizer_of_the_users_own_is_refused_by_name() -> None:
    class Mine(torch.optim.SGD):
        pass

    optimizer = Mine(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(Refusal, match="Mine"):
        TECHNIQUE.apply(OptimizerTarget(optimizer), TECHNIQUE.options({"implementation": "fused"}))


def test_a_parameter_that_a_group_holds_twice_is_left_to_the_plain_loop() -> None:
    def tied() -> Any:
        torch.manual_seed(0)
        layer = torch.nn.Linear(4, 4)
        with pytest.warns(UserWarning, match="duplicate parameters"):
            return layer, torch.optim.Adam([layer.weight, layer.weight, layer.bias], lr=0.01)

    options = TECHNIQUE.options({"implementation": "foreach"})
    with pytest.raises(Refusal, match="holds a parameter twice"):
        TECHNIQUE.apply(OptimizerTarget(tied()[1]), options)
    results: list[Any] = []
    for later in (False, True):
        layer, optimizer = tied()
        if later:
            # It gets there once the technique has been applied.
            twice = optimizer.param_groups[0]["params"].pop(1)
            TECHNIQUE.apply(OptimizerTarget(optimizer), options)
            optimizer.param_groups[0]["params"].insert(1, twice)
        for _ in range(4):
            optimizer.zero_grad()
            layer(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
        results.append(layer.weight)
    assert torch.equal(*results)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_closure_sees_the_scripts_optimizer_and_the_update_is_switched(by_name: bool) -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    plain = [weight.detach().clone().requires_grad_() for weight in weights]
    seen: list[Any] = []

    def train(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
        def closure() -> torch.Tensor:
            seen.append(optimizer.param_groups[0]["foreach"])
            optimizer.zero_grad()
            loss = torch.stack([each.square().sum() for each in parameters]).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
            return loss

        optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    switched = torch.optim.Adam(weights, lr=0.1)
    plan = PlanInProcess(Plan({"optimizer": {"implementation": "foreach"}}))
    for _ in range(3):
        plan.step_begins(switched)
        train(switched, weights)
        plan.step_ends()
    assert switched.param_groups[0]["foreach"] is None and seen == [None] * 3
    (row,) = plan.proofs()
    assert row["state"] == "applied" and "norm" not in row["why"], row
    other = torch.optim.Adam(plain, lr=0.1)
    for _ in range(3):
        train(other, plain)
    assert all(map(torch.equal, weights, plain))


def test_what_a_closure_runs_is_not_taken_for_the_update() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=0.1)
    plan = PlanInProcess(Plan({"optimizer": {"implementation": "foreach"}}))

    def closure() -> torch.Tensor:
        loss = weight.square().sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([weight], 1.0, foreach=True)
        # From now on the script has chosen itself.
        optimizer.param_groups[0]["foreach"] = False
        return loss

    for _ in range(3):
        plan.step_begins(optimizer)
        optimizer.step(closure)
        plan.step_ends()
    (row,) = plan.proofs()
    assert row["state"] == "no_effect", row


def shared(overlap: bool) -> tuple[Any, Any]:
    """Return two parameters in one memory, and an optimizer of both."""
    memory = torch.linspace(-1, 1, 12)
    ends = (8, 4) if overlap else (6, 6)
    parts = [torch.nn.Parameter(memory[: ends[0]]), torch.nn.Parameter(memory[ends[1] :])]
    return parts, torch.optim.SGD(parts, lr=0.1, weight_decay=0.3)


@pytest.mark.parametrize("overlap", [True, False])
def test_parameters_that_share_memory_are_left_to_the_plain_loop(overlap: bool) -> None:
    options, results = TECHNIQUE.options({"implementation": "foreach"}), []
    if overlap:
        with pytest.raises(Refusal, match="or two that share memory"):
            TECHNIQUE.apply(OptimizerTarget(shared(overlap)[1]), options)
    for is_applied in (False, True):
        parts, optimizer = shared(overlap)
        if is_applied:
            # They get there once the technique has been applied.
            second = optimizer.param_groups[0]["params"].pop()
            TECHNIQUE.apply(OptimizerTarget(optimizer), options)
            optimizer.param_groups[0]["params"].append(second)
            # Views of one memory that do not overlap are apart.
            assert is_switched(optimizer) is not overlap
        for _ in range(3):
            for part in parts:
                part.grad = part.detach().cos()
            optimizer.step()
        results.append([part.detach().clone() for part in parts])
    assert all(map(torch.equal, *results))


def is_switched(optimizer: Any) -> bool:
    """Return whether the first group would step by `foreach`, as its last hook sees it."""
    seen: list[Any] = []
    hook = optimizer.register_step_post_hook(
        lambda optimizer, *_: seen.append(optimizer.param_groups[0]["foreach"])
    )
    # The technique's own stands first and puts the group back: this one is to come before it.
    hook.hooks_dict_ref().move_to_end(hook.id, last=False)
    for group in optimizer.param_groups:
        for part in group["params"]:
            part.grad = None
    optimizer.step()
    hook.remove()
    return seen == [True]


@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_an_optimizer_that_is_made_again_in_place_is_switched_as_before(
    implementation: str,
) -> None:
    plan = PlanInProcess(Plan({"optimizer": {"implementation": implementation}}))
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)

    def step() -> None:
        weight.grad = torch.ones(3)
        plan.step_begins(optimizer)
        optimizer.step()
        plan.step_ends()

    step()
    optimizer.__init__([weight], lr=0.01)
    step()
    step()
    assert optimizer.param_groups[0][implementation] is None
    assert [row["state"] for row in plan.proofs()] == ["applied"]


def test_counters_that_a_live_race_has_moved_go_back_while_it_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU: elsewhere torch's own implementation waits for each of them."""
    gone: list[str] = []
    state = {"step": SimpleNamespace(to=gone.append)}
    moved = [[(state, "where it was")], []]
    monkeypatch.setattr(optimizer_technique, "_place_step_counters", lambda _: moved.pop(0))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    target = OptimizerTarget(optimizer)
    options = TECHNIQUE.options({"implementation": "fused"})
    TECHNIQUE.apply(target, options)
    assert TECHNIQUE.live is not None
    TECHNIQUE.live.on(target, options)
    target.notes["optimizer"]._before_step(optimizer, (optimizer,), {})
    assert not gone
    TECHNIQUE.live.off(target, options)
    target.notes["optimizer"]._before_step(optimizer, (optimizer,), {})
    assert gone == ["where it was"]
