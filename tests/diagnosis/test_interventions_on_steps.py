"""Interventions on forward and backward: on, off again, and an effect that is really there."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.diagnosis import interventions_on_steps
from hotlap.diagnosis.interventions_on_steps import (
    ALL_CORES,
    NO_ANOMALY,
    NO_GRAPH,
    NO_UNUSED_GRADIENTS,
    SINGLE_PRECISION,
)
from hotlap.techniques import ModelTarget, Refusal, Technique
from hotlap.techniques.record import ProcessTarget


@pytest.fixture
def process() -> Iterator[Any]:
    undo = []

    def begin(technique: Technique) -> ProcessTarget:
        target = technique.apply(ProcessTarget({}), None)
        assert target.switch is not None
        undo.append(target.switch())
        return target

    yield begin
    for each in undo:
        each()
    torch.set_anomaly_enabled(False)


def switch(technique: Technique, target: Any, *, on: bool) -> None:
    assert technique.live is not None
    (technique.live.on if on else technique.live.off)(target, None)


def test_anomaly_detection_is_off_and_back_as_the_script_wants_it(process: Any) -> None:
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    target = process(NO_ANOMALY)
    assert not torch.is_anomaly_enabled()
    switch(NO_ANOMALY, target, on=False)
    assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
    switch(NO_ANOMALY, target, on=True)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        assert not torch.is_anomaly_enabled()
        switch(NO_ANOMALY, target, on=False)
        assert torch.is_anomaly_enabled()
    assert NO_ANOMALY.proof(target, None).state == "applied"


def test_without_anomaly_detection_there_is_no_effect(process: Any) -> None:
    target = process(NO_ANOMALY)
    assert NO_ANOMALY.proof(target, None).state == "no_effect"


def test_all_cores_compute_while_it_is_on_whatever_the_script_sets(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interventions_on_steps, "affinity", lambda: 3)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        target = process(ALL_CORES)
        assert ALL_CORES.proof(target, None).state == "no_effect"
        torch.set_num_threads(1)
        assert torch.get_num_threads() == 3
        switch(ALL_CORES, target, on=False)
        assert torch.get_num_threads() == 1
        switch(ALL_CORES, target, on=True)
        assert torch.get_num_threads() == 3
        assert ALL_CORES.proof(target, None).state == "applied"
    finally:
        torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_gradients_have_a_graph_only_while_it_is_off(process: Any) -> None:
    target = process(NO_GRAPH)
    weight = torch.ones(2, requires_grad=True)
    (weight**3).sum().backward()
    assert NO_GRAPH.proof(target, None).state == "no_effect"
    for on in (True, False):
        weight.grad = None
        switch(NO_GRAPH, target, on=on)
        (weight**3).sum().backward(create_graph=True)
        assert weight.grad is not None
        assert (weight.grad.grad_fn is None) == on
    assert NO_GRAPH.proof(target, None).state == "applied"
    weight.grad = None


def test_parameters_without_an_optimizer_get_no_gradients_while_it_is_on() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    target = NO_UNUSED_GRADIENTS.apply(ModelTarget(model, [optimizer]), None)
    for on in (True, False, True):
        switch(NO_UNUSED_GRADIENTS, target, on=on)
        model(torch.ones(1, 2)).sum().backward()
        assert (model[0].weight.grad is None) == on
        assert model[1].weight.grad is not None
        optimizer.zero_grad()


def test_a_model_that_an_optimizer_holds_whole_is_refused() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        Refusal, match="is in an optimizer: all gradients that are computed are used"
    ):
        NO_UNUSED_GRADIENTS.apply(ModelTarget(model, [optimizer]), None)


def test_a_float64_model_computes_in_float32_and_hands_out_float64() -> None:
    model = nn.Linear(3, 2).double()
    parameters, inputs = list(model.parameters()), torch.rand(4, 3, dtype=torch.float64)
    expected = model(inputs)
    target = SINGLE_PRECISION.apply(ModelTarget(model, []), None)
    assert SINGLE_PRECISION.proof(target, None).state == "no_effect"
    output = model(inputs)
    assert model.weight.dtype is torch.float32 and output.dtype is torch.float64
    # The optimizer holds the same parameters.
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    output.sum().backward()
    assert model.weight.grad is not None and model.weight.grad.dtype is torch.float32
    assert SINGLE_PRECISION.proof(target, None).state == "applied"


def test_state_that_an_optimizer_has_from_its_start_is_float32_as_well() -> None:
    model = nn.Linear(3, 2).double()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    SINGLE_PRECISION.apply(ModelTarget(model, [optimizer]), None)
    model(torch.rand(4, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    sums = [state["sum"] for state in optimizer.state.values()]
    assert len(sums) == 2 and all(each.dtype is torch.float32 for each in sums)
