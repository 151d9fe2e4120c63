"""Changes that no plan may hold: they only show what a perfect remedy would give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques import FeedTarget, Numerics, OptimizerTarget, Proof, Refusal, Technique


@dataclass(frozen=True)
class Options:
    pass


def _serve_one_batch(target: FeedTarget, options: Options) -> FeedTarget:
    del options
    kept: dict[int, Any] = {}
    target.notes["replay"] = kept

    def wrap(dataset: Any, read: Any) -> Any:
        del dataset

        def fetch(indices: Any) -> Any:
            # The last batch of an epoch is smaller: one is kept for each size.
            if len(indices) not in kept:
                kept[len(indices)] = read(indices)
            return kept[len(indices)]

        return fetch

    target.fetchers.append(wrap)
    return target


def _proof(target: FeedTarget, options: Options) -> Proof:
    del options
    if not target.notes.get("replay"):
        return Proof("no_effect", "no batch was read")
    return Proof("applied", "one batch served again and again")


def _never(task: TaskFacts, host: Any, options: Options) -> str | None:
    del task, host, options
    return "it feeds the same batch again and again, which is no training"


def _none(task: TaskFacts, host: Any) -> tuple[Mapping[str, Any], ...]:
    del task, host
    return ()


def _changes(options: Options) -> Numerics:
    del options
    return Numerics.CHANGES


REPLAY = Technique("replay", "feed", Options, _changes, _never, _serve_one_batch, _proof, _none)


def _hide_gradients(target: OptimizerTarget, options: Options) -> OptimizerTarget:
    """Let the optimizer find no gradients: it does nothing, and the script finds them as before."""
    del options
    if target.taken_by is not None:
        raise Refusal(f"{target.taken_by} chooses the implementation itself")
    notes = target.notes
    hidden: list[tuple[Any, Any]] = []

    def hide(optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    hidden.append((parameter, parameter.grad))
                    parameter.grad = None
        notes["free_steps"] = notes.get("free_steps", 0) + bool(hidden)

    def show(optimizer: Any, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        while hidden:
            parameter, gradient = hidden.pop()
            parameter.grad = gradient

    target.optimizer.register_step_pre_hook(hide)
    target.optimizer.register_step_post_hook(show)
    return target


def _proof_of_hiding(target: OptimizerTarget, options: Options) -> Proof:
    del options
    steps = target.notes.get("free_steps", 0)
    if not steps:
        return Proof("no_effect", "no step had gradients")
    return Proof("applied", f"{steps} steps without an update")


def _never_trains(task: TaskFacts, host: Any, options: Options) -> str | None:
    del task, host, options
    return "it takes no step at all, which is no training"


FREE_STEP = Technique(
    "free_step",
    "optimizer",
    Options,
    _changes,
    _never_trains,
    _hide_gradients,
    _proof_of_hiding,
    _none,
)
"""Shows what a step would take with an optimizer that costs nothing."""
