"""Dataclasses of how a run learns: losses, evaluations, schedules, inputs, workers. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class LossFacts:
    """Losses that one line sends backward."""

    where: str
    backwards: int = 0
    is_mean: bool = False
    """Every loss that was looked at is a plain mean: nothing divides or weights it."""
    normalized_twice: str = ""
    """`softmax` or `sigmoid`, if the loss applies it to what it was applied to before."""
    without_logarithm: str = ""
    """`softmax`, `sigmoid` or `layer`, if a likelihood takes what that gives for logarithms."""
    table: int = 0
    """Predictions, each of which is compared with as many targets; 0 without."""
    replaced: int = 0
    """Numbers in it that were NaN or infinite, and that `nan_to_num` has replaced."""
    replaced_of: int = 0
    not_scaled: int = 0
    """How many came of float16, without a `GradScaler`."""
    in_evaluation_mode: int = 0
    """How many came of a forward in evaluation mode, of a model that behaves otherwise in it."""
    after_training: int = 0
    """How many of these came after another one that did not."""


@dataclass(frozen=True)
class EvaluationFacts:
    """Forwards of a trained model that no backward followed, at one line."""

    where: str
    forwards: int = 0
    passes: int = 0
    """Rows of them without a step in between."""
    in_training_mode: int = 0
    """Of a model that behaves otherwise in it."""
    with_gradients: int = 0
    """In evaluation mode, and with a graph for gradients."""
    unused: int = 0
    """In training mode, and with a graph for gradients that no backward has used."""
    is_evaluated: bool = False
    """The model was seen in evaluation mode, here or elsewhere."""


@dataclass(frozen=True)
class ScheduleFacts:
    """A schedule of the learning rate."""

    name: str
    where: str
    calls: int
    period: int | None
    """Calls after which it changes the rate for the first time, or ends; None if not known."""
    first_rate: float
    last_rate: float
    advanced: int | None = None
    """Whole steps of its own that it went: `step(epoch + part)` goes a part of one. None if it does
    not say."""
    vanished: int | None = None
    """Calls after which the rate was below a thousandth of the first one, None if it never was."""


@dataclass(frozen=True)
class SavedFacts:
    """What a file holds that the script saves while it trains."""

    where: str
    optimizer: bool
    schedule: bool
    scaler: bool


@dataclass(frozen=True)
class InputFacts:
    """The numbers that the first layer of a trained model gets."""

    where: str
    layer: str
    mean: float
    std: float
    most: float
    """The largest absolute value."""
    gradient_norm: float | None = None
    """Of all gradients at the first step."""
    later_norm: float | None = None
    """The median over later steps."""
    is_learned: bool = True
    """That layer is trained, and no batch or instance norm comes next."""


@dataclass(frozen=True)
class BatchSizeFacts:
    """Steps of one batch size, numbered from 0."""

    where: str
    samples: int
    """Of all forwards before the step."""
    steps: int
    first_step: int
    last_step: int
    first_rate: float
    last_rate: float
    """Learning rate of the first parameter group, at the first and at the last of these steps."""


@dataclass(frozen=True)
class WithoutGradient:
    """Parameters that an optimizer holds, and that never get a gradient."""

    where: str
    tensors: int
    of: int
    steps: int
    names: Sequence[str] = ()
    """Of the first of them."""


@dataclass(frozen=True)
class ScalerFacts:
    """A line that makes a `GradScaler` in each pass of a loop that goes on training."""

    where: str
    loop: str
    """`file:line` of it."""
    passes: int


@dataclass(frozen=True)
class WorkerFacts:
    """What the workers of one loader do alike."""

    where: str
    workers: int
    repeats: int = 0
    """Batches of one pass that another worker has sent as well."""
    looked_at: int = 0
    generator: str = ""
    """Attribute of the dataset, or global variable, with a random generator, of which each worker
    has a copy."""
    is_seeded_alike: bool = False
    """A `worker_init_fn` sets the same seed in each, and samples are made with random numbers."""
    are_persistent: bool = False


@dataclass(frozen=True)
class Learning:
    """Everything that was seen of it. What was not looked at is empty."""

    losses: Sequence[LossFacts] = ()
    evaluations: Sequence[EvaluationFacts] = ()
    schedules: Sequence[ScheduleFacts] = ()
    saved: Sequence[SavedFacts] = ()
    unsafe_loads: Sequence[str] = ()
    """Lines that load a file with `weights_only=False`."""
    inputs: Sequence[InputFacts] = ()
    without_gradient: Sequence[WithoutGradient] = ()
    workers: Sequence[WorkerFacts] = ()
    forwards: int = 0
    """Of trained modules, in training."""
    kept_gradients: int = 0
    """First backwards after a step that found the gradients of the step before."""
    first_backwards: int = 0
    """Of those that were looked at."""
    empty_steps: int = 0
    """Steps of the one optimizer that began with no gradient, or with zeros only."""
    looked_at_steps: int = 0
    """Of those that were looked at for that."""
    compared_gradients: int = 0
    """Steps whose gradients were compared before they were used with what backward had left."""
    changed_gradients: int = 0
    """Of those, how many were changed by the script meanwhile."""
    scales: bool = False
    """A `GradScaler` is used."""
    scalers: Sequence[ScalerFacts] = ()
    optimizers_made: Sequence[int] = ()
    """Steps that were taken before each optimizer was made."""
    batch_sizes: Sequence[BatchSizeFacts] = ()
    """In the order of their first steps."""
    problems: Sequence[str] = ()
    """What could not be looked at, and why."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Learning":
        """Read back what `dataclasses.asdict` made of one."""
        kinds = {
            "losses": LossFacts,
            "evaluations": EvaluationFacts,
            "schedules": ScheduleFacts,
            "saved": SavedFacts,
            "inputs": InputFacts,
            "without_gradient": WithoutGradient,
            "workers": WorkerFacts,
            "scalers": ScalerFacts,
            "batch_sizes": BatchSizeFacts,
        }
        given = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        for name, kind in kinds.items():
            given[name] = tuple(kind(**row) for row in given.get(name, ()))
        for name in ("unsafe_loads", "optimizers_made", "problems"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)
