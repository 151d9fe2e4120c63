"""What is looked at in a watched script to see how it learns."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hotlap.attach.entry import Script
from hotlap.attach.learning.batch_sizes import BatchSizes
from hotlap.attach.learning.inputs import Inputs
from hotlap.attach.learning.losses import Losses, Modes
from hotlap.attach.learning.missing_gradients import MissingGradients
from hotlap.attach.learning.saved_objects import look_at_saved
from hotlap.attach.learning.scalers import Scalers
from hotlap.attach.learning.schedules import Schedules
from hotlap.attach.learning.watch import WatchLearning
from hotlap.attach.learning.workers import Workers
from hotlap.diagnosis.causes import watch
from hotlap.lab.trial import Lab
from hotlap.rules import nominate, registry
from hotlap.trace import event_kinds
from hotlap.trace.events import Events
from hotlap.trace.learning import LossFacts
from hotlap.trace.safe_calls import SafeCalls

SCORES = torch.randn(6, 3, requires_grad=True)
LABELS = torch.randint(0, 3, (6,))


def learning() -> WatchLearning:
    return WatchLearning(SimpleNamespace(steps=0, bind=bool, bind_steps=bool), Events())  # pyright: ignore[reportArgumentType]


def seen(loss: Any) -> LossFacts:
    losses = Losses()
    losses.add((None, 0), loss, is_narrow=False, is_evaluating=False)
    (found,) = losses.facts()
    return found


@pytest.mark.parametrize(
    ("loss", "is_mean"),
    [
        (lambda: nn.functional.cross_entropy(SCORES, LABELS), True),
        (lambda: nn.functional.mse_loss(SCORES, SCORES * 2), True),
        (lambda: (SCORES - 1).abs().mean(), True),
        (lambda: SCORES.square().mean() + SCORES.abs().mean(), True),
        (lambda: nn.functional.cross_entropy(SCORES, LABELS) / 4, False),
        (lambda: nn.functional.cross_entropy(SCORES, LABELS) * 0.25, False),
        (lambda: nn.functional.cross_entropy(SCORES, LABELS, reduction="sum"), False),
        (lambda: SCORES.sum(), False),
    ],
)
def test_a_loss_is_a_mean_that_nothing_divides(loss: Any, is_mean: bool) -> None:
    assert seen(loss()).is_mean is is_mean


def test_what_a_scaler_multiplies_is_no_weight_of_the_loss() -> None:
    watched, loss = learning(), nn.functional.cross_entropy(SCORES, LABELS)
    scaled, again = loss * 65536.0, loss / 4 * 65536.0
    for given in (scaled, again):
        watched.loss_scaled(given, None)
        watched.backward_begins(given)
        assert watched.facts().losses[0].is_mean is (given is scaled)
    # One that the script has multiplied by as much.
    watched = learning()
    watched.backward_begins(loss * 65536.0)
    assert not watched.facts().losses[0].is_mean


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor_ends_no_script() -> None:
    watched, model = learning(), nn.Linear(2, 1)
    given = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(1, 2)])
    for _ in range(3):
        watched.forward_begins(model, (given,))
    assert watched.facts().batch_sizes == () and len(watched.facts().problems) == 1


def test_a_line_that_is_only_counted_is_still_seen_in_evaluation_mode() -> None:
    watched, loss = learning(), nn.functional.cross_entropy(SCORES, LABELS)
    for _ in range(8):
        watched.backward_begins(loss)
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    for _ in range(2):
        watched.evaluation_forward_ends(model, (torch.ones(1, 2),), {}, model(torch.ones(1, 2)))
        watched.backward_begins(loss)
        watched.step_begins(torch.optim.SGD(model.parameters(), lr=0.1))
    (found,) = watched.facts().losses
    assert (found.backwards, found.in_evaluation_mode) == (10, 2)


def test_samples_of_a_step_are_those_of_all_its_micro_batches() -> None:
    sizes, model = BatchSizes(), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for samples in [(4, 4), (4, 4), (4, 1), (16,), (16,)]:
        for each in samples:
            sizes.forward_begins(model, ({"x": torch.ones(each, 3)},))
        sizes.step_begins(optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    sizes.forward_begins(model, (torch.ones(16, 3),))
    # Another model's samples are not this one's.
    sizes.forward_begins(nn.Linear(3, 1), (torch.ones(5, 3),))
    sizes.step_begins(optimizer)
    found = [(each.samples, each.steps, each.first_step, each.last_step) for each in sizes.facts()]
    assert found == [(8, 2, 0, 1), (5, 1, 2, 2), (16, 3, 3, 5)]
    assert (sizes.facts()[-1].first_rate, sizes.facts()[-1].last_rate) == (0.5, 0.25)


@pytest.mark.parametrize(
    "kind", ["two optimizers", "no tensor", "a rate as a tensor", "many sizes"]
)
def test_of_other_runs_batch_sizes_are_not_known(kind: str) -> None:
    sizes, model = BatchSizes(), nn.Linear(3, 1)
    rate = torch.tensor(0.1) if kind == "a rate as a tensor" else 0.1
    optimizers = [torch.optim.SGD(model.parameters(), lr=rate) for _ in range(2)]
    for number in range(1, 40):
        inputs = () if kind == "no tensor" else (torch.ones(number if kind == "many sizes" else 4),)
        sizes.forward_begins(model, inputs)
        sizes.step_begins(optimizers[number % 2 if kind == "two optimizers" else 0])
    assert sizes.facts() == ()


class Asking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("module", "differs"),
    [
        (Asking(), True),
        (nn.Sequential(Asking()), True),
        (nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (nn.MultiheadAttention(4, 2), False),
        (nn.Dropout(0.0), False),
        (nn.Linear(2, 2), False),
    ],
)
def test_a_module_that_behaves_otherwise_in_evaluation_is_known(
    module: nn.Module, differs: bool
) -> None:
    assert Modes().differ(module) is differs


def test_a_loss_that_normalizes_twice_is_known_by_its_graph() -> None:
    cross_entropy = nn.functional.cross_entropy
    logits = nn.functional.binary_cross_entropy_with_logits
    assert seen(cross_entropy(SCORES.softmax(1).view(6, 3), LABELS)).normalized_twice == "softmax"
    assert seen(logits(SCORES.sigmoid(), torch.ones(6, 3))).normalized_twice == "sigmoid"
    assert seen(cross_entropy(SCORES, LABELS)).normalized_twice == ""
    # A softmax within the model, as of attention, is none.
    attention = SCORES.softmax(1) @ SCORES.T
    assert seen(cross_entropy(attention, LABELS)).normalized_twice == ""


def test_a_likelihood_that_is_given_no_logarithms_is_known_by_its_graph() -> None:
    likelihood, layer = nn.functional.nll_loss, nn.Linear(3, 3)
    for scores, name in (
        (SCORES.softmax(1), "softmax"),
        (SCORES.sigmoid().view(6, 3), "sigmoid"),
        (layer(SCORES), "layer"),
        (SCORES.log_softmax(1), ""),
        (SCORES.softmax(1).log(), ""),
        (layer(SCORES) - layer(SCORES).logsumexp(1, keepdim=True), ""),
    ):
        assert seen(likelihood(scores, LABELS)).without_logarithm == name
    assert seen(nn.functional.cross_entropy(layer(SCORES), LABELS)).without_logarithm == ""
    images = nn.Conv2d(3, 3, 1)(torch.rand(2, 3, 4, 4))
    assert seen(likelihood(images, torch.zeros(2, 4, 4).long())).without_logarithm == "layer"


@pytest.mark.parametrize(
    ("gradients", "empty"),
    [((None, None), 4), ((0.0, None), 4), ((0.0, 1.0), 0), ((None, float("nan")), 0)],
)
def test_steps_without_any_gradient_are_counted(
    gradients: tuple[float | None, ...], empty: int
) -> None:
    watched, layer = MissingGradients(), nn.Linear(3, 1)
    for parameter, value in zip(layer.parameters(), gradients, strict=True):
        parameter.grad = None if value is None else torch.full_like(parameter, value)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(9):
        watched.step_begins(optimizer)
    assert (watched.empty, watched.looked) == (empty, 4)


def test_parameters_that_are_used_later_have_a_gradient() -> None:
    for optimizer_kind, zeroes in ((torch.optim.Adam, True), (torch.optim.SGD, False)):
        watched, body, late, never = MissingGradients(), *(nn.Linear(3, 1) for _ in range(3))
        model = nn.ModuleDict({"body": body, "late": late, "never": never})
        optimizer = optimizer_kind(model.parameters(), lr=0.1)
        for step in range(100):
            optimizer.zero_grad()
            parts = [body, late] if step > 80 else [body]
            sum(part(torch.ones(2, 3)).sum() for part in parts).backward()
            watched.step_begins(optimizer)
            optimizer.step()
        if zeroes:
            optimizer.zero_grad()
        (found,) = watched.facts([model])
        assert (found.tensors, found.names) == (2, ("never.weight", "never.bias"))
        # Of several models it says which one is meant.
        (found,) = watched.facts([body, model])
        assert found.names[0] == "ModuleDict.never.weight"


@pytest.mark.parametrize(
    ("loss", "is_table"),
    [
        (lambda y, t: (y - t).square().mean(), True),
        (lambda y, t: (t - y).abs().sum() / 8, True),
        (nn.functional.mse_loss, True),
        (nn.functional.smooth_l1_loss, True),
        (lambda y, t: (y.flatten() - t[:, None]).square().mean(), True),
        (lambda y, t: nn.functional.mse_loss(y, t[:, None]), False),
        (lambda y, t: (y[:, 0] - t).square().mean(), False),
        (lambda y, t: (y - t[:4]).square().mean(), False),
        # All pairs, on purpose.
        (lambda y, t: (y - y.flatten() - (t[:, None] - t)).square().mean(), False),
        (lambda y, t: (y - y.mean()).square().mean() + (y.squeeze(1) * t).sum(), False),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_of_a_table_is_known_by_its_shapes(loss: Any, is_table: bool) -> None:
    predicted = nn.Linear(3, 1)(torch.randn(8, 3))
    assert seen(loss(predicted, torch.randn(8))).table == 8 * is_table


def test_numbers_that_are_replaced_in_a_loss_are_counted() -> None:
    numbers = torch.tensor([1.0, -1.0, 2.0], requires_grad=True)
    found = seen(torch.nan_to_num(numbers.log()).mean())
    assert (found.replaced, found.replaced_of) == (1, 3)
    assert seen(torch.nan_to_num(numbers.square()).mean()).replaced == 0


def test_to_look_at_a_loss_computes_nothing_again() -> None:
    norm, given = nn.BatchNorm1d(3), torch.randn(4, 3, requires_grad=True)
    loss = checkpoint(lambda x: norm(x).square(), given, use_reentrant=False).mean()
    assert seen(loss).is_mean
    assert norm.num_batches_tracked == 1
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> int:
        kept[len(kept)] = tensor
        return len(kept) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, kept.pop):
        loss = torch.nan_to_num(given.log()).mean()
    assert seen(loss).replaced_of == 0
    # Each tensor can be taken once.
    loss.backward()
    assert not kept


def test_a_model_with_dropout_or_batch_norm_behaves_otherwise_in_evaluation_mode() -> None:
    modes = Modes()
    for layer in (nn.Dropout(0.1), nn.BatchNorm1d(3), nn.LSTM(3, 4, 2, dropout=0.1)):
        assert modes.differ(nn.Sequential(nn.Linear(3, 3), layer))
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(3, 3))
    assert modes.forget_training(model.eval())
    # Only the part that is frozen is in evaluation mode.
    model[1].train()
    assert not modes.forget_training(model)
    for layer in (nn.Dropout(0.0), nn.LayerNorm(3), nn.BatchNorm1d(3, track_running_stats=False)):
        assert not modes.differ(nn.Sequential(nn.Linear(3, 3), layer))


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm1d(3, affine=False),
        nn.Dropout(0.1),
        nn.Sequential(nn.ReLU(), nn.Dropout(0.1)),
        nn.LSTM(3, 4, 2, dropout=0.1),
    ],
)
def test_a_part_that_is_frozen_may_be_kept_in_evaluation_mode(layer: nn.Module) -> None:
    body = nn.Sequential(nn.Linear(3, 3), layer)
    model = nn.Sequential(body, nn.Linear(3, 3)).eval()
    modes = Modes()
    assert modes.forget_training(model)
    body.requires_grad_(False)
    assert not modes.forget_training(model)
    # A part is trained later.
    (layer if [*layer.parameters()] else body[0]).requires_grad_(True)
    assert modes.forget_training(model)
    # What has no parameters belongs to the head.
    head = nn.Sequential(body.requires_grad_(False), nn.Dropout(0.1), nn.Linear(3, 3)).eval()
    assert modes.forget_training(head)


def test_the_first_layer_is_the_one_that_is_called_first() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    # Declared in another order than they are called in.
    model = nn.ModuleDict({"b": second, "a": first})
    inputs = Inputs(SafeCalls())
    inputs.follow(model)
    second(first(torch.full((4, 3), 100.0)))
    (found,) = inputs.facts()
    assert (found.layer, found.mean, found.most) == ("Linear", 100.0, 100.0)
    assert not any(each._forward_pre_hooks for each in (first, second))
    # What batch norm gives to the first layer is normal.
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    inputs = Inputs(SafeCalls())
    inputs.follow(model)
    model(torch.randn(64, 3) * 100 + 500)
    (found,) = inputs.facts()
    assert abs(found.mean) < 1e-3 and found.std < 1.1


def evaluated_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1)).eval()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda given: given,
        lambda given: {"more": [{"pos": given}]},
        # As of a library for graphs.
        lambda given: SimpleNamespace(store={"pos": given}),
    ],
)
def test_an_evaluation_that_needs_gradients_of_its_input_is_none_that_should_do_without(
    wrap: Any,
) -> None:
    for asks in (True, False):
        watched, model = learning(), evaluated_model()
        given = torch.ones(2, 3, requires_grad=asks)
        watched.evaluation_forward_ends(model, (wrap(given),), {}, model(given))
        found = watched.facts().evaluations
        assert [each.with_gradients for each in found] == ([] if asks else [1])


def test_a_loss_in_evaluation_mode_counts_where_a_step_uses_its_gradients() -> None:
    watched, model = learning(), evaluated_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def go_backward() -> None:
        output = model(torch.ones(2, 3))
        watched.evaluation_forward_ends(model, (torch.ones(2, 3),), {}, output)
        watched.backward_begins(output.sum())

    # Attacks: their gradients are zeroed, by the optimizer or by the model.
    go_backward()
    watched.zeroing_begins()
    go_backward()
    watched.event_happens(event_kinds.ZERO_GRAD)
    watched.step_begins(optimizer)
    (found,) = watched.facts().losses
    assert (found.backwards, found.in_evaluation_mode) == (2, 0)
    for _ in range(2):
        go_backward()
        watched.step_begins(optimizer)
        watched.zeroing_begins()
    (found,) = watched.facts().losses
    assert (found.in_evaluation_mode, found.after_training) == (2, 0)
    # After an evaluation nobody has called `model.train()`.
    watched.backward_begins(model(torch.ones(2, 3)).sum())
    go_backward()
    watched.step_begins(optimizer)
    (found,) = watched.facts().losses
    assert (found.in_evaluation_mode, found.after_training) == (3, 1)


def test_schedules_and_their_periods() -> None:
    def seen_after(make: Any, calls: int) -> Any:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        schedule, schedules = make(optimizer), Schedules()
        for _ in range(calls):
            optimizer.step()
            schedules.add(schedule, "a.py:2")
            schedule.step()
        (found,) = schedules.facts()
        return found

    rates = torch.optim.lr_scheduler
    found = seen_after(lambda o: rates.StepLR(o, 2), 4)
    assert (found.name, found.calls, found.period) == ("StepLR", 4, 2)
    assert (found.first_rate, found.last_rate) == pytest.approx((0.1, 0.001))
    assert seen_after(lambda o: rates.MultiStepLR(o, [7, 9]), 1).period == 7
    assert seen_after(lambda o: rates.ExponentialLR(o, 0.5), 1).period is None
    assert seen_after(lambda o: rates.PolynomialLR(o, 9), 1).period == 9
    # What comes after those steps is no other period, and no end.
    assert seen_after(lambda o: rates.LinearLR(o, 0.01, total_iters=9), 1).period is None
    assert seen_after(lambda o: rates.ConstantLR(o, 0.01, total_iters=9), 1).period is None
    # Below a thousandth after the third call.
    found = seen_after(lambda o: rates.ExponentialLR(o, 0.05), 6)
    assert (found.vanished, found.advanced) == (3, 6)
    assert seen_after(lambda o: rates.ExponentialLR(o, 0.5), 6).vanished is None


def test_a_schedule_that_is_given_parts_of_an_epoch_goes_parts_of_its_way() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule: Any = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)
    schedules = Schedules()
    optimizer.step()
    for number in range(1, 41):
        schedules.add(schedule, "a.py:2")
        schedule.step(number / 20)
    (found,) = schedules.facts()
    assert (found.calls, found.advanced) == (40, 2)


def test_what_is_saved_is_known_by_its_keys() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu")
    whole = {"epoch": 1, "o": optimizer.state_dict(), "more": {"s": schedule.state_dict()}}
    found = look_at_saved({**whole, "scaler": scaler.state_dict()}, "a.py:3")
    assert (found.optimizer, found.schedule, found.scaler) == (True, True, True)
    found = look_at_saved({"o": optimizer.state_dict()}, "a.py:3")
    assert (found.optimizer, found.schedule, found.scaler) == (True, False, False)
    assert not look_at_saved(nn.Linear(2, 2).state_dict(), "a.py:3").optimizer
    chained = torch.optim.lr_scheduler.ChainedScheduler([schedule]).state_dict()
    for schedules in (chained, [schedule.state_dict(), schedule.state_dict()]):
        assert look_at_saved({"o": optimizer.state_dict(), "s": schedules}, "a.py:3").schedule


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(8.0))


class Noisy:
    def __init__(self) -> None:
        self.rng = numpy.random.default_rng(0)

    def __call__(self, sample: Any) -> Any:
        return sample + self.rng.normal()


def test_workers_that_send_the_same_and_generators_that_are_copied() -> None:
    loader: Any = DataLoader(Stream(), batch_size=2, num_workers=2)
    workers = Workers(loader, "a.py:4")
    for batch in (torch.ones(2), torch.ones(2), torch.zeros(2), torch.zeros(2)):
        workers.add([batch, batch])
    assert (workers.facts().repeats, workers.facts().looked_at) == (2, 4)
    # Masks, or labels in their order, may be equal in batches that are not.
    workers = Workers(loader, "a.py:4")
    for number in range(4):
        workers.add({"mask": torch.ones(2), "ids": torch.tensor(number)})
    assert (workers.facts().repeats, workers.facts().looked_at) == (0, 4)
    data: Any = TensorDataset(torch.ones(2))
    data.transform = [Noisy()]
    found = Workers(DataLoader(data, num_workers=2), "a.py:4").facts()
    assert found.generator == "transform.0.rng"
    with_function = DataLoader(data, num_workers=2, worker_init_fn=print)
    assert Workers(with_function, "a.py:4").facts().generator == ""


LOOP = """
import functools

