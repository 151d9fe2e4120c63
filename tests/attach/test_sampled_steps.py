"""What is kept of a sampled step, and with what it is repeated."""

import random
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotlap import nested
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.listener import State
from hotlap.attach.roles.networks import Networks
from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.repetition import Repetition
from hotlap.attach.roles.sampling import StepSampler
from hotlap.attach.roles.session import Session
from hotlap.attach.roles.verify import Verify, _Inputs
from hotlap.device import process_settings
from hotlap.plan import Plan
from hotlap.rng import rng_states, set_rng_states
from hotlap.trace.recorder import Limits
from hotlap.trial.comparing import compare_gradients, compare_updates
from hotlap.trial.protocol import Config
from hotlap.trial.repeat_in_dtype import repeat_in_dtype
from hotlap.trial.step_files import write_step


def draw_everywhere() -> list[float]:
    return [
        *torch.randn(3).tolist(),
        random.random(),
        random.gauss(0, 1),
        *numpy.random.randn(3).tolist(),
    ]


def test_every_generator_is_put_back() -> None:
    # One half of a pair of normal numbers is kept for the next call.
    random.gauss(0, 1)
    numpy.random.randn()
    states = rng_states()
    first = draw_everywhere()
    assert draw_everywhere() != first
    set_rng_states(states)
    assert draw_everywhere() == first


def test_a_repetition_begins_where_the_step_drew_its_first_number(tmp_path: Path) -> None:
    sampler = StepSampler({"samples": [0], "folder": str(tmp_path)})
    sampler.batch(0, torch.ones(2), Networks(()))
    first = draw_everywhere()
    sampler._updates.append({"optimizer": 0, "update": 0})
    sampler.finish()
    repeated = Repetition(sampler.written[0]["file"], [], torch.float64)
    assert repeated.batch().tolist() == [1, 1]
    assert draw_everywhere() == first


def drawing_sampler(folder: Path, **more: Any) -> StepSampler:
    """Return a sampler that keeps a step whose batch was drawn after three random numbers."""
    sampler = StepSampler({"samples": [3], "folder": str(folder), **more})
    sampler.mark_step_boundary(3)
    torch.rand(3)
    sampler.forward(3, (torch.arange(4.0),), Networks(()))
    sampler._updates.append({"optimizer": 0, "update": 3})
    return sampler


def test_a_step_that_draws_its_batch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    torch.manual_seed(5)
    first = torch.rand(3)
    torch.manual_seed(5)
    sampler = drawing_sampler(tmp_path)
    sampler.mark_step_boundary(4)
    assert [row["draws_itself"] for row in sampler.written] == [True]
    repeated = Repetition(sampler.written[0]["file"], [], torch.float64)
    repeated.draw_again()
    assert torch.equal(torch.rand(3), first)


def test_another_batch_than_the_captured_one_is_told_from_it(tmp_path: Path) -> None:
    sampler = drawing_sampler(tmp_path)
    sampler.finish()
    repeated = Repetition(sampler.written[0]["file"], [], torch.float64)
    same = torch.arange(4.0)
    assert repeated.has_inputs((same,))
    assert repeated.has_inputs((same.double() + 1e-6,))
    for other in ((same + 0.01,), (same[:3],), (same, same), ("x",), ()):
        assert not repeated.has_inputs(other)


def test_a_step_with_batches_of_both_kinds_is_not_kept(tmp_path: Path) -> None:
    sampler = drawing_sampler(tmp_path)
    sampler.batch(3, torch.ones(2), Networks(()))
    sampler.mark_step_boundary(4)
    assert not sampler.written
    assert "others did not" in sampler.reason
    at_own_places = drawing_sampler(tmp_path, at_own_places=True)
    at_own_places.batch(3, torch.ones(2), Networks(()))
    at_own_places.mark_step_boundary(4)
    assert at_own_places.written


