"""The DataLoaders of a watched run: which of them are trained on, and where their epochs begin."""

import weakref
import zlib
from typing import Any

import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from hotlap.trace import frames

_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
"""Their own classes only: what a subclass does with its generator is not known."""


class WatchedLoader:
    """What is known of one DataLoader while the run is watched."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.where = ""
        self.function: frames.Function | None = None
        self.training = False
        self.feeds_steps = True
        """Waits for its batches are the training loop's, not an evaluation's."""
        self.starts: list[int] = []
        self.orders: list[tuple[int, int] | None] = []
        """What the order of each pass follows from, None if that is not known."""
        self.draws: list[tuple[int, int] | None] = []
        """Of each pass that is drawn: a checksum of the generator's state, and optimizers made."""
        self.batches = 0
        self.read: set[int] = set()
        """Passes of which batches were read since the last backward, by the steps before each."""
        self._trained: set[int] = set()
        """Those of which a backward has followed a batch."""
        self._before: list[int] = []
        """Batches before each pass."""
        self.newest = 0
        """Batches of the newest pass that were read since the last backward."""
        self._was_evaluated = False

    @property
    def is_trained_on(self) -> bool | None:
        """True if its batches belong to steps; None if nothing has been seen that tells."""
        return None if not self.training and not self._was_evaluated else self.training

    def begin(self, steps: int, loader: Any, optimizers: int = 0) -> None:
        """An iterator of a loader over this data set was made, after so many steps and optimizers.

        A pass in which no step was taken, to look at the data or to evaluate on them, is no epoch:
        the next one takes its place.
        """
        if not self.starts:
            # Before the first step nothing tells a loader of training from another one that comes
            # before it in `zip`; what is begun later evaluates, until a backward follows.
            self.feeds_steps = steps == 0
        if self.starts[-1:] == [steps]:
            self._forget_pass()
            if not self.training:
                self.where, self.function = "", None
        self.starts.append(steps)
        self.orders.append(_order_of(loader))
        state = _drawn_from(loader)
        self.draws.append(None if state is None else (state, optimizers))
        self._before.append(self.batches)
        self.newest = 0

    def evaluate(self) -> None:
        """What was read of the newest pass was evaluated."""
        self._was_evaluated = True
        self.read.discard(self.starts[-1] if self.starts else -1)

    def may_be_trained_on(self, evaluates_first: bool) -> bool:
        """True if a backward that begins may be of what was read.

        One batch may be evaluated and then trained on, as where a model is its own teacher. Of
        evaluations before the first training forward nothing is heard but that there were some.
        """
        is_known = not evaluates_first or bool(self._trained)
        return self.newest == 1 or (self.newest > 1 and bool(self.read) and is_known)

    def train(self) -> None:
        """A backward follows what was read.

        Where an earlier pass goes on, those begun since, of which no batch was trained on, have
        only evaluated on the same data.
        """
        self.newest = 0
        if not self.read:
            return
        newest = max(self.read)
        self._trained |= self.read
        self.read.clear()
        while self.starts[-1:] > [newest] and self.starts[-1] not in self._trained:
            self._forget_pass()
            # What has just been read is of the pass that goes on.
            self.batches += 1

    def _forget_pass(self) -> None:
        del self.starts[-1], self.orders[-1], self.draws[-1]
        self.batches = self._before.pop()

    def batches_left(self) -> int | None:
        """Return the batches that are left in the epoch, None if the loader has no length."""
        length = length_of(self.loader)
        return None if length is None else length - (self.batches - self._before[-1])


