"""Changes that no plan may hold: they only show what a perfect remedy would give."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques import FeedTarget, Numerics, Proof, Technique


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