def test_a_step_in_a_format_that_no_file_has_is_not_kept(tmp_path: Path) -> None:
    for dtype, reason in (
        (torch.complex64, ""),
        (torch.complex128, "a tensor has a format that cannot be kept: complex128"),
    ):
        sampler = StepSampler({"samples": [0, 1], "folder": str(tmp_path)})
        sampler.batch(0, torch.ones(2, dtype=dtype), Networks(()))
        sampler._updates.append({"optimizer": 0, "update": 0})
        sampler.finish()
        assert (sampler.reason, len(sampler.written)) == (reason, int(not reason))
        # The script goes on.
        sampler.batch(1, torch.ones(2), Networks(()))
        assert bool(sampler.wanted) is not bool(reason)


def test_a_full_disk_is_not_a_format(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError):
        write_step({"x": torch.ones(2)}, tmp_path / "missing" / "step.safetensors", {})


@pytest.mark.filterwarnings("ignore:Sparse .* support is in beta:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_batch_in_any_layout_is_kept_or_said_not_to_be(tmp_path: Path) -> None:
    sampler = StepSampler({"samples": [0], "folder": str(tmp_path)})
    number = torch.complex(torch.ones(2), torch.ones(2))
    sampler.batch(0, [torch.eye(2).to_sparse_csr(), number.conj()], Networks(()))
    sampler._updates.append({"optimizer": 0, "update": 0})
    sampler.finish()
    repeated = Repetition(sampler.written[0]["file"], [], torch.float64)
    matrix, conjugate = repeated.batch()
    assert matrix.tolist() == [[1, 0], [0, 1]]
    assert conjugate.tolist() == [1 - 1j] * 2
    other = StepSampler({"samples": [0], "folder": str(tmp_path)})
    other.batch(0, torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), Networks(()))
    assert other.reason and not other._tensors


def test_an_update_of_complex_weights_is_repeated_with_both_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j]))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    monkeypatch.setattr(State, "optimizers", [weakref.ref(optimizer)])
    sampler = StepSampler({"samples": [0], "folder": str(tmp_path)})
    sampler.batch(0, torch.ones(2), Networks(()))
    weight.grad = torch.tensor([0.5 + 2j, 1 - 3j])
    sampler.before_update(optimizer, 0)
    optimizer.step()
    sampler.after_update(optimizer)
    sampler.finish()
    numbers = [[{"lr": 0.1}]]
    repeated = Repetition(sampler.written[0]["file"], numbers, torch.float64)
    assert repeated.update_error(0, {})["update_error"] < 1e-5
    repeated.tensors["after.0.0.0"] = repeated.tensors["after.0.0.0"].real + 0j
    assert repeated.update_error(0, {})["update_error"] > 0.5


def test_a_step_after_a_batch_that_was_handed_over_draws_none(tmp_path: Path) -> None:
    sampler = StepSampler({"samples": [3], "folder": str(tmp_path)})
    sampler.batch(2, torch.ones(2), Networks(()))
    sampler.mark_step_boundary(3)
    sampler.forward(3, (torch.ones(2),), Networks(()))
    sampler.step_begins(3)
    assert not sampler.written
    assert "do not come from a DataLoader" in sampler.reason


