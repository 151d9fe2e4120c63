"""What grows in every step: the sizes of containers and graphs, compared from step to step."""

import itertools
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

import torch

from hotlap.trace import frames
from hotlap.trace.holders import Held, users_files
from hotlap.trace.memory_ledger import MemoryLedger
from hotlap.trace.memory_schema import Growth
from hotlap.trace.object_sizes import count_filled, graph_of, newest_of, sizes_of
from hotlap.trace.source.rebinding import line_that_rebinds, line_that_tests_length
from hotlap.trace.source.statements import files_with, line_that_grows, line_that_removes

LEAST_GROWN = 3
"""Steps in each of which something must have grown."""
_ANY = -1
"""Stands for the identity of whatever a name leads to."""


class GrowthFinder:
    """Compares what was found in each step with what was found in the steps before.

    Args:
        ledger: knows the storages of tensors.
        steps: that are remembered.
    """

    def __init__(self, ledger: MemoryLedger, steps: int) -> None:
        self._ledger = ledger
        self._sizes: deque[dict[tuple[str, int], int]] = deque(maxlen=steps)
        self._newest = -1
        """Number of the newest node that a graph had in the steps before."""

    def find(self, held: Sequence[Held], frame: FrameType | None) -> tuple[Growth, ...]:
        """Return what of all that was found now has grown in every one of the last steps."""
        self._sizes.append(sizes_of_held(held, self._newest))
        roots = [each.value for each in held if isinstance(each.value, torch.Tensor)]
        self._newest = max([self._newest, *graph_of(roots).numbers])
        if len(self._sizes) <= LEAST_GROWN:
            return ()
        found = []
        for each in held:
            known = [row.get((each.name, id_of(each))) for row in self._sizes]
            if count_grown(known) < LEAST_GROWN:
                # As in `kept = kept[-n:]`: another container under the same name, in every step.
                known = [row.get((each.name, _ANY)) for row in self._sizes]
                if count_grown(known) < count_observed(known):
                    continue
            # A container that shrinks now and then is bounded; a sum of losses may begin again.
            if not isinstance(each.value, torch.Tensor) and has_shrunk(known):
                continue
            steps = count_grown(known)
            if steps >= LEAST_GROWN:
                begin, end = known[-1 - LEAST_GROWN] or 0, known[-1] or 0
                growth = self._growth(each, (end - begin) / LEAST_GROWN, frame)
                found.append(replace(growth, steps=steps, observed=count_observed(known)))
        return tuple(found)

    def _growth(self, held: Held, rate: float, frame: FrameType | None) -> Growth:
        value = held.value
        seen: list[torch.Tensor] = []
        host = 0
        if isinstance(value, torch.Tensor):
            seen.append(value)
        elif isinstance(value, bytearray):
            host = 1
        else:
            count = min(len(value), max(1, round(rate) * LEAST_GROWN))
            newest = newest_of(value, count)
            host = sizes_of(newest, seen.append) / max(1, len(newest)) + 8
            sizes_of(value, seen.append)
        with_graph = [tensor for tensor in seen if tensor.grad_fn is not None]
        nodes = graph_of(with_graph).nodes if with_graph else 0
        ledger = self._ledger
        old = range(1, ledger.step - 1)
        blocks = [n for n in numbers_of(ledger, seen) if ledger.entries[n].step in old]
        kind, where, limit = self._source_of(held, frame)
        return Growth(
            name=held.name,
            where=where,
            kind=kind,
            items=rate,
            host_bytes=host * rate,
            nodes=nodes / max(1, len(ledger.step_ends)),
            blocks=tuple(blocks),
            has_graph=bool(with_graph),
            scalars=bool(seen) and all(tensor.numel() == 1 for tensor in seen),
            maxlen=max_length_of(held),
            samples=self._samples_of(held),
            removed=f"{frames.shorten_path(limit[0])}:{limit[1]}" if limit else "",
        )

    def _source_of(
        self, held: Held, frame: FrameType | None
    ) -> tuple[str, str, tuple[str, int] | None]:
        """Return the kind of a holder, where it grows, and where it may be limited."""
        files = list(dict.fromkeys([held.file, *users_files(frame)]))
        file, line = _place_of(held, files)
        where = f"{frames.shorten_path(file)}:{line}" if line else ""
        where = where or frames.location_of(frame) or frames.shorten_path(file)
        if isinstance(held.value, torch.Tensor):
            return "graph", where, None
        kind = "lru_cache" if held.cached is not None else type(held.value).__name__
        limit = (
            line_that_removes(files, held.name, kind)
            or line_that_rebinds([file, *files], held.name, line)
            or line_that_tests_length(files, held.name)
        )
        return kind, where, limit

    def _samples_of(self, held: Held) -> int | None:
        """Return how many samples a dataset has whose cache a container is; None if it is none.

        What a dataset keeps by keys or in places, one for each sample, is full after an epoch.
        """
        value = held.value
        if held.dataset is None or not isinstance(value, dict | set | list):
            return None
        kept = count_filled(value)
        try:
            with self._ledger.pause():
                samples = len(held.dataset)
        except Exception:
            # The user's own code, or a dataset without a length.
            return None
        if isinstance(value, list) and not kept < len(value) <= samples:
            return None
        return samples if kept < samples else None


