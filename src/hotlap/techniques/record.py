"""`Technique`: what each technique says of itself; `Numerics`, `Proof`; targets of each seam."""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal

from hotlap.errors import HotlapError

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
    on_ranks: str = ""
    """What several ranks have together, or have not; empty if there is nothing to say."""


Fetch = Callable[[Any], Any]
"""A loader's `fetch(indices) -> batch`."""
MakeIterator = Callable[[Any, Callable[[], Any]], Any]
"""Takes a DataLoader and what makes its iterator as torch does, and returns an iterator."""


@dataclass(eq=False, repr=False)
class FeedTarget:
    """What a technique at the feed seam acts on: one data set behind one or several DataLoaders.

    The script's loaders and data set live as long as the script wants: a technique keeps neither
    of them, in `notes` or elsewhere, beyond a call.
    """

    loader: Any
    """The DataLoader, still without an iterator; None once `apply` has returned."""
    own_order: bool = False
    """True in the engine: the order is hotlap's own, and so is each sample's random state."""
    is_held_out: bool = False
    """True in the engine where the data set is evaluated on."""
    fill_ahead: bool = False
    """True in trials that want the steady state at once."""
    later_loaders: list[Callable[[Any], None]] = field(default_factory=list)
    """Called with a DataLoader that is made over the same data set later, at each iterator."""
    fetchers: list[Callable[[Any, Fetch], Fetch]] = field(default_factory=list)
    """Take (data set, fetch) of a new iterator, and return what to call in place of `fetch`."""
    make_iterator: MakeIterator | None = None
    """Given by a technique, for a script's DataLoaders: makes their iterators in torch's place."""
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
    tables: Any = None
    """The `hotlap.feed.memory.common_rows.Tables` of the ranks of this machine, None if this
    process shares no memory."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Per technique: whatever its proof needs."""


@dataclass(eq=False, repr=False)
class ModelTarget:
    """What a technique at the model seam acts on: a trained module, before its first forward."""

    module: Any
    """None once `apply` has returned; so is `optimizers`."""
    optimizers: list[Any]
    ended: list[Callable[[], Any]] = field(default_factory=list)
    """In the engine: called when the run has ended, see `StepTarget`."""
    reduce: Any = None
    """In the engine: the `hotlap.distributed.reduce.Reduce` of the ranks that train together."""
    sharding: Any = None
    """Given by a technique, see `StepTarget`."""
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
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
    implementation: str | None = None
    """The implementation that a technique has chosen, None if none has."""
    operators: set[str] = field(default_factory=set)
    """Names of the torch operators that one later step really ran, for the proof."""
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
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
    optimizer_taken_by: str | None = None
    """See `OptimizerTarget.taken_by`."""
    empty_state: Callable[[Any, str], Any] | None = None
    """`empty_state(parameter, key)`: what the optimizer's state holds under that key before its
    first step, where that is no plain tensor. A checkpoint's parts are put into it."""
    ended: list[Callable[[], None]] = field(default_factory=list)
    """Called when the run has ended: the model is handed back as it was made."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Name of a parameter -> the tensor that is trained, where that is not the module's own."""
    reduce: Any = None
    """The `hotlap.distributed.reduce.Reduce` of the ranks that train together."""
    sharding: Any = None
    """Given by a technique: how parameters, or what belongs to them, are shared by the ranks."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Per technique: whatever its proof needs."""


@dataclass(eq=False, repr=False)
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
class NoOptions:
    """Of a technique that has nothing to choose."""


@dataclass(frozen=True)
class Live:
    """How a technique is switched between two steps of a process that trains.

    Both functions take the target that `apply` has prepared and the options, are called at a step's
    end, and do nothing where the technique is in that state already.
    """

    on: Callable[[Any, Any], None]
    off: Callable[[Any, Any], None]
    settle: int = 2
    """Steps after a switch that are not representative."""
    is_ready: Callable[[Any], bool] = lambda _: True
    """(target): False while it has yet to become what it will be for most of a run."""


