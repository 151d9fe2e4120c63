"""What is predicted before anything runs is what is then measured."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from benchmarks.peak import peak_bytes
from hotlap.engine.build import build
from hotlap.engine.memory import estimate as estimating
from hotlap.engine.memory import rehearsal
from hotlap.engine.memory.estimate import memory_size
from hotlap.engine.memory.ledger import Ledger
from hotlap.engine.memory.rehearsal import Sample, rehearse
from hotlap.engine.steps import steps_of
from hotlap.errors import RunError, UsageError
from hotlap.plan import Plan
from tests.techniques.test_recompute import Block

WITHIN = 0.15


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def data(*shape: int, classes: int) -> TensorDataset:
    return TensorDataset(torch.zeros(64, *shape), torch.arange(64) % classes)


def mlp() -> hotlap.Task:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    return of(model, data(256, classes=10), adam)


def cnn() -> hotlap.Task:
    def model() -> nn.Module:
        blocks = [nn.Sequential(nn.Conv2d(n, 16, 3, padding=1), nn.ReLU()) for n in (1, 16, 16)]
        return nn.Sequential(*blocks, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 64, 10))

    return of(model, data(1, 16, 16, classes=10), momentum)


def words() -> hotlap.Task:
    def model() -> nn.Module:
        blocks = [Block(32) for _ in range(3)]
        return nn.Sequential(nn.Embedding(1000, 32), nn.Sequential(*blocks), nn.Linear(32, 1000))

    given = torch.zeros(64, 32, dtype=torch.int64)
    return of(model, TensorDataset(given, given), adam)


def of(model: Any, samples: Any, optimizer: Any) -> hotlap.Task:
    return hotlap.Task(
        model=model, loss=cross_entropy, data=samples, optimizer=optimizer, batch_size=16, steps=2
    )


def measured(task: hotlap.Task, plan: Plan) -> int:
    return peak_bytes(lambda: [None for _ in steps_of(build(task, plan, device="cpu"))] and None)


def predicted(task: hotlap.Task, plan: Plan) -> int:
    return max(
        rehearse(each.task, plan, each.sample, device="cpu", like="cpu").peak.bytes
        for each in rehearsal.largest_batches(task)
    )


PRECISIONS: tuple[dict[str, Any], ...] = ({}, {"autocast": {}}, {"master_weights": {}})
REMEDIES: tuple[dict[str, Any], ...] = (
    {},
    {"recompute": {}},
    {"recompute": {"mode": "selective"}},
    {"chunked_loss": {"rows": 64}},
    {"micro_batch": {"size": 3}},
    {"optimizer": {"implementation": "foreach"}},
)


CASES = [
    pytest.param(
        *(make, precision, remedy), marks=[pytest.mark.slow] if precision and remedy else []
    )
    for make in (mlp, cnn, words)
    for precision in PRECISIONS
    for remedy in REMEDIES
    # Everything with everything on the language model alone: the others have less to show.
    if make is words or not (precision and remedy)
]


def _name(value: Any) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("make", "precision", "remedy"), CASES, ids=_name)
def test_the_prediction_is_what_is_measured(
    make: Callable[[], hotlap.Task], precision: dict[str, Any], remedy: dict[str, Any]
) -> None:
    plan = Plan({**precision, **remedy})
    assert predicted(make(), plan) == pytest.approx(measured(make(), plan), rel=WITHIN)


@pytest.mark.parametrize("wrong", ["one step", "activations freed at once", "float64"])
def test_the_comparison_can_fail(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = mlp() if wrong == "one step" else words()
    if wrong == "one step":
        # Without the optimizer's state, which the first step makes.
        monkeypatch.setattr(rehearsal, "STEPS", 1)
        task = dataclasses.replace(task, batch_size=64)
        monkeypatch.setattr(Ledger, "peak", _before_updates)
    elif wrong == "activations freed at once":
        monkeypatch.setattr(torch.Tensor, "untyped_storage", _unsaved)
    else:
        monkeypatch.setattr(Ledger, "_enter", _doubled)
    found = predicted(task, Plan())
    monkeypatch.undo()
    assert found != pytest.approx(measured(task, Plan()), rel=WITHIN)


_PEAK, _ENTER, _STORAGE = Ledger.peak, Ledger._enter, torch.Tensor.untyped_storage


def _before_updates(self: Ledger) -> Any:
    first = next(n for n, (i, _) in enumerate(self._events) if self._entries[i].phase == "update")
    self._events = self._events[:first]
    return _PEAK(self)


def _unsaved(self: torch.Tensor) -> Any:
    # A storage of its own for each look: nobody holds it.
    return torch.UntypedStorage(_STORAGE(self).nbytes(), device="meta")


def _doubled(self: Ledger, tensor: torch.Tensor) -> int:
    number = _ENTER(self, tensor)
    self._events += [(number, self._entries[number].size)]
    return number


def test_nothing_runs_and_nothing_is_left_behind() -> None:
    before = torch.get_rng_state()
    held = peak_bytes(lambda: predicted(words(), Plan()) and None)
    assert torch.equal(torch.get_rng_state(), before)
    # The model alone has 0.5 MiB of weights.
    assert held < 2**18


def test_every_precision_and_recompute_is_told() -> None:
    found = hotlap.estimate(words(), Plan(), device="cpu", memory_bytes=2**24, find_largest=False)
    names = [(row.precision, row.recompute) for row in found.rows]
    assert len(set(names)) == 9
    assert found.fits
    assert found.chosen.peak is not None
    assert sum(found.chosen.peak.kinds.values()) == found.chosen.peak.bytes
    most = found.chosen.peak.most
    assert most["gradients"] == most["parameters"]
    assert most["optimizer"] == pytest.approx(2 * most["parameters"], rel=1e-2)


def test_the_largest_batch_fits_and_a_larger_one_does_not() -> None:
    def at(batch: int) -> int:
        return predicted(dataclasses.replace(mlp(), batch_size=batch), Plan())

    largest = hotlap.estimate(mlp(), Plan(), device="cpu", memory_bytes=2**24).chosen.largest_batch
    assert largest is not None

    assert at(largest) <= 2**24 < at(largest + largest // 10)


def test_what_the_plan_keeps_in_memory_counts_on_a_cpu() -> None:
    found = hotlap.estimate(mlp(), device="cpu", memory_bytes=2**30, find_largest=False)
    assert found.data_bytes == 64 * (256 * 4 + 8)
    assert found.needed_bytes == found.data_bytes + found.chosen.peak.bytes  # type: ignore[union-attr]
    (largest,) = rehearsal.largest_batches(mlp())
    assert any("not available" in note for note in estimating._notes("cuda", "cpu", largest, ()))
    refused = [row.why_not for row in found.rows if row.recompute == "whole"]
    assert all("no repeated blocks" in reason for reason in refused)


def of_lengths(**options: Any) -> hotlap.Task:
    drawn = torch.randint(4, 33, (64,), generator=torch.Generator().manual_seed(0))
    samples = [torch.zeros(int(length), dtype=torch.int64) for length in drawn]
    given = {
        "loss": lambda model, batch: cross_entropy(model, (batch, batch)),
        "data": samples,
        "collate": hotlap.pad(0, to=(8, 16, 34)),
        "lengths": len,
        "steps": None,
        "epochs": 1,
    }
    return dataclasses.replace(words(), **{**given, **options})


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({}, {}),
        ({"batch_size": None, "tokens_per_batch": 300}, {}),
        ({"batch_size": None, "tokens_per_batch": 300}, {"micro_batch": {"size": 3}}),
        ({"batch_size": 5, "accumulate": 3}, {}),
    ],
    ids=["samples", "tokens", "tokens, split", "accumulated"],
)
def test_the_prediction_is_for_the_largest_batch_of_sequences(
    options: dict[str, Any], plan: dict[str, Any]
) -> None:
    task = of_lengths(**options)
    if task.accumulate > 1 or plan:
        task = dataclasses.replace(task, loss=per_token)
    assert predicted(task, Plan(plan)) == pytest.approx(measured(task, Plan(plan)), rel=WITHIN)


def per_token(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
    return cross_entropy(model, (batch, batch)) * batch.numel(), batch.numel()


def test_of_the_largest_batches_the_one_that_takes_more_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Ten of one token, which have most tokens, and one of nine.
    task = of_lengths(
        data=[torch.zeros(1 + 8 * (n == 10), dtype=torch.int64) for n in range(11)],
        collate=hotlap.pad(0, to=(1, 9)),
        batch_size=None,
        tokens_per_batch=10,
    )
    both = rehearsal.largest_batches(task)
    assert [(each.task.batch_size, each.length) for each in both] == [(10, 1), (1, 9)]
    peaks = [
        rehearse(each.task, Plan(), each.sample, device="cpu", like="cpu").peak.bytes
        for each in both
    ]
    monkeypatch.setattr(estimating, "_answers", lambda *_: {})
    found = hotlap.estimate(task, Plan({"resident": {}}), device="cpu", memory_bytes=2**22)
    assert found.needed_bytes - found.data_bytes == max(peaks) != min(peaks)
    # Each row is kept as long as the longest.
    assert found.data_bytes == 11 * 9 * 8
    assert found.batch == 10
    assert any("10 samples padded to 1 tokens" in note for note in found.notes)
    assert found.chosen.largest_batch is not None
    assert found.chosen.largest_batch > 10


def test_samples_are_rehearsed_as_transforms_make_them() -> None:
    plain = dataclasses.replace(mlp(), batch_transform=lambda batch, _: batch)
    transformed = dataclasses.replace(
        mlp(),
        # A text is no sample that could be stacked, or kept.
        data=[(str(number), number % 10) for number in range(64)],
        transform=lambda sample, _: (torch.zeros(128), sample[1]),
        batch_transform=lambda batch, _: [torch.cat([batch[0], batch[0]], dim=1), batch[1]],
    )
    assert predicted(transformed, Plan()) == predicted(plain, Plan())
    stream = dataclasses.replace(transformed, data=Again(transformed.data))
    assert predicted(stream, Plan()) == predicted(plain, Plan())
    assert Sample.of(transformed).kept_bytes == 0
    # What is kept is what the data set gives.
    bytes_kept = dataclasses.replace(
        transformed, data=TensorDataset(torch.zeros(64, dtype=torch.uint8), torch.arange(64) % 10)
    )
    assert Sample.of(bytes_kept).kept_bytes == 1 + 8
    assert Sample.of(bytes_kept).bytes == 256 * 4 + 8


class Again:
    """A stream of samples."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(self.samples)


