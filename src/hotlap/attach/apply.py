"""Applies a plan at the seams of a running script, and collects the proofs."""

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.attach import seams
from hotlap.attach.identity import ByIdentity
from hotlap.plan import Plan
from hotlap.techniques import (
    FeedTarget,
    ModelTarget,
    OptimizerTarget,
    ProcessTarget,
    Proof,
    Refusal,
    Technique,
    registry,
)

log = logging.getLogger("hotlap")


class PlanInProcess:
    """A plan while it is applied to one process.

    Args:
        plan: what to apply; checked before.
        extra: techniques from outside, as `module:NAME`.
        fill_ahead: let the feed reach its steady state at once.
    """

    def __init__(
        self, plan: Plan, *, extra: tuple[str, ...] = (), fill_ahead: bool = False
    ) -> None:
        known = registry(extra)
        self.chosen: list[tuple[Technique, Any]] = [
            (technique, technique.options(plan.techniques[name]))
            for name, technique in known.items()
            if name in plan.techniques
        ]
        self.fill_ahead = fill_ahead
        # By data set, then by the function that makes its batches.
        self._feeds: ByIdentity[dict[int, FeedTarget]] = ByIdentity(_drop_all)
        self._targets: dict[str, list[Any]] = {technique.name: [] for technique, _ in self.chosen}
        self._refused: dict[str, list[str]] = {technique.name: [] for technique, _ in self.chosen}
        self._optimizers: ByIdentity[_Stepped] = ByIdentity()
        self._recorder: Any = None
        self._on_optimizers = self.wants("optimizer")

    def wants(self, seam: str) -> bool:
        return any(technique.seam == seam for technique, _ in self.chosen)

    def iterator_wanted(self, loader: Any) -> None:
        """Apply the feed techniques to a data set that is seen for the first time."""
        if not self.wants("feed"):
            return
        target = self._feed(loader)
        if target is None:
            target = FeedTarget(loader, fill_ahead=self.fill_ahead, size=_size(loader.dataset))
            targets = self._feeds.get(loader.dataset)
            if targets is None:
                self._feeds.put(loader.dataset, targets := {})
            targets[id(loader.collate_fn)] = target
            self._apply("feed", target)
            target.loader = None
            return
        for give in target.later_loaders:
            give(loader)

    def _feed(self, loader: Any) -> FeedTarget | None:
        return (self._feeds.get(loader.dataset) or {}).get(id(loader.collate_fn))

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        """Put the techniques' own fetch in place of the iterator's."""
        target = self._feed(loader)
        if target is None:
            return
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
            self._recorder = _operator_recorder(stepped.target.operators)
            self._recorder.__enter__()
        stepped.steps += 1

    def step_ends(self) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
            self._recorder = None

    def step_failed(self, optimizer: Any) -> None:
        """Leave an optimizer whose step has raised as the script knows it."""
        self.step_ends()
        stepped = self._optimizers.get(optimizer)
        for switch_off in stepped.target.failed if stepped is not None else ():
            switch_off(optimizer)

    def _apply(self, seam: str, target: Any) -> None:
        for technique, options in self.chosen:
            if technique.seam != seam:
                continue
            try:
                technique.apply(target, options)
            except Refusal as refusal:
                self._refused[technique.name].append(str(refusal))
                log.info("%s refused: %s", technique.name, refusal)
            except Exception as error:
                # The script's own data set or model did something that nobody thought of: it is
                # the script that must go on, and the proof that says why it goes on plain.
                self._refused[technique.name].append(f"{type(error).__name__}: {error}")
                log.warning("%s refused", technique.name, exc_info=True)
            else:
                self._targets[technique.name].append(target)

    def proofs(self) -> list[dict[str, str]]:
        """Return {name, state, why} of every technique of the plan."""
        rows = []
        for technique, options in self.chosen:
            proof = self._proof(technique, options)
            rows.append({"name": technique.name, "state": proof.state, "why": proof.why})
        return rows

    def _proof(self, technique: Technique, options: Any) -> Proof:
        if technique.seam == "process":
            return technique.proof(ProcessTarget({}), options)
        targets = sorted(
            self._targets[technique.name],
            key=lambda target: target.size if isinstance(target, FeedTarget) else 0,
            reverse=True,
        )
        found = [technique.proof(target, options) for target in targets]
        found += [Proof("refused", reason) for reason in self._refused[technique.name]]
        if not found:
            why = f"the script never came to a {technique.seam} that it acts on"
            return Proof("no_effect", why)
        # The largest target, the training data as a rule, decides; what differs elsewhere is said.
        main, others = found[0], [proof for proof in found[1:] if proof.state != found[0].state]
        also = "".join(f"; elsewhere {proof.state}: {proof.why}" for proof in others)
        return Proof(main.state, main.why + also)


@dataclass
class _Stepped:
    """An optimizer's target, and how many steps have begun."""

    target: OptimizerTarget
    steps: int = 0


def _drop_all(targets: dict[int, FeedTarget]) -> None:
    for target in targets.values():
        for drop in target.dropped:
            drop()


def _size(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return 0


def _operator_recorder(names: set[str]) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Any,
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            del types
            names.add(str(func))
            return func(*args, **(kwargs or {}))

    return Recorder()
