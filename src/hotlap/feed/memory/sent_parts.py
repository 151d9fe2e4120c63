"""`Sender`: in a worker, pickles random states and first parts of samples beside each batch."""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import pin_memory

from hotlap import rng
from hotlap.feed.memory.parcel import end_with_parent, is_plain, open_leaf, parcel, written
from hotlap.feed.memory.received_parts import DividedParts
from hotlap.feed.memory.worker_streams import States, are_equal, seeded_state


@dataclass
class Note:
    """What comes along with a worker's batch."""

    before: States
    """The worker's random states before it read the batch."""
    after: States
    statements: int | None
    """How many stand before the first draw, None while that is looked for."""
    parts: dict[Any, tuple[Any, ...]]
    """By `key_of` the index."""
    refused: str | None


class _SentParts(DividedParts):
    """First parts that are sent away as soon as they are computed."""

    def take(self) -> dict[Any, tuple[Any, ...]]:
        """Return what was computed since the last call."""
        held, self._held, self.bytes = self._held, {}, 0
        return held


class Sender:
    """A data set as workers read it, and the collate function that they use.

    Args:
        dataset: the data set.
        read_samples: reads a list of samples from it, as torch does.
        collate: the DataLoader's.
        max_bytes: to be held at once in one worker.
    """

    def __init__(
        self,
        dataset: Any,
        read_samples: Callable[[Any], list[Any]],
        collate: Callable[[Any], Any],
        max_bytes: int,
    ) -> None:
        self.dataset = dataset
        self._read, self._collate, self._max_bytes = read_samples, collate, max_bytes
        # Shared with the workers, which may have started long before something is to be sent.
        self._statements = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()
        self._parts: _SentParts | None = None
        self._before: States | None = None
        self._is_new = True

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        # Whoever asks a worker for its data set.
        if name.startswith("__") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def send(self, statements: int) -> None:
        """Let workers send what so many statements compute; nothing if that is 0."""
        self._statements.fill_(statements)

    def __getitems__(self, indices: Any) -> list[Any]:
        if isinstance(indices, Continued):
            rng.restore(indices.states)
            indices = indices.indices
        if not self._statements:
            self._is_new = False
            return self._read(indices)
        if self._parts is None:
            self._parts = _SentParts(self._max_bytes)
            self._parts.look(self.dataset)
            self._parts.divide_after(int(self._statements))
            if self._is_new and not _is_as_seeded():
                self._parts.refuse("this version of torch seeds its workers in another way")
        self._is_new = False
        self._before = rng.global_random_states()
        return self._parts.fetch(self.dataset, self._read, indices)

    def collate(self, samples: Any) -> Any:
        """Make a batch of samples; in a worker, one that takes its note along."""
        if get_worker_info() is None:
            # The script may call it as well.
            return self._collate(samples)
        end_with_parent()
        batch = parcel(self._collate(samples))
        before, self._before = self._before, None
        if before is None or self._parts is None:
            return batch
        statements, refused = self._parts.statements, self._parts.refused
        after = rng.global_random_states()
        note = Note(before, after, statements, self._parts.take(), refused)
        try:
            return Noted(batch, _bytes_of(note))
        except Exception as error:
            why = f"what is computed before the first draw cannot be pickled: {error}"
            return Noted(batch, _bytes_of(replace(note, parts={}, refused=why)))


class Continued:
    """Indices for a worker that is to draw from given random states on."""

    def __init__(self, indices: Any, states: States) -> None:
        self.indices, self.states = indices, states


class Noted:
    """A batch and its note, as bytes: tensors of their own would each need a handle."""

    def __init__(self, batch: Any, note: bytes) -> None:
        self.batch, self._note = batch, note

    def note(self) -> Note:
        """Return the note."""
        return pickle.loads(self._note)

    def pin_memory(self, device: Any = None) -> "Noted":
        """Pin the batch, as torch's thread asks of what it does not know."""
        self.batch = pin_memory.pin_memory(self.batch, device)
        return self


def _is_as_seeded() -> bool:
    """True if this worker's random states are those that torch gives a new worker."""
    info = get_worker_info()
    if info is None:
        return False
    expected = seeded_state(info.seed - info.id, info.id)
    return are_equal(expected, rng.global_random_states())


def _bytes_of(note: Note) -> bytes:
    written_to = io.BytesIO()
    _Pickler(written_to, pickle.HIGHEST_PROTOCOL).dump(note)
    return written_to.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles tensors as plain bytes."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor and is_plain(obj):
            return open_leaf, written(obj)
        return NotImplemented