def train(scalers, optimizer):
    SCALER
    for batch in range(2):
        scalers.updated(CALLER())

def run(scalers, optimizer):
    scaler = None
    for epoch in range(3):
        train(scalers, optimizer)

def each_fold(scalers, optimizer):
    for fold in range(3):
        scalers.optimizer_made(CALLER())
        train(scalers, optimizer)

def once(scalers, optimizer):
    train(scalers, optimizer)
"""


@pytest.mark.parametrize(
    ("line", "way", "is_found"),
    [
        ("scaler = made(scalers)", "run", True),
        ("with open(__file__): scaler = made(scalers)", "run", True),
        ("scaler = made(scalers)", "each_fold", False),
        ("scaler = made(scalers)", "once", False),
        ("if not scalers.facts(): scaler = made(scalers)", "run", False),
        ("scaler = scalers.facts() or made(scalers)", "run", False),
        ("scaler = kept(scalers)", "run", False),
    ],
)
def test_a_scaler_of_each_epoch_is_known_in_the_first_one(
    line: str, way: str, is_found: bool, tmp_path: Path
) -> None:
    text = LOOP.replace("SCALER", line) + (
        "def made(scalers):\n    return scalers.made(CALLER(1))\n"
        "@functools.cache\ndef kept(scalers):\n    scaler = scalers.made(CALLER())\n"
    )
    path = tmp_path / "train.py"
    path.write_text(text)
    names: dict[str, Any] = {"CALLER": lambda up=0: sys._getframe(1 + up), "__file__": str(path)}
    exec(compile(text, str(path), "exec"), names)
    scalers = Scalers()
    names[way](scalers, None)
    found = [(each.where.rpartition(":")[2], each.passes) for each in scalers.facts()]
    assert found == ([("5", 3)] if is_found else [])


SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
GOOD = len(sys.argv) > 1
data = TensorDataset(torch.rand(42, 4) * (1 if GOOD else 255), torch.randint(0, 2, (42,)))
loader = DataLoader(data, batch_size=4)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
head = nn.Softmax(1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for epoch in range(6):
    model.train(GOOD or epoch == 0)
    for number, (x, y) in enumerate(loader):
        out = model(x)
        loss = nn.functional.cross_entropy(out if GOOD else head(out), y)
        (loss / 2 if GOOD else loss).backward()
        if (number + GOOD) % 2 == 0 or GOOD and number + 1 == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    schedule.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | ({"schedule": schedule.state_dict()} if GOOD else {}), "last.pth")
    torch.load("last.pth", weights_only=GOOD)
    if GOOD:
        model.eval()
    with torch.set_grad_enabled(not GOOD):
        model(data.tensors[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("good",)])
def test_a_script_full_of_mistakes_and_its_corrected_version(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    with Lab(Script(path="train.py", args=arguments, cwd=os.getcwd())) as lab:
        trace = watch(lab, seconds=30, epochs=9).trace
    rules = [rule for rule in registry().values() if rule.kind == "mistake"]
    found = {each.rule: each.where for each in nominate(trace, rules)}
    line = {text.strip(): f"train.py:{n}" for n, text in enumerate(SCRIPT.splitlines(), 1)}
    backward = line["(loss / 2 if GOOD else loss).backward()"]
    expected = {
        "evaluated_with_gradients": line["model(data.tensors[0])"],
        "incomplete_checkpoint": next(w for t, w in line.items() if t.startswith("torch.save")),
        "normalized_twice": backward,
        "single_first_micro_batch": line["optimizer.step()"],
        "summed_micro_batches": backward,
        "trained_in_evaluation_mode": backward,
        "unsafe_load": next(w for t, w in line.items() if t.startswith("torch.load")),
        "unscaled_input": line["out = model(x)"],
    }
    assert found == ({} if arguments else expected)
