"""`Reduce`: sums, broadcasts and gathers over all ranks, and the process group that they join."""

import contextlib
import datetime
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hotlap.distributed import stacks
from hotlap.distributed.absent import Meeting, name_logs, name_ranks
from hotlap.distributed.ending import let_tensors_go
from hotlap.distributed.own_group import check_backends, is_joined, ranks_here
from hotlap.distributed.ranks import ALONE, LOST, STORE, TIMEOUT_S, Ranks
from hotlap.distributed.shared_slots import MAX_RANKS, SharedSlots, share_memory
from hotlap.errors import RunError, UsageError

_GONE = ("Connection closed by peer", "Connection reset by peer", "gloo/transport")
"""What gloo says where another rank is gone, or does not answer."""
_LATE = ("timed out", "timeout")
"""What is said, in any case of letters, where it did not answer in time."""


class PendingSum:
    """A sum of tensors over all ranks that has begun.

    Args:
        tensors: of one dtype and device; they may be changed from now on.
        memory: for the sum, shape (elements,), in which none of the tensors is.
        slots: to sum through; None sums through the process group.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        memory: torch.Tensor,
        slots: SharedSlots | None = None,
    ) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._flat, self._slots = memory, slots
        self._work: Any = None
        if slots is not None:
            slots.write(tensors)
            return
        torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=memory)

        def begin() -> None:
            self._work = dist.all_reduce(self._flat, async_op=True)

        _collective(begin)

    def wait(self) -> None:
        """Wait until it is done; on a device, until what is computed next may use it."""
        if self._slots is not None:
            self._slots.add_up(self._flat)
            return
        _collective(self._work.wait)

    def parts(self) -> list[torch.Tensor]:
        """Return the sums, once they are done, in the shapes of the tensors."""
        parts = self._flat.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


_PARCEL_BYTES = 32 * 2**20
"""Tensors are sent together up to so many bytes, for each of which there is a copy."""


class Reduce:
    """Adds up, over all ranks, and tells all of them the same. Every rank makes the same calls.

    Alone, everything is returned as it was given.

    Args:
        ranks: which rank this process is; the process group was joined if there are others.
        overlaps: gradients are summed while the backward pass still runs.
    """

    def __init__(self, ranks: Ranks = ALONE, *, overlaps: bool = False) -> None:
        self.ranks, self.overlaps = ranks, overlaps
        self.rank, self.world = ranks.rank, ranks.world
        self.meetings = 0
        """How often all ranks have waited for each other, to add up numbers or to compare them."""
        self._memory: dict[Any, torch.Tensor] = {}
        """Where sums are made, kept for the next step: fresh memory costs a page fault a page."""
        self._slots: dict[Any, SharedSlots | None] = {}
        """Of sums on the CPU, if all ranks are on one machine."""

    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sums of tensors; the same shapes in the same order on every rank.

        Those of one dtype are contiguous views of one buffer, until the next call.
        """
        if self.world == 1:
            return list(tensors)
        sums: dict[int, torch.Tensor] = {}
        for number, group in enumerate(by_format(tensors)):
            pending = self.begin_sum(group, number)
            pending.wait()
            sums.update(zip(map(id, group), pending.parts(), strict=True))
        return [sums[id(tensor)] for tensor in tensors]

    def begin_sum(self, tensors: Sequence[torch.Tensor], number: int) -> PendingSum:
        """Begin to add up tensors of one dtype and device; all ranks begin, in one order.

        Args:
            tensors: of which one at least.
            number: of the sum; another one of this number may not be in use.
        """
        first, size = tensors[0], sum(tensor.numel() for tensor in tensors)
        key = number, first.dtype, first.device
        memory, slots = self._memory.get(key), self._slots.get(key)
        is_new = memory is None or len(memory) != size
        # Gradients that are zeroed in place are still where they were last added up.
        is_read = slots is None and memory is not None and any(_is_in(x, memory) for x in tensors)
        if memory is None or is_new or is_read:
            memory = torch.empty(size, dtype=first.dtype, device=first.device)
        # Behind what memory may run out in: all ranks do this together, and once.
        if is_new and self._shares_memory(first):
            slots = self._slots[key] = share_memory(self, size, first.dtype)
        self._memory[key] = memory
        return PendingSum(tensors, memory, slots)

    def _shares_memory(self, tensor: torch.Tensor) -> bool:
        is_here = self.ranks.local_world == self.world <= MAX_RANKS
        return is_here and tensor.device.type == "cpu"

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums of numbers, in float64."""
        if self.world == 1:
            return list(numbers)
        row = torch.tensor(numbers, dtype=torch.float64)
        _collective(dist.all_reduce, row)
        self.meetings += 1
        return row.tolist()

    def most(self, numbers: Sequence[float]) -> list[float]:
        """Return the largest of each number over the ranks, in float64."""
        if self.world == 1:
            return list(numbers)
        row = torch.tensor(numbers, dtype=torch.float64)
        _collective(dist.all_reduce, row, dist.ReduceOp.MAX)
        self.meetings += 1
        return row.tolist()

    def copy_tensors(self, tensors: Sequence[torch.Tensor], rank: int = 0) -> None:
        """Make tensors what they are on that rank."""
        if self.world == 1:
            return
        for tensor in tensors:
            _collective(dist.broadcast, tensor, rank)

    def send_tensors(self, tensors: Sequence[torch.Tensor], ranks: Sequence[int]) -> None:
        """Make tensors what they are on the rank that each of them belongs to.

        Args:
            tensors: the same shapes in the same order on every rank.
            ranks: of each tensor the rank whose it is.
        """
        if self.world == 1:
            return
        for rank in range(self.world):
            theirs = [each for each, owner in zip(tensors, ranks, strict=True) if owner == rank]
            for group in by_format(theirs):
                for some in _parcels(group):
                    self._send(some, rank)

    @torch.no_grad()
    def _send(self, tensors: list[torch.Tensor], rank: int) -> None:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        _collective(dist.broadcast, flat, rank)
        if rank == self.rank:
            return
        parts = flat.split([tensor.numel() for tensor in tensors])
        shaped = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(tensors, shaped)  # pyright: ignore[reportPrivateImportUsage]

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each rank, by rank; plain data that JSON can hold."""
        if self.world == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        _collective(dist.all_gather, sizes, torch.tensor([text.numel()]))
        longest = int(torch.cat(sizes).max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: text.numel()] = text
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        _collective(dist.all_gather, parts, padded)
        return [
            json.loads(bytes(part[: int(size)].tolist()))
            for part, size in zip(parts, sizes, strict=True)
        ]

    def wait(self) -> None:
        """Wait until every rank is here."""
        self.sum_numbers([0.0])


