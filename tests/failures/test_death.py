"""Where training died, as its traceback tells it, and what would have fitted."""

import traceback
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.cli import train
from hotlap.engine.memory.advice import Run
from hotlap.engine.memory.estimate import estimate
from hotlap.failures import recognize_exception, recognize_output, recognize_signal
from hotlap.failures.death import death_in, death_of
from hotlap.plan import Plan
from tests.failures.test_messages import FULL


def _die(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("it does not die")


def _raise() -> None:
    raise RuntimeError("it dies here")


def _backward() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda _: 1 / 0)
    weight.sum().backward()


def _update() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], 0.1)
    optimizer.register_step_pre_hook(lambda *_: _raise())
    optimizer.step()


def _closure() -> None:
    model = nn.Linear(2, 3)
    torch.optim.SGD(model.parameters(), 0.1).step(lambda: float(model(torch.ones(4)).sum()))


def _data() -> None:
    class Broken(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return nn.Linear(2, 3)(torch.ones(5))

    next(iter(torch.utils.data.DataLoader(Broken())))


PHASES = {
    "in the forward pass": lambda: nn.Linear(2, 3)(torch.ones(5)),
    "in the backward pass": _backward,
    "in the optimizer's update": _update,
    "while a batch was read": _data,
}


@pytest.mark.parametrize("phase", PHASES)
def test_the_phase_is_told_from_the_exception_and_from_its_text(phase: str) -> None:
    error = _die(PHASES[phase])
    text = "".join(traceback.format_exception(error))
    assert death_of(error).phase == phase
    assert death_in(f"first lines\n{text}").phase == phase


def test_what_a_closure_of_the_optimizer_does_is_no_update() -> None:
    assert death_of(_die(_closure)).phase == "in the forward pass"


def test_a_text_and_its_exception_name_the_same_line() -> None:
    error = _die(_backward)
    text = "".join(traceback.format_exception(error))
    place = death_of(error).place
    assert place is not None and place.startswith(f"{__file__}:")
    assert death_in(text).place == place
    assert death_in("no traceback").place is None


def test_a_tensor_is_told_once_and_subclasses_are_not_asked() -> None:
    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("it was asked")

    def die() -> None:
        large, own = torch.ones(512, 1024), torch.ones(2).as_subclass(Own)
        again, listed = large, [large, own]
        raise RuntimeError(f"{FULL}{id(again)}{len(listed)}")

    held = [each for each in death_of(_die(die)).tensors() if each.bytes == 2**21]
    assert [each.name for each in held] == ["large"]


def test_a_gpu_message_names_the_line_too() -> None:
    def train() -> None:
        raise torch.OutOfMemoryError(FULL)

    known = recognize_exception(_die(train))
    assert known is not None and "It died at " in known.line
    assert "`raise torch.OutOfMemoryError(FULL)`" in known.line
    text = "".join(traceback.format_exception(_die(train)))
    printed = recognize_output(text)
    assert printed is not None and printed.line == known.line


def test_where_launches_were_synchronous_the_line_is_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    error = _die(train)
    for value, said in (("1", True), ("0", False)):
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
        known = recognize_exception(error)
        assert known is not None
        assert ("Launches were synchronous, so the line is the right one" in known.line) is said


def test_a_label_that_is_ignored_does_not_count() -> None:
    labels = torch.tensor([0, -100, 4])
    error = _die(lambda: nn.functional.cross_entropy(torch.ones(3, 4), labels))
    known = recognize_exception(error)
    assert known is not None
    assert "Labels go from 0 to 4; the model has 4 outputs, for labels from 0 to 3." in known.line


def test_signals_that_are_sent_on_purpose_say_nothing() -> None:
    assert recognize_signal(15) is None and recognize_signal(2) is None
    killed = recognize_signal(9)
    assert killed is not None and "SIGKILL, signal 9." in killed.line


def _task() -> hotlap.Task:
    def loss(model: Any, batch: Any) -> Any:
        return model(batch[0]).square().mean()

    def model() -> nn.Module:
        return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)])

    return hotlap.Task(
        model=model,
        loss=loss,
        data=TensorDataset(torch.ones(4096, 64)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1),
        batch_size=2048,
        steps=2,
    )


OOM = torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.slow
def test_a_micro_batch_that_is_advised_fits_by_the_estimate() -> None:
    whole = estimate(_task(), Plan(), device="cpu", find_largest=False).needed_bytes
    run = Run(_task(), Plan(), "cpu", whole // 3)
    error = RuntimeError("step 1 does not fit")
    error.__cause__ = OOM
    said = run.advise(error)
    assert said is not None and "micro_batch(size=512) would need about " in said
    split = Plan({"micro_batch": {"size": 512}})
    assert estimate(_task(), split, device="cpu", find_largest=False).needed_bytes <= whole // 3


@pytest.mark.slow
def test_it_is_told_if_a_step_fits_or_nothing_does() -> None:
    run = Run(_task(), Plan(), "cpu", 2**34)
    assert "which fits: the rest is not in the estimate" in (run.advise(OOM) or "")
    nothing = replace(run, room=1000).advise(OOM)
    assert nothing is not None and "use a smaller model" in nothing
    assert run.advise(RuntimeError("another")) is None


@pytest.mark.parametrize("is_one_of_several", [False, True])
def test_one_rank_of_several_says_at_once_what_it_died_of(
    is_one_of_several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SimpleNamespace(advise=lambda error: "use less")
    monkeypatch.setattr(train, "is_one_of_several", lambda: is_one_of_several)
    error = torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(torch.OutOfMemoryError), train._advising(run):
        raise error
    # To estimate takes longer than the others are waited for.
    assert getattr(error, "__notes__", []) == (
        [] if is_one_of_several else ["hotlap train: use less."]
    )
