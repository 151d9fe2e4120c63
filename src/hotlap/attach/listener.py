"""`Listener`, the interface that the seams call, and how to mute it for hotlap's own work."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from hotlap.techniques.record import MakeIterator
from hotlap.trace.clock import PhaseClock
from hotlap.trace.events import Events
from hotlap.trace.identity import IdentityTable


class Listener:
    """What an attached session may listen to; every method may be left as it is."""

    wants_phases = False
    """True to be told of batches, forwards and backwards, not only of iterators and steps."""
    wants_losses = False
    """True to be told of backwards, and of losses that a scaler has scaled."""
    wants_events = False
    """True to be told of what else the script does, see `event_happens`."""
    wants_evaluation = False
    """True to be told of forwards without gradients, of modules that are watched."""
    wants_others = False
    """True to be told of forwards of modules that no optimizer trains."""
    wants_roots = False
    """True to be asked which modules are trained, before their first forward."""
    clock: PhaseClock | None = None
    """Where the seams mark forwards, backwards, zeroing and updates."""
    events: Events | None = None
    """Where the seams note backwards, zeroing and updates, with the lines that ask for them."""

    @cached_property
    def at_forward(self) -> Sequence[Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]]:
        """What is called in place of `forward_begins`, one after another."""
        return (self.forward_begins,)

    @cached_property
    def after_forward(self) -> Sequence[Callable[[Any, Any], None]]:
        """What is called in place of `forward_ends`, one after another."""
        return (self.forward_ends,)

    @cached_property
    def at_step(self) -> Sequence[Callable[[Any], None]]:
        """What is called in place of `step_begins`, one after another."""
        return (self.step_begins,)

    @cached_property
    def at_backward(self) -> Sequence[Callable[[Any], None]]:
        """What is called in place of `backward_begins`, one after another."""
        return (self.backward_begins,)

    @cached_property
    def after_backward(self) -> Sequence[Callable[[], None]]:
        """What is called in place of `backward_ends`, one after another."""
        return (self.backward_ends,)

    @cached_property
    def at_zeroing(self) -> Sequence[Callable[[], None]]:
        """What is called in place of `zeroing_begins`, one after another."""
        return (self.zeroing_begins,)

    @cached_property
    def after_zeroing(self) -> Sequence[Callable[[], None]]:
        """What is called in place of `zeroing_ends`, one after another."""
        return (self.zeroing_ends,)

    def iterator_wanted(self, loader: Any) -> MakeIterator | None:
        """A DataLoader is about to make an iterator; return what is to make it, if not torch."""

    def iterator_made(self, loader: Any, iterator: Any) -> None:
        """A DataLoader has made an iterator."""

    def pass_begun(self, loader: Any, iterator: Any) -> None:
        """A DataLoader begins another pass with an iterator that it has kept, as with persistent
        workers."""

    def optimizer_made(self, optimizer: Any) -> None:
        """The script has made an optimizer; no technique has acted on what it trains yet."""

    def batch_begins(self, iterator: Any) -> None:
        """The script asks for a batch."""

    def batch_ends(self, iterator: Any, batch: Any) -> Any:
        """A batch is about to be handed to the script; return it, or another one."""
        del iterator
        return batch

    def root_wanted(self, module: Any) -> bool:
        """Is this outermost module, called in training, one that an optimizer trains?"""
        del module
        return False

    def forward_begins(self, root: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """A training forward of a root begins; return its positional inputs, or others."""
        del root
        return inputs

    def forward_ends(self, root: Any, output: Any) -> None:
        """The outermost forward of a root has returned `output`."""

    def evaluation_forward_begins(self, module: Any) -> None:
        """A root, or a copy of one, is called without gradients, or in evaluation mode."""

    def evaluation_forward_ends(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        """A root, or a copy of one, was called without gradients, or in evaluation mode."""

    def other_wanted(self, module: Any) -> bool:
        """Has this outermost module parameters or buffers, and trains no optimizer any of them?"""
        del module
        return False

    def other_forward_begins(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Such a module is called, a teacher for one; return its positional inputs, or others."""
        del module
        return inputs

    def other_forward_ends(self, module: Any, output: Any) -> None:
        """The outermost forward of such a module has returned `output`."""

    def backward_begins(self, loss: Any) -> None:
        """The outermost backward begins."""

    def backward_ends(self) -> None:
        """The outermost backward has returned."""

    def zeroing_begins(self) -> None:
        """Gradients are about to be zeroed."""

    def zeroing_ends(self) -> None:
        """Gradients have been zeroed."""

    def gradients_unscaled(self, optimizer: Any, scaler: Any) -> None:
        """A scaler has divided the gradients of an optimizer by its scale; told with events."""

    def loss_scaled(self, scaled: Any, given: Any) -> None:
        """A scaler has multiplied a loss, `given`, by its scale; told with events or losses."""

    def event_happens(self, kind: str) -> None:
        """The script did something that is named in `hotlap.trace.event_kinds`."""

    def schedule_steps(self, schedule: Any) -> None:
        """A schedule of the learning rate is about to be stepped; told with events."""

    def object_saved(self, value: Any) -> None:
        """An object is about to be saved to a file by `torch.save`; told with events."""

    def file_loaded_unsafely(self) -> None:
        """`torch.load` is about to run what a file says; told with events."""

    def step_begins(self, optimizer: Any) -> None:
        """An outermost optimizer step begins."""

    def step_ends(self, optimizer: Any) -> None:
        """An outermost optimizer step has returned."""

    def step_failed(self, optimizer: Any) -> None:
        """An outermost optimizer step has raised; the script may catch that and go on."""


