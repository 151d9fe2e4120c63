"""A step that runs out of memory is taken again, and what is learned stays the same."""

import gc
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, default_collate

import hotlap
from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.engine.step.transaction import Transaction, _Tensor
from hotlap.errors import RunError
from hotlap.plan import Plan
from hotlap.report.training import page
from tests.engine import lattice
from tests.engine.test_resume import state
from tests.report.shown import shown

BATCH, MOST = 16, 5
"""Samples of a step, and of the largest micro-batch that fits."""
SMALLER = [(16, 8), (8, 4)]
"""What is tried until one does."""


class OnGrid(torch.optim.SGD):
    """Keeps every weight a multiple of 1/16, so that all arithmetic stays exact."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.mul_(16).round_().div_(16).clamp_(-1, 1)


class Failing:
    """A loss that raises at a place of a step, where asked to.

    Args:
        loss: the task's own.
        fails: called with the samples of a micro-batch.
        where: `forward`, `late forward` or `backward`.
        error: what is raised.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any], Any],
        fails: Callable[[int], bool],
        where: str = "late forward",
        error: Callable[[], BaseException] = lambda: torch.OutOfMemoryError("no memory"),
    ) -> None:
        self.loss, self.fails, self.where, self.error = loss, fails, where, error
        self.sizes: list[int] = []
        self.hook: Any = None

    def __call__(self, model: Any, batch: Any) -> Any:
        leaf = batch[0] if isinstance(batch, (tuple, list)) else batch
        if not torch.is_grad_enabled():
            return self.loss(model, batch)
        self.sizes.append(len(leaf))
        fails = self.fails(len(leaf))
        if fails and self.where == "forward":
            raise self.error()
        value = self.loss(model, batch)
        if fails and self.where == "late forward":
            raise self.error()
        if fails:
            # The last gradients of a backward are those of the first layers.
            self.hook = next(iter(model.parameters())).register_hook(self.raise_it)
        return value

    def raise_it(self, _: Any) -> None:
        self.hook.remove()
        raise self.error()


def too_large(samples: int) -> bool:
    return samples > MOST


def once(step: int) -> Callable[[int], bool]:
    """Fail at one whole step only."""
    calls = iter(range(10**6))
    return lambda samples: next(calls) == step


def at_random(seed: int) -> Callable[[int], bool]:
    """Fail with a large micro-batch now and then."""
    draws = random.Random(seed)
    return lambda samples: samples > 1 and draws.random() < 0.02


def exact(loss: Any, **options: Any) -> hotlap.Task:
    given: dict[str, Any] = {
        "model": lattice.model,
        "data": lattice.data(64),
        "optimizer": lambda m: OnGrid(m.parameters(), lr=1 / 64),
        "batch_size": BATCH,
        "steps": 12,
    }
    return hotlap.Task(loss=loss, **{**given, **options})


def trained(task: hotlap.Task, plan: Plan | None = None) -> list[Any]:
    """Train; return the losses, and then the weights and buffers."""
    done = list(hotlap.steps(task, plan, device="cpu"))
    weights = [each.detach().clone() for each in done[-1].model.state_dict().values()]
    return [torch.stack([step.loss.float() for step in done]), *weights]


def same(left: list[Any], right: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("where", ["forward", "late forward", "backward"])
def test_at_random_in_200_steps_the_losses_are_the_same_bits(where: str) -> None:
    failing = Failing(lattice.sum_and_count, at_random(7), where)
    plain = trained(exact(lattice.sum_and_count, steps=200))
    found = trained(exact(failing, steps=200))
    assert min(failing.sizes) < BATCH
    assert same(found, plain)
    assert len(plain[0].unique()) > 20


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 2))


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def test_an_ordinary_model_learns_the_same_to_rounding() -> None:
    options: dict[str, Any] = {"model": network, "optimizer": adam, "clip_norm": 1.0, "steps": 200}
    failing = Failing(lattice.mean, at_random(5))
    plain = trained(exact(lattice.mean, **options))
    found = trained(exact(failing, **options))
    assert min(failing.sizes) < BATCH
    torch.testing.assert_close(found[0], plain[0], rtol=1e-5, atol=1e-5)


