"""Predicts what one of several ranks holds of parameters, gradients and optimizer state."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hotlap import rng
from hotlap.distributed.owners import deal
from hotlap.distributed.shares import local_of
from hotlap.engine.build import BuiltRun
from hotlap.engine.memory.rehearsal import make_model
from hotlap.engine.state.fitting_optimizer import state_like
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import get


@dataclass(frozen=True)
class Held:
    """Bytes that a rank holds between two steps."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer

    def to_json(self) -> dict[str, int]:
        """Return the bytes by what they are for."""
        return asdict(self)


@dataclass(frozen=True)
class Sized:
    """What is known of a parameter, wherever it is."""

    shape: tuple[int, ...]
    item_bytes: int
    is_trained: bool
    state_item_bytes: int
    """Of the optimizer's state, for each number of the parameter."""
    state_bytes: int
    """Of the optimizer's state, besides."""

    @property
    def numbers(self) -> int:
        return prod(self.shape)


def predict(parameters: Sequence[Sized], options: Any, world: int, rank: int | None = None) -> Held:
    """Return what a rank will hold.

    Args:
        parameters: of the model.
        options: of the technique `sharding`; None without it.
        world: number of ranks.
        rank: of whom; whoever holds most if None.
    """
    if rank is None:
        each = (predict(parameters, options, world, number) for number in range(world))
        return max(each, key=lambda held: held.total)
    trained = [each for each in parameters if each.is_trained]
    if options is None or options.level == "optimizer":
        owners = deal((each.numbers * each.item_bytes for each in trained), world)
        own = trained
        if options is not None:
            own = [each for each, owner in zip(trained, owners, strict=True) if owner == rank]
        return Held(
            sum(each.numbers * each.item_bytes for each in parameters),
            sum(each.numbers * each.item_bytes for each in trained),
            sum(each.numbers * each.state_item_bytes + each.state_bytes for each in own),
        )
    parts = world // options.replicas
    place = rank % parts

    def rows(each: Sized) -> tuple[int, int]:
        """Return the numbers of the largest share of a parameter, and of this rank's."""
        largest = -(-each.shape[0] // parts)
        own = max(0, min(largest, each.shape[0] - place * largest))
        return largest * prod(each.shape[1:]), own * prod(each.shape[1:])

    # Shares are filled up to one size, the state is not.
    return Held(
        sum(rows(each)[0] * each.item_bytes for each in parameters),
        sum(rows(each)[0] * each.item_bytes for each in trained),
        sum(rows(each)[1] * each.state_item_bytes + each.state_bytes for each in trained),
    )


def sizes_of(model: Any, optimizer: Any) -> list[Sized] | None:
    """Return the sizes of what is trained, None if nobody knows the optimizer's state."""
    groups = {id(each): group for group in optimizer.param_groups for each in group["params"]}
    known: dict[Any, Mapping[str, Any] | None] = {}
    found = []
    for parameter in model.parameters():
        group = groups.get(id(parameter))
        per_item = besides = 0
        if group is not None:
            ask = id(group), parameter.dim()
            if ask not in known:
                known[ask] = state_like(optimizer, group, parameter.dim())
            state = known[ask]
            if state is None:
                return None
            small = _size_of_sample(state)
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.numel() == small:
                    per_item += value.element_size()
                elif isinstance(value, torch.Tensor):
                    besides += value.numel() * value.element_size()
        sized = tuple(parameter.shape), parameter.element_size(), group is not None
        found.append(Sized(*sized, per_item, besides))
    return found


def _size_of_sample(state: Mapping[str, Any]) -> int:
    sizes = (each.numel() for each in state.values() if isinstance(each, torch.Tensor))
    return max(2, max(sizes, default=2))


def predict_for(task: Task, plan: Plan, world: int) -> Held | None:
    """Return what the rank that holds most will hold, before anything runs.

    Args:
        task: what is learned.
        plan: with `sharding` or without.
        world: number of ranks.

    Returns:
        None if nobody knows the state of the task's optimizer.

    Raises:
        UsageError: so many ranks cannot be as many groups as the plan says.
    """
    options = _options_of(plan)
    if options is not None and (world % options.replicas or options.replicas >= max(world, 2)):
        legal = " or ".join(str(n) for n in range(1, max(world, 2)) if world % n == 0)
        raise UsageError(
            f"`sharding` with replicas={options.replicas} needs {options.replicas} groups of two "
            f"or more ranks each, which {world} ranks cannot form. Set replicas = {legal} in the "
            "plan's [techniques.sharding], or use another number of devices (--devices, or "
            "ranks in hotlap.estimate)."
        )
    states = rng.global_random_states()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
            model = make_model(task)
            optimizer = task.optimizer(model)
    finally:
        rng.restore(states)
    sizes = sizes_of(model, optimizer)
    return None if sizes is None else predict(sizes, options, world)


def announce(built: BuiltRun, notice: Callable[[str], None]) -> None:
    """Say what the first rank of a run will hold, where ranks share something."""
    held = None if built.sharding is None else predict_of(built)
    if held is None:
        return
    kinds = ", ".join(f"{name} {size / 2**20:,.1f} MiB" for name, size in held.to_json().items())
    total = f"{held.total / 2**20:,.1f} MiB"
    notice(f"sharding: the first rank will hold {total} between steps: {kinds}")


def predict_of(built: BuiltRun) -> Held | None:
    """Return what this rank of a run will hold; None if nobody knows its optimizer's state."""
    sizes = sizes_of(built.model, built.optimizer)
    if sizes is None:
        return None
    reduce = built.reduce
    return predict(sizes, _options_of(built.plan), reduce.world, reduce.rank)


def measure(built: BuiltRun) -> Held:
    """Return what this rank of a run holds; each storage counts once."""
    parameters = list(built.model.parameters())
    return Held(
        _bytes_of(parameters),
        _bytes_of(each.grad for each in parameters),
        _bytes_of(_states(built.optimizer)),
    )


def _options_of(plan: Plan) -> Any:
    values = plan.techniques.get("sharding")
    return None if values is None else get("sharding").options(values)


def _states(optimizer: Any) -> Iterator[Any]:
    for state in optimizer.state.values():
        yield from state.values()


def _bytes_of(values: Iterable[Any]) -> int:
    held = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = local_of(value.detach()).untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
    return sum(held.values())
