"""What a checkpoint keeps beside weights, and what evaluation leaves behind."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hotlap
from hotlap.checkpoint.codec import decode, encode
from hotlap.checkpoint.read import find_newest
from hotlap.engine.build import build
from hotlap.engine.evaluation_guard import evaluation_guard
from hotlap.engine.export.exporting import export
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan
from hotlap.schedules import warmup_cosine
from tests.engine.lattice import mean
from tests.engine.test_handed_back import Positions
from tests.engine.test_run import Fixed, make, network, same, weights


def resumed(tmp_path: Path, **options: Any) -> tuple[Any, Any]:
    """Train four epochs, and two and two of them."""
    whole = hotlap.train(make(epochs=4, **options))
    hotlap.train(make(epochs=2, **options), run_dir=tmp_path)
    return whole, hotlap.train(make(epochs=4, **options), run_dir=tmp_path, resume="auto")


class Temperature:
    """A parameter of the loss, which the model does not hold."""

    def __init__(self) -> None:
        self.value = nn.Parameter(torch.ones(()))

    def model(self) -> nn.Module:
        self.value.data.fill_(1.0)
        return network()

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam([*model.parameters(), self.value], lr=0.05)

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        return mean(model, batch) * self.value + self.value.square()


def test_a_parameter_of_the_loss_goes_on_where_it_was(tmp_path: Path) -> None:
    own = Temperature()
    options = {"model": own.model, "optimizer": own.optimizer, "loss": own.loss}
    whole = hotlap.train(make(epochs=4, **options))
    value = float(own.value.detach())
    hotlap.train(make(epochs=2, **options), run_dir=tmp_path)
    done = hotlap.train(make(epochs=4, **options), run_dir=tmp_path, resume="auto")
    assert float(own.value.detach()) == value
    assert same(weights(done), weights(whole))


class Counting(nn.Module):
    """Keeps a number of its own, and a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.forwards = nn.Linear(4, 2), 0
        self.register_buffer("sum", torch.zeros(2), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        found = self.inner(values)
        if self.training:
            self.sum = self.sum * 0.9 + found.detach().mean(0)
        return found + self.sum

    def get_extra_state(self) -> dict[str, int]:
        return {"forwards": self.forwards}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.forwards = state["forwards"]


def test_extra_state_and_unsaved_buffers_go_on_where_they_were(tmp_path: Path) -> None:
    whole, done = resumed(tmp_path, model=Counting)
    assert same(weights(done), weights(whole))
    assert done.model.forwards == whole.model.forwards == 12
    assert torch.equal(done.model.sum, whole.model.sum)


class Unsavable(Counting):
    def get_extra_state(self) -> Any:
        return {"a lock": object()}


def test_what_cannot_be_saved_is_said_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(hotlap.UsageError, match="_extra_state holds a object"):
        hotlap.train(make(model=Unsavable), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "value", [torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64), torch.tensor(7)]
)
def test_a_rate_may_be_a_tensor(value: torch.Tensor) -> None:
    found = decode(encode([value], "it"))[0]
    assert found.dtype == value.dtype and torch.equal(found, value)


def test_a_rate_may_be_one_of_numpys_numbers(tmp_path: Path) -> None:
    def sgd(model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=np.float32(0.05))

    whole, done = resumed(tmp_path, optimizer=sgd)
    assert same(weights(done), weights(whole))


def test_lazy_modules_are_refused() -> None:
    with pytest.raises(hotlap.UsageError, match=r"0\.weight' has no shape"):
        hotlap.train(make(model=lambda: nn.Sequential(nn.LazyLinear(2))))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({"gamma": 0.9}, {"gamma": 0.8}, "schedule's values .gamma. was 0.9, now it is 0.8"),
        ({"gamma": 0.9}, {"gamma": 0.9}, None),
    ],
)
def test_a_schedule_of_other_values_is_another_task(
    before: Any, after: Any, words: str | None, tmp_path: Path
) -> None:
    def kind(epochs: int, values: Any) -> hotlap.Task:
        return make(
            epochs=epochs, schedule=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, **values)
        )

    hotlap.train(kind(2, before), run_dir=tmp_path)
    if words is None:
        hotlap.train(kind(4, after), run_dir=tmp_path, resume="auto")
        return
    with pytest.raises(hotlap.UsageError, match=words):
        hotlap.train(kind(4, after), run_dir=tmp_path, resume="auto")


