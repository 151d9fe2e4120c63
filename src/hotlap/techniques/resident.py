"""Samples are decoded once, kept in memory, and gathered by batch.

What it does   keeps each sample as the first epoch reads it; later epochs gather whole batches from
               memory, in the order and with the random draws of the script's own DataLoader. A
               collate function of the script's own is called with copies of its samples. Where
               worker processes read the first epoch, later ones need none: none are started. Of a
               data set that draws random numbers (augmentation) it keeps what `__getitem__`
               computes before it draws; what follows runs for each sample, with the draws of a
               plain run. Behind worker processes, those of the second epoch send what they compute;
               from the third one on batches are made without them, with the draws that each worker
               would have made, unless an epoch takes longer so. In the engine that memory is a
               GPU's, if the model is there, the samples fit and the task has no transforms: then
               only an epoch's order goes over the bus. In the host's memory, the ranks of one
               machine fill one copy together, if their data sets give the same samples.
When it helps  decoding or per-item Python costs more than the model, and the data set fits.
When it hurts  one epoch only (no gain, a little memory), or a data set near the size of memory;
               on a GPU, where the model needs that memory itself.
Numerics       exact: the same bytes in the same order. A data set that owns a generator, or gives
               another sample when it is read again under the same random state, is refused.
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md; in plans on a GPU:
               benchmarks/results/2026-11-27_gpu_h200.md
Source         torch.utils.data; pytorch/pytorch issues 106704 and 172003 (per-item fetch).
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from hotlap.task import TaskFacts, is_stream
from hotlap.techniques.record import (
    FeedTarget,
    Fetch,
    Live,
    Memory,
    Numerics,
    Proof,
    Refusal,
    Technique,
)

_COLLATE = (
    "the DataLoader has a collate_fn of its own (in a recipe: `collate` of the task), which "
    "resident supports only in scripts without worker processes. Remove this function to use "
    "`torch.utils.data.default_collate`, set num_workers=0 if this is a script, or use a plan "
    "without resident."
)


@dataclass(frozen=True)
class Options:
    max_mib: int = 8192
    """Refuse a data set that takes more MiB than this in the host's memory. Half of what is free
    there is another limit, whatever is said here."""
    where: Literal["auto", "host", "device"] = "auto"
    """`device`: a GPU's memory, up to a quarter of it, and half of what is free of it; `auto`: that
    if the samples fit and the task has no transform, else the host's."""

    def __post_init__(self) -> None:
        if self.max_mib < 1:
            raise ValueError(f"max_mib={self.max_mib} is not allowed. Expected: 1 or more.")


def why_not(task: TaskFacts) -> str | None:
    loaders = task.training_loaders
    if not loaders:
        return (
            "the training loop does not use a DataLoader, whose samples resident could keep in "
            "memory. Wrap the dataset in a `DataLoader`, or use a plan without resident."
        )
    if not any(loader.map_style for loader in loaders):
        return _on_stream(loaders[0].dataset)
    if not any(x.map_style and (x.plain_collate or x.collates_samples) for x in loaders):
        return _COLLATE
    return None