DRAWS = {
    "randn_like": torch.randn_like,
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype),
    "randn by default": lambda x: torch.randn(x.shape),
    "dropout": lambda x: nn.functional.dropout(x + 1, 0.3),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
    "normal": lambda x: torch.normal(x, 1 + x * 0),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "normal_ in part": lambda x: torch.zeros_like(x)[:, ::2].normal_(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 1),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "rsample": lambda x: torch.distributions.Normal(x, torch.ones_like(x)).rsample(),
    "normal of one spread": lambda x: torch.distributions.Normal(x, 1.0).sample(),
    "bernoulli, expanded": lambda x: torch.bernoulli(torch.full((8,), 0.3).to(x).expand(20, 8)),
    "multinomial": lambda x: torch.multinomial(torch.ones_like(x) / 8, 2),
    "randint": lambda x: torch.randint(100, x.shape),
    "randperm": lambda _: torch.randperm(20),
    "rrelu": lambda x: nn.functional.rrelu(x - 1, training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_repetition_in_float64_draws_what_the_step_drew(name: str) -> None:
    torch.manual_seed(3)
    expected = DRAWS[name](torch.zeros(20, 8))
    torch.manual_seed(3)
    with repeat_in_dtype(torch.float64, torch.float32):
        found = DRAWS[name](torch.zeros(20, 8, dtype=torch.float64))
        again = torch.rand(1)
    torch.manual_seed(3)
    DRAWS[name](torch.zeros(20, 8))
    assert float(torch.rand(1)) == float(again), "it drew more numbers, or fewer"
    assert found.dtype == (torch.float64 if expected.is_floating_point() else expected.dtype)
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=1e-6, atol=1e-7)
    assert torch.get_default_dtype() == torch.float32


def test_torch_alone_would_draw_other_numbers() -> None:
    torch.manual_seed(3)
    narrow = torch.randn(20)
    torch.manual_seed(3)
    assert not torch.allclose(torch.randn(20, dtype=torch.float64).float(), narrow)


def role() -> tuple[Watch, Verify]:
    options = {"steps": 10, "samples": [1], "folder": "unused", "started": 0.0}
    channel: Any = SimpleNamespace()
    session = Session(Config("verify", options=options), channel, PlanInProcess(Plan()))
    watch = Watch(session, Limits())
    return watch, Verify(session, watch)