class Counting(nn.Module):
    """Draws from every generator, and keeps count in a buffer, in one that it replaces, in one that
    is None at first, in one that its first call makes, in batch norm, and from its fifth call on in
    a last one."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("late", torch.zeros(()))
        self.register_buffer("unset", None)
        self.is_late, self.calls = late, 0

    def forward(self, inputs: Any) -> Any:
        self.calls += 1
        self.seen += 1
        self.replaced = self.replaced + 1
        self.unset = torch.ones(()) if self.unset is None else self.unset + 1
        if not hasattr(self, "made"):
            self.register_buffer("made", torch.zeros(()))
        self.made += 1
        if self.is_late and self.calls == 5:
            self.late += 1
        factor = 1 + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
        hidden = self.drop(self.norm(self.first(inputs)).relu()) * factor
        counts = self.seen + self.replaced.sum() + self.unset + self.made
        return self.last(hidden) + 0.01 * counts


def drawing(loss: Any, **options: Any) -> hotlap.Task:
    return exact(loss, model=lambda: Counting(**options), optimizer=adam)


@pytest.mark.parametrize("step", [0, 1, 6])
@pytest.mark.parametrize("where", ["forward", "late forward", "backward"])
def test_once_more_at_the_same_size_gives_the_same_bits(where: str, step: int) -> None:
    """Batch norm is not split, and everything drawn and counted in the failed attempt is undone."""
    failing = Failing(lattice.mean, once(step), where)
    assert same(trained(drawing(failing)), trained(drawing(lattice.mean)))
    assert failing.sizes == [BATCH] * 13


@pytest.mark.parametrize("step", [0, 1, 6])
@pytest.mark.parametrize("draws", [False, True])
def test_memory_that_runs_out_while_a_batch_is_made_costs_no_bit(step: int, draws: bool) -> None:
    """The step before, its running statistics and its draws must not be undone with it."""
    calls = iter(range(10**6))

    def collate(samples: Any) -> Any:
        if fails and next(calls) == step:
            raise torch.OutOfMemoryError("no memory for a batch")
        batch = default_collate(samples)
        return [batch[0] + torch.randint(0, 2, ()), batch[1]] if draws else batch

    fails = False
    task = replace(drawing(lattice.mean), collate=collate)
    plain = trained(task)
    fails = True
    assert same(trained(task), plain)
    assert next(calls) > 12


@pytest.mark.parametrize("step", [0, 5])
def test_memory_that_runs_out_while_a_step_is_kept_costs_no_bit(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trained(drawing(lattice.mean))
    keep, calls = _Tensor.keep, iter(range(10**6))

    def failing(self: Any) -> None:
        # The second one of all buffers, so that the first is kept and the last is not.
        if self.path == "replaced" and next(calls) == step:
            raise torch.OutOfMemoryError("no memory to keep a buffer")
        keep(self)

    monkeypatch.setattr(_Tensor, "keep", failing)
    assert same(trained(drawing(lattice.mean)), plain)
    assert next(calls) > step + 1


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


@pytest.mark.parametrize("kept", ["_torch", "_host", "_tensors", "_names", "_step"])
def test_the_comparison_sees_what_is_not_put_back(
    kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back = Transaction.put_back

    def forgetful(self: Any) -> Any:
        if kept == "_step":
            monkeypatch.setattr(self._step, "roll_back", lambda: None)
        else:
            setattr(self, kept, _Everything() if kept == "_names" else type(getattr(self, kept))())
        self._states = self._states if kept != "_torch" else []
        return put_back(self)

    monkeypatch.setattr(Transaction, "put_back", forgetful)
    step = 0 if kept == "_names" else 6
    found = trained(drawing(Failing(lattice.mean, once(step))))
    assert not same(found, trained(drawing(lattice.mean)))


class Following(nn.Module):
    """Has a layer that follows the trained one in its forward, as a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.follower = nn.Linear(4, 2), nn.Linear(4, 2)
        self.follower.requires_grad_(False)
        # Batch norm: the step is not split, and every bit can be compared.
        self.norm = nn.BatchNorm1d(2)

    def forward(self, inputs: Any) -> Any:
        with torch.no_grad():
            self.follower.weight.mul_(0.9).add_(self.trained.weight, alpha=0.1)
        return self.norm(self.trained(inputs)) + self.follower(inputs)


def test_parameters_that_follow_the_trained_ones_are_put_back() -> None:
    plain = trained(exact(lattice.mean, model=Following, optimizer=adam))
    failing = Failing(lattice.mean, once(6))
    assert same(trained(exact(failing, model=Following, optimizer=adam)), plain)
    first = Failing(lattice.mean, once(0))
    with pytest.raises(RunError, match=r"parameter 'follower\.weight', which no step before"):
        trained(exact(first, model=Following, optimizer=adam))