def _place_of(held: Held, files: Sequence[str]) -> tuple[str, int | None]:
    """Return file and line that add to something; no line if none is found."""
    function = getattr(held.cached, "__wrapped__", None)
    if function is not None and hasattr(function, "__code__"):
        return function.__code__.co_filename, function.__code__.co_firstlineno
    others = files_with(files, [held.name]) if "." in held.name else ()
    places = [(held.file, ""), *((file, "") for file in others)]
    if held.owner is not None:
        places = [held.owner, (held.owner[0], ""), *places]
    for file, scope in places:
        line = line_that_grows(file, held.name, scope)
        if line is not None:
            return file, line
    return held.file, None


def max_length_of(held: Held) -> int | None:
    """Return the length that a holder cannot exceed, None if there is none."""
    if held.cached is not None:
        return held.cached.cache_parameters()["maxsize"]
    return getattr(held.value, "maxlen", None)


def numbers_of(ledger: MemoryLedger, held: Sequence[torch.Tensor]) -> list[int]:
    """Return the numbers of the storages that tensors hold, in their graphs too."""
    with_graph = [tensor for tensor in held if tensor.grad_fn is not None]
    everything = [*held, *(graph_of(with_graph).tensors if with_graph else ())]
    found = {number for each in everything if (number := ledger.find(each)) is not None}
    return sorted(found)


def has_shrunk(sizes: Sequence[int | None]) -> bool:
    """True if something was ever smaller than one step before; None where it was not there."""
    pairs = itertools.pairwise(sizes)
    return any(a is not None and b is not None and b < a for a, b in pairs)


def count_grown(sizes: Sequence[int | None]) -> int:
    """Return in how many steps in a row, up to the last, something grew."""
    count = 0
    for before, after in reversed(list(itertools.pairwise(sizes))):
        if before is None or after is None or after <= before:
            break
        count += 1
    return count


def count_observed(sizes: Sequence[int | None]) -> int:
    """Return the steps of which it is known whether something grew in them."""
    return max(0, sum(size is not None for size in sizes) - 1)


def sizes_of_held(held: Sequence[Held], newest: int) -> dict[tuple[str, int], int]:
    """Return the sizes of containers and graphs by name and identity, and by name if it is unique.

    Graphs are known by their names; `newest` is explained at `size_of`.
    """
    sizes = {(each.name, id_of(each)): size_of(each, newest) for each in held}
    names = Counter(name for name, _ in sizes)
    alone = {(name, _ANY): size for (name, _), size in sizes.items() if names[name] == 1}
    return {**sizes, **alone}


def id_of(held: Held) -> int:
    """Return what tells a container from another of its name; a graph's tensor may be replaced."""
    return 0 if isinstance(held.value, torch.Tensor) else id(held.value)


def size_of(held: Held, newest: int) -> int:
    """Return the elements of a container, or the nodes of a graph that earlier steps have made.

    The whole graph may be larger than that of the step before, because its sequences are longer.

    Args:
        held: what is held.
        newest: number of the newest node that a graph had before this step.
    """
    if not isinstance(held.value, torch.Tensor):
        return count_filled(held.value)
    graph = graph_of([held.value])
    return sum(number <= newest for number in graph.numbers) if graph.numbers else graph.nodes
