"""`Retries`: a step that ran out of memory is taken again, in smaller micro-batches.

What is learned stays the same: a step's gradient does not depend on how it is split, and everything
that the failed attempt changed is put back first. An attempt that has begun to change weights is
not repeated.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotlap.engine.build import BuiltRun
from hotlap.engine.checks.splitting import why_not_smaller
from hotlap.engine.step.transaction import CannotRestore, Transaction
from hotlap.errors import DoesNotFit, RunError

MicroBatches = list[tuple[int, Any]]


@dataclass(frozen=True)
class Retry:
    """One step that was taken again."""

    step: int
    """Its number, from 1."""
    samples: int
    """Of the largest micro-batch that did not fit."""
    then: int
    """Most samples of a micro-batch from there on."""


class Retries:
    """Takes steps of one run again where memory runs out.

    Args:
        built: the run; its source is told how many samples a micro-batch may have.
        notice: called with each retry, in words.
    """

    def __init__(self, built: BuiltRun, notice: Callable[[str], None]) -> None:
        self.done: list[Retry] = []
        self._built, self._notice = built, notice
        has_cuda = built.hardware.kind == "cuda"
        self._transaction = Transaction(built.model, built.step, has_cuda=has_cuda)
        self.keep = self._transaction.keep
        """Called before each step."""
        self._tried: list[int] = []
        """Samples of the attempts at the newest step that failed."""
        self._number = 0

    def check(
        self,
        error: RuntimeError,
        micros: MicroBatches | None,
        number: int,
        *,
        has_begun: bool = False,
    ) -> None:
        """Raise if a step cannot be taken again.

        Args:
            error: what it ran out of memory with.
            micros: its micro-batches, None if they were being made.
            number: of the step, from 1.
            has_begun: updates of several steps were launched.

        Raises:
            DoesNotFit: it was tried in all sizes.
            RunError: its update has begun, or other ranks do not take it again.
        """
        built = self._built
        samples = max(n for n, _ in micros) if micros else built.source.micro
        ranks = built.step.ranks
        if ranks is not None and micros is not None:
            if not ranks.is_repeated:
                raise RunError(
                    f"step {number} ran out of memory on rank {built.reduce.rank} ({error}) after "
                    "the backward pass, while gradients were reduced, clipped or applied. With "
                    "several ranks, this part cannot be repeated, and smaller micro-batches do not "
                    "help. Unless the plan has it already, resume with --resume auto and level = "
                    "'parameters' in the plan's [techniques.sharding]. Otherwise, start a new run "
                    "with a smaller model."
                ) from error
            # All ranks decide alike: of a short last step, one of them may have a single sample.
            samples = min(built.source.micro, ranks.samples)
        if number != self._number:
            self._number, self._tried = number, []
        self._tried.append(samples)
        if has_begun or (micros is not None and built.step.update.has_begun):
            raise RunError(
                f"step {number} ran out of memory while the optimizer changed the weights, so they "
                f"may be partly updated, and the run ends. Free memory of {built.device} that "
                "other processes use and resume with --resume auto, or start a new run with a "
                "smaller model or an optimizer that has less state. Smaller micro-batches do "
                "not help."
            ) from error
        why_not = why_not_smaller(built.task, built.model, built.step.target)
        if samples > 1 and why_not is None:
            return
        if why_not is not None and len(self._tried) == 1:
            # What other processes, or the last epoch's leftovers, have held may be free again.
            return
        sizes = ", ".join(map(str, dict.fromkeys(self._tried)))
        split = "" if why_not is None else f" The step is not split, as {why_not}."
        raise DoesNotFit(
            f"step {number} does not fit into the memory of {built.device}. Sizes of micro-batches "
            f"that were tried: {sizes}.{split}",
            remedy="Use a smaller model, shorter samples, `recompute` or a lower precision.",
        ) from error

    def prepare(self, asked: str, *, was_read: bool) -> None:
        """Put everything back, release memory, and let the source make smaller micro-batches.

        Nothing may hold the failed attempt any more: neither its exception nor its batches.

        Args:
            asked: what the allocator said.
            was_read: the step's batches were there, so that the step itself has begun.

        Raises:
            RunError: something cannot be put back.
        """
        built, number, samples = self._built, self._number, self._tried[-1]
        try:
            unknown: tuple[str, ...] = ()
            if was_read:
                unknown = self._transaction.put_back()
            else:
                # Batches may have another form from now on.
                built.step.executor.forget()
        except CannotRestore as error:
            raise RunError(
                f"step {number} ran out of memory in micro-batches of {samples} ({asked}), and "
                f"cannot be repeated: {error}. Resume from the last checkpoint with smaller "
                f"micro-batches, as in --resume auto --micro-batch {-(-samples // 2)}."
            ) from error
        # Frames in cycles hold activations.
        gc.collect()
        built.hardware.release_memory()
        then = samples
        if why_not_smaller(built.task, built.model, built.step.target) is None:
            then = built.source.micro = -(-samples // 2)
        self.done.append(Retry(number, samples, then))
        self._notice(self._in_words(asked, unknown))

    def _in_words(self, asked: str, unknown: tuple[str, ...]) -> str:
        last = self.done[-1]
        what = f"step {last.step} ran out of memory in micro-batches of {last.samples} ({asked})"
        if last.then == last.samples:
            words = f"{what}: it is taken once more as it is"
        else:
            words = (
                f"{what}: it is taken again, and the rest of the run with it, in micro-batches of "
                f"at most {last.then}; what is learned is the same up to rounding"
            )
        if unknown:
            words += f"; the failed attempt may have drawn from {' and '.join(unknown)}"
        return words