class FollowingUnseen(Following):
    """Follows in ways that count as no write: neither buffers nor parameters get a new version."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("spread", torch.ones(()).expand(4))

    def forward(self, inputs: Any) -> Any:
        self.mean.data.mul_(0.5).add_(inputs.mean(0), alpha=0.5)
        follower = self.follower
        follower.weight.data.mul_(0.9).add_(self.trained.weight.data, alpha=0.1)
        follower.bias.data = follower.bias.data * 0.9 + self.trained.bias.data * 0.1
        return self.norm(self.trained(inputs * self.spread)) + follower(inputs - self.mean)


@pytest.mark.parametrize("step", [1, 6])
def test_what_is_written_to_through_data_is_put_back(step: int) -> None:
    plain = trained(exact(lattice.mean, model=FollowingUnseen, optimizer=adam))
    failing = Failing(lattice.mean, once(step))
    assert same(trained(exact(failing, model=FollowingUnseen, optimizer=adam)), plain)


def test_what_is_written_to_through_data_in_the_first_step_is_noticed() -> None:
    first = Failing(lattice.mean, once(0))
    with pytest.raises(RunError, match=r"parameter 'follower\.weight', which no step before"):
        trained(exact(first, model=FollowingUnseen, optimizer=adam))


class FollowingLate(Following):
    """Trains the layer that follows in its first steps, and freezes it then."""

    def __init__(self) -> None:
        super().__init__()
        self.follower.requires_grad_(True)
        self.calls = 0

    def forward(self, inputs: Any) -> Any:
        self.calls += 1
        self.follower.requires_grad_(self.calls < 4)
        return super().forward(inputs)


def test_parameters_that_are_frozen_later_are_put_back() -> None:
    plain = trained(exact(lattice.mean, model=FollowingLate, optimizer=adam))
    failing = Failing(lattice.mean, once(8))
    assert same(trained(exact(failing, model=FollowingLate, optimizer=adam)), plain)


def test_a_buffer_that_was_never_written_before_ends_the_run() -> None:
    task = drawing(Failing(lattice.mean, once(4)), late=True)
    with pytest.raises(RunError, match="buffer 'late', which no step before"):
        trained(task)


def test_it_is_told_if_the_attempt_may_have_drawn_from_a_generator_that_was_not_watched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def late(model: Any, batch: Any) -> Any:
        late.calls += 1
        if late.calls == 5:
            random.random()
        return lattice.mean(model, batch)

    late.calls = 0
    trained(exact(Failing(late, once(4))))
    assert "may have drawn from Python's global RNG" in caplog.text
    caplog.clear()
    trained(exact(Failing(lattice.mean, once(4))))
    assert "taken again" in caplog.text
    assert "may have drawn" not in caplog.text


def test_batch_norm_is_split_where_the_task_accepts_it() -> None:
    failing = Failing(lattice.mean, too_large)
    trained(exact(failing, model=Counting, optimizer=adam, splits_statistics=True))
    assert max(failing.sizes[-4:]) <= MOST
    with pytest.raises(RunError, match=r"not split, as batch norm .*splits_statistics"):
        trained(drawing(Failing(lattice.mean, too_large)))


class Updating(torch.optim.SGD):
    """Runs out of memory in an update, once half of it is done."""

    fails_at = 5
    count = 0

    def step(self, closure: Any = None) -> None:
        type(self).count += 1
        if type(self).count == self.fails_at:
            next(iter(self.param_groups[0]["params"])).data.add_(1)
            raise torch.OutOfMemoryError("no memory for the update")
        super().step(closure)


def test_in_the_update_the_run_ends_and_its_last_checkpoint_is_whole(tmp_path: Path) -> None:
    def run(folder: str, fails_at: int, **options: Any) -> Any:
        Updating.count, Updating.fails_at = 0, fails_at
        task = exact(lattice.mean, optimizer=lambda m: Updating(m.parameters(), lr=1 / 64))
        return hotlap.train(
            task, device="cpu", run_dir=tmp_path / folder, save_every="2steps", **options
        )

    run("plain", 0)
    with pytest.raises(RunError, match="step 6 ran out of memory while the optimizer"):
        run("resumed", 6)
    # Step 4 was saved; nothing of step 6 is in it.
    run("resumed", 0, resume="auto")
    assert state(tmp_path / "resumed") == state(tmp_path / "plain")


def test_the_clipping_may_fail_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    clip, calls = torch.nn.utils.clip_grad_norm_, iter(range(100))

    def failing(*arguments: Any, **options: Any) -> Any:
        norm = clip(*arguments, **options)
        if next(calls) == 3:
            raise torch.OutOfMemoryError("no memory to clip")
        return norm

    plain = trained(exact(lattice.sum_and_count, clip_norm=64.0))
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", failing)
    assert same(trained(exact(lattice.sum_and_count, clip_norm=64.0)), plain)


def test_where_not_even_one_sample_fits_the_run_ends_with_the_sizes_tried() -> None:
    failing = Failing(lattice.mean, lambda samples: True)
    with pytest.raises(RunError, match="tried: 16, 8, 4, 2, 1") as raised:
        trained(exact(failing))
    assert failing.sizes == [16, 8, 4, 2, 1]
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


def of_user() -> BaseException:
    return RuntimeError("DefaultCPUAllocator: can't allocate memory: out of memory, says the user")


@pytest.mark.parametrize(
    "error", [of_user, MemoryError, lambda: OSError(28, "No space left on device")]
)
def test_what_is_not_torchs_word_is_not_taken_for_it(error: Any) -> None:
    failing = Failing(lattice.mean, once(3), error=error)
    with pytest.raises(type(error())) as raised:
        trained(exact(failing))
    assert str(raised.value) == str(error())
    assert len(failing.sizes) == 4


def test_the_cpus_allocator_is_believed() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)


def test_nothing_of_the_failed_attempt_lives_on() -> None:
    held: list[Any] = []
    alive: list[int] = []

    def keeps(model: Any, batch: Any) -> Any:
        hidden = model(batch[0])
        alive.append(sum(each() is not None for each in held))
        held.append(weakref.ref(hidden))
        if len(held) == failing + 1:
            # What is in a cycle outlives its last user until the collector comes.
            cycle: list[Any] = [hidden]
            cycle.append(cycle)
        return (hidden - batch[1]).square().mean()

    failing = 3
    gc.disable()
    try:
        trained(exact(Failing(keeps, once(failing)), steps=5))
    finally:
        gc.enable()
    assert alive[:5] == [0] * 5


class Rows(IterableDataset[Any]):
    """A stream of the same samples."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*lattice.data(64).tensors, strict=True))


