"""A watcher that a script's own objects make fail is no matter of the script."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.attach.learning.batch_sizes import BatchSizes
from hotlap.attach.learning.inputs import Inputs
from hotlap.attach.learning.watch import WatchLearning
from hotlap.trace.events import Events
from hotlap.trace.safe_calls import SafeCalls

OPTIMIZER = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)


class Layer(nn.Module):
    """Takes any input: what it would compute is no matter here."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, given: Any) -> Any:
        return given


def learning() -> WatchLearning:
    return WatchLearning(SimpleNamespace(steps=0, bind=bool, bind_steps=bool), Events())  # pyright: ignore[reportArgumentType]


def test_what_fails_is_called_once_and_said() -> None:
    watched, calls = learning(), []

    class Broken:
        @property
        def optimizer(self) -> Any:
            calls.append(1)
            raise ValueError("no optimizer\nhere")

    for _ in range(3):
        watched.schedule_steps(Broken())
    watched.backward_begins(torch.ones(2, requires_grad=True).mean())
    found = watched.facts()
    (problem,) = found.problems
    assert problem == (
        "nothing is said of schedules: to look at them failed (ValueError: no optimizer)"
    )
    assert len(calls) == 1 and found.schedules == ()
    # The others look on.
    assert found.losses[0].backwards == 1


def test_what_is_known_of_a_watcher_that_fails_later_is_not_said() -> None:
    watched = learning()
    plan = torch.optim.lr_scheduler.StepLR(OPTIMIZER, 3)
    watched.schedule_steps(plan)
    assert len(watched.facts().schedules) == 1
    watched.schedule_steps(SimpleNamespace())
    assert watched.facts().schedules == () and len(watched.facts().problems) == 1


@pytest.mark.parametrize(
    ("call", "given", "watcher"),
    [
        ("iterator_made", (SimpleNamespace(num_workers=2), None), "workers"),
        ("root_found", (SimpleNamespace(parameters=lambda: iter(())),), "inputs"),
        ("evaluation_forward_ends", (None, (), {}, None), "evaluations"),
        ("object_saved", (type("Mine", (dict,), {"values": None})(a=1),), "saved files"),
        ("step_begins", (SimpleNamespace(param_groups=[]),), "batch sizes"),
        ("step_begins", (SimpleNamespace(param_groups=[{}]),), "missing gradients"),
    ],
)
def test_no_watcher_ends_the_script(call: str, given: Any, watcher: str) -> None:
    watched = learning()
    with torch.no_grad():
        getattr(watched, call)(*given)
    assert [words.split(":")[0] for words in watched.facts().problems] == [
        f"nothing is said of {watcher}"
    ]


def test_a_forward_whose_input_cannot_be_looked_at_goes_on() -> None:
    watched, layer = learning(), Layer()
    watched.root_found(layer)
    # A tensor without numbers.
    given = torch.ones(2, 3, device="meta")
    assert layer(given) is given
    assert not layer._forward_pre_hooks
    (problem,) = watched.facts().problems
    assert problem.startswith("nothing is said of inputs")


def test_a_device_without_autocast_is_no_matter_of_the_script() -> None:
    watched, layer = learning(), Layer().to("meta")
    watched.root_found(layer)
    given = (torch.ones(2, 3),)
    assert watched.forward_begins(layer, given) is given
    assert watched.facts().problems[0].startswith("nothing is said of formats of numbers")


def test_inputs_without_a_mean_are_left_out() -> None:
    rows = [torch.ones(2, 3), torch.ones(1, 3)]
    odd = [torch.eye(3).to_sparse(), torch.nested.nested_tensor(rows, layout=torch.jagged)]
    for given in (*odd, torch.full((2, 3), 100.0)):
        safely, layer = SafeCalls(), Layer()
        inputs = Inputs(safely)
        inputs.follow(layer)
        layer(given)
        is_dense = not any(given is each for each in odd)
        assert len(inputs.facts()) == is_dense and safely.problems() == ()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("part", ["scripted", "compiled", "neither"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_model_with_a_part_that_takes_no_hook_has_none(part: str, is_whole: bool) -> None:
    inner: Any = nn.Linear(3, 3)
    if part == "scripted":
        inner = torch.jit.script(inner)
    elif part == "compiled":
        # As `inner.compile()` does.
        inner._compiled_call_impl = inner._call_impl
    model = inner if is_whole else nn.Sequential(inner, nn.Linear(3, 3))
    inputs = Inputs(SafeCalls())
    inputs.follow(model)
    model(torch.full((4, 3), 100.0))
    # Nor is a later layer taken for the first one.
    assert len(inputs.facts()) == (part == "neither")


def test_a_hook_that_is_compiled_does_nothing_and_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, inputs = nn.Linear(3, 3), Inputs(SafeCalls())
    inputs.follow(model)
    with monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        model(torch.ones(4, 3))
    assert model._forward_pre_hooks and inputs.facts() == ()
    inputs.step_begins(OPTIMIZER)
    assert not model._forward_pre_hooks


def test_an_optimizer_without_a_rate_has_no_batch_sizes() -> None:
    sizes, model = BatchSizes(), nn.Linear(3, 1)
    optimizer = SimpleNamespace(param_groups=[{"params": list(model.parameters())}])
    sizes.forward_begins(model, (torch.ones(4, 3),))
    sizes.step_begins(optimizer)
    assert sizes.facts() == ()


def test_gradients_on_two_devices_are_not_measured() -> None:
    layer, inputs = Layer(), Inputs(SafeCalls())
    inputs.follow(layer)
    layer(torch.full((4, 3), 100.0))
    here, there = (nn.Parameter(torch.ones(2, device=device)) for device in ("cpu", "meta"))
    for parameter in (here, there):
        parameter.grad = torch.zeros_like(parameter)
    inputs.step_begins(SimpleNamespace(param_groups=[{"params": [here, there]}]))
    assert not inputs.is_open and inputs.facts()[0].gradient_norm is None
