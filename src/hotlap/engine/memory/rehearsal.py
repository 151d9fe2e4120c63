"""Runs two steps on fake tensors, to predict what a real step holds."""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hotlap import rng
from hotlap.distributed.reduce import Reduce
from hotlap.engine.build import BuiltRun, build
from hotlap.engine.memory.ledger import Ledger, Peak
from hotlap.engine.memory.sample_batches import batches_of, first_samples, per_sample
from hotlap.engine.sources import training_source
from hotlap.errors import RunError, UsageError
from hotlap.feed.samples.transform import UnstackedSamples
from hotlap.feed.sources.lengths import LengthSource
from hotlap.nested import map_tensors, tensors, with_items
from hotlap.plan import Plan
from hotlap.sequences.lengths import bucket
from hotlap.task import Task
from hotlap.techniques import Technique, registry

STEPS = 2
"""The second has the optimizer's state; nothing grows after it."""
_MOST_READ = 4096
"""Samples of a batch that is collated to see what it is, where smaller ones do not tell."""
_LOOKED_AT = 16
_MOST_MICROS = 3
"""Gradients exist from the second micro-batch on; later ones hold no more."""
_CUDA_BLOCK = 512


@dataclass(frozen=True)
class Rehearsal:
    """What two steps would hold."""

    peak: Peak
    proofs: tuple[Mapping[str, str], ...]
    """{name, state, why} of the plan's techniques that were rehearsed."""
    left_out: tuple[str, ...]
    """Techniques of the plan that act on nothing that is counted, or cannot be seen into."""


@dataclass(frozen=True)
class Sample:
    """The largest of some samples, and what a batch of it alone is."""

    batch_of: Callable[[int], Any]
    """`batch_of(count)`: it so often, as the loss gets it, with numbers."""
    two: Any
    three: Any
    """Batches of these counts."""
    bytes: int
    """Bytes of one sample in a batch."""
    kept_bytes: int
    """Bytes of one sample as it is kept before its transforms, 0 if it cannot be kept."""
    differs: bool
    """True if others have another size."""

    @classmethod
    def of(cls, task: Task, place: int | None = None) -> "Sample":
        """Look at one of the task's samples, at some of them if `place` is None."""
        states = rng.global_random_states()
        try:
            source = batches_of(_looked_at(task, place), task)

            def batch_of(number: int, count: int) -> Any:
                return source.batch_of(torch.tensor([number]).expand(count))

            sizes = [_bytes(batch_of(number, 1)) for number in range(source.length)]
            largest = sizes.index(max(sizes))
            of_largest = partial(batch_of, largest)
            source.stages.holds = True
            kept = source.stages.join([source.dataset[largest]])
            return cls(
                batch_of=of_largest,
                two=of_largest(2),
                three=of_largest(3),
                bytes=max(sizes),
                kept_bytes=0 if isinstance(kept, UnstackedSamples) else _bytes(kept),
                differs=len(set(sizes)) > 1,
            )
        finally:
            rng.restore(states)


@dataclass(frozen=True)
class LargestBatch:
    """A batch that takes most memory."""

    task: Task
    """The task with batches of that size alone, and without lengths."""
    sample: Sample
    """What the batch is full of."""
    length: int | None = None
    """What its samples are padded to, in tokens; None if the task has no lengths."""


def largest_batches(task: Task) -> list[LargestBatch]:
    """Return the batches that take most memory, one or two.

    Where lengths are known they are those that a run tries before its first step, each sample as
    long as the longest.
    """
    if task.lengths is None:
        return [LargestBatch(task, Sample.of(task))]
    source = training_source(task, Reduce())
    assert isinstance(source, LengthSource)
    found = []
    for positions in source.largest():
        lengths = source.lengths[positions.numpy()]
        of_one_size = {"batch_size": len(positions), "tokens_per_batch": None, "lengths": None}
        sample = Sample.of(task, int(positions[lengths.argmax()]))
        length = bucket(int(lengths.max()), source.to)
        found.append(LargestBatch(replace(task, **of_one_size), sample, length))
    return found


