"""Several steps in one launch learn, count, save and end as one step at a time does, to the bit.

Each test runs under the fake device and on a real one. An epoch has 50 samples: six whole steps of
eight, and one of two.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hotlap
from hotlap.engine.build import build
from hotlap.engine.roles.micro_batches import _Turns
from hotlap.engine.step.blocks import Blocks
from hotlap.engine.step.graph import CapturedGraph
from hotlap.engine.step.rates_ahead import foresee, is_foreseen
from hotlap.engine.step.transaction import Transaction
from hotlap.errors import RunError
from hotlap.feed.sources.device_epoch import DeviceEpoch
from hotlap.plan import Plan
from hotlap.schedules import warmup_cosine
from tests.engine.test_device_runs import Steady, loss, network, state, task, weights
from tests.fake_device import FakeCuda

SLOW = pytest.mark.slow
LENGTHS = [pytest.param(2, marks=SLOW), 7, pytest.param(64, marks=SLOW)]
STEPS = 40


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def devices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[FakeCuda]:
    """The fake devices that were made, newest last; none on a real one."""
    made: list[FakeCuda] = []
    if request.param == "fake":

        def device_of(name: str | None) -> FakeCuda:
            made.append(FakeCuda())
            return made[-1]

        monkeypatch.setattr("hotlap.engine.build.device_of", device_of)
    return made


def plan(length: int, **more: Any) -> Plan:
    return Plan(
        {"cuda_graph": {"warm_up": 2, "steps": length}, "resident": {"where": "device"}, **more}
    )


class Broken(Steady):
    """Samples of which one is not a number: each epoch has one update that is left out."""

    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs + (float("nan") if index == 23 else 0.0), label


def summed(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(batch[0])
    return nn.functional.cross_entropy(logits, batch[1], reduction="sum"), (batch[1] >= 0).sum()


def normal() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))


def cosine(optimizer: Any) -> Any:
    return warmup_cosine(total=STEPS, warmup=5)(optimizer)


def decay(optimizer: Any) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=6)
    return lr_scheduler.SequentialLR(
        optimizer, [first, lr_scheduler.ExponentialLR(optimizer, 0.95)], milestones=[6]
    )


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "ends in an epoch": {"steps": 33},
    "by epochs": {"steps": None, "epochs": 6},
    "whole steps only": {"drop_last": True},
    "in parts": {"batch_size": 4, "accumulate": 2},
    "sums": {"loss": summed},
    "sums in parts": {"loss": summed, "batch_size": 4, "accumulate": 2},
    "skips": {"data": Broken(), "model": normal},
    "schedule": {"schedule": cosine},
    "schedule, skips": {"schedule": decay, "data": Broken()},
    # At the last, single step of each epoch the rate is what it was there before.
    "restarts": {"schedule": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7)},
    "schedule per epoch": {
        "schedule": lambda o: lr_scheduler.StepLR(o, 2),
        "schedule_per": "epoch",
        "steps": None,
        "epochs": 6,
    },
    "no clipping": {"clip_norm": None},
    "momentum": {"optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)},
}


FAST = ("schedule, skips", "sums in parts")


def trained(length: int, run_dir: Path, options: dict[str, Any], **more: Any) -> Any:
    given = {"data": Steady(), "steps": STEPS, "held_out": Steady(), **options}
    return hotlap.train(task(**given), plan(length), device="cuda", run_dir=run_dir, **more)


def assert_same(mine: Any, theirs: Any, left: Path, right: Path) -> None:
    assert state(left) == state(right)
    for own, other in zip(mine.epochs, theirs.epochs, strict=True):
        assert (own.steps, own.loss, own.skipped_steps) == (
            *(other.steps, other.loss, other.skipped_steps),
        )
        assert own.held_out == other.held_out
    assert (mine.steps, mine.skipped_steps) == (theirs.steps, theirs.skipped_steps)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "case", [name if name in FAST else pytest.param(name, marks=SLOW) for name in CASES]
)
def test_a_block_of_steps_is_as_many_steps(
    case: str, length: int, devices: list[FakeCuda], tmp_path: Path
) -> None:
    one = trained(1, tmp_path / "one", CASES[case])
    many = trained(length, tmp_path / "many", CASES[case])
    assert_same(many, one, tmp_path / "many", tmp_path / "one")
    row = many.techniques[-1]
    assert row["name"] == "cuda_graph" and row["state"] == "applied", many.techniques
    assert " launches" in row["why"], row
    # The first epoch reads; most of what follows is launched in blocks.
    launched = int(row["why"].split("; ")[1].split()[0])
    assert launched >= many.steps - 7 - 4 * len(many.epochs)
    if devices:
        launches = int(row["why"].split(" in ")[1].split()[0])
        assert launches <= launched / min(length, 2) + 6


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("every", [pytest.param("1steps", marks=SLOW), "5steps", "2epochs"])
def test_a_save_cuts_a_block_and_the_run_goes_on_from_it(
    every: str, length: int, devices: list[FakeCuda], tmp_path: Path
) -> None:
    del devices
    options = {"schedule": cosine, "data": Broken()}
    saved: dict[str, list[str]] = {}
    for name, each in (("one", 1), ("many", length)):
        trained(each, tmp_path / name, options, save_every=every, keep=99)
        saved[name] = sorted(path.name for path in (tmp_path / name / "ckpt").glob("step-*"))
    assert saved["many"] == saved["one"]
    assert len(saved["one"]) == {"1steps": 40, "5steps": 8, "2epochs": 3}[every]
    for name in saved["one"]:
        theirs, mine = (tmp_path / run / "ckpt" / name for run in ("one", "many"))
        for file in theirs.glob("*.safetensors"):
            assert file.read_bytes() == (mine / file.name).read_bytes(), f"{name}/{file.name}"


def test_a_single_step_between_two_blocks_of_an_epoch_counts_in_its_loss(
    devices: list[FakeCuda], tmp_path: Path
) -> None:
    del devices
    # Each epoch has 12 whole steps, and a save after every fourth cuts blocks of 3.
    one, many = (
        trained(length, tmp_path / str(length), {"batch_size": 4}, save_every="4steps")
        for length in (1, 3)
    )
    assert [each.loss for each in many.epochs] == [each.loss for each in one.epochs]


@pytest.mark.parametrize("stop", [pytest.param(9, marks=SLOW), 17, pytest.param(23, marks=SLOW)])
def test_resumed_in_the_middle_of_what_was_a_block_it_ends_with_the_same_bits(
    stop: int, devices: list[FakeCuda], tmp_path: Path
) -> None:
    del devices
    options = {"schedule": cosine, "data": Broken()}
    whole = trained(7, tmp_path / "whole", options)
    given = {"data": Broken(), "steps": STEPS, "held_out": Steady(), "schedule": cosine}
    asked = 0

    def stops() -> bool:
        nonlocal asked
        asked += 1
        return asked >= stop

    parts: dict[str, Any] = {"device": "cuda", "run_dir": tmp_path / "parts"}
    begun = hotlap.train(task(**given), plan(1), **parts, stop=stops)
    assert begun.is_stopped and begun.steps < STEPS
    done = hotlap.train(task(**given), plan(7), **parts, resume="auto")
    assert state(tmp_path / "parts") == state(tmp_path / "whole")
    assert done.epochs[-1].loss == whole.epochs[-1].loss
    assert done.skipped_steps == whole.skipped_steps


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n)}, "LambdaLR are not"),
        ({"data": Steady(), "transform": lambda sample: sample}, "no epoch was served from rows"),
    ],
)
def test_what_cannot_be_taken_in_blocks_is_taken_step_by_step_and_says_why(
    options: dict[str, Any], words: str, devices: list[FakeCuda], tmp_path: Path
) -> None:
    del devices
    one = trained(1, tmp_path / "one", options)
    many = trained(7, tmp_path / "many", options)
    assert_same(many, one, tmp_path / "many", tmp_path / "one")
    assert "each launch took one" in many.techniques[-1]["why"]
    assert words in many.techniques[-1]["why"]


def test_a_block_that_cannot_be_captured_is_taken_step_by_step(
    devices: list[FakeCuda], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, failed = FakeCuda.capture, set[int]()

    def fails_once(device: FakeCuda, work: Callable[[], Any], stream: Any) -> Any:
        if "capture" in device.calls and id(device) not in failed:
            failed.add(id(device))
            raise RuntimeError("no memory for a second graph")
        return capture(device, work, stream)

    monkeypatch.setattr(FakeCuda, "capture", fails_once)
    if not devices and torch.cuda.is_available():
        pytest.skip("a real device has memory for it")
    one = trained(1, tmp_path / "one", {})
    many = trained(7, tmp_path / "many", {})
    assert_same(many, one, tmp_path / "many", tmp_path / "one")
    assert "capture of 3 steps failed: no memory for a second" in many.techniques[-1]["why"]


def test_samples_that_change_are_not_those_of_a_graph(
    devices: list[FakeCuda], tmp_path: Path
) -> None:
    class Harder(Steady):
        """Its samples are others from the third epoch on, as a curriculum's are."""

        level = 0.0

        def __getitem__(self, index: int) -> Any:
            inputs, label = super().__getitem__(index)
            return inputs + self.level, label

    del devices

    def learned(length: int, run_dir: Path) -> Any:
        data = Harder()

        def next_level(epoch: Any) -> None:
            data.level = float(epoch.epoch >= 3)

        return trained(length, run_dir, {"data": data}, progress=next_level)

    one, many = learned(1, tmp_path / "one"), learned(7, tmp_path / "many")
    assert_same(many, one, tmp_path / "many", tmp_path / "one")
    assert " launches" in many.techniques[-1]["why"]