def _collective(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of `torch.distributed`.

    Raises:
        RunError: another rank is gone, or did not answer in time.
    """
    try:
        function(*arguments)
    except RuntimeError as error:
        # Others are mistakes of this rank's own, such as a device without a back end.
        if not (isinstance(error, dist.DistError) or _is_loss(str(error)) or _is_late(str(error))):
            raise
        raise explain_loss(error) from error


def is_of_lost_rank(error: Exception) -> bool:
    """Return whether a collective, of whoever's code, has failed because another rank is gone."""
    return is_joined() and (isinstance(error, dist.DistBackendError) or _is_loss(str(error)))


def _is_loss(text: str) -> bool:
    return any(words in text for words in _GONE)


def _is_late(text: str) -> bool:
    return any(words in text.lower() for words in _LATE)


def explain_loss(error: Exception) -> RunError:
    """Return which rank a collective has waited for in vain."""
    said = " ".join(str(error).partition("This is typically")[0].split())
    is_late = _is_late(said)
    if is_late:
        stacks.write_now("This rank has waited for another one in vain, here:")
    meeting = _meetings[-1] if _meetings else None
    absent = [] if meeting is None else meeting.not_waiting()
    within = "" if meeting is None else f" within {meeting.timeout_s:g} s"
    gone = "are gone" if len(absent) > 1 else "is gone"
    what = f"did not answer{within}" if is_late else gone
    return RunError(
        f"{LOST}: {name_ranks(absent)} {what} ({said}). Check the end of "
        f"{name_logs(absent, os.environ)} for the cause, then resume from the last checkpoint with "
        "--resume auto."
    )


@contextlib.contextmanager
def joined(
    ranks: Ranks,
    *,
    is_cuda: bool = False,
    timeout_s: float = TIMEOUT_S,
    overlaps: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Reduce]:
    """Give the `Reduce` of this process while it is in a process group with the others.

    A group that the caller's own code has made is used, and left to that code.

    Args:
        ranks: which rank it is.
        is_cuda: each rank trains on a CUDA device.
        timeout_s: after which a rank that waits for another one gives up.
        overlaps: see `Reduce`.
        environ: with the place where ranks find each other.

    Raises:
        UsageError: torch was built without the back end, nothing says where the ranks meet, or the
            caller's group has no back end for the CPU.
    """
    if is_joined():
        own = ranks_here(environ)
        if own.world > 1:
            check_backends()
        yield Reduce(own, overlaps=overlaps)
        return
    if ranks.world == 1:
        yield Reduce()
        return
    if not dist.is_available() or not (dist.is_nccl_available() if is_cuda else True):
        raise UsageError(
            f"this build of torch {torch.__version__} has no "
            f"{'NCCL' if is_cuda else 'torch.distributed'}, so it cannot train on {ranks.world} "
            "ranks. Install a build of torch that has it, or train on one device."
        )
    stacks.write_on_request(environ)
    _join(Meeting(_next_store(ranks, environ), ranks, timeout_s), is_cuda)
    try:
        reduce = Reduce(ranks, overlaps=overlaps)
        yield reduce
        # A rank that ends its connections while another one still uses them may end that one.
        reduce.wait()
    finally:
        _meetings.pop()
        dist.destroy_process_group()
        let_tensors_go()


def _join(meeting: Meeting, is_cuda: bool) -> None:
    """Make the process group of the ranks that meet.

    Raises:
        RunError: not all of them have come in time.
    """
    # Its functions take the group of the moment as their default. Imported later, by an optimizer
    # for one, it would hold the group and its threads until the interpreter has ended, the likely
    # cause of an abort at the end of a process.
    import torch.distributed.nn.functional  # noqa: F401

    limit = datetime.timedelta(seconds=meeting.timeout_s)
    meeting.store.set_timeout(limit)
    meeting.arrive()
    try:
        dist.init_process_group(
            # Numbers that the host decides by go between hosts, not through the device.
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=meeting.store,
            rank=meeting.ranks.rank,
            world_size=meeting.ranks.world,
            timeout=limit,
        )
    except RuntimeError as error:
        absent = meeting.never_arrived()
        stacks.write_now("This rank has waited in vain for others to join, here:")
        raise RunError(
            f"{LOST}: {name_ranks(absent)} did not join within {meeting.timeout_s:g} s ({error}). "
            f"Check the end of {name_logs(absent, os.environ)} for the cause. If ranks only start "
            f"slowly, pass a longer --rank-timeout, such as {2 * meeting.timeout_s:g}s."
        ) from error
    _meetings.append(meeting)


_meetings: list[Meeting] = []
"""Of the group that this process has joined, and of none that the caller's own code has made."""
_stores: list[Any] = []
"""The store of this process, once it has joined a group, and one for each group."""


def _next_store(ranks: Ranks, environ: Mapping[str, str]) -> Any:
    """Return where ranks find each other: for each group in turn a part of one store, as the
    addresses of a group that has ended would stay in it."""
    if not _stores:
        _stores.append(_open_store(ranks, environ))
    name = f"hotlap/{len(_stores)}"
    _stores.append(dist.PrefixStore(name, _stores[0]))  # pyright: ignore[reportPrivateImportUsage]
    return _stores[-1]


def _open_store(ranks: Ranks, environ: Mapping[str, str]) -> Any:
    if STORE in environ:
        file = environ[STORE]
        return dist.FileStore(file, ranks.world)  # pyright: ignore[reportPrivateImportUsage]
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return next(rendezvous("env://", ranks.rank, ranks.world))[0]
    raise UsageError(
        f"this process is rank {ranks.rank} of {ranks.world}, but the environment variables "
        "MASTER_ADDR and MASTER_PORT are not set. Set them to the address of the first node and a "
        "free port, use `torchrun`, or `hotlap train RECIPE --devices N` on one machine."
    )


def _is_in(tensor: torch.Tensor, memory: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def by_format(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return the tensors in groups of one dtype and device."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def _parcels(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Give tensors of one dtype in parcels of a bounded size, or of one tensor."""
    some: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        count = tensor.numel() * tensor.element_size()
        if some and size + count > _PARCEL_BYTES:
            yield some
            some, size = [], 0
        some.append(tensor)
        size += count
    if some:
        yield some