def _looked_at(task: Task, place: int | None) -> list[Any]:
    if place is not None:
        return [task.data[place]]
    if task.is_stream:
        return first_samples(task, _LOOKED_AT)
    places = range(0, len(task.data), max(1, len(task.data) // _LOOKED_AT))
    return [task.data[place] for place in places[:_LOOKED_AT]]


def rehearse(
    task: Task,
    plan: Plan,
    sample: Sample,
    *,
    device: str,
    like: str,
    techniques: tuple[str, ...] = (),
) -> Rehearsal:
    """Take two steps under a plan without memory and without numbers.

    Args:
        task: what is learned, without lengths; see `largest_batches`.
        plan: how it is executed; what acts on process and feed is left out.
        sample: of the task's data.
        device: whose operators are rehearsed, as torch names it.
        like: whose allocator is imitated; another one than `device` where torch lacks it.

        techniques: techniques from outside, as `module:NAME`.

    Raises:
        RunError: the model or the loss cannot go without numbers; the message says where.
    """
    known = registry(techniques)
    kept, left_out = _split_plan(plan, known)
    split = _micro_batch(plan, known) or task.most_samples
    is_cuda = like.startswith("cuda")
    ledger = Ledger(_CUDA_BLOCK if is_cuda else 1, reorders=not is_cuda)
    states = rng.global_random_states()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, ledger:
            built = _build(task, kept, ledger, device, techniques)
            micros = _micros(task, sample, min(split, task.logical_batch), ledger, fake, device)
            # Those of the step that are not gone through lie there all the same.
            rest = task.logical_batch - sum(samples for samples, _ in micros)
            others = torch.empty(rest * sample.bytes, dtype=torch.uint8, device=device)
            ledger.mark([others], "batches")
            for _ in range(STEPS):
                built.step(micros)
            peak = ledger.peak()
            proofs = tuple(built.applied.proofs())
    except (UsageError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"{type(error).__name__}: {error}\nThe model or the loss cannot run with fake tensors, "
            "for example because of data-dependent control flow, so its memory cannot be "
            "estimated. Train one epoch without --estimate instead: `hotlap train` prints the peak "
            "memory of every epoch."
        ) from error
    finally:
        rng.restore(states)
    return Rehearsal(peak, proofs, left_out)


def _micro_batch(plan: Plan, known: Mapping[str, Technique]) -> int | None:
    """Return the samples of a micro-batch, None if no technique splits the batch."""
    for name, values in plan.techniques.items():
        split = known[name].memory.micro_batch
        if split is not None:
            return split(known[name].options(values))
    return None


def _split_plan(plan: Plan, known: Mapping[str, Technique]) -> tuple[Plan, tuple[str, ...]]:
    kept, left_out = {}, []
    for name, values in plan.techniques.items():
        technique = known[name]
        is_outside = technique.seam_of(technique.options(values)) in ("process", "feed")
        if not is_outside and technique.memory.is_traceable:
            kept[name] = values
        elif technique.memory.micro_batch is None:
            left_out.append(name)
    return Plan(kept), tuple(left_out)


def _build(
    task: Task, plan: Plan, ledger: Ledger, device: str, techniques: tuple[str, ...]
) -> BuiltRun:
    def model() -> Any:
        with torch.device(device):
            made = make_model(task)
        # It is where it should be; moving parameters is what fake tensors cannot do.
        made.to = lambda *_, **__: made
        return made

    def loss(model: Any, batch: Any) -> Any:
        ledger.phase = "forward"
        value = task.loss(model, batch)
        ledger.phase = "backward"
        return value

    whole = {"batch_size": task.logical_batch, "accumulate": 1}
    training = {"schedule": None, "held_out": None, "metrics": {}, "evaluate": None}
    followed = replace(task, model=model, loss=loss, **training, **whole)
    # One micro-batch for `build`, which looks at the split only for batch norm.
    built = build(followed, plan, device=device, check_finite=False, techniques=techniques)
    _check_split(built)
    trained = [*built.model.parameters(), *built.weights.values()]
    ledger.mark([*built.model.parameters(), *built.model.buffers()], "parameters")
    ledger.mark(built.weights.values(), "masters")

    def gradients() -> None:
        ledger.mark([parameter.grad for parameter in trained], "gradients")

    def begin(*_: Any) -> None:
        ledger.phase = "update"

    def end(optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():
            ledger.mark(state.values(), "optimizer")

    target = built.step.target
    # Before and behind what carries gradients from the model's copies to the masters.
    target.after_backward.insert(0, gradients)
    target.after_backward.append(gradients)
    built.optimizer.register_step_pre_hook(begin)
    built.optimizer.register_step_post_hook(end)
    return built


def _check_split(built: BuiltRun) -> None:
    # Done with the values of a batch's halves, of which there are none.
    built.step.passes.is_checked = True


def make_model(task: Task) -> Any:
    """Make the model without memory; where it reads files or values, with memory for a moment."""
    try:
        with warnings.catch_warnings():
            # Torch warns of its own deep copies, which look where a fake tensor lies.
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            return task.model()
    except Exception:
        with _no_modes(), torch.device("cpu"):
            real = task.model()
    memo: dict[int, Any] = {}
    for module in real.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and id(parameter) not in memo:
                memo[id(parameter)] = torch.nn.Parameter(
                    torch.empty_like(parameter.detach(), device=None), parameter.requires_grad
                )
            module._parameters[name] = None if parameter is None else memo[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            module._buffers[name] = None if buffer is None else torch.empty_like(buffer)
    return real


@contextlib.contextmanager
def _no_modes() -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def _micros(
    task: Task, sample: Sample, size: int, ledger: Ledger, fake: Any, device: str
) -> list[tuple[int, Any]]:
    counts = [size] * (task.logical_batch // size)
    if task.logical_batch % size:
        counts.append(task.logical_batch % size)
    made = [(n, _batch(sample, n, fake, device)) for n in counts[:_MOST_MICROS]]
    for _, batch in made:
        leaves: list[torch.Tensor] = []
        leaves += tensors(batch)
        ledger.mark(leaves, "batches")
    return made


def _batch(sample: Sample, count: int, fake: Any, device: str) -> Any:
    try:
        return _grow_batch(sample.two, sample.three, count, device)
    except _Irregular as irregular:
        if count > _MOST_READ:
            raise RunError(
                f"the shapes of a batch of {count} samples cannot be inferred from batches of 2 "
                f"and 3 samples: {irregular}. Or use a batch size of at most {_MOST_READ} in the "
                "task: then a whole batch is read instead."
            ) from None
    with _no_modes():
        whole = sample.batch_of(count)
    return map_tensors(whole, lambda leaf: torch.empty_like(fake.from_tensor(leaf), device=device))


class _Irregular(Exception):
    """Batches of two and of three samples do not tell what larger ones are."""


def _grow_batch(two: Any, three: Any, count: int, device: str) -> Any:
    """Return a batch of `count` samples without numbers, told from those of two and three.

    Walked side by side, unlike anything in `hotlap.nested`: lists may grow with their samples too.
    """
    if type(two) is not type(three):
        raise _Irregular(
            f"the task's collate() returned a {type(two).__name__} for 2 samples, and a "
            f"{type(three).__name__} for 3. Return the same type from collate() for every batch"
        )
    if isinstance(two, torch.Tensor):
        added = per_sample(two.shape, 2, three.shape)
        if two.dtype != three.dtype:
            raise _Irregular(
                f"the task's collate() returned a tensor of {two.dtype} for 2 samples, and of "
                f"{three.dtype} for 3. Return the same dtype from collate() for every batch"
            )
        if added is None:
            raise _Irregular(
                f"the task's collate() returned a tensor of shape {list(two.shape)} for 2 samples, "
                f"and {list(three.shape)} for 3. Return tensors from collate() whose dimensions "
                "are constant or multiples of the number of samples"
            )
        return torch.empty(_grow_shape(two.shape, added, count), dtype=two.dtype, device=device)
    if isinstance(two, Mapping):
        if list(two) != list(three):
            raise _Irregular(
                f"the task's collate() returned the keys {list(two)} for 2 samples, and "
                f"{list(three)} for 3. Return the same keys from collate() for every batch"
            )
        grown = {key: _grow_batch(two[key], three[key], count, device) for key in two}
        return with_items(two, grown)
    if not isinstance(two, list | tuple):
        return two
    if len(two) == len(three):
        grown = [
            _grow_batch(one, other, count, device) for one, other in zip(two, three, strict=True)
        ]
        return type(two)(*grown) if hasattr(two, "_fields") else type(two)(grown)
    if (len(two), len(three)) != (2, 3) or _bytes(three):
        raise _Irregular(
            f"the task's collate() returned a list of {len(two)} items for 2 samples, and of "
            f"{len(three)} for 3. Return one tensor for all samples from collate(), or a list of "
            "as many items for every batch"
        )
    # Names, say: what takes no part needs no length.
    return type(two)(two[:1]) * min(count, _MOST_READ)


def _grow_shape(shape: torch.Size, added: Any, count: int) -> tuple[int, ...]:
    return tuple(more * count or size for size, more in zip(shape, added, strict=True))


def _bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(value))
