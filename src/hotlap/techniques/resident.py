"""Samples are decoded once, kept in memory, and gathered by batch.

What it does   keeps each sample as the first epoch reads it; later epochs gather whole batches from
               memory, in the order and with the random draws of the script's own DataLoader. In
               the engine that memory is a GPU's, if the model is there and the samples fit: then
               only an epoch's order goes over the bus.
When it helps  decoding or per-item Python costs more than the model, and the data set fits.
When it hurts  one epoch only (no gain, a little memory), or a data set near the size of memory;
               on a GPU, where the model needs that memory itself.
Numerics       exact: the same bytes in the same order. A data set that draws random numbers
               (augmentation), owns a generator, or gives another sample when it is read again is
               refused.
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md; not yet measured on a GPU
Source         torch.utils.data; pytorch/pytorch issues 106704 and 172003 (per-item fetch).
"""

from dataclasses import dataclass
from typing import Any, Literal

from hotlap.task import TaskFacts, is_stream
from hotlap.techniques.record import FeedTarget, Memory, Numerics, Proof, Refusal, Technique


@dataclass(frozen=True)
class Options:
    max_mib: int = 8192
    """Refuse a data set that takes more MiB than this in memory. Half of the free memory is
    another limit, whatever is said here."""
    where: Literal["auto", "host", "device"] = "auto"
    """`device`: a GPU's memory, up to a quarter of what is free there; `auto`: that if the samples
    fit, else the host's."""

    def __post_init__(self) -> None:
        if self.max_mib < 1:
            raise ValueError(f"max_mib={self.max_mib} is not allowed. Allowed: 1 or more.")


def why_not(task: TaskFacts) -> str | None:
    loaders = task.training_loaders
    if not loaders:
        return "no DataLoader feeds the training loop"
    if not any(loader.map_style for loader in loaders):
        return "the data set is a stream (iterable), it has no samples that could be kept"
    if not any(loader.map_style and loader.plain_collate for loader in loaders):
        return "batches are made by a collate function of the script's own"
    if all(loader.num_workers > 0 for loader in loaders):
        return "the loader uses worker processes"
    return None


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    from torch.utils.data import default_collate

    from hotlap.feed.memory.resident import ResidentRows

    loader = target.loader
    if loader.num_workers > 0:
        raise Refusal("the loader uses worker processes")
    # Padding of hotlap's own can be undone, row by row.
    keeps_rows = getattr(loader, "keeps_rows", False)
    if loader.collate_fn is not default_collate and not keeps_rows:
        raise Refusal("batches are made by a collate function of the script's own")
    has_positions = hasattr(loader.dataset, "__len__") and hasattr(loader.dataset, "__getitem__")
    if is_stream(loader.dataset) or not has_positions:
        raise Refusal("the data set is a stream (iterable), it has no samples that could be kept")
    try:
        len(loader.dataset)
    except Exception as error:
        raise Refusal(f"the data set's length raised {type(error).__name__}") from error
    limit = options.max_mib * 2**20
    place = _place(target, options)
    rows = ResidentRows(loader.dataset, limit, own_order=target.own_order, place=place)
    target.notes["resident"] = rows

    def serve(dataset: Any, read: Any) -> Any:
        fetch = rows.bind(dataset, read)
        if target.fill_ahead:
            rows.fill(dataset, read)
        return fetch

    target.fetchers.append(serve)
    target.dropped.append(rows.drop)
    return target


def _place(target: FeedTarget, options: Options) -> Any:
    from hotlap.feed.memory.place import DevicePlace, HostPlace

    device = target.device
    if device is not None and device.is_apart and options.where != "host":
        return DevicePlace(device, HostPlace() if options.where == "auto" else None)
    if options.where == "device":
        raise Refusal(
            "where='device', but the batches stay on the host"
            if target.own_order
            else "where='device', but a script moves its batches itself"
        )
    return HostPlace()


def proof(target: FeedTarget) -> Proof:
    rows = target.notes.get("resident")
    if rows is None:
        return Proof("no_effect", "no loader took it")
    if rows.refused is not None:
        return Proof("refused", rows.refused)
    if rows.served == 0:
        return Proof("no_effect", _why_none_was_served(rows))
    return Proof(
        "applied",
        f"{rows.served} batches served from {rows.most_bytes / 2**20:.0f} MiB of "
        f"{rows.place.name}, "
        f"{rows.read_batches} read by the data set",
    )


def _why_none_was_served(rows: Any) -> str:
    read = f"{rows.read_batches} batches read"
    if rows.changed is not None:
        return f"{read}, none from memory: {rows.changed} changed, so the samples were read again"
    return f"{read}, and no sample was asked for again: one epoch, or another part in each"


TECHNIQUE = Technique(
    name="resident",
    seam="feed",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    memory=Memory(keeps_dataset=True),
)