def test_a_batch_of_any_shape_is_made_without_its_numbers() -> None:
    def cross(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, labels, share, two = batch
        return share * cross_entropy(model, (inputs.T, labels)) * two.sum()

    mixed = dataclasses.replace(
        mlp(),
        loss=cross,
        batch_transform=lambda batch, _: [batch[0].T, batch[1], torch.ones(()), torch.ones(2)],
    )
    sample = dataclasses.replace(Sample.of(mixed), batch_of=None)
    found = rehearse(mixed, Plan(), sample, device="cpu", like="cpu").peak.bytes
    assert found == pytest.approx(predicted(mlp(), Plan()), rel=0.01)


def test_what_is_measured_of_held_out_samples_is_no_part_of_it() -> None:
    measures = {"held_out": mlp().data, "metrics": {"error": cross_entropy}}
    assert predicted(dataclasses.replace(mlp(), **measures), Plan()) == predicted(mlp(), Plan())


def test_a_split_step_holds_less_and_its_batch_all_the_same() -> None:
    whole = rehearse(words(), Plan(), Sample.of(words()), device="cpu", like="cpu").peak
    split = Plan({"micro_batch": {"size": 1}})
    small = rehearse(words(), split, Sample.of(words()), device="cpu", like="cpu").peak
    assert small.bytes < 0.4 * whole.bytes
    assert small.most["batches"] == whole.most["batches"]


def test_a_loss_that_looks_at_values_is_told_apart() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        logits = model(batch[0])
        return logits[logits > 0].sum()

    with pytest.raises(RunError, match="cannot run with fake tensors"):
        predicted(dataclasses.replace(mlp(), loss=loss), Plan())


def test_a_model_that_reads_its_weights_from_numbers_is_followed() -> None:
    def model() -> nn.Module:
        made = nn.Linear(256, 10)
        made.weight.data = torch.tensor(made.weight.detach().numpy())
        return made

    plain = dataclasses.replace(mlp(), model=lambda: nn.Linear(256, 10))
    assert predicted(dataclasses.replace(mlp(), model=model), Plan()) == predicted(plain, Plan())


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 * 2**30), ("1.5g", 3 * 2**29), ("7", 7), ("2 MB", 2**21)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert memory_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "much", "-3GiB", "3 GiBs"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a memory size"):
        memory_size(text)