def test_gradients_are_those_of_the_last_step(devices: list[FakeCuda], tmp_path: Path) -> None:
    del devices
    found = []
    for length in (1, 7):
        done = trained(length, tmp_path / str(length), {"steps": 34})
        found.append([parameter.grad for parameter in done.model.parameters()])
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("make", [cosine, decay, lambda o: lr_scheduler.CosineAnnealingLR(o, 9)])
def test_rates_to_come_are_those_that_come_and_asking_changes_nothing(make: Any) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler = make(optimizer)
    optimizer.step()
    assert is_foreseen(scheduler)
    for _ in range(3):
        scheduler.step()
    before = repr(scheduler.state_dict())
    expected = foresee(scheduler, optimizer, 20)
    assert repr(scheduler.state_dict()) == before
    found = []
    for _ in range(20):
        found.append([optimizer.param_groups[0]["lr"]])
        scheduler.step()
    assert found == expected


def test_a_users_own_function_is_not_called_ahead() -> None:
    calls: list[int] = []
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    own = lr_scheduler.LambdaLR(optimizer, lambda n: calls.append(n) or 1.0)
    assert not is_foreseen(own)
    assert not is_foreseen(lr_scheduler.ChainedScheduler([own], optimizer))
    cycle = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9, cycle_momentum=False)
    assert not is_foreseen(cycle)
    assert calls == [0]