def _on_stream(name: str) -> str:
    return (
        f"{name} is not a map-style dataset. Expected: a dataset with `__getitem__` and "
        "`__len__`; or use a plan without resident."
    )


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    from torch.utils.data import default_collate

    from hotlap.feed.memory.behind_workers import BehindWorkers, why_not_behind_workers
    from hotlap.feed.memory.item_parts import ItemParts
    from hotlap.feed.memory.place import HostPlace
    from hotlap.feed.memory.resident import ResidentRows
    from hotlap.feed.memory.workers_rows import WorkersRows
    from hotlap.feed.purity.in_workers import DRAWS
    from hotlap.feed.purity.reach import Reach

    loader = target.loader
    # Padding of hotlap's own can be undone, row by row.
    keeps_rows = getattr(loader, "keeps_rows", False)
    has_own_collate = loader.collate_fn is not default_collate and not keeps_rows
    has_workers = loader.num_workers > 0
    if has_own_collate and (target.own_order or has_workers):
        raise Refusal(_COLLATE)
    _check_dataset(loader.dataset)
    looked = Reach(loader.dataset) if has_workers else None
    problem = looked and why_not_behind_workers(loader, target.own_order, looked)
    limit = options.max_mib * 2**20
    if looked is not None and problem is not None and problem.startswith(DRAWS):
        problem = why_not_behind_workers(loader, target.own_order, looked, may_draw=True)
        if problem is None:
            return _apply_to_parts(target, limit)
    if problem is not None:
        raise Refusal(problem)
    if has_workers:
        place = HostPlace(target.tables)
        rows: ResidentRows = WorkersRows(loader.dataset, limit, place=place)
        behind = BehindWorkers(rows, fill_ahead=target.fill_ahead)
        target.make_iterator = behind.make_iterator
    else:
        rows = ResidentRows(
            loader.dataset,
            limit,
            own_order=target.own_order,
            place=_place(target, options),
            whole_samples=has_own_collate,
        )
        serve = _serve_samples if has_own_collate else _serve_rows
        target.fetchers.append(partial(serve, target))
        parts = target.notes["resident_parts"] = ItemParts(limit, own_order=target.own_order)
        target.dropped.append(parts.drop)
    target.notes["resident"] = rows
    target.dropped.append(rows.drop)
    return target


def _apply_to_parts(target: FeedTarget, limit: int) -> FeedTarget:
    from hotlap.feed.memory.behind_drawing_workers import BehindDrawingWorkers
    from hotlap.feed.memory.received_parts import ReceivedParts

    parts = target.notes["resident_parts"] = ReceivedParts(limit)
    behind = BehindDrawingWorkers(parts, limit, fill_ahead=target.fill_ahead)
    target.make_iterator = behind.make_iterator
    target.dropped.append(parts.drop)
    return target


def _check_dataset(dataset: Any) -> None:
    has_positions = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if is_stream(dataset) or not has_positions:
        raise Refusal(_on_stream(type(dataset).__qualname__))
    try:
        len(dataset)
    except Exception as error:
        raise Refusal(
            f"`len(dataset)` raised {type(error).__name__}: {error}. Return the number of samples "
            "from `__len__`."
        ) from error


def _serve_rows(target: FeedTarget, dataset: Any, read: Fetch) -> Fetch:
    rows, parts = target.notes["resident"], target.notes["resident_parts"]
    parts.begin_epoch()

    def read_parts(indices: Any) -> Any:
        # Only what draws is taken apart; whole samples are served faster.
        if not rows.draws:
            return read(indices)
        wanted: Any = indices
        if target.own_order and not isinstance(indices, list):
            # The engine's positions are a tensor, and it asks the data set for integers.
            wanted = indices.tolist()
        return parts.fetch(dataset, read, wanted)

    fetch = rows.bind(dataset, read_parts)
    if target.fill_ahead:
        rows.fill(dataset, read_parts)
        if rows.draws:
            # In a live race it is switched off while it is prepared.
            is_on, parts.is_on = parts.is_on, True
            parts.fill(dataset, read)
            parts.is_on = is_on
    return fetch


def _serve_samples(target: FeedTarget, dataset: Any, read: Fetch) -> Fetch:
    rows = target.notes["resident"]
    collate = getattr(getattr(read, "__self__", None), "collate_fn", None)
    if collate is None:
        rows.refuse("another technique reads the batches of this DataLoader")
        return read
    # Torch's own code for a list of samples, whatever of the data set's methods it calls.
    fetcher = copy.copy(read.__self__)  # pyright: ignore[reportFunctionMemberAccess]
    fetcher.collate_fn = _as_it_is
    fetch = _serve_rows(target, dataset, fetcher.fetch)
    return lambda indices: collate(fetch(indices))


