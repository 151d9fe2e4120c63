"""What backward has computed is what the update gets, at every step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hotlap.lab.delivery import check_delivery
from hotlap.trial.gradient_custody import GradientCustody

STEPS = 12
Change = Callable[[int, nn.Module], Any]


def leave(step: int, model: nn.Module) -> None:
    """Do nothing."""


def run(
    change: Change = leave,
    *,
    lie: Change = leave,
    seed: int = 0,
    prepare: Callable[[nn.Module], Any] | None = None,
    backwards: int = 1,
    zeroes: Callable[[int], bool] = lambda step: True,
) -> dict[str, Any]:
    """Train; `change` is the script's own, and `lie` comes from elsewhere, after backward."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    custody = GradientCustody(seed=3)
    custody.watch(model.parameters())
    if prepare is not None:
        prepare(model)
    for step in range(1, STEPS + 1):
        if zeroes(step):
            optimizer.zero_grad()
        for _ in range(backwards):
            (model(torch.randn(5, 8)).square().mean() * step).backward()
        change(step, model)
        lie(step, model)
        custody.update_begins(0, list(model.parameters()))
        optimizer.step()
        custody.update_ends()
    return {"delivered": custody.report()}


def clip_norm(step: int, model: nn.Module) -> None:
    clip_grad_norm_(model.parameters(), 0.5)


def clip_value(step: int, model: nn.Module) -> None:
    clip_grad_value_(model.parameters(), 0.05)


