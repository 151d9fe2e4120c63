"""Dataclasses of observed memory: blocks, growths, allocator steps, `MemoryTrace`. No torch."""

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

KINDS: tuple[str, ...] = (
    "parameters",
    "optimizer",
    "gradients",
    "batches",
    "activations",
    "temporaries",
    "retained",
    "other",
)
"""What memory is for. `activations` were made in the forward and are alive when the backward
begins; `retained` is what is still alive two steps after the one that made it; `other` is older
than the window, or what hotlap keeps of a recipe's samples; everything else is `temporaries`."""

WARM_UP = 2
"""First steps make optimizer states and caches: what grows only in them does not grow."""
_FILE = "memory.json"
SNAPSHOT = "snapshot.pickle"
"""Beside the trace: the history of the device's allocator, where it was asked for."""


@dataclass(frozen=True)
class Block:
    """One storage of a tensor."""

    bytes: int
    kind: str
    """One of `KINDS`."""
    where: str
    """`file:line` of the user's that was running when it was made; empty if there was none."""
    operator: str
    phase: str
    """The phase in which it was made."""
    step: int
    """The step in which it was made, from 1; 0 if it is older than the window."""
    made: int
    """Number of the event, from 0: allocations and frees are counted together."""
    freed: int | None = None
    """Number of the event that freed it; None if it outlived the window."""
    device: str = "cpu"
    """Kind of the device whose memory it is."""


@dataclass(frozen=True)
class Mark:
    """A new phase begins with the event `at`."""

    at: int
    step: int
    phase: str


@dataclass(frozen=True)
class Holding:
    """A local variable that, when a forward began, held tensors of the step before."""

    name: str
    where: str
    """The line that assigns it."""
    step: int
    """The step whose forward began."""
    begin: int
    """Event with which that pass of the loop began."""
    blocks: tuple[int, ...]
    reader: str = ""
    """Who may read it after the pass, see `hotlap.trace.source.liveness.find_reader`."""


@dataclass(frozen=True)
class Growth:
    """A container, or a tensor with its graph, that grew in every step."""

    name: str
    """As the user's code calls it, as in `self.outputs`."""
    where: str
    """The line that adds to it; where it is not found, the line that was running."""
    kind: str
    """Type of the container; `graph` for a tensor whose autograd graph grows, `lru_cache` for the
    results that a function of `functools` keeps."""
    items: float
    """New elements per step; nodes of the graph, for a graph."""
    host_bytes: float
    """Bytes per step of Python and numpy objects."""
    nodes: float
    """New nodes of autograd graphs per step."""
    blocks: tuple[int, ...]
    """Retained storages that it holds."""
    has_graph: bool = False
    """Its tensors hold their autograd graphs."""
    scalars: bool = False
    """Its tensors have one element each."""
    steps: int = 0
    """Steps in a row in which it grew, up to the last one."""
    observed: int = 0
    """Steps in which it was there."""
    maxlen: int | None = None
    """The length that it cannot exceed, of a `deque`."""
    removed: str = ""
    """`file:line` of a statement that may bound it: removes from it, replaces its elements, creates
    it again or compares its length; empty if no file of the user's has one."""
    samples: int | None = None
    """Length of the dataset whose cache it is; None if it is none."""


@dataclass(frozen=True)
class SequenceBatch:
    """One tensor of one training batch that may hold sequences, padded or not."""

    step: int
    name: str
    """The expression that leads to it, as in `batch['input_ids']`."""
    where: str
    """The line that asked for the batch."""
    samples: int
    length: int
    filled: int
    """Positions that are no padding, of samples * length."""
    longest: int
    """Of the longest sample, without padding."""
    value: float | None = None
    """What it is padded with; None if no padding was seen."""
    mask: str = ""
    """The tensor of the batch that says what is padding; empty if the values do."""


@dataclass(frozen=True)
class AllocatorStep:
    """torch's allocator of CUDA memory at the end of a step."""

    step: int
    device_allocs: int
    """Calls of cudaMalloc and cuMemMap since the process began, as all three counters are."""
    device_frees: int
    retries: int
    """Calls that failed, and were repeated after the cache had been freed."""
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    """Free parts of segments that are used otherwise: they cannot be given back."""


@dataclass(frozen=True)
class CacheCall:
    """The script emptied the allocator's cache."""

    step: int
    """From 1."""
    where: str


@dataclass(frozen=True)
class DevicePeak:
    """The most that torch's allocator of CUDA memory counted in the observed steps."""

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class GradientSpan:
    """A gradient that was alive before the backward that computes it."""

    block: int
    begin: int
    """Event with which the step before ended."""
    end: int
    """Event at which the backward first needed it, or at which it was freed."""
    in_forward: bool
    """It was alive in the forward of its step."""


@dataclass(frozen=True)
class Peak:
    """The moment at which most was alive."""

    bytes: int
    at: int
    step: int
    phase: str
    kinds: Mapping[str, int]
    """Kind -> bytes; they add up to `bytes`."""
    blocks: tuple[int, ...]
    """What was alive."""


