"""`SpotSampler`: a thread that samples the time spent in each statement of the training loop."""

import ast
import collections
import itertools
import linecache
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import FrameType
from typing import Any, TypeVar

from hotlap.trace import frames
from hotlap.trace.clock import FORWARD, OTHER, PhaseClock
from hotlap.trace.lines import TEXT
from hotlap.trace.schema import PHASES, HotLine, Spot
from hotlap.trace.source.loops import InnerLoop, loop_at, walk_of_objects_at
from hotlap.trace.source.statements import covers, tree_of
from hotlap.usercode import is_hotlaps

_EVERY_S = 0.01
_MOST_SPOTS = 60
_MOST = 0.5
"""Share of a statement's time from which on one line, or one function, stands for it."""

_LAYERS, _LOSSES = "torch.nn.modules.", "torch.nn.modules.loss."
_CALLS = "_call_impl", "_wrapped_call_impl"

_T = TypeVar("_T")

Place = tuple[str, int, int, int]
"""A running function: its file, its first line, and line and column of what runs, -1 if unknown."""
Chain = tuple[Place, ...]
"""The user's running functions, from the innermost outwards."""


def chain_of(frame: FrameType | None) -> Chain:
    """Return the user's functions that are running in a frame and its callers."""
    return tuple(
        (each.f_code.co_filename, each.f_code.co_firstlineno, each.f_lineno, -1)
        for each in frames.user_frames(frame)
    )


class SpotSampler(threading.Thread):
    """Gives the time of the training thread to the lines that it is found at.

    A sample counts for the time since the one before: where a function keeps Python's other threads
    from running, as the garbage collector does, nothing is seen until it returns.

    Args:
        clock: knows the phase that the training thread is in.
    """

    def __init__(self, clock: PhaseClock) -> None:
        super().__init__(name="hotlap-spots", daemon=True)
        self.clock = clock
        self._ns: collections.Counter[tuple[int, Chain, str]] = collections.Counter()
        self._samples: collections.Counter[tuple[int, Chain, str]] = collections.Counter()
        self._target = threading.get_ident()
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        last = time.perf_counter_ns()
        while not self._ended.wait(_EVERY_S):
            key = self._look()
            now = time.perf_counter_ns()
            if key[1]:
                self._ns[key] += now - last
                self._samples[key] += 1
            last = now

    def _look(self) -> tuple[int, Chain, str]:
        phase, running = self.clock.current, frames.running_in(self._target)
        # A list first: a tuple grows while a generator fills it, which fails if the script takes
        # hold of it in a walk over all live objects.
        chain = tuple(
            [
                (each.code.co_filename, each.code.co_firstlineno, each.line, each.column)
                for each in running
                if each.is_users
            ]
        )
        return phase, chain, _library_of(running)

    def stop(self) -> None:
        """End the thread; nothing is sampled after that."""
        self._ended.set()
        self.join()

    def lines(self) -> tuple[HotLine, ...]:
        """Return the hottest lines of each phase, with their share of its time."""
        ns: collections.Counter[tuple[int, str, int]] = collections.Counter()
        samples: collections.Counter[tuple[int, str, int]] = collections.Counter()
        totals: collections.Counter[int] = collections.Counter()
        for key, spent in self._ns.items():
            phase, chain, _ = key
            place = phase, chain[0][0], chain[0][2]
            ns[place] += spent
            samples[place] += self._samples[key]
            totals[phase] += spent
        return tuple(
            HotLine(
                PHASES[phase],
                _where(file, line),
                spent / totals[phase],
                linecache.getline(file, line).strip()[:TEXT],
                samples[phase, file, line],
            )
            for (phase, file, line), spent in ns.most_common(_MOST_SPOTS)
        )

    def spots(self, stepping: Iterable[Chain], evaluating: Iterable[Chain]) -> tuple[Spot, ...]:
        """Return the statements that time was spent in, those with most first.

        Args:
            stepping: where an optimizer was stepped, and where backward was called.
            evaluating: where the model was called without gradients.
        """
        calls: _Calls = collections.defaultdict(frozenset)
        for file, first, line, _ in itertools.chain.from_iterable(stepping):
            calls[file, first] |= {line}
        evaluates = {_statement(chain, calls) for chain in evaluating}
        total = sum(self._ns.values())
        found: dict[tuple[Any, ...], _Tally] = collections.defaultdict(_Tally)
        for key, spent in self._ns.items():
            phase, chain, library = key
            loop = _loop_of(chain, calls)
            # The model's forward is one statement, with loops in it or without.
            apart = None if phase == OTHER or loop is None else loop[0]
            statement = _statement(chain, calls)
            if statement is None and phase == FORWARD:
                # As in `(loss(model(x)) + penalty(model)).backward()`.
                statement = _calling_line(chain, calls)
            tally = found[phase, statement, apart]
            tally.samples += self._samples[key]
            tally.add(chain, library, loop, spent)
        ranked = sorted(found.items(), key=lambda item: -item[1].ns)
        return tuple(
            tally.spot(PHASES[phase], statement, total, statement in evaluates)
            for (phase, statement, _), tally in ranked[:_MOST_SPOTS]
            if statement is not None
        )