def _as_it_is(samples: Any) -> Any:
    return samples


def _place(target: FeedTarget, options: Options) -> Any:
    from hotlap.feed.memory.place import DevicePlace, HostPlace

    device = target.device
    if device is not None and not device.has_own_memory:
        device = None
    stages = getattr(target.loader, "stages", None)
    if device is not None and stages is not None and not stages.is_empty:
        if options.where == "device":
            raise Refusal(
                "where='device', but the task has a `transform` or `batch_transform`, which gets "
                "samples in the host's memory. Set where='host' in the plan's "
                "[techniques.resident]."
            )
        return HostPlace(target.tables)
    if device is not None and options.where != "host":
        otherwise = HostPlace(target.tables) if options.where == "auto" else None
        return DevicePlace(device, otherwise)
    if options.where == "device":
        raise Refusal(
            "where='device', but the model does not train on a GPU. Set where='host' in the plan's "
            "[techniques.resident]."
            if target.own_order
            else "where='device', but the script moves its batches itself. Set where='host' in the "
            "plan's [techniques.resident]."
        )
    return HostPlace(target.tables)


def proof(target: FeedTarget) -> Proof:
    rows, parts = target.notes.get("resident"), target.notes.get("resident_parts")
    if rows is None:
        return _proof_of_parts(parts)
    if rows.draws and parts is not None and (parts.is_in_use or parts.refused is not None):
        return _proof_of_parts(parts, f"{rows.refused}, and ")
    if rows.refused is not None:
        return Proof("refused", rows.refused)
    if rows.served == 0:
        return Proof("no_effect", _why_none_was_served(rows))
    # Counted on both sides.
    both = f" ({rows.completed} of both: only their missing samples)" if rows.completed else ""
    return Proof(
        "applied",
        f"{rows.served} batches served from {rows.most_bytes / 2**20:.0f} MiB of "
        f"{rows.place.name}; {rows.read_batches} read from the dataset, whose samples are "
        f"kept as they are first read{both}",
        on_ranks=rows.copies,
    )


def _proof_of_parts(parts: Any, before: str = "") -> Proof:
    if parts is None:
        return Proof("no_effect", "no DataLoader used it")
    if parts.refused is not None:
        return Proof("refused", f"{before}{parts.refused}")
    if parts.served == 0:
        # Alone, they come from workers.
        none = "no third epoch was read, the first one that needs no workers"
        why = f"{before}too few samples were read a second time" if before else none
        return Proof("no_effect", why)
    return Proof("applied", parts.words)


def _why_none_was_served(rows: Any) -> str:
    read = f"{rows.read_batches} batches read"
    if rows.changed is not None:
        return f"{read}, none from memory: {rows.changed} changed, so the samples were read again"
    return f"{read}; no sample was read twice: one pass so far, or other samples in each"


def _is_ready(target: FeedTarget) -> bool:
    # Until then it keeps what is read: that costs a little, and saves nothing. Behind workers it
    # cannot be switched within an epoch.
    rows, parts = target.notes.get("resident"), target.notes.get("resident_parts")
    if rows is None:
        return False
    if rows.draws and parts is not None:
        return parts.is_complete
    return rows.is_complete and not rows.behind_workers


def _switch_on(target: FeedTarget, options: Options) -> None:
    del options
    # Behind workers, an epoch is served as a whole or not at all.
    _switch(target, on=True)


def _switch_off(target: FeedTarget, options: Options) -> None:
    del options
    rows = target.notes.get("resident")
    _switch(target, on=rows is None or rows.behind_workers)


def _switch(target: FeedTarget, *, on: bool) -> None:
    for name in ("resident", "resident_parts"):
        if name in target.notes:
            target.notes[name].is_on = on


TECHNIQUE = Technique(
    name="resident",
    seam="feed",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    memory=Memory(keeps_dataset=True),
    live=Live(_switch_on, _switch_off, is_ready=_is_ready),
    on_ranks=True,
)