def test_a_schedule_as_long_as_the_run_does_not_go_on_in_a_longer_one(tmp_path: Path) -> None:
    def kind(epochs: int) -> hotlap.Task:
        return make(
            epochs=epochs,
            schedule=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 3 * epochs),
        )

    hotlap.train(kind(2), run_dir=tmp_path)
    with pytest.raises(hotlap.UsageError, match=r"T_max\) was 6, now it is 12"):
        hotlap.train(kind(4), run_dir=tmp_path, resume="auto")


def test_a_metric_that_counts_nothing_is_not_a_number() -> None:
    metrics = {"rare": lambda m, b: (0.0, 0), "rarer": lambda m, b: (torch.zeros(()),) * 2}
    done = hotlap.train(make(held_out=Fixed(), metrics=metrics))
    assert math.isnan(done.held_out["rare"]) and math.isnan(done.held_out["rarer"])
    assert math.isfinite(done.held_out["loss"])


def test_means_weigh_samples_and_not_batches() -> None:
    def first(model: Any, batch: Any) -> torch.Tensor:
        return batch[0][:, 0].mean()

    done = hotlap.train(make(held_out=Fixed(), metrics={"first": first}))
    # 21 samples, 0 to 20, in batches of 8.
    assert done.held_out["first"] == 10.0


class Tables(nn.Module):
    """Makes a table when it meets a longer input, and keeps it, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.table, self.more, self.pair = torch.ones(0), {}, ()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if len(self.table) < len(values):
            self.table = torch.arange(1.0, len(values) + 1).log1p()
            self.more["table"] = [self.table]
            self.pair = (self.table, "pair")
        found = self.inner(values)
        for table in (self.table, self.more["table"][0], self.pair[0]):
            found = found * table[: len(values), None]
        return found


def test_what_a_model_keeps_from_an_evaluation_does_not_spoil_training() -> None:
    model = Tables()
    with evaluation_guard(model):
        model(torch.ones(9, 4))
    model(torch.ones(9, 4)).sum().backward()
    assert model.inner.weight.grad is not None


def test_evaluation_is_in_inference_mode_and_moves_no_random_state() -> None:
    modes = []

    def drawn(model: Any, batch: Any) -> Any:
        modes.append(torch.is_inference_mode_enabled())
        return torch.rand(()) + np.random.random(), 1

    watched = hotlap.train(make(held_out=Fixed(), metrics={"drawn": drawn}))
    # What the batch before the first step makes and keeps is trained with.
    assert len(modes) > 1 and not modes[0] and all(modes[1:])
    assert same(weights(watched), weights(hotlap.train(make())))


@functools.lru_cache
def ramp(length: int) -> torch.Tensor:
    return torch.linspace(1.0, 2.0, length)


def test_what_a_loss_keeps_in_a_cache_is_trained_with() -> None:
    def ramped(model: Any, batch: Any) -> torch.Tensor:
        return (mean(model, batch) * ramp(3)).mean()

    ramp.cache_clear()
    assert hotlap.train(make(held_out=Fixed(), loss=ramped)).steps == 9
    assert not ramp(3).is_inference()


class Shifted(nn.Module):
    """Adds a constant that no state dict has."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.register_buffer("shift", torch.full((2,), shift), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.inner(values) + self.shift


def test_a_constant_that_was_corrected_is_not_put_back_by_a_resume(tmp_path: Path) -> None:
    given: dict[str, Any] = {"held_out": Fixed(), "epochs": 2}
    hotlap.train(make(model=Shifted, **given), run_dir=tmp_path)
    found, _ = find_newest(tmp_path / "ckpt")
    assert found is not None and "buffers" not in found.tensors
    given["epochs"] = 3
    done = hotlap.train(make(model=lambda: Shifted(0.5), **given), run_dir=tmp_path, resume="auto")
    assert done.model.shift.tolist() == [0.5, 0.5]