def unscale(step: int, model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad *= 2.0**-16


def add_noise(step: int, model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad += torch.randn_like(parameter.grad)


def at(number: int, work: Callable[[nn.Parameter], Any]) -> Change:
    """Do it to every parameter, in one step."""

    def change(step: int, model: nn.Module) -> None:
        for parameter in model.parameters() if step == number else ():
            work(parameter)

    return change


def swap_for_older() -> Change:
    """Give the seventh update the gradients of the sixth."""
    kept: list[torch.Tensor] = []

    def change(step: int, model: nn.Module) -> None:
        if step == 6:
            kept[:] = [p.grad.clone() for p in model.parameters()]
        for parameter, older in zip(model.parameters(), kept if step == 7 else (), strict=False):
            parameter.grad.copy_(older)

    return change


LIES: dict[str, Change] = {
    "scaled": at(7, lambda p: p.grad.mul_(1.001)),
    "scaled through .data": at(7, lambda p: p.grad.data.mul_(1.001)),
    "zeroed": at(7, lambda p: p.grad.zero_()),
    "of the step before": swap_for_older(),
    "noise": at(7, lambda p: p.grad.add_(1e-4 * torch.randn_like(p.grad))),
    "dropped": at(7, lambda p: setattr(p, "grad", None)),
}


@pytest.mark.parametrize("script", [leave, clip_norm, clip_value, unscale])
def test_a_script_that_does_the_same_at_other_weights_passes(script: Change) -> None:
    plain, other = run(script), run(script, seed=1)
    found = check_delivery(plain, other)
    assert found.state == "passed", found.evidence


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("script", [leave, clip_norm, clip_value, unscale])
def test_another_gradient_in_one_update_is_a_change(script: Change, lie: Change) -> None:
    found = check_delivery(run(script), run(script, lie=lie))
    assert found.state == "failed" and "update 7" in found.evidence


@pytest.mark.parametrize("script", [clip_norm, clip_value, unscale])
def test_what_a_script_does_to_gradients_must_not_be_left_out(script: Change) -> None:
    def once(step: int, model: nn.Module) -> None:
        if step != 7:
            script(step, model)

    for change in (once, leave):
        found = check_delivery(run(script), run(change))
        assert found.state == "failed" and "as backward computed them" in found.evidence


def test_clipping_to_another_norm_is_a_change() -> None:
    def more(step: int, model: nn.Module) -> None:
        clip_grad_norm_(model.parameters(), 0.501)

    found = check_delivery(run(clip_norm), run(more))
    assert found.state == "failed" and "clipped to a norm of 0.5" in found.evidence


def test_a_limit_that_the_plain_run_does_not_reach_is_no_change() -> None:
    def clip_rarely(step: int, model: nn.Module) -> None:
        clip_grad_norm_(model.parameters(), limit)

    largest = max(row["norm"] for row in run()["delivered"]["updates"])
    limit = 1.001 * largest
    other = next(found for seed in range(1, 9) if was_clipped(found := run(clip_rarely, seed=seed)))
    found = check_delivery(run(clip_rarely), other)
    assert found.state == "partial" and "none of the plain run reaches" in found.evidence
    # One that the plain run should have come to is another thing.
    limit = 0.9 * largest
    assert check_delivery(run(), run(clip_rarely)).state == "failed"


def was_clipped(found: dict[str, Any]) -> bool:
    return any("scale" in row for row in found["delivered"]["updates"])


def hook_parameters(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 1.001)


def hook_sums(model: nn.Module) -> None:
    def change(parameter: Any) -> None:
        parameter.grad.mul_(1.001)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(change)


@pytest.mark.parametrize("prepare", [hook_parameters, hook_sums])
def test_hooks_that_come_later_are_seen_through(prepare: Callable[[nn.Module], Any]) -> None:
    found = check_delivery(run(), run(prepare=prepare))
    assert found.state == "failed" and "1.001 times" in found.evidence
    # A script's own hook, which scales by the same number at each update.
    assert check_delivery(run(prepare=prepare), run(prepare=prepare, seed=1)).state == "passed"


def test_what_a_script_does_in_a_way_of_its_own_is_not_judged() -> None:
    found = check_delivery(run(add_noise), run(add_noise, seed=1))
    assert found.state == "partial" and "in a way of its own" in found.evidence


def test_gradients_are_summed_over_several_backwards() -> None:
    assert check_delivery(run(backwards=3), run(backwards=3, seed=1)).state == "passed"
    lie = LIES["scaled"]
    assert check_delivery(run(backwards=3), run(backwards=3, lie=lie)).state == "failed"


def test_a_change_between_two_backwards_is_seen() -> None:
    def change_between(model: nn.Module) -> None:
        calls = []

        def before(module: nn.Module, inputs: Any) -> None:
            calls.append(None)
            for parameter in module.parameters() if len(calls) == 14 else ():
                parameter.grad.data.mul_(1.001)

        model.register_forward_pre_hook(before)

    found = check_delivery(run(backwards=2), run(backwards=2, prepare=change_between))
    assert found.state == "failed" and "update 7" in found.evidence


def test_gradients_that_are_not_zeroed_are_a_change() -> None:
    kept = {"zeroes": lambda step: step != 7}
    found = check_delivery(run(), run(**kept))
    assert found.state == "failed" and "update 7" in found.evidence and "zeroed" in found.evidence
    assert check_delivery(run(**kept), run()).state == "failed"
    assert check_delivery(run(**kept), run(**kept, seed=1)).state == "passed"


def test_an_update_without_a_backward_is_a_change() -> None:
    def not_backward(model: nn.Module) -> None:
        """In the seventh step: its gradients are those of the sixth, which nobody zeroes."""
        calls = []

        def cut(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            calls.append(None)
            return output.detach().requires_grad_() if len(calls) == 7 else output

        model.register_forward_hook(cut)

    kept = {"zeroes": lambda step: step != 7}
    found = check_delivery(run(**kept), run(**kept, prepare=not_backward))
    assert found.state == "failed" and "before the last update" in found.evidence


def test_what_takes_no_part_for_a_while_is_no_fault() -> None:
    def freeze(model: nn.Module) -> None:
        layer = model[0]
        layer.requires_grad_(False)
        calls = []

        def before(module: nn.Module, inputs: Any) -> None:
            calls.append(None)
            layer.requires_grad_(len(calls) > 5)

        model.register_forward_pre_hook(before)

    plain = run(prepare=freeze)
    rows = plain["delivered"]["updates"]
    assert [row["followed"] for row in rows] == [2] * 5 + [4] * (STEPS - 5)
    assert check_delivery(plain, run(prepare=freeze, seed=1)).state == "passed"


def test_each_optimizer_has_a_rule_of_its_own() -> None:
    def train(lie: bool) -> dict[str, Any]:
        torch.manual_seed(0)
        models = [nn.Linear(8, 4), nn.Linear(8, 4)]
        custody = GradientCustody(seed=3)
        for model in models:
            custody.watch(model.parameters())
        for step in range(8):
            for number, model in enumerate(models):
                model.zero_grad()
                model(torch.randn(5, 8)).square().mean().backward()
                if number == (step % 2 if lie else 0):
                    clip_grad_norm_(model.parameters(), 0.1)
                custody.update_begins(number, list(model.parameters()))
                custody.update_ends()
        return {"delivered": custody.report()}

    assert check_delivery(train(False), train(False)).state == "passed"
    found = check_delivery(train(False), train(True))
    assert found.state == "failed" and "update 3" in found.evidence


def test_gradients_of_a_closure_are_left_to_the_sampled_steps() -> None:
    def compute_again(model: nn.Module) -> None:
        def before(*_: Any) -> None:
            model.zero_grad()
            model(torch.randn(5, 8)).square().mean().backward()

        handles.append(register_optimizer_step_pre_hook(before))

    handles: list[Any] = []
    try:
        inside = run(prepare=compute_again)
    finally:
        handles[0].remove()
    found = check_delivery(inside, inside)
    assert found.state == "partial" and "in a closure" in found.evidence
    assert check_delivery(run(), inside).state == "failed"


def test_sparse_gradients_are_left_to_the_sampled_steps() -> None:
    def train() -> dict[str, Any]:
        model = nn.Embedding(10, 4, sparse=True)
        custody = GradientCustody(seed=3)
        custody.watch(model.parameters())
        model(torch.tensor([1, 2])).square().mean().backward()
        custody.update_begins(0, list(model.parameters()))
        return {"delivered": custody.report()}

    found = check_delivery(train(), train())
    assert found.state == "partial" and "no gradient could be followed" in found.evidence


def test_another_layout_in_memory_is_no_change() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 64, 3)
    custody = GradientCustody(seed=3)
    custody.watch(model.parameters())
    model.to(memory_format=torch.channels_last)
    model(torch.randn(2, 3, 8, 8)).square().mean().backward()
    custody.update_begins(0, list(model.parameters()))
    assert "scale" not in custody.rows[0] and custody.rows[0]["followed"] == 2


def test_what_was_not_followed_is_not_proven() -> None:
    assert check_delivery({}, run()).state == check_delivery(run(), {}).state == "not_made"
    short = run()
    del short["delivered"]["updates"][-1]
    assert check_delivery(run(), short).state == "not_made"
    missed = run()
    missed["delivered"]["updates"][3] = {"optimizer": 0, "missed": "replayed"}
    found = check_delivery(run(), missed)
    assert found.state == "partial" and "1 updates could not be followed" in found.evidence


def test_a_default_device_of_the_script_is_not_that_of_what_is_drawn() -> None:
    def follow() -> dict[str, Any]:
        weight = torch.ones(3000, device="cpu", requires_grad=True)
        custody = GradientCustody(seed=3)
        custody.watch([weight, bias := torch.ones(3, device="cpu", requires_grad=True)])
        (weight.square().sum() + bias.sum()).backward()
        custody.update_begins(0, [weight, bias])
        return custody.report()

    expected = follow()
    assert expected["updates"][0]["followed"] == 2
    with torch.device("meta"):
        assert follow() == expected