_Loop = tuple[str, InnerLoop]
"""Where a loop is, and what it is over."""


@dataclass
class _Tally:
    """What was sampled below one statement."""

    ns: int = 0
    samples: int = 0
    lines: collections.Counter[tuple[str, int]] = field(default_factory=collections.Counter)
    libraries: collections.Counter[str] = field(default_factory=collections.Counter)
    loops: collections.Counter[_Loop | None] = field(default_factory=collections.Counter)
    walks: collections.Counter[tuple[str, int] | None] = field(default_factory=collections.Counter)
    """Lines that ask for all objects that live, of the walks over these."""

    def add(self, chain: Chain, library: str, loop: _Loop | None, spent: int) -> None:
        file, _, line, _ = chain[0]
        self.ns += spent
        self.lines[file, line] += spent
        self.libraries[library] += spent
        self.loops[loop] += spent
        asking = walk_of_objects_at(file, line)
        self.walks[None if asking is None else (file, asking)] += spent

    def spot(self, phase: str, statement: tuple[str, int], total: int, evaluates: bool) -> Spot:
        line = self._main(self.walks) or self._main(self.lines) or statement
        loop = self._main(self.loops)
        return Spot(
            phase=phase,
            statement=_where(*statement),
            where=_where(*line),
            library=self._main(self.libraries) or "",
            share=self.ns / total,
            samples=self.samples,
            text=linecache.getline(*line).strip()[:TEXT],
            loop=loop[1].text[:TEXT] if loop else "",
            loop_where=loop[0] if loop else "",
            over_parameters=loop is not None and loop[1].over == "parameters",
            evaluates=evaluates,
            runs_layers=self._layers_ns() >= _MOST * self.ns,
            in_own_line=self._main(self.lines) == statement,
        )

    def _layers_ns(self) -> int:
        names = [name for name in self.libraries if name.startswith(_LAYERS)]
        layers = [name for name in names if name.endswith((".forward", *_CALLS))]
        return sum(self.libraries[name] for name in layers if not name.startswith(_LOSSES))

    def _main(self, counter: "collections.Counter[_T]") -> "_T | None":
        """Return what most of the time is spent in, None if there is no such one."""
        ((value, spent),) = counter.most_common(1)
        return value if spent >= _MOST * self.ns else None


def _library_of(running: Sequence[frames.Running]) -> str:
    """Return the library's function that the user's innermost function has called, if any."""
    inner = None
    for each in running:
        if each.is_users:
            break
        is_call = each.code.co_name in _CALLS and each.module == "torch.nn.modules.module"
        if not is_hotlaps(each.code.co_filename) and not (is_call and inner):
            inner = each
    return "" if inner is None else f"{inner.module}.{inner.code.co_qualname}"


def _where(file: str, line: int) -> str:
    return f"{frames.shorten_path(file)}:{line}"


_Calls = dict[tuple[str, int], frozenset[int]]
"""Functions that run during an update or a backward -> the lines that run then."""


def _statement(chain: Chain, calls: _Calls) -> tuple[str, int] | None:
    """Return file and line of the whole statement, beside the step, that a place belongs to."""
    for file, first, line, _ in chain:
        if (file, first) in calls:
            found = outermost_statement(file, line, calls[file, first])
            return None if found is None else (file, found)
    return None


def _calling_line(chain: Chain, calls: _Calls) -> tuple[str, int] | None:
    """Return file and line of the place in a function that backward or an update is called in."""
    return next(((file, line) for file, first, line, _ in chain if (file, first) in calls), None)


def _loop_of(chain: Chain, calls: _Calls) -> _Loop | None:
    """Return the outermost loop around a place that does not hold the step, nor runs layers."""
    found = None
    for file, first, line, column in chain:
        steps = calls.get((file, first), frozenset())
        loop = loop_at(file, line, steps, column)
        if loop is not None and loop.over != "modules":
            found = (_where(file, loop.line), loop)
        if steps:
            break
    return found


@lru_cache(maxsize=1024)
def outermost_statement(file: str, line: int, without: frozenset[int]) -> int | None:
    """Return where the largest statement begins that holds one line and none of others.

    What a loop goes over is a statement by itself.
    """
    tree = tree_of(file)
    if tree is None:
        return line if line not in without else None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and covers(node, line)
        and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    apart = [node.lineno for node in around if not any(covers(node, each) for each in without)]
    is_header = any(isinstance(node, ast.For) and covers(node.iter, line) for node in around)
    return min(apart, default=line if is_header and line not in without else None)