class Still(nn.BatchNorm1d):
    """Stays in evaluation mode, whoever asks."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


@pytest.mark.parametrize(("norm", "is_still"), [(Still, True), (nn.BatchNorm1d, False)])
def test_a_module_says_itself_that_it_stays_in_evaluation_mode(norm: Any, is_still: bool) -> None:
    done = hotlap.train(
        make(model=lambda: nn.Sequential(norm(4).eval(), nn.Linear(4, 2)), held_out=Fixed())
    )
    assert (int(done.model[0].num_batches_tracked) == 0) is is_still


def penalty(model: Any, batch: Any) -> torch.Tensor:
    with torch.enable_grad():
        inputs = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    return slope.square().sum(1).mean()


def test_a_loss_that_takes_gradients_itself_can_be_evaluated() -> None:
    done = hotlap.train(make(held_out=Fixed(), loss=penalty))
    assert done.held_out["loss"] > 0


def test_a_loop_of_ones_own_steps_what_waits_for_a_measurement() -> None:
    def plateau(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=9.0)

    rates = []
    for step in hotlap.steps(make(schedule=plateau, schedule_per="epoch")):
        if step.ends_epoch:
            step.scheduler.step(float(step.loss))
            rates.append(step.scheduler.get_last_lr()[0])
    assert rates == pytest.approx([0.005, 0.0005, 0.00005])


def test_a_resumed_run_goes_on_with_its_scale_and_its_count(tmp_path: Path) -> None:
    class Broken(Fixed):
        def __getitem__(self, index: int) -> Any:
            inputs, target = super().__getitem__(index)
            return inputs + (float("nan") if index == 3 else 0.0), target

    plan = Plan({"autocast": {"dtype": "fp16"}})
    task = make(epochs=2, data=Broken())
    hotlap.train(task, plan, run_dir=tmp_path)
    first = build(task, plan)
    for _ in steps_of(first):
        pass
    done = hotlap.train(make(epochs=4, data=Broken()), plan, run_dir=tmp_path, resume="auto")
    whole = hotlap.train(make(epochs=4, data=Broken()), plan)
    assert first.step.target.scaler.get_scale() != 65536.0
    assert first.step.skipped > 0
    assert done.skipped_steps == whole.skipped_steps
    assert same(weights(done), weights(whole))


def plain_penalty(model: Any, batch: Any) -> torch.Tensor:
    inputs = batch[0].clone().requires_grad_()
    found = model(inputs)
    (slope,) = torch.autograd.grad(found.sum(), inputs, create_graph=True)
    return (found - batch[1]).square().mean() + slope.square().sum(1).mean()


@pytest.mark.parametrize("plan", [Plan(), Plan({"master_weights": {}})])
def test_a_loss_that_asks_for_gradients_as_in_training_can_be_evaluated(plan: Plan) -> None:
    done = hotlap.train(make(held_out=Fixed(), loss=plain_penalty, model=Positions), plan)
    assert done.held_out["loss"] > 0


@pytest.mark.parametrize("steps", range(1, 7))
def test_buffers_that_are_rebound_are_saved_after_any_step(steps: int, tmp_path: Path) -> None:
    whole = hotlap.train(make(model=Counting, epochs=None, steps=9))
    hotlap.train(make(model=Counting, epochs=None, steps=steps), run_dir=tmp_path)
    task = make(model=Counting, epochs=None, steps=9)
    done = hotlap.train(task, run_dir=tmp_path, resume="auto")
    assert same(weights(done), weights(whole))


def test_an_expanded_buffer_is_evaluated_and_split() -> None:
    class Expanded(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.register_buffer("shift", torch.ones(1).expand(2))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return super().forward(values) + self.shift

    done = hotlap.train(make(model=Expanded, held_out=Fixed(), batch_size=4, accumulate=2))
    assert math.isfinite(done.held_out["loss"])


def test_other_trained_parameters_and_other_functions_are_another_task(tmp_path: Path) -> None:
    def last(model: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(model[3].parameters(), lr=0.05)

    hotlap.train(make(schedule=warmup_cosine(total=9, warmup=1)), run_dir=tmp_path)
    for options, words in (
        ({"optimizer": last}, "group 0, parameters"),
        ({"schedule": warmup_cosine(total=12, warmup=1)}, "hotlap_values"),
    ):
        given = {"schedule": warmup_cosine(total=9, warmup=1), "epochs": 4, **options}
        with pytest.raises(hotlap.UsageError, match=words):
            hotlap.train(make(**given), run_dir=tmp_path, resume="auto")


def test_an_exported_program_has_the_buffers_that_training_wrote_to(tmp_path: Path) -> None:
    task = make(model=Counting)
    done = hotlap.train(task, run_dir=tmp_path / "run")
    export(task, tmp_path / "run", tmp_path / "program.pt2")
    program = torch.export.load(tmp_path / "program.pt2").module()
    inputs = torch.stack([Fixed()[index][0] for index in range(4)])
    assert torch.equal(program(inputs), done.model(inputs))


class Frozen(dict):
    """Refuses to be written to, as configurations do."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("it is frozen")

    update = __setitem__  # type: ignore[assignment]


