"""`TaskFacts`: data of what a watched run showed: loaders, optimizers, padding, ranks. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class LoaderFacts:
    """One DataLoader that the script iterates over."""

    dataset: str
    """Qualified class name of the data set."""
    length: int | None
    """Samples in the data set, if it has a length."""
    batch_size: int | None
    num_workers: int
    map_style: bool
    plain_collate: bool
    """True if batches are made by torch's default collation."""
    training: bool
    """True if a step of an optimizer followed its batches."""
    where: str
    """`file:line` of the loop that asks for the batches."""
    getitem: str
    """`file:line` of the data set's `__getitem__`."""
    batches: int | None
    """Batches in one pass, if known."""
    collates_samples: bool = False
    """True if a function of the script's own makes batches, from samples that may be kept."""
    orders: Sequence[Sequence[int]] = ()
    """(seed, epoch) of its shuffling `DistributedSampler` in each pass in which a step was taken;
    empty without one."""
    draws: Sequence[Sequence[int]] = ()
    """(checksum of the generator's state, optimizers that were made before) at the beginning of
    each such pass of a loader whose order is drawn."""


FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
"""Optimizers of torch's with an implementation in one kernel, also on a CPU."""
# Not NAdam, RAdam and ASGD: their foreach implementations round otherwise (seen on torch 2.13).
FOREACH = (*FUSED, "Adadelta", "Adamax", "RMSprop", "Rprop")
"""Those whose implementation for all tensors at once gives the default one's bits on a CPU."""


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer that took steps."""

    name: str
    """Qualified class name."""
    implementation: str
    """`default`, `foreach`, `fused` or `custom` (a step of the user's own)."""
    parameters: int
    """Number of parameter tensors."""
    elements: int
    """Number of scalars in them."""
    where: str
    """`file:line` of the call to `step`."""
    sparse: bool = False  # True if a gradient of its first step was a sparse tensor.
    lost: int = 0
    """Parameter tensors in no module that was trained, and without a gradient."""
    left: int = 0
    """Parameter tensors of those modules that have a gradient and are in no optimizer."""
    left_in: str = ""
    """Class of the module that holds the first of these."""


@dataclass(frozen=True)
class GradientSums:
    """How a `DistributedDataParallel` sums gradients over ranks."""

    per_step: float
    """Sums of all its gradients for one step of the optimizer."""
    ms: float
    """Mean time of one, what the backward overlaps included; 0 if unknown."""
    searches: bool
    """True if it searches the graph of every step for parameters that were not used."""
    looks: int = 0
    """Steps of which is known what the search has found."""
    unused_bytes: int = 0
    """The most that it has found in one of them, on any rank that told."""


@dataclass(frozen=True)
class PaddingFacts:
    """How much of the training batches is padding, over the batches that were looked at."""

    name: str
    """The tensor, as in `batch[0]`."""
    where: str
    """`file:line` that asked for the batches."""
    share: float
    """Of its positions."""
    avoidable: float
    """Of its positions, what the first remedy leaves out."""
    length: float
    """Mean positions of a sample."""
    remedy: str
    """In words."""


@dataclass(frozen=True)
class TaskFacts:
    """What an observed run showed of the task."""

    device: str = "cpu"
    threads: int = 0
    """Intra-op threads that torch used, 0 if unknown."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """Class name of a module -> how often it occurs in the trained model."""
    loaders: tuple[LoaderFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    steps_per_epoch: int | None = None
    planned_steps: int | None = None
    """Optimizer steps of the whole run the user planned, None if it could not be seen."""
    planned_why: str = ""
    """How `planned_steps` was found, or why it was not."""
    page_faults: float = 0.0
    """Pages that the system handed to the process in a step, 0 if unknown."""
    system_share: float = 0.0
    """The system's own work as a share of the run's time, 0 if unknown."""
    denormals: int = 0
    """Elements of the optimizers' state on the CPU that were denormal in the end, about."""
    data_parallel: int | None = None
    """Devices of the torch.nn.DataParallel in the trained model, None without one."""
    ranks: int = 1
    """Processes that train one model; what is known is of the first of them."""
    exposed_ms: float = 0.0
    """Of a step: gradients are still summed over ranks when the backward is done, 0 if unknown."""
    sums: GradientSums | None = None
    """None where no `DistributedDataParallel` is trained."""
    device_bytes: int = 0
    """Of the memory of a device of its own, what one such process takes there; 0 if unknown."""
    device_room: int = 0
    """Of the same memory, what there is for such processes together."""

    backward_where: str = ""
    """`file:line` of the first backward."""
    finds_anomalies: bool = False
    """True if anomaly detection was on at a backward."""
    anomalies_where: str = ""
    """Where the script switches that on, empty if that was not found."""
    keeps_gradient_graph: bool = False
    """True if gradients came with a graph of themselves (`create_graph=True`)."""
    in_float64: float = 0.0
    """Share of the trained models' elements that are float64."""
    cores: int = 0
    """That the process may use, 0 if unknown."""
    threads_where: str = ""
    """Where the script sets torch's number of threads, empty if it does not."""
    padding: PaddingFacts | None = None
    """None if no batch was seen to be padded."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TaskFacts":
        """Read back what `to_json` wrote."""
        apart = ("loaders", "optimizers", "sums", "padding")
        rest = {k: v for k, v in data.items() if k not in apart}
        sums, padding = data.get("sums"), data.get("padding")
        return cls(
            sums=None if sums is None else GradientSums(**sums),
            padding=None if padding is None else PaddingFacts(**padding),
            loaders=tuple(
                LoaderFacts(
                    **row
                    | {key: tuple(map(tuple, row.get(key, ()))) for key in ("orders", "draws")}
                )
                for row in data.get("loaders", ())
            ),
            optimizers=tuple(OptimizerFacts(**row) for row in data.get("optimizers", ())),
            **rest,
        )

    @property
    def processes_at_once(self) -> int | None:
        """How many such processes fit on the device at once, None if that is not limited."""
        return self.device_room // self.device_bytes if self.device_bytes else None

    @property
    def training_loaders(self) -> tuple[LoaderFacts, ...]:
        return tuple(loader for loader in self.loaders if loader.training)
