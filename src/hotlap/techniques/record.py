"""The one record that every technique is, and the targets it acts on."""

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from hotlap.errors import HotlapError
from hotlap.task import TaskFacts

Seam = Literal["process", "feed", "model", "optimizer", "step"]
SEAMS: tuple[Seam, ...] = ("process", "feed", "model", "optimizer", "step")


class Numerics(StrEnum):
    """How far a technique may move the numbers, from not at all to another learning."""

    EXACT = "exact"
    ROUNDING = "rounding"
    PRECISION = "precision"
    STREAM = "stream"
    CHANGES = "changes"

    @property
    def best_verdict(self) -> str:
        """The best verdict that a plan holding such a technique can get."""
        return {"exact": "exact", "rounding": "rounding", "changes": "changed"}.get(
            self.value, "statistical"
        )


class Refusal(HotlapError):
    """A technique found, while being applied, that it cannot serve here. The text is the reason."""


@dataclass(frozen=True)
class Proof:
    """Whether a technique took effect, and what shows it."""

    state: Literal["applied", "no_effect", "refused"]
    why: str


@dataclass
class FeedTarget:
    """What a technique at the feed seam acts on: one data set behind a DataLoader.

    `loader` is the DataLoader, still without an iterator. A technique that serves batches itself
    appends to `fetchers` a function that takes the loader's own `fetch(indices) -> batch` and
    returns another; it is called anew for every iterator.
    """

    loader: Any
    fill_ahead: bool = False
    """True in trials that want the steady state at once."""
    fetchers: list[Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = field(
        default_factory=list
    )
    notes: dict[str, Any] = field(default_factory=dict)
    """Per technique: whatever its proof needs."""


@dataclass
class ModelTarget:
    """What a technique at the model seam acts on: a trained module, before its first forward."""

    module: Any
    optimizers: list[Any]
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimizerTarget:
    """What a technique at the optimizer seam acts on: an optimizer, before its first step."""

    optimizer: Any
    operators: set[str] = field(default_factory=set)
    """Names of the torch operators that one later step really ran, for the proof."""
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class ProcessTarget:
    """What a technique at the process seam acts on: the environment, before the start."""

    environment: MutableMapping[str, str]


Target = FeedTarget | ModelTarget | OptimizerTarget | ProcessTarget


@dataclass(frozen=True)
class Technique:
    """One way to execute the same task faster.

    `why_not` returns a reason, or None where the technique can serve. `apply` acts on a target of
    its seam and returns it; it raises `Refusal` where only the target shows that it cannot serve.
    `proof` looks at the target later. What `numerics` claims is an upper bound, never evidence.
    """

    name: str
    seam: Seam
    Options: type
    numerics: Callable[[Any], Numerics]
    why_not: Callable[[TaskFacts, Any, Any], str | None]
    apply: Callable[[Any, Any], Any]
    proof: Callable[[Any, Any], Proof]
    candidates: Callable[[TaskFacts, Any], tuple[Mapping[str, Any], ...]]
    """Options worth a trial on this task and host, the most promising first."""

    def options(self, values: Mapping[str, Any]) -> Any:
        """Build the frozen `Options` from a plan's plain values, unknown ones refused before."""
        return self.Options(
            **{f.name: values[f.name] for f in fields(self.Options) if f.name in values}
        )
