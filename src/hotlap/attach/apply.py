"""`PlanInProcess`: applies and switches techniques on a script's loaders, models, optimizers."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hotlap.attach import on_ranks, seams
from hotlap.device import process_settings
from hotlap.errors import DIFFERS
from hotlap.feed.memory.place import HostPlace
from hotlap.plan import Plan
from hotlap.techniques import FeedTarget, ModelTarget, Numerics, OptimizerTarget, Technique
from hotlap.techniques.applying import Applied, recorded_operators
from hotlap.techniques.record import MakeIterator
from hotlap.trace.facts import length_of
from hotlap.trace.identity import IdentityTable


class PlanInProcess:
    """A plan while it is applied to one process.

    Args:
        plan: what to apply; checked before.
        extra: techniques from outside, as `module:NAME`.
        fill_ahead: let the feed reach its steady state at once.
        is_rank: the process was started as one of several ranks.
        meeting: a file in which ranks of this machine find what they share, None without one.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        extra: tuple[str, ...] = (),
        fill_ahead: bool = False,
        is_rank: bool = False,
        meeting: Path | None = None,
    ) -> None:
        self._applied = Applied(plan, extra, why_not=self._why_not)
        self._is_rank, self._meeting = is_rank, meeting
        self._tables: Any = None
        self.fill_ahead = fill_ahead
        # By data set, then by the function that makes its batches.
        self._feeds: IdentityTable[dict[Any, FeedTarget]] = IdentityTable(self._drop_all)
        self._optimizers: IdentityTable[_Stepped] = IdentityTable(
            lambda stepped: self._applied.drop(stepped.target)
        )
        self._recorder: Any = None
        self._after_step: list[Callable[[], None]] = []
        self._on_optimizers = self.wants("optimizer")
        self.follows_steps = self._on_optimizers
        """True if `step_begins` and `step_ends` do anything: a plan without techniques of an
        optimizer or of the process is not told of steps."""
        self._switched_off: dict[str, str] = {}

    def _is_on_ranks(self) -> bool:
        # A script may start the other ranks itself, and then be one of them.
        return self._is_rank or on_ranks.ranks_in_group() > 1

    def _why_not(self, technique: Technique, options: Any) -> str | None:
        return on_ranks.why_not(technique, options) if self._is_on_ranks() else None

    def start(self) -> None:
        """Set the switches that are global to the process."""
        # Before the script has chosen a device: nothing may be begun on one.
        device = "cuda" if process_settings.has_cuda() else "cpu"
        self._after_step = self._applied.start(device).after_step
        self.follows_steps = self._on_optimizers or bool(self._after_step)

    def wants(self, seam: str) -> bool:
        """True if a technique of the plan acts at that seam."""
        return self._applied.wants(seam)

    def iterator_wanted(self, loader: Any) -> MakeIterator | None:
        """Apply the feed techniques to a data set that is seen for the first time.

        Returns:
            What makes the iterator in torch's place, if a technique does.
        """
        if not self.wants("feed"):
            return None
        target = self._feed_target(loader)
        if target is None:
            if self._is_on_ranks():
                # Asked late: a spawned rank learns how many there are from its process group.
                HostPlace.sharers = on_ranks.ranks_on_machine()
                self._tables = self._tables or on_ranks.tables(self._meeting)
            target = FeedTarget(
                loader,
                fill_ahead=self.fill_ahead,
                size=length_of(loader.dataset) or 0,
                tables=self._tables,
            )
            targets = self._feeds.get(loader.dataset)
            if targets is None:
                self._feeds.put(loader.dataset, targets := {})
            targets[_code_of(loader.collate_fn)] = target
            self._apply("feed", target)
            target.loader = None
        else:
            for give in target.later_loaders:
                give(loader)
        # Of a list nobody hears when it dies.
        self._feeds.keep_for(loader.dataset, loader)
        return target.make_iterator

    def _feed_target(self, loader: Any) -> FeedTarget | None:
        return (self._feeds.get(loader.dataset) or {}).get(_code_of(loader.collate_fn))

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        """Put the techniques' own fetch in place of the iterator's."""
        _give_back_collate(loader)
        target = self._feed_target(loader)
        if target is None:
            return
        self._feeds.keep_for(loader.dataset, iterator)
        workers = getattr(iterator, "_workers", None)
        if workers:
            target.notes["worker_processes"] = len(workers)
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is None or type(fetcher).__name__ != "_MapDatasetFetcher":
            return
        if not fetcher.auto_collation:
            return
        for wrap in target.fetchers:
            # On a copy: a fetcher that held a wrapper of its own method would be a cycle, and the
            # data set would outlive its last user until the collector comes by.
            wrapped = copy.copy(fetcher)
            wrapped.fetch = wrap(loader.dataset, fetcher.fetch)
            iterator._dataset_fetcher = fetcher = wrapped

    def root_found(self, module: Any) -> None:
        """Apply the model techniques before a trained module's first forward."""
        target = ModelTarget(module, seams.known_optimizers())
        self._apply("model", target)
        target.module, target.optimizers = None, []

    def step_begins(self, optimizer: Any) -> None:
        """Apply the optimizer techniques at the first step, record operators at the second."""
        if not self._on_optimizers:
            return
        stepped = self._optimizers.get(optimizer)
        if stepped is None:
            stepped = _Stepped(OptimizerTarget(optimizer))
            self._optimizers.put(optimizer, stepped)
            self._apply("optimizer", stepped.target)
            stepped.target.optimizer = None
        elif stepped.steps == 1:
            self._recorder = recorded_operators(stepped.target.operators)
            self._recorder.__enter__()
        stepped.steps += 1
        for work in stepped.target.each_step:
            work(optimizer)

    def step_ends(self, *, follow: bool = True) -> None:
        """End what was recorded of the step, and let the techniques of the process follow it.

        Args:
            follow: False while they are switched off.
        """
        self._stop_recording()
        for work in self._after_step if follow else ():
            work()

    def _stop_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
            self._recorder = None

    def step_failed(self, optimizer: Any) -> None:
        """Leave an optimizer whose step has raised as the script knows it."""
        self._stop_recording()
        stepped = self._optimizers.get(optimizer)
        for switch_off in stepped.target.failed if stepped is not None else ():
            switch_off(optimizer)

    def proofs(self) -> list[dict[str, str]]:
        """Return {name, state, why} of every technique of the plan."""
        return [
            {**row, "state": "refused", "why": f"switched off {self._switched_off[row['name']]}"}
            # What was learned under it counts more than what it cost.
            if row["name"] in self._switched_off and DIFFERS not in row["why"]
            else row
            for row in self._applied.proofs()
        ]

    def targets(self) -> list[tuple[Technique, Any, Any]]:
        """Return (technique, options, target) of all that was applied so far, in their order."""
        return self._applied.targets()

    def switchable_exactly(self) -> list[str]:
        """Return the techniques that can be switched between two steps without moving a bit."""
        return [
            technique.name
            for technique, options in self._applied.chosen
            if technique.live is not None and technique.numerics(options) is Numerics.EXACT
        ]

    def is_ready(self, name: str) -> bool:
        """True if a technique does what it will do in the rest of the run."""
        found = [
            (getattr(target, "size", 0), technique.live.is_ready(target))
            for technique, _, target in self.targets()
            if technique.name == name and technique.live is not None
        ]
        # A small data set is ready while most steps still read the large one.
        largest = max((size for size, _ in found), default=0)
        return bool(found) and all(is_ready for size, is_ready in found if size == largest)

    def settle(self, name: str) -> int:
        """Return the steps after a switch of that technique that are not representative."""
        return max(
            (
                t.live.settle
                for t, _ in self._applied.chosen
                if t.name == name and t.live is not None
            )
        )

    def switch(self, name: str, *, on: bool) -> None:
        """Switch one technique, between two steps."""
        for technique, options, target in self.targets():
            if technique.name == name and technique.live is not None:
                (technique.live.on if on else technique.live.off)(target, options)

    def switch_off(self, name: str, why: str) -> None:
        """Switch one technique off for the rest of the run; `why` becomes its proof."""
        self.note_switched_off(name, why)
        self.switch(name, on=False)

    def note_switched_off(self, name: str, why: str) -> None:
        """Let `why` be the proof of a technique that is off, for what is prepared later as well."""
        self._switched_off[name] = why

    def _drop_all(self, targets: dict[Any, FeedTarget]) -> None:
        for target in targets.values():
            for drop in target.dropped:
                drop()
            self._applied.drop(target)

    def _apply(self, seam: str, target: Any) -> None:
        self._applied.apply(seam, target)
        for name in self._switched_off:
            self.switch(name, on=False)


def _give_back_collate(loader: Any) -> None:
    """Let a loader have the script's function again, once its workers have the one around it."""
    from hotlap.feed.memory.parcel import Parcels

    if isinstance(loader.collate_fn, Parcels):
        loader.collate_fn = loader.collate_fn.collate


@dataclass
class _Stepped:
    """An optimizer's target, and how many steps have begun."""

    target: OptimizerTarget
    steps: int = 0


def _code_of(function: Any) -> Any:
    """Return what stays the same where a script makes a function again in every epoch."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or type(function)