def test_losses_of_many_samples_are_summed_wide(devices: list[FakeCuda]) -> None:
    del devices
    from hotlap.engine.step.sums import add_to, widen

    totals = widen(torch.tensor(0.0)), widen(torch.tensor(2.0**30))
    losses, found = torch.tensor([0.1, float("nan")]), torch.tensor([0.0, 1.0])
    add_to(totals, losses, found, torch.tensor([3.0, 5.0]))
    # In float32 neither sum would hold these.
    assert float(totals[1]) == 2**30 + 3
    assert float(totals[0]) == float(torch.tensor(0.1).double() * 3)


def test_without_blocks_nothing_is_asked_of_a_schedule_ahead(devices: list[FakeCuda]) -> None:
    del devices
    done = hotlap.train(
        task(data=Steady(), loss=loss, model=network, steps=8), plan(1), device="cuda"
    )
    assert len(weights(done)) == 4
    assert "launches" not in done.techniques[-1]["why"]


def test_memory_that_runs_out_before_a_block_is_no_end_of_the_run(
    devices: list[FakeCuda], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not devices and torch.cuda.is_available():
        pytest.skip("made of what a fake device does")
    keep, asked = Transaction.keep, 0

    def keep_or_fail(self: Transaction) -> None:
        nonlocal asked
        asked += 1
        if asked == 12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        keep(self)

    monkeypatch.setattr(Transaction, "keep", keep_or_fail)
    done = trained(7, tmp_path, {})
    assert done.steps == STEPS and asked > 12


def test_a_block_that_cannot_be_captured_takes_no_earlier_graph_with_it(
    devices: list[FakeCuda], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generator has another state after a failed capture, which earlier graphs do not see."""
    forgotten: list[bool] = []
    forget = CapturedGraph.forget
    monkeypatch.setattr(
        CapturedGraph, "forget", lambda self: forgotten.append(True) or forget(self)
    )

    def fail(self: Any, epoch: Any, count: int) -> Any:
        raise RuntimeError("it cannot be captured")

    monkeypatch.setattr(Blocks, "_steps", fail)
    done = trained(7, tmp_path, {"model": normal})
    assert done.steps == STEPS and forgotten
    del devices


def test_turns_of_micro_batches_time_what_a_run_does(devices: list[FakeCuda]) -> None:
    given = {"data": Steady(), "steps": 200, "batch_size": 8}
    techniques = {"cuda_graph": {"warm_up": 2}, "micro_batch": {"size": 4}}
    built = build(task(**given), Plan(techniques), device="cuda")
    turns, wish = _Turns(built), built.step.target.graph
    for size in (4, 2, 4):
        before = wish.replays
        turns.take(size, 3)
        assert wish.refused is None and wish.replays >= before + 3
    del devices


def test_memory_that_runs_out_behind_a_launch_ends_the_run(
    devices: list[FakeCuda], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps were taken: once more would be twice."""
    count_gathered, asked = DeviceEpoch.count_gathered, 0

    def fail(self: DeviceEpoch, count: int) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        count_gathered(self, count)

    monkeypatch.setattr(DeviceEpoch, "count_gathered", fail)
    with pytest.raises(RunError, match="while the optimizer changed the weights"):
        trained(7, tmp_path, {})
    del devices