def test_what_a_model_keeps_is_written_to_only_where_it_must_be() -> None:
    model = Tables()
    model.config, model.itself = Frozen(width=4), []  # type: ignore[assignment]
    model.itself.append(model.itself)  # type: ignore[union-attr]
    with evaluation_guard(model):
        model(torch.ones(9, 4))
    assert not model.table.is_inference() and not model.more["table"][0].is_inference()
    assert model.config == {"width": 4} and model.itself[0] is model.itself  # type: ignore[index]


class Bounded(nn.Module):
    """A look-up writes to the rows that are too long."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.rows, self.out = nn.Embedding(8, 6, **options), nn.Linear(6, 2)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return self.out(self.rows(places).mean(1))


def looked_up(model: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def lookups(**options: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(8, (24, 3), generator=generator)
    given = {
        "model": lambda: Bounded(max_norm=1.0),
        "data": torch.utils.data.TensorDataset(places, places[:, 0] % 2),
        "loss": looked_up,
        "optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9),
        "batch_size": 2,
    }
    return make(**{**given, **options})


def test_evaluation_leaves_rows_alone_that_a_look_up_shortens() -> None:
    one, other = hotlap.train(lookups()), hotlap.train(lookups(held_out=lookups().data))
    assert same(weights(one), weights(other))


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"sparse": True}])
def test_embeddings_that_masters_cannot_serve_are_refused(options: dict[str, Any]) -> None:
    task = lookups(model=lambda: Bounded(**options))
    (row,) = hotlap.train(task, Plan({"master_weights": {}})).techniques
    assert row["state"] == "refused"


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (lambda: Bounded().double(), lambda m: torch.optim.NAdam(m.parameters(), lr=0.01)),
        (
            lambda: Bounded(sparse=True),
            lambda m: torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9),
        ),
    ],
)
def test_states_of_other_formats_and_sparse_ones_are_resumed(
    model: Any, optimizer: Any, tmp_path: Path
) -> None:
    def task(steps: int) -> Any:
        return lookups(model=model, optimizer=optimizer, epochs=None, steps=steps)

    whole = hotlap.train(task(9))
    hotlap.train(task(4), run_dir=tmp_path)
    assert same(weights(hotlap.train(task(9), run_dir=tmp_path, resume="auto")), weights(whole))


class Scaled(nn.Module):
    """Has a float32 buffer, and lets nothing of the padding count."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(20, 2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        counts = (tokens > 0).unsqueeze(-1).to(self.rows.weight.dtype)
        return (self.rows(tokens) * self.scale * counts).sum(1)


def test_masters_train_what_is_looked_at_before_the_first_step() -> None:
    samples = [(torch.arange(1, 2 + i % 8), torch.tensor(i % 2)) for i in range(24)]
    task = make(
        model=Scaled,
        data=samples,
        loss=looked_up,
        batch_size=4,
        accumulate=2,
        lengths=lambda sample: len(sample[0]),
        collate=hotlap.pad({0: 0}),
    )
    (row,) = hotlap.train(task, Plan({"master_weights": {}})).techniques
    assert row["state"] == "applied"
