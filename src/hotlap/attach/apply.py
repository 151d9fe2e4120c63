"""Applies a plan at the seams of a running script, and collects the proofs."""

import logging
from collections.abc import Mapping
from typing import Any

from hotlap.attach import seams
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
        self._feeds: dict[tuple[int, int], FeedTarget] = {}
        self._targets: dict[str, list[Any]] = {technique.name: [] for technique, _ in self.chosen}
        self._refused: dict[str, list[str]] = {technique.name: [] for technique, _ in self.chosen}
        self._optimizers: dict[int, OptimizerTarget] = {}
        self._steps_seen: dict[int, int] = {}
        self._recorder: Any = None

    def wants(self, seam: str) -> bool:
        return any(technique.seam == seam for technique, _ in self.chosen)

    def iterator_wanted(self, loader: Any) -> None:
        """Apply the feed techniques to a loader that is seen for the first time."""
        key = (id(loader.dataset), id(loader.collate_fn))
        known = self._feeds.get(key)
        if known is not None:
            known.loader = loader
            return
        # The target holds the loader, and so the data set: its id cannot be given to another.
        target = FeedTarget(loader, fill_ahead=self.fill_ahead)
        self._feeds[key] = target
        self._apply("feed", target)

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        """Put the techniques' own fetch in place of the iterator's."""
        target = self._feeds.get((id(loader.dataset), id(loader.collate_fn)))
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
            fetcher.fetch = wrap(fetcher.fetch)

    def root_found(self, module: Any) -> None:
        """Apply the model techniques before a trained module's first forward."""
        optimizers = seams.known_optimizers()
        self._apply("model", ModelTarget(module, optimizers))

    def step_begins(self, optimizer: Any) -> None:
        """Apply the optimizer techniques at the first step, record operators at the second."""
        seen = self._steps_seen.get(id(optimizer), 0)
        if seen > 1:
            return
        self._steps_seen[id(optimizer)] = seen + 1
        if not self.wants("optimizer"):
            return
        if seen == 0:
            target = OptimizerTarget(optimizer)
            self._optimizers[id(optimizer)] = target
            self._apply("optimizer", target)
        else:
            self._recorder = _operator_recorder(self._optimizers[id(optimizer)].operators)
            self._recorder.__enter__()

    def step_ends(self) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
            self._recorder = None

    def _apply(self, seam: str, target: Any) -> None:
        for technique, options in self.chosen:
            if technique.seam != seam:
                continue
            try:
                technique.apply(target, options)
            except Refusal as refusal:
                self._refused[technique.name].append(str(refusal))
                log.info("%s refused: %s", technique.name, refusal)
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
        targets = sorted(self._targets[technique.name], key=_size, reverse=True)
        found = [technique.proof(target, options) for target in targets]
        found += [Proof("refused", reason) for reason in self._refused[technique.name]]
        if not found:
            why = f"the script never came to a {technique.seam} that it acts on"
            return Proof("no_effect", why)
        # The largest target, the training data as a rule, decides; what differs elsewhere is said.
        main, others = found[0], [proof for proof in found[1:] if proof.state != found[0].state]
        also = "".join(f"; elsewhere {proof.state}: {proof.why}" for proof in others)
        return Proof(main.state, main.why + also)


def _size(target: Any) -> int:
    if isinstance(target, FeedTarget):
        dataset = target.loader.dataset
        return len(dataset) if hasattr(dataset, "__len__") else 0
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