@pytest.mark.parametrize("is_capturing", [True, False])
def test_a_script_that_captures_its_own_steps_is_refused_at_once(
    is_capturing: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[tuple[str, str]] = []
    channel: Any = SimpleNamespace(send=lambda kind, **values: said.append((kind, values["error"])))
    options = {"started": 0.0, "folder": str(tmp_path)}
    monkeypatch.setattr(process_settings, "has_cuda", lambda: True)
    watch = Watch(
        Session(Config("observe", options=options), channel, PlanInProcess(Plan())), Limits()
    )
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    watch.step_begins(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
    assert bool(said) is is_capturing
    if is_capturing:
        kind, words = said[0]
        assert kind == "refused" and "captures its training step as a CUDA graph" in words


@pytest.mark.parametrize("training", [True, False])
def test_only_a_batch_to_train_on_belongs_to_a_step(training: bool) -> None:
    watch, recorded = role()
    watch.recorder.count_step()
    known = SimpleNamespace(is_trained_on=training)
    recorded.batch_ends(SimpleNamespace(_hotlap_loader=known), torch.ones(2))
    recorded.batch_ends(SimpleNamespace(), torch.ones(3))
    assert len(recorded.batches) == 2
    assert names_kept(recorded) == (["batch.0.0"] if training else [])


def names_kept(recorded: Verify) -> list[str]:
    return [name for name in recorded._sampler._tensors if name.startswith("batch.")]


def test_the_first_batch_of_a_new_data_set_belongs_to_a_step_if_it_is_trained_on() -> None:
    watch, recorded = role()
    watch.recorder.count_step()

    def read() -> None:
        loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2)
        iterator = iter(loader)
        watch.loaders.begin(loader, iterator, watch.steps)
        for batch in iterator:
            watch.loaders.read(iterator)
            recorded.batch_ends(iterator, batch)

    def evaluate() -> None:
        watch.loaders.evaluate()
        recorded.evaluation_forward_ends(torch.nn.Identity(), (), {}, torch.ones(1))

    read()
    assert names_kept(recorded) == ["batch.0.0", "batch.1.0"]
    evaluate()
    assert not names_kept(recorded)
    read()
    watch.loaders.train()
    recorded.backward_begins(torch.ones(1))
    # Nor does an evaluation that comes later take them away.
    read()
    evaluate()
    assert names_kept(recorded) == ["batch.0.0", "batch.1.0"]


def test_what_may_be_evaluated_does_not_end_sampling(tmp_path: Path) -> None:
    sampler = StepSampler({"samples": [3], "folder": str(tmp_path)})
    sampler.mark_step_boundary(3)
    sampler.batch(3, {"text": object()}, Networks(()), is_trained_on=None)
    assert sampler.wanted and not sampler.reason
    sampler.batch(3, torch.ones(2), Networks(()), is_trained_on=None)
    # A loader whose batches are known to be trained on gives the step's.
    sampler.batch(3, torch.zeros(4), Networks(()))
    assert sampler._tensors["batch.0.0"].tolist() == [0] * 4
    # Where an evaluation used up the guess, a script may draw its batch itself.
    drawing = StepSampler({"samples": [3], "folder": str(tmp_path)})
    drawing.mark_step_boundary(3)
    drawing.batch(3, torch.ones(2), Networks(()), is_trained_on=None)
    drawing.evaluation_ends()
    drawing.forward(3, (torch.ones(2),), Networks(()))
    assert drawing._draws_itself


def test_a_batch_that_cannot_be_kept_ends_sampling() -> None:
    sampler = StepSampler({"samples": [1, 2], "folder": "unused"})
    sampler.batch(1, {"text": object()}, Networks(()))
    assert "objects that are not tensors" in sampler.reason
    assert not sampler.wanted
    no_loader = StepSampler({"samples": [1], "folder": "unused"})
    no_loader.step_begins(1)
    assert "DataLoader" in no_loader.reason


def inputs_of(*forwards: Any) -> list[str]:
    """Return the digests of one step's forwards, (input, output) each."""
    inputs = _Inputs()
    inputs.new_step()
    for value, output in forwards:
        inputs.forward_begins((value,), 0)
        inputs.forward_ends(output)
    return inputs.digests


def test_what_a_model_has_computed_is_not_fed_from_outside() -> None:
    batch = torch.ones(3)
    one, other = torch.zeros(3), torch.full((3,), 5.0)
    assert inputs_of((batch, one), (one.detach() * 2, None)) == inputs_of(
        (batch, one), (other, None)
    )
    assert len(inputs_of((batch, one))) == 1
    assert inputs_of((batch, None)) != inputs_of((other, None))
    # A hidden state, carried on to the next step.
    inputs = _Inputs()
    inputs.forward_ends((one, {"hidden": other}))
    for hidden in (one, other.view(1, 3).detach()):
        inputs.new_step()
        inputs.forward_begins((batch, [hidden]), 0)
    inputs.new_step()
    inputs.forward_begins((batch, [torch.full((3,), 7.0)]), 0)
    assert inputs.digests[0] == inputs.digests[1] != inputs.digests[2]
    # So in an object, as a cache is.
    inputs = _Inputs()
    inputs.forward_ends(SimpleNamespace(state=other))
    for state in (one, other.detach(), torch.full((3,), 7.0)):
        inputs.new_step()
        inputs.forward_begins((batch, SimpleNamespace(state=state)), 0)
    assert inputs.digests[0] != inputs.digests[1]
    assert len(set(inputs.digests)) == 3
    inputs.new_step()
    other.add_(1)
    inputs.forward_begins((batch, SimpleNamespace(state=other.detach())), 0)
    assert inputs.digests[3] == inputs.digests[1]
    parameter = torch.ones(3, requires_grad=True)
    assert inputs_of((parameter * 2, None)) == inputs_of((parameter * 3, None))


def test_a_gradient_that_is_missing_counts_as_zero_on_either_side() -> None:
    one = torch.ones(4)
    row = compare_gradients({"a": one, "b": None}, {"a": one, "b": one}, {"a": one, "b": one})
    assert row["tensors"]["b"]["off"] == row["tensors"]["b"]["size"] == 2
    assert row["gradient_error"] == pytest.approx(0.5**0.5)
    row = compare_gradients({"a": one, "b": one}, {"a": one, "b": None}, {"a": one})
    assert row["tensors"]["b"]["off"] == 2
    assert row["tensors"]["b"]["size"] == 0
    row = compare_gradients({"a": one, "b": None}, {"a": one, "b": None}, {"a": one})
    assert list(row["tensors"]) == ["a"]
    assert row["own_error"] == row["plain_error"] == 0
    lost = compare_gradients({}, {"a": one}, None)
    assert lost["gradient_error"] == 1
    assert "plain_error" not in lost
    with pytest.raises(ValueError, match="had no gradient"):
        compare_gradients({"a": None}, {"a": None}, None)


def test_an_update_is_compared_up_to_what_the_weights_can_hold() -> None:
    before = torch.tensor([100.0, 200.0])
    exact = before.double() - 1e-3
    found = compare_updates({"a": before}, {"a": exact.float()}, {"a": exact})
    assert found["update_error"] == found["updates"]["a"] == 0
    found = compare_updates({"a": before}, {"a": before}, {"a": exact})
    assert found["update_error"] > 0.9
    assert compare_updates({}, {}, {"a": exact})["update_error"] == float("inf")


def test_inputs_that_are_given_by_name_are_digested(monkeypatch: pytest.MonkeyPatch) -> None:
    def digests_of(**given: torch.Tensor) -> list[str]:
        _, verify = role()
        monkeypatch.setattr(State, "keywords", given)
        verify.forward_begins(nn.Linear(1, 1), ())
        return verify._inputs.digests

    assert digests_of(ids=torch.ones(2)) == digests_of(ids=torch.ones(2))
    assert digests_of(ids=torch.ones(2)) != digests_of(ids=torch.zeros(2))
    # Of nothing there is nothing to compare.
    assert digests_of() == []


def test_inputs_that_a_script_differentiates_by_are_digested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def points(value: float) -> torch.Tensor:
        return torch.full((3,), value).requires_grad_()

    monkeypatch.setattr(State, "optimizers", [])
    assert inputs_of((points(1.0), None)) == inputs_of((points(1.0), None))
    assert inputs_of((points(1.0), None)) != inputs_of((points(2.0), None))
    # What has been computed follows from the weights, and so does what is trained itself.
    assert inputs_of((points(1.0) * 2, None)) == inputs_of((points(2.0) * 2, None))
    latent, other = points(1.0), points(2.0)
    optimizer = torch.optim.SGD([latent, other], lr=0.1)
    monkeypatch.setattr(State, "optimizers", [weakref.ref(optimizer)])
    assert inputs_of((latent, None)) == inputs_of((other, None))


def test_inputs_beside_constants_and_with_gradients_are_kept() -> None:
    given = torch.ones(2, requires_grad=True)
    found = nested.given_tensors((given, None, {"use_cache": False, "scale": 0.5}))
    assert found is not None and torch.equal(found[0], given) and not found[0].requires_grad
    assert nested.given_tensors((given, object())) is None


@pytest.mark.parametrize("moves", [False, True])
def test_what_changes_before_another_optimizers_first_update_is_seen(
    moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, verify = role()
    layers = [nn.Linear(2, 1), nn.Linear(2, 1)]
    first, second = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers)
    monkeypatch.setattr(State, "optimizers", [weakref.ref(first), weakref.ref(second)])
    watch.steppers.find_or_place(first)
    verify.step_begins(first)
    first.step()
    if moves:
        with torch.no_grad():
            layers[1].weight.mul_(0.5)
    verify.step_ends(first)
    watch.steppers.find_or_place(second)
    verify.step_begins(second)
    report = verify._custody.report()
    assert report["moved"] == ([2] if moves else []) and len(report["first_weights"]) == 2
