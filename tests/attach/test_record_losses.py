"""Of several optimizers, the losses of the first are recorded; what is kept for it is bounded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.attach.roles import record
from hotlap.attach.roles.record import RecordLosses
from hotlap.track.run_file import now
from hotlap.track.runs import read_run


@pytest.fixture
def part(tmp_path: Path) -> RecordLosses:
    (tmp_path / "run").mkdir()
    options = {"folder": str(tmp_path / "run"), "began": now(), "every_s": 60.0}
    session: Any = SimpleNamespace(config=SimpleNamespace(options={"record": options}))
    return RecordLosses(session)


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def train(part: RecordLosses, optimizer: Any, *losses: float) -> None:
    for loss in losses:
        part.backward_begins(torch.tensor(loss))
        part.step_done(optimizer)


def losses_of(folder: Path) -> dict[int, float]:
    curve = read_run(folder).curves["step/loss"]
    return dict(zip(curve.steps, curve.values, strict=True))


def test_what_another_optimizer_trains_after_the_first_is_not_kept_and_said(
    part: RecordLosses, tmp_path: Path
) -> None:
    teacher = optimizer()
    # After two steps alone, an optimizer that steps at the same line would replace it.
    train(part, teacher, 3.0)
    student = optimizer()
    for _ in range(3 * record._MOST_OTHERS):
        train(part, student, 0.5)
        assert len(part._seen) <= record._MOST_OTHERS
    (problem,) = part.report()["recorded"]["problems"]
    assert problem.startswith("losses after step 1 are not recorded")
    assert "another optimizer steps than the first one" in problem
    assert losses_of(tmp_path / "run") == {1: 3.0}


def test_a_short_phase_of_a_second_optimizer_is_said_not_to_be_recorded(
    part: RecordLosses, tmp_path: Path
) -> None:
    first = optimizer()
    train(part, first, 3.0, 2.0)
    second = optimizer()
    for loss in (0.5, 0.5):
        part.backward_begins(torch.tensor(loss))
        # At a line of its own: at the first one's, it would replace that, as for the next fold.
        part.step_done(second)
    (problem,) = part.report()["recorded"]["problems"]
    assert problem.startswith("losses after step 2 are not recorded")
    assert losses_of(tmp_path / "run") == {1: 3.0, 2: 2.0}


@pytest.mark.parametrize("each_round", [1, 5])
def test_optimizers_that_take_turns_are_no_later_phase(part: RecordLosses, each_round: int) -> None:
    first, second = optimizer(), optimizer()
    for _ in range(3):
        train(part, first, 3.0)
        train(part, second, *[1.0] * each_round)
    assert part.report()["recorded"]["problems"] == []


def test_a_loss_that_is_changed_before_its_step_is_recorded_as_it_was(
    part: RecordLosses, tmp_path: Path
) -> None:
    loss, one = torch.tensor(2.0), optimizer()
    part.backward_begins(loss)
    loss *= 4
    part.step_done(one)
    part.report()
    assert losses_of(tmp_path / "run") == {1: 2.0}


def test_an_optimizer_that_goes_on_later_is_recorded_with_its_own_losses(
    part: RecordLosses, tmp_path: Path
) -> None:
    first = optimizer()
    train(part, first, 3.0)
    second = optimizer()
    train(part, second, *[0.5] * (record._MOST_OTHERS + 1))
    train(part, first, 2.0, 1.0)
    # As of a GAN: what is sent backward between two steps of the first one is of its step.
    train(part, second, 4.0)
    train(part, first, 2.0)
    assert part.report()["recorded"]["problems"] == []
    assert losses_of(tmp_path / "run") == {1: 3.0, 2: 2.0, 3: 1.0, 4: 3.0}


def test_backward_passes_without_a_step_are_kept_up_to_a_limit(
    part: RecordLosses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_MOST_BACKWARDS", 5)
    only = optimizer()
    for loss in (1.0, 2.0, 3.0):
        part.backward_begins(torch.tensor(loss))
    part.step_done(only)
    for _ in range(20):
        part.backward_begins(torch.tensor(9.0))
        assert len(part._seen) < 5
    train(part, only, 9.0, 4.0)
    (problem,) = part.report()["recorded"]["problems"]
    assert problem == (
        "the loss of step 2 is not recorded: more than 5 backward passes came before it"
    )
    assert losses_of(tmp_path / "run") == {1: 2.0, 3: 4.0}


def test_more_optimizers_than_steps_of_another_one_replace_none(
    part: RecordLosses, tmp_path: Path
) -> None:
    # One for each parameter, as where each steps within the backward pass.
    optimizers = [optimizer() for _ in range(2 * record._MOST_OTHERS)]
    for loss in (2.0, 1.0):
        part.backward_begins(torch.tensor(loss))
        for each in optimizers:
            part.step_done(each)
    assert part.report()["recorded"]["problems"] == []
    assert losses_of(tmp_path / "run") == {1: 2.0, 2: 1.0}
