"""Patches that hear DataLoaders: iterators that are made or begun again, and batches."""

import functools
import threading
from typing import Any

from torch.utils.data import dataloader as _dataloader

from hotlap.attach.listener import State


def is_main_thread() -> bool:
    """Return whether this is the thread that Python was started in."""
    return threading.current_thread() is threading.main_thread()


def patch_iterators() -> None:
    """Tell of the passes over DataLoaders, and let a listener make their iterators."""
    original = _dataloader.DataLoader._get_iterator

    @functools.wraps(original)
    def _get_iterator(self: Any) -> Any:
        listener = State.listener
        if listener is None:
            return original(self)
        make = listener.iterator_wanted(self)
        is_main = is_main_thread()
        State.feed_depth += is_main
        try:
            iterator = original(self) if make is None else make(self, lambda: original(self))
        finally:
            State.feed_depth -= is_main
        listener.iterator_made(self, iterator)
        return iterator

    _dataloader.DataLoader._get_iterator = _get_iterator
    begin = _dataloader.DataLoader.__iter__

    @functools.wraps(begin)
    def __iter__(self: Any) -> Any:
        kept = getattr(self, "_iterator", None)
        iterator = begin(self)
        listener = State.listener
        if listener is not None and kept is not None and iterator is kept:
            listener.pass_begun(self, iterator)
        return iterator

    _dataloader.DataLoader.__iter__ = __iter__


def patch_batches() -> None:
    """Tell of each batch that the script asks for."""
    original = _dataloader._BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        listener = State.listener
        if listener is None:
            return original(self)
        listener.batch_begins(self)
        is_main = is_main_thread()
        State.feed_depth += is_main
        # Also when it raises StopIteration: the wait for it was a wait for data.
        try:
            batch = original(self)
        except BaseException:
            State.feed_depth -= is_main
            listener.batch_ends(self, None)
            raise
        State.feed_depth -= is_main
        return listener.batch_ends(self, batch)

    _dataloader._BaseDataLoaderIter.__next__ = __next__