@dataclass(frozen=True)
class MemoryTrace:
    """The storages of a run's first steps, and what held them."""

    device: str
    steps: int
    """Whole steps that were observed."""
    blocks: Sequence[Block]
    marks: Sequence[Mark]
    step_ends: Sequence[int]
    """Event with which each step ended."""
    holdings: Sequence[Holding] = ()
    growths: Sequence[Growth] = ()
    gradients: Sequence[GradientSpan] = ()
    zeroing: str = ""
    """`file:line` of the call that cleared gradients last; empty if there was none."""
    keeps_gradients: bool = False
    """Gradients are set to zero, and not to None."""
    resident: Sequence[int] = ()
    """Resident memory of the process at the end of each step, in bytes."""
    planned_steps: int | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    batches: Sequence[SequenceBatch] = ()
    allocator: Sequence[AllocatorStep] = ()
    """Of each step; empty without CUDA."""
    cache_calls: Sequence[CacheCall] = ()
    device_peak: DevicePeak | None = None
    """None without CUDA."""
    has_snapshot: bool = False
    """The allocator's history was written beside the trace."""
    formats: Sequence[str] = ()
    """Of the tensors that operators gave, as in `bfloat16`."""
    autocast: str = ""
    """Format of the newest region of `torch.autocast`; empty if none was on."""
    setup_s: float = 0.0
    """From the process's start to the first batch of training."""

    @cached_property
    def events(self) -> tuple[tuple[int, int], ...]:
        """(block, bytes) of every allocation, and (block, minus bytes) of every free, in order.

        Storages of another device's memory are listed with 0 bytes.
        """
        sizes = [block.bytes if self.is_counted(block) else 0 for block in self.blocks]
        rows = [(block.made, number, sizes[number]) for number, block in enumerate(self.blocks)]
        rows += [
            (block.freed, number, -sizes[number])
            for number, block in enumerate(self.blocks)
            if block.freed is not None
        ]
        return tuple((number, change) for _, number, change in sorted(rows))

    def is_counted(self, block: Block) -> bool:
        """True if a storage is in the memory that the run is about: the device's own."""
        return block.device == self.device.partition(":")[0]

    def position(self, at: int) -> tuple[int, str]:
        """Return the step and the phase of an event."""
        place = bisect_right([mark.at for mark in self.marks], at) - 1
        mark = self.marks[max(0, place)]
        return mark.step, mark.phase

    @cached_property
    def peak(self) -> Peak:
        """The moment at which most was alive."""
        alive = top = at = 0
        for event, (_, change) in enumerate(self.events):
            alive += change
            if alive > top:
                top, at = alive, event
        held = tuple(
            number
            for number, block in enumerate(self.blocks)
            if is_alive(block, at) and self.is_counted(block)
        )
        kinds = dict.fromkeys(KINDS, 0)
        for number in held:
            kinds[self.blocks[number].kind] += self.blocks[number].bytes
        return Peak(top, at, *self.position(at), kinds, held)

    def first(self, steps: int) -> "MemoryTrace":
        """Return the trace as it was after so many steps."""
        if not 0 < steps < len(self.step_ends):
            return self
        end = self.step_ends[steps - 1]
        blocks = tuple(
            replace(block, freed=None if (block.freed or 0) >= end else block.freed)
            for block in self.blocks
            if block.made < end
        )
        return replace(self, steps=steps, blocks=blocks, step_ends=self.step_ends[:steps])

    @property
    def settled_at(self) -> int:
        """Event from which on the run repeats itself: later steps allocate no optimizer state."""
        ends = self.step_ends[:WARM_UP]
        return ends[-1] if len(ends) == WARM_UP else 0

    @cached_property
    def settled_peak_at(self) -> int:
        """Event of the peak after the warm-up."""
        alive = top = at = 0
        for event, (_, change) in enumerate(self.events):
            alive += change
            if alive > top and event >= self.settled_at:
                top, at = alive, event
        return at

    def settled_peak(
        self, blocks: Collection[int] = (), spans: Iterable[tuple[int, int, int]] = ()
    ) -> int:
        """Return the peak after the warm-up, in bytes, had some storages not been there.

        Args:
            blocks: storages that are never made.
            spans: (storage, first event, last event) between which it is not there.
        """
        removed = set(blocks)
        changes = [0] * (len(self.events) + 1)
        for event, (number, change) in enumerate(self.events):
            if number not in removed:
                changes[event] += change
        for number, begin, end in spans:
            block = self.blocks[number]
            if number in removed or begin < block.made or not self.is_counted(block):
                continue
            # Where it is freed meanwhile, the free itself must not count again.
            until = end if block.freed is None else min(end, block.freed)
            changes[min(begin, len(changes) - 1)] -= block.bytes
            changes[min(until, len(changes) - 1)] += block.bytes
        alive = top = 0
        for event, change in enumerate(changes[:-1]):
            alive += change
            top = max(top, alive if event >= self.settled_at else 0)
        return top

    def of_one_step(self, numbers: Iterable[int]) -> float:
        """Return the mean bytes that each step has added to retained storages."""
        total = sum(self.blocks[number].bytes for number in set(numbers))
        steps = {self.blocks[number].step for number in numbers}
        return total / len(steps) if steps else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "MemoryTrace":
        """Read back what `to_json` wrote."""
        lists = {
            "blocks": Block,
            "marks": Mark,
            "holdings": Holding,
            "growths": Growth,
            "gradients": GradientSpan,
            "batches": SequenceBatch,
            "allocator": AllocatorStep,
            "cache_calls": CacheCall,
        }
        read = {
            name: tuple(kind(**{key: _plain(item) for key, item in row.items()}) for row in rows)
            for name, kind in lists.items()
            for rows in [data[name]]
        }
        peak = data["device_peak"]
        return cls(**{**data, **read, "device_peak": DevicePeak(**peak) if peak else None})

    def write(self, folder: Path) -> None:
        """Write it into a folder that exists."""
        (folder / _FILE).write_text(json.dumps(self.to_json()))

    @classmethod
    def read(cls, folder: Path) -> "MemoryTrace":
        """Read back what `write` wrote.

        Raises:
            FileNotFoundError: there is none.
        """
        return cls.from_json(json.loads((folder / _FILE).read_text()))


def is_alive(block: Block, at: int) -> bool:
    """True if the storage is alive after the event `at`."""
    return block.made <= at and (block.freed is None or block.freed > at)


def _plain(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item
