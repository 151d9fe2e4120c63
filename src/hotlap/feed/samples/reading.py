"""Reads samples from a dataset, several in one call where possible; collation errors."""

import logging
from collections.abc import Sequence
from typing import Any

from hotlap import rng
from hotlap.errors import RunError, UsageError
from hotlap.feed.purity.same_samples import samples_equal

log = logging.getLogger("hotlap")

_UNEQUAL = (
    "each element in list of batch should be of equal size",
    "stack expects each tensor to be equal size",
    # In a worker process, which stacks into shared memory.
    "Trying to resize storage that is not resizable",
)
"""What torch's default collation says of samples of different lengths."""


class BatchedReader:
    """Reads samples by a data set's `__getitems__`, where it gives what `__getitem__` gives.

    A data set may transform a batch as a whole, and pad it or draw for it: the first batch of each
    epoch is read both ways. A difference in the first one leaves `__getitems__` unused; a later
    one ends the run.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._looks = True
        self.batches = 0
        """Batches that were read together."""
        self.refused: str | None = None
        """Why samples are read one by one."""
        self._is_unknown = False
        """True if that is because samples cannot be compared."""

    def look_again(self) -> None:
        """Read the next batch both ways."""
        self._looks = True

    def read(self, wanted: Sequence[int]) -> list[Any]:
        """Return the samples at these positions.

        Raises:
            RunError: `__getitems__` gave other samples than `__getitem__`, after it had not.
        """
        if self.refused is None and not self._looks:
            self.batches += 1
            return self._dataset.__getitems__(wanted)
        states = rng.global_random_states()
        samples = [self._dataset[position] for position in wanted]
        if self.refused is None and rng.generator_that_advanced(states) is None:
            self._compare(wanted, samples, states)
        return samples

    def _compare(self, wanted: Sequence[int], samples: list[Any], states: Any) -> None:
        self._looks = False
        name = type(self._dataset).__name__
        try:
            others = self._dataset.__getitems__(list(wanted))
        except Exception as error:
            # One by one they can be read, and that is what counts.
            self.refused = f"{name}.__getitems__ raised {type(error).__name__}: {error}"
        else:
            if rng.generator_that_advanced(states) is not None:
                self.refused = f"{name}.__getitems__ draws random numbers"
            elif len(others) != len(samples):
                self.refused = f"{name}.__getitems__ gave {len(others)} samples, not {len(samples)}"
            else:
                self._compare_pairs(name, wanted, samples, others)
        rng.restore(states)
        if self.refused is None:
            return
        if self.batches and not self._is_unknown:
            raise RunError(
                f"{self.refused}, after {self.batches} batches in which `__getitems__` "
                "agreed with `__getitem__`. Make `__getitems__` return what `__getitem__` returns, "
                "or remove `__getitems__` from the dataset."
            )
        log.info("samples are read one by one: %s", self.refused)

    def _compare_pairs(
        self, name: str, wanted: Sequence[int], samples: list[Any], others: list[Any]
    ) -> None:
        for position, one, other in zip(wanted, samples, others, strict=True):
            try:
                is_same = samples_equal(one, other)
            except Exception as error:
                # That is no difference: what was read until now may stay.
                self._is_unknown = True
                self.refused = (
                    f"sample {position} of {name} cannot be compared "
                    f"({type(error).__name__}: {error})"
                )
                return
            if not is_same:
                self.refused = (
                    f"{name}.__getitems__ returned sample {position} unlike `__getitem__`"
                )
                return


def make_batched_reader(dataset: Any) -> BatchedReader | None:
    """Return what reads several samples of the data set in one call, None if it cannot."""
    return BatchedReader(dataset) if callable(getattr(dataset, "__getitems__", None)) else None


def explain_collation_error(error: Exception) -> Exception:
    """Return what a user can act on, where torch's collation met something it cannot stack.

    Any other error is returned as it is.
    """
    text = str(error)
    if "default_collate: batch must contain" in text:
        return UsageError(
            f"a sample holds {text.partition('found ')[2].strip()}, which cannot be collated. "
            "Expected: tensors, numpy arrays, numbers, and dicts, tuples and lists of these. "
            "Convert it in the dataset, or set the task's `collate`."
        )
    if any(words in text for words in _UNEQUAL):
        return UsageError(
            "default_collate cannot stack the samples of a batch, which differ in length or shape "
            f"(torch: {text.strip().splitlines()[-1]}). Set `collate=hotlap.pad(...)` in the task "
            "to pad them, or return samples of one shape."
        )
    return error