class _State:
    def __init__(self) -> None:
        self.listener: Listener | None = None
        self.optimizers: list[weakref.ref[Any]] = []
        self.optimizers_made = 0
        """With those that are gone."""
        self.step_depth = 0
        self.call_depth = 0
        self.open_root: Any = None
        """The root whose forward runs, None between them."""
        self.keywords: Mapping[str, Any] = {}
        """The keyword arguments of a root's forward, while it is told of that it begins."""
        self.backward_depth = 0
        self.feed_depth = 0
        """Above 0 while a loader makes an iterator or a batch in the main thread."""
        self.early_evaluations = 0
        """Outermost forwards in evaluation mode before the first training forward."""
        self.patched_classes: dict[type, Any] = {}
        self.roots: IdentityTable[bool] = IdentityTable()
        self.evaluated: dict[int, weakref.ref[Any]] = {}
        """By their identities: outermost modules that were called in evaluation mode, with
        gradients on, in the first steps."""
        self.trained_in_evaluation: IdentityTable[bool] = IdentityTable()
        """Roots that are not in training mode in the first step."""
        self.others: IdentityTable[tuple[int, bool]] = IdentityTable()
        """How many optimizers had been made when a module was looked at, whether none trains it,
        see `Listener.other_forward_begins`."""
        self.copies: IdentityTable[bool] = IdentityTable()
        """Modules of a root's class that are watched in evaluation only."""
        self.happening: set[str] = set()
        """Of what is told of once, what is going on."""

    def __reduce__(self) -> str:
        # By its name: cloudpickle writes wrapped methods of the script's classes by value, with
        # all that they refer to.
        return "State"


State = _State()
"""Of the one process that is attached to. No class: setting an attribute of a class takes from the
interpreter what it has cached of it, in every step."""


@contextlib.contextmanager
def mute_listener() -> Iterator[None]:
    """Let nobody hear what is done meanwhile: it is not the script's."""
    listener, State.listener = State.listener, None
    try:
        yield
    finally:
        State.listener = listener


@contextlib.contextmanager
def hide_own_optimizer() -> Iterator[None]:
    """Make and step an optimizer of ours: it is none of the script's.

    Everything else is heard meanwhile: other threads may read batches.
    """
    depth, known = State.step_depth, list(State.optimizers)
    State.step_depth = 1
    try:
        yield
    finally:
        State.step_depth = depth
        State.optimizers[:] = known


def go_inert() -> None:
    """Leave every patch in place, and make each do nothing but call what it replaced."""
    State.listener = None
