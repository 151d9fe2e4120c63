"""The one record that every technique is, and the targets it acts on."""

import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from hotlap.errors import HotlapError
from hotlap.task import TaskFacts

Seam = Literal["process", "feed", "model", "optimizer", "step"]


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


Fetch = Callable[[Any], Any]
"""A loader's `fetch(indices) -> batch`."""


@dataclass
class FeedTarget:
    """What a technique at the feed seam acts on: one data set behind one or several DataLoaders.

    The script's loaders and data set live as long as the script wants: a technique keeps neither
    of them, in `notes` or elsewhere, beyond a call.
    """

    loader: Any
    """The DataLoader, still without an iterator; None once `apply` has returned."""
    own_order: bool = False
    """True in the engine: the order is hotlap's own, and so is each sample's random state."""
    fill_ahead: bool = False
    """True in trials that want the steady state at once."""
    later_loaders: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with a DataLoader that is made over the same data set later, at each iterator."""
    fetchers: list[Callable[[Any, Fetch], Fetch]] = field(default_factory=list)
    """Take (data set, fetch) of a new iterator, and return what to call in place of `fetch`."""
    dropped: list[Callable[[], None]] = field(default_factory=list)
    """Called when the script has dropped the data set."""
    size: int = 0
    """Samples in the data set, 0 if it cannot tell."""
    device: Any = None
    """The `hotlap.device.accelerator.Device` that batches are for; None where a script moves them
    itself."""
    transfer: Any = None
    """Given by a technique: takes an iterator over steps on the host, and gives those steps on the
    device."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Per technique: whatever its proof needs."""


@dataclass
class ModelTarget:
    """What a technique at the model seam acts on: a trained module, before its first forward."""

    module: Any
    """None once `apply` has returned; so is `optimizers`."""
    optimizers: list[Any]
    ended: list[Callable[[], Any]] = field(default_factory=list)
    """In the engine: called when the run has ended, see `StepTarget`."""
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimizerTarget:
    """What a technique at the optimizer seam acts on: an optimizer, before its first step."""

    optimizer: Any
    """None once `apply` has returned."""
    taken_by: str | None = None
    """The technique that has chosen the implementation already, None if nobody has."""
    each_step: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with the optimizer before every step, before all its hooks."""
    failed: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with the optimizer when its step has raised."""
    operators: set[str] = field(default_factory=set)
    """Names of the torch operators that one later step really ran, for the proof."""
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass
class StepTarget:
    """What a technique at the step seam acts on: the engine's step, before its first call.

    An unedited script has no such seam: there the script owns its parameters and its loop.
    """

    module: Any
    """None once `apply` has returned; so is `optimizer`."""
    optimizer: Any
    device: str
    forward: list[Callable[[], Any]] = field(default_factory=list)
    """Make a context manager each, in which the forward and the loss run."""
    zero_grad: Callable[[], None] | None = None
    """Called in place of the optimizer's `zero_grad`."""
    after_backward: list[Callable[[], None]] = field(default_factory=list)
    """Called after the backward of each micro-batch."""
    after_update: list[Callable[[], None]] = field(default_factory=list)
    """Called when the optimizer has stepped."""
    after_step: list[Callable[[], None]] = field(default_factory=list)
    """Called on the host when a step was taken, or replayed."""
    scaler: Any = None
    """A `torch.amp.GradScaler`, where gradients would be too small for their format."""
    losses: list[Callable[[Any], Any]] = field(default_factory=list)
    """Take the task's `loss(model, batch)` and return what training calls in its place."""
    graph: Any = None
    """How the whole step is captured as a graph of the device, None if it is not."""
    empty_state: Callable[[Any, str], Any] | None = None
    """`empty_state(parameter, key)`: what the optimizer's state holds under that key before its
    first step, where that is no plain tensor. A checkpoint's parts are put into it."""
    ended: list[Callable[[], None]] = field(default_factory=list)
    """Called when the run has ended: the model is handed back as it was made."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Name of a parameter -> the tensor that is trained, where that is not the module's own."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Per technique: whatever its proof needs."""


@dataclass
class ProcessTarget:
    """What a technique at the process seam acts on: the environment, and switches global to torch.

    For a script `apply` is called twice: before the start, where the environment is all that
    counts, and in the script's process, where the environment comes too late and `switch` is set
    once torch is imported. In the engine, whose process runs already, it is called once.
    """

    environment: MutableMapping[str, str]
    device: str = "cpu"
    """Kind of the device that trains, as torch names it."""
    switch: Callable[[], Callable[[], None]] | None = None
    """Called once torch is imported, in the process that trains; returns what undoes it. It raises
    `Refusal` where only the process shows that it cannot serve."""
    after_step: list[Callable[[], None]] = field(default_factory=list)
    """Called after every step of an optimizer."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Per technique: whatever its proof needs."""


Target = FeedTarget | ModelTarget | OptimizerTarget | StepTarget | ProcessTarget


def own_forward_again(module: Any) -> Callable[[], None]:
    """Return what takes away a forward that was put on a module, without keeping it alive."""
    held = weakref.ref(module)

    def undo() -> None:
        alive = held()
        if alive is not None:
            vars(alive).pop("forward", None)

    return undo


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
    needs_race: bool = False
    """True if it makes some runs slower that fit its description: it is used where it won a race on
    this host, or where a plan written by hand asks for it, never on another host's word."""

    def options(self, values: Mapping[str, Any]) -> Any:
        """Build the frozen `Options` from a plan's plain values, unknown ones refused before."""
        return self.Options(
            **{f.name: values[f.name] for f in fields(self.Options) if f.name in values}
        )
