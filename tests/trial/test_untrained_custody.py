"""What is noted of buffers: the ones that steps change, and those that change in between."""

import torch
from torch import nn

from hotlap.trial.repetition_ways import BUFFER
from hotlap.trial.untrained_custody import UntrainedCustody, start_of


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    made.register_buffer("scale", torch.ones(3))
    return made


def train(made: nn.Module, custody: UntrainedCustody, steps: int, between: int = 0) -> None:
    for step in range(1, steps + 1):
        for micro in range(2):
            custody.forward_begins(made.named_buffers())
            made(torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + micro)))
        custody.update_ends(made.named_buffers())
        if step == between:
            made.scale.mul_(2.0)  # pyright: ignore[reportCallIssue]


def test_what_steps_change_is_told_by_name() -> None:
    custody, again = UntrainedCustody(), UntrainedCustody()
    train(model(), custody, 3)
    found = custody.report()
    changed = ["1.num_batches_tracked", "1.running_mean", "1.running_var"]
    assert found["untrained_changed"] == changed and found["untrained_moved"] == {}
    assert len({*found["untrained"]}) == 3
    train(model(), again, 3)
    assert again.report() == found


def test_a_buffer_that_changes_between_two_steps_has_moved() -> None:
    custody = UntrainedCustody()
    train(model(), custody, 4, between=2)
    assert custody.report()["untrained_moved"] == {"scale": [2]}
    assert "scale" not in custody.report()["untrained_changed"]


def test_a_start_has_parameters_and_buffers() -> None:
    made = model()
    made[0].bias.requires_grad_(False)  # pyright: ignore[reportIndexIssue]
    found = start_of(made.named_parameters(), made.named_buffers())
    kinds = {name: kind for name, (_, kind) in found.items()}
    assert kinds["0.weight"] is True and kinds["0.bias"] is False and kinds["scale"] == BUFFER
    made.scale.mul_(2.0)  # pyright: ignore[reportCallIssue]
    again = start_of(made.named_parameters(), made.named_buffers())
    assert [name for name in found if found[name] != again[name]] == ["scale"]