class Loaders:
    """All DataLoaders of a run; those over the same data set count as one."""

    def __init__(self) -> None:
        self._known: dict[int, WatchedLoader] = {}
        self._iterators: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []
        self._last: WatchedLoader | None = None
        self._read: list[WatchedLoader] = []
        """Those taken for an evaluation's, of which batches were read and not yet evaluated."""
        self.starts: list[list[int]] = []
        """Of each training loader."""

    @property
    def all(self) -> list[WatchedLoader]:
        """Every one, in the order in which they were begun."""
        return [*self._known.values()]

    @property
    def training(self) -> list[WatchedLoader]:
        """Those that are trained on, as far as the run has shown."""
        return [known for known in self._known.values() if known.training]

    def find(self, iterator: Any) -> WatchedLoader | None:
        """Return the loader of an iterator, None if that was made before anything was heard."""
        return getattr(iterator, "_hotlap_loader", None)

    def is_trained_on(self, iterator: Any) -> bool | None:
        """True if a batch of this iterator belongs to a step; None if nothing tells so far."""
        known = self.find(iterator)
        return False if known is None else known.is_trained_on

    def place(self, loader: Any, iterator: Any) -> WatchedLoader:
        """Let `find` know an iterator; return the loader that it belongs to."""
        known = self._known.setdefault(id(loader.dataset), WatchedLoader(loader))
        iterator._hotlap_loader = known
        return known

    def begin(self, loader: Any, iterator: Any, steps: int, optimizers: int = 0) -> None:
        """An iterator was made after so many steps, and after so many optimizers were made."""
        self.place(loader, iterator).begin(steps, loader, optimizers)
        iterator._hotlap_pass = (steps,)
        others = [pair for pair in self._iterators if pair[1]() not in (None, iterator)]
        self._iterators = others
        self._iterators.append((weakref.ref(loader), weakref.ref(iterator)))

    def open_iterators(self) -> list[tuple[Any, Any]]:
        """Return (loader, iterator) of all iterators that the script still holds."""
        pairs = [(loader(), iterator()) for loader, iterator in self._iterators]
        return [pair for pair in pairs if None not in pair]

    def read(self, iterator: Any) -> WatchedLoader | None:
        """A batch was read; return the loader that it came from."""
        known = self.find(iterator)
        if known is not None:
            known.batches += 1
            known.newest += 1
            known.read.update(getattr(iterator, "_hotlap_pass", ()))
            self._last = known
            if not known.feeds_steps:
                self._read.append(known)
        return known

    def evaluate(self) -> None:
        """A forward of an evaluation has ended."""
        self._read.clear()
        known = self._last
        if known is not None:
            known.evaluate()
            known.feeds_steps = known.feeds_steps and known.training

    def train(self, *, evaluates_first: bool = False) -> None:
        """A backward begins: what was read last is trained on.

        But for several batches that were only evaluated: a script may draw what it trains on.

        Args:
            evaluates_first: True if models were evaluated before the first training forward.
        """
        known = self._last
        if known is not None:
            if not known.training and known.may_be_trained_on(evaluates_first):
                known.training = known.feeds_steps = True
                self.starts = [each.starts for each in self.training]
            known.train()
        # Several loaders, as in `zip`: a step is of a batch of each.
        while self._read:
            each = self._read.pop()
            # An evaluation that nothing was heard of, as by a copy of the model, reads several.
            each.feeds_steps = each.feeds_steps or each.newest <= 1

    def epochs(self) -> int | None:
        """Return how often training loaders were begun, None if there is none."""
        return max((len(known.starts) for known in self.training), default=None)

    def left_in_epoch(self) -> int | None:
        """Return the batches left of the training loader's epoch, None if that is not known."""
        known = self._last
        return known.batches_left() if known is not None and known.training else None


def length_of(data: Any) -> int | None:
    """Return the length of a data set or a loader, None if it has none."""
    try:
        return len(data)
    except Exception:
        # Whatever a data set raises whose length the script never asks for.
        return None


def _order_of(loader: Any) -> tuple[int, int] | None:
    """Return seed and epoch of the loader's shuffling `DistributedSampler`, None without one."""
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        # A subclass may make none of its attributes.
        if isinstance(sampler, DistributedSampler) and getattr(sampler, "shuffle", False):
            return getattr(sampler, "seed", 0), getattr(sampler, "epoch", 0)
    return None


def _drawn_from(loader: Any) -> int | None:
    """Return a checksum of the state that a pass is drawn from, None if it is not drawn."""
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
        if type(sampler) in _DRAWING:
            generator = getattr(sampler, "generator", None) or torch.default_generator
            return zlib.crc32(bytes(generator.get_state().numpy()))
    return None