@pytest.mark.gpu
def test_on_a_gpu_the_prediction_is_what_its_allocator_counts() -> None:
    for plan in (Plan(), Plan({"autocast": {}}), Plan({"recompute": {}})):
        task = dataclasses.replace(words(), batch_size=64)
        list(steps_of(build(task, plan, device="cuda")))
        seen = peak_bytes(lambda: list(steps_of(build(task, plan, device="cuda"))) and None, "cuda")  # noqa: B023
        found = rehearse(task, plan, Sample.of(task), device="cuda", like="cuda").peak.bytes
        assert found == pytest.approx(seen, rel=WITHIN)


def test_a_format_that_the_model_is_not_fit_for_is_a_row_with_its_reason() -> None:
    class Averaging(nn.Linear):
        def __init__(self) -> None:
            super().__init__(256, 10)
            self.register_buffer("average", torch.zeros(256))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            self.average.mul_(0.5).add_(values.detach().mean(0))
            return super().forward(values - self.average)

    found = hotlap.estimate(dataclasses.replace(mlp(), model=Averaging), device="cpu")
    reasons = [row.why_not for row in found.rows if row.peak is None]
    assert any("writes to its buffer average" in reason for reason in reasons)
    assert found.needed_bytes > 0


class Named(torch.utils.data.Dataset):
    """A name beside each sample, which is no tensor."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return torch.ones(256) * index, index % 10, str(index)


def test_what_is_no_tensor_takes_no_part_in_the_largest_batch() -> None:
    plain = hotlap.estimate(mlp(), device="cpu", memory_bytes=2**28)
    named = dataclasses.replace(mlp(), data=Named())
    found = hotlap.estimate(named, device="cpu", memory_bytes=2**28)
    assert found.chosen.largest_batch == pytest.approx(plain.chosen.largest_batch, rel=0.02)  # type: ignore[union-attr]


def test_the_largest_batch_of_a_loss_that_compares_all_with_all() -> None:
    def pairs(model: Any, batch: Any) -> torch.Tensor:
        scores = model(batch[0]) @ model(batch[0]).T
        return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)))

    room = 2**30
    found = hotlap.estimate(
        dataclasses.replace(mlp(), loss=pairs), device="cpu", memory_bytes=room
    ).chosen
    assert found is not None and found.largest_batch is not None
    larger = dataclasses.replace(mlp(), loss=pairs, batch_size=int(found.largest_batch * 1.1))
    for batch, fits in ((found.largest_batch, True), (larger.batch_size, False)):
        task = dataclasses.replace(larger, batch_size=batch)
        peak = hotlap.estimate(
            task, device="cpu", memory_bytes=room, find_largest=False
        ).chosen.peak
        assert (peak.bytes <= room) is fits


@pytest.mark.parametrize(
    ("options", "memory", "is_there"),
    [({}, 2**30, True), ({"where": "host"}, 2**30, False), ({}, 3 * 64 * 264, False)],
)
def test_samples_that_are_kept_on_a_device_count_there(
    options: dict[str, Any], memory: int, is_there: bool
) -> None:
    found = hotlap.estimate(
        mlp(),
        Plan({"resident": options}),
        device="cuda",
        memory_bytes=memory,
        find_largest=False,
    )
    assert found.chosen.peak is not None
    assert found.data_bytes > 0
    assert found.data_on_device is is_there
    assert found.needed_bytes - found.chosen.peak.bytes == (found.data_bytes if is_there else 0)
    assert found.to_json()["data_on_device"] is is_there


def collated(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


@pytest.mark.parametrize(
    ("changes", "options"),
    [({}, {"max_mib": 1}), ({"collate": collated}, {})],
    ids=["too much", "a collate of its own"],
)
def test_samples_that_a_run_will_not_keep_do_not_count(
    changes: dict[str, Any], options: dict[str, Any]
) -> None:
    samples = TensorDataset(torch.zeros(4096, 256), torch.zeros(4096, dtype=torch.int64))
    task = dataclasses.replace(mlp(), data=samples, **changes)
    found = hotlap.estimate(task, Plan({"resident": options}), device="cpu", find_largest=False)
    assert found.data_bytes == 0
    plain = dataclasses.replace(mlp(), data=samples)
    kept = hotlap.estimate(plain, Plan({"resident": {}}), device="cpu", find_largest=False)
    assert kept.data_bytes == 4096 * (256 * 4 + 8)


def test_samples_that_are_transformed_are_kept_by_the_host() -> None:
    def on_device(**changes: Any) -> bool:
        found = hotlap.estimate(
            dataclasses.replace(mlp(), **changes),
            Plan({"resident": {}}),
            device="cuda",
            memory_bytes=2**30,
            find_largest=False,
        )
        assert found.data_bytes > 0
        return found.data_on_device

    assert on_device()
    assert not on_device(batch_transform=lambda batch, draws: batch)


def test_held_out_samples_are_kept_as_well() -> None:
    held_out = TensorDataset(torch.zeros(8, 256), torch.zeros(8, dtype=torch.int64))
    task = dataclasses.replace(mlp(), held_out=held_out)
    found = hotlap.estimate(task, Plan({"resident": {}}), device="cpu", find_largest=False)
    assert found.data_bytes == (64 + 8) * (256 * 4 + 8)