@dataclass(frozen=True)
class Memory:
    """What a technique does to the bytes that a step holds, for estimates."""

    axis: Literal["", "precision", "recompute"] = ""
    """The choice that an estimate varies, where the technique is one of its answers."""
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name of an answer -> the options that it stands for."""
    is_traceable: bool = True
    """False if it cannot run on fake tensors; the estimate then says `untraced`."""
    untraced: str = ""
    """What the estimate misses without it."""
    micro_batch: Callable[[Any], int] | None = None
    """Options -> samples of a micro-batch, of a technique that splits the batch."""
    keeps_dataset: bool = False
    """True if it keeps the samples in memory."""


PHASES_OF_SEAM: Mapping[str, tuple[str, ...]] = {
    "process": (),
    "feed": ("data", "h2d"),
    "model": ("forward", "backward"),
    "step": ("forward", "backward"),
    "optimizer": ("optimizer",),
}
"""The phases that a technique shortens, where its record names no others."""
SAVES_OF_SEAM: Mapping[str, float] = {"feed": 0.9, "optimizer": 0.5}
"""About what share of these phases a good technique saves."""
_SAVES = 0.4
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "numerics": ("options",),
    "why_not": ("task", "host", "options"),
    "candidates": ("task", "host"),
    "apply": ("target", "options"),
    "proof": ("target", "options"),
}


@dataclass(frozen=True, kw_only=True)
class Technique:
    """One way to execute the same task faster, and all that others need to know of it.

    Each function takes those of its arguments that it needs, by their names: `why_not(task)` serves
    as well as `why_not(task, host, options)`, and `lambda: Numerics.EXACT` is a `numerics`. Callers
    pass all of them.
    """

    name: str
    seam: Seam | Callable[..., Seam]
    """The one place where it acts, or a function (options) of it."""
    apply: Callable[..., Any]
    """(target, options): acts on a target of its seam and returns it. Raises `Refusal` where only
    the target shows that it is not applicable."""
    proof: Callable[..., Proof]
    """(target, options): looks at the target later: did it take effect?"""
    numerics: Callable[..., Numerics]
    """(options): what it claims, an upper bound and never evidence."""
    Options: type = NoOptions
    """A frozen dataclass, which checks its values."""
    why_not: Callable[..., str | None] = lambda: None
    """(task, host, options): a reason against it, None if it is applicable."""
    candidates: Callable[..., tuple[Mapping[str, Any], ...]] = lambda: ({},)
    """(task, host): options worth a trial, the most promising first."""
    without_candidates: str = "nothing here suggests that it would help"
    """Why, where `candidates` returns none."""
    excludes: tuple[str, ...] = ()
    """Techniques that act on the same thing; one of the two has to say so."""
    rather_than: tuple[str, ...] = ()
    """Techniques that are tried first, because this one adds little to them."""
    phases: tuple[str, ...] | None = None
    """Phases that it shortens, as a trace names them; those of its seam if None."""
    saves: float | None = None
    """About what share of these phases it saves; what is usual at its seam if None."""
    set_up_s: float = 0.0
    """Seconds that its set-up takes in a process, about."""
    format_bits: int = 16
    """Bits of the narrowest floating-point format it may round to, where its numerics are
    `precision`."""
    memory_format: Literal["", "channels_last"] = ""
    """The layout that it gives the weights, as `torch.memory_format` names it; a proof then repeats
    steps in that layout too."""
    memory: Memory = Memory()
    live: Live | None = None
    """How it is switched in a live process, None if only a new process can have it."""
    is_opportunity: bool = False
    """True if a diagnosis tries it as a switch that blames no line of the script."""
    by_hand: str = ""
    """What does the same in a script, as an instruction; `{option}` stands for an option."""
    on_ranks: bool = False
    """True if it can be used where several ranks train one model."""
    acts_late: bool = False
    """True if it acts only on what a run holds after hundreds of steps: it is raced, and proven, at
    the age at which the watched run called for it, or, where there is no time to get there again,
    in the watched process itself."""
    engine_only: bool = False
    """True if only hotlap's engine can apply it: a script's steps are the script's own."""
    needs_race: bool = False
    """True if it makes some runs slower that fit its description: it is used where it won a race on
    this host, or where a plan written by hand asks for it, never on another host's word."""

    def __post_init__(self) -> None:
        for name, names in _ARGUMENTS.items():
            object.__setattr__(self, name, by_name(getattr(self, name), names))

    def options(self, values: Mapping[str, Any]) -> Any:
        """Build the frozen `Options` from a plan's plain values, unknown ones refused before."""
        return self.Options(
            **{f.name: values[f.name] for f in fields(self.Options) if f.name in values}
        )

    def seam_of(self, options: Any) -> Seam:
        """Return where it acts with these options."""
        return self.seam(options) if callable(self.seam) else self.seam

    def saved_ms(self, phases: Mapping[str, float], options: Any) -> float:
        """Return about how many ms of a step it could save.

        Args:
            phases: ms of a mean step by phase.
            options: as `options` has built them.
        """
        seam = self.seam_of(options)
        acts_on = PHASES_OF_SEAM[seam] if self.phases is None else self.phases
        saves = SAVES_OF_SEAM.get(seam, _SAVES) if self.saves is None else self.saves
        return saves * sum(phases.get(phase, 0.0) for phase in acts_on)


def by_name(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function of all arguments for one that takes some of them by their names.

    Raises:
        TypeError: it takes an argument of another name, and not as many as there are.
    """
    parameters = inspect.signature(function).parameters
    own = tuple(parameters)
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    if takes_any or own == names or (len(own) == len(names) and not {*own} <= {*names}):
        return function
    others = [name for name in own if name not in names]
    if others:
        raise TypeError(
            f"{function.__qualname__}({', '.join(own)}) takes `{others[0]}`. "
            f"Expected: some of {', '.join(names)}."
        )
    places = [names.index(name) for name in own]

    @functools.wraps(function)
    def with_all(*args: Any) -> Any:
        return function(*(args[place] for place in places))

    return with_all