def jitter(sample: Any, generator: torch.Generator) -> Any:
    moved = torch.randint(-1, 2, sample[0].shape, generator=generator)
    return sample[0] + moved, sample[1]


LENGTHS = [1 + number % 7 for number in range(64)]

SOURCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "in process": ({}, {}),
    "resident": ({}, {"resident": {}}),
    "workers": ({}, {"workers": {"count": 2}}),
    "threads of readers": ({"transform": jitter}, {"workers": {"count": 1}}),
    "transform": ({"transform": jitter}, {}),
    "transform, resident": ({"transform": jitter}, {"resident": {}}),
    "stream": ({"data": Rows(), "shuffle_buffer": 20}, {}),
    "stream, workers": ({"data": Rows(), "shuffle_buffer": 20}, {"workers": {"count": 2}}),
    "accumulated": ({"batch_size": 8, "accumulate": 2}, {}),
    "lengths": ({"lengths": LENGTHS}, {}),
    "tokens": (
        {"lengths": LENGTHS, "batch_size": None, "tokens_per_batch": 32, "accumulate": 2},
        {},
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_step_again_in_smaller_parts(name: str) -> None:
    options, techniques = SOURCES[name]
    failing = Failing(lattice.sum_and_count, lambda n: n > MOST and len(failing.sizes) > 12)
    plan = Plan(techniques)
    plain = trained(exact(lattice.sum_and_count, steps=24, **options), plan)
    found = trained(exact(failing, steps=24, **options), plan)
    assert max(failing.sizes) > MOST >= max(failing.sizes[-8:])
    assert same(found, plain)


LIMITED = """
import resource
import sys

import torch

import hotlap

torch.set_num_threads(1)
torch.manual_seed(0)
limit = int(sys.argv[1])
said = []


def network():
    return torch.nn.Sequential(torch.nn.Linear(64, 8192), torch.nn.Tanh(), torch.nn.Linear(8192, 1))


def loss(model, batch):
    return model(batch[0]).square().mean()


task = hotlap.Task(
    model=network,
    loss=loss,
    data=torch.utils.data.TensorDataset(torch.randn(4096, 64)),
    optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
    batch_size=2048,
    steps=4,
)
for step in hotlap.steps(task, device="cpu"):
    if step.number == 1:
        now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (now + limit, -1))
    print(f"{step.number} {step.loss.item():.6f}")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.slow
def test_under_a_real_limit_of_memory(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(LIMITED)

    def run(limit: int) -> Any:
        command = [sys.executable, script, str(limit)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    plain = run(0)
    assert "ran out of memory" not in plain.stderr
    # A step keeps two activations of 64 MiB.
    found = run(80 * 2**20)
    assert found.returncode == 0, found.stderr
    assert "step 2 ran out of memory in micro-batches of 2048" in found.stderr
    assert "allocate" in found.stderr
    for one, other in zip(found.stdout.split(), plain.stdout.split(), strict=True):
        assert float(one) == pytest.approx(float(other), rel=1e-5)


def test_the_report_says_what_was_taken_again(tmp_path: Path) -> None:
    said: list[str] = []
    report = hotlap.train(exact(Failing(lattice.mean, too_large)), device="cpu", notice=said.append)
    found = report.to_json()["retries"]
    assert [(row["samples"], row["then"]) for row in found] == SMALLER
    assert {row["step"] for row in found} == {1}
    assert len(said) == 2
    assert "in micro-batches of at most 4" in said[1]
    assert "step 1 ran out of memory in micro-batches of 8, and was taken again in at most 4" in (
        shown(page, report)
    )
