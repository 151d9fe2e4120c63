"""`hotlap.estimate`: predicts peak memory, and the largest batch, before anything runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hotlap.engine.memory.kept_samples import kept_samples
from hotlap.engine.memory.ledger import Peak
from hotlap.engine.memory.rank_bytes import Held, predict_for
from hotlap.engine.memory.rehearsal import (
    LargestBatch,
    Rehearsal,
    Sample,
    largest_batches,
    rehearse,
)
from hotlap.errors import RunError, UsageError
from hotlap.host.memory import available_bytes
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN, Technique, check, registry

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?)(i?B)?", re.ASCII | re.IGNORECASE)
_TRIALS = 12
_FAR = 4
"""How many times what fits what does not may be before a secant creeps."""
_CLOSE = 0.02
_MOST_SAMPLES = 10**9


@dataclass(frozen=True)
class Row:
    """One precision with one choice of recompute."""

    precision: str
    recompute: str
    plan: Plan
    peak: Peak | None
    """None where `why_not` says why there is none."""
    why_not: str = ""
    largest_batch: int | None = None
    """Samples that could go through the model at once, about; None if not even one could."""

    @property
    def name(self) -> str:
        """Precision and recompute in a few words."""
        if self.precision == self.recompute:
            return self.precision
        return self.precision if self.recompute == "none" else f"{self.precision}, {self.recompute}"

    def to_json(self) -> dict[str, Any]:
        """Return the row as data."""
        peak = self.peak
        return {
            "precision": self.precision,
            "recompute": self.recompute,
            "plan": self.plan.techniques,
            "peak_bytes": None if peak is None else peak.bytes,
            "phase": None if peak is None else peak.phase,
            "kinds": None if peak is None else dict(peak.kinds),
            "most": None if peak is None else dict(peak.most),
            "largest_batch": self.largest_batch,
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True)
class Estimate:
    """What a task would hold under a plan, and under others."""

    device: str
    memory_bytes: int
    """What there is to fit into."""
    batch: int
    """Samples of a step, the largest where they differ."""
    data_bytes: int
    """Samples that the plan keeps in memory."""
    chosen: Row
    """The plan that was given."""
    techniques: tuple[Mapping[str, str], ...]
    """{name, state, why} of the given plan's techniques, as far as they were rehearsed."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What is not counted, and what was assumed."""
    ranks: int = 1
    data_on_device: bool = False
    """True if these samples are kept in the memory of a device that is not the host."""
    held: Held | None = None
    """What the rank that holds most will hold between two steps, of several ranks; None for one."""

    @property
    def needed_bytes(self) -> int:
        """Bytes that the plan that was given needs on the device."""
        peak = 0 if self.chosen.peak is None else self.chosen.peak.bytes
        is_beside = self.device == "cpu" or self.data_on_device
        return peak + (self.data_bytes if is_beside else 0)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as the JSON that `hotlap train --estimate --json` prints."""
        return {
            "device": self.device,
            "memory_bytes": self.memory_bytes,
            "batch": self.batch,
            "needed_bytes": self.needed_bytes,
            "fits": self.fits,
            "data_bytes": self.data_bytes,
            "data_on_device": self.data_on_device,
            "chosen": self.chosen.to_json(),
            "techniques": [dict(row) for row in self.techniques],
            "rows": [row.to_json() for row in self.rows],
            "notes": list(self.notes),
            "ranks": self.ranks,
            "held_bytes": None if self.held is None else self.held.to_json(),
        }


def estimate(
    task: Task,
    plan: Plan | None = None,
    *,
    device: str | None = None,
    memory_bytes: int | None = None,
    find_largest: bool = True,
    techniques: tuple[str, ...] = (),
    ranks: int = 1,
) -> Estimate:
    """Predict the most bytes of tensors that are alive at once, before anything runs.

    The engine's own step is taken twice with tensors that have shapes and no numbers, so views,
    saved activations, the optimizer's temporaries, masters, micro-batches and recomputation count
    as they really would. Some samples are read, to know their shapes.

    Args:
        task: what is learned.
        plan: how it is executed; exact techniques only if None.
        device: as torch names it; the first accelerator if None, else the CPU. Where torch lacks
            it, the CPU's operators stand in, and a note says so.
        memory_bytes: what there is to fit into; all of the device's if None, on a CPU what is free.
        find_largest: look for the largest batch as well, which takes four times as long.
        techniques: techniques from outside, as `module:NAME`.
        ranks: number of ranks that train the model together.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: something in the task is not what it says it is.
        RunError: model or loss cannot be followed without numbers.
    """
    plan = EXACT_PLAN if plan is None else plan
    known = registry(techniques)
    check(plan, known)
    like = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on = like if _is_here(like) else "cpu"
    room = memory_bytes or _device_memory(like)
    batches = largest_batches(task)
    of_one = max(batch.sample.kept_bytes for batch in batches)
    kept = kept_samples(task, plan, known, of_one, device=like, memory_bytes=room)
    tried = [
        rehearse(each.task, plan, each.sample, device=on, like=like, techniques=techniques)
        for each in batches
    ]
    own = max(tried, key=lambda done: done.peak.bytes)
    largest = batches[tried.index(own)]
    room_left = room - (kept.bytes if like == "cpu" or kept.is_on_device else 0)
    work = _Work(largest.task, largest.sample, on, like, room_left, find_largest, techniques, known)
    chosen = Row(
        "as planned", "as planned", plan, own.peak, "", work.find_most_samples(plan, own.peak)
    )
    rest = {
        name: options for name, options in plan.techniques.items() if not known[name].memory.axis
    }
    rows = [
        work.row(precision, recompute, Plan({**rest, **narrow, **again}))
        for precision, narrow in _answers(known, "precision", "fp32").items()
        for recompute, again in _answers(known, "recompute", "none").items()
    ]
    return Estimate(
        device=like,
        memory_bytes=room,
        batch=largest.task.logical_batch,
        data_bytes=kept.bytes,
        data_on_device=kept.is_on_device,
        chosen=chosen,
        techniques=own.proofs,
        rows=tuple(rows),
        notes=_notes(like, on, largest, [known[name] for name in own.left_out]),
        ranks=ranks,
        held=predict_for(task, plan, ranks) if ranks > 1 else None,
    )


def memory_size(text: str) -> int:
    """Return the bytes of `16GiB`, `16G`, `800MiB` or `1000000`; units are powers of 1024.

    Raises:
        UsageError: it is none of these.

    >>> memory_size("1.5GiB")
    1610612736
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match["number"]) * _UNITS[match["unit"].upper()]) if match else 0
    if size < 1:
        raise UsageError(
            f"--memory: '{text}' is not a memory size. Expected: a number of bytes, or a number "
            "with a unit, as in `16GiB` or `800MiB`."
        )
    return size


@dataclass(frozen=True)
class _Work:
    """Rehearses one task under one plan after another."""

    task: Task
    sample: Sample
    device: str
    like: str
    room: int
    find_largest: bool
    techniques: tuple[str, ...]
    known: Mapping[str, Technique]

    def _rehearse(self, task: Task, plan: Plan) -> Rehearsal:
        return rehearse(
            task,
            plan,
            self.sample,
            device=self.device,
            like=self.like,
            techniques=self.techniques,
        )

    def _is_varied(self, name: str) -> bool:
        return bool(self.known[name].memory.axis)

    def row(self, precision: str, recompute: str, plan: Plan) -> Row:
        try:
            done = self._rehearse(self.task, plan)
        except (RunError, UsageError) as error:
            if not any(map(self._is_varied, plan.techniques)):
                raise
            return Row(precision, recompute, plan, None, str(error))
        varied = [proof for proof in done.proofs if self._is_varied(proof["name"])]
        for proof in varied:
            if proof["state"] != "applied":
                return Row(precision, recompute, plan, None, proof["why"])
        return Row(
            precision, recompute, plan, done.peak, "", self.find_most_samples(plan, done.peak)
        )

    def find_most_samples(self, plan: Plan, known: Peak) -> int | None:
        """Return about the most samples that fit at once; fewer, where more cannot be followed.

        By secants, which are exact where memory is linear. Where they would creep the middle is
        taken, of the logarithms: memory of a batch may be quadratic.
        """
        if not self.find_largest:
            return None
        kept = {k: v for k, v in plan.techniques.items() if not self.known[k].memory.micro_batch}
        whole = Plan(kept)
        is_whole = whole == plan and self.task.accumulate == 1
        low = (self.task.most_samples, known.bytes) if is_whole else self._peak_of(1, whole)
        high: tuple[int, int] | None = None
        if low[1] > self.room:
            low, high = (0, 0), low
        count = _limit_samples((high or low)[0] * self.room // (high or low)[1])
        for _ in range(_TRIALS):
            if count <= low[0] or (high is not None and count >= high[0]):
                break
            try:
                now = self._peak_of(count, whole)
            except RunError:
                break
            slope = (now[1] - low[1]) / (now[0] - low[0])
            if now[1] <= self.room:
                low = now
            else:
                high = now
            if slope <= 0 or low[0] >= _MOST_SAMPLES:
                break
            count = _limit_samples(int(low[0] + (self.room - low[1]) / slope))
            if high is not None and low[0] and high[0] > _FAR * low[0]:
                count = max(count, int((low[0] * high[0]) ** 0.5))
            if count - low[0] <= _CLOSE * low[0]:
                break
        return low[0] or None

    def _peak_of(self, count: int, plan: Plan) -> tuple[int, int]:
        task = replace(self.task, batch_size=count, accumulate=1, drop_last=False)
        done = self._rehearse(task, plan)
        return count, done.peak.bytes


def _answers(known: Mapping[str, Technique], axis: str, without: str) -> dict[str, dict[str, Any]]:
    """Return name -> what is added to the plan, for each answer to a choice."""
    found: dict[str, dict[str, Any]] = {without: {}}
    for name, technique in known.items():
        if technique.memory.axis == axis:
            choices = technique.memory.choices.items()
            found |= {answer: {name: dict(options)} for answer, options in choices}
    return found


def _limit_samples(count: int) -> int:
    return max(0, min(count, _MOST_SAMPLES))


def _is_here(device: str) -> bool:
    if device.startswith("cuda"):
        return torch.cuda.is_available()
    return True


def _device_memory(device: str) -> int:
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise UsageError(
                f"device '{device}' is not available on this machine, so its memory size is "
                "unknown. Pass the size, as in `--memory 80GiB` (memory_bytes in hotlap.estimate)."
            )
        return int(torch.cuda.mem_get_info(device)[1])
    return available_bytes()


def _notes(like: str, on: str, largest: LargestBatch, left_out: list[Technique]) -> tuple[str, ...]:
    notes = ["counted: peak memory of live tensors, as torch's allocator counts them"]
    if like.startswith("cuda"):
        notes.append(
            "not counted: the CUDA context (a few hundred MiB), workspaces of cuBLAS and cuDNN "
            "(tens of MiB for each stream), and fragmentation in the caching allocator; a run "
            "reports how much is allocated, reserved and used"
        )
    else:
        notes.append("not counted: Python, torch's libraries, and what the dataset itself holds")
    if like != on:
        notes.append(f"{like} is not available here: operators of the {on} were used instead")
    if largest.length is not None:
        notes.append(
            f"samples differ in length: every batch is assumed to be the largest, of "
            f"{largest.task.batch_size} samples padded to {largest.length} tokens"
        )
    if largest.sample.differs:
        notes.append("samples differ in size: each is assumed to be as large as the largest read")
    notes += [
        f"{technique.name} is not simulated: {technique.memory.untraced}"
        for technique in left_out
        if technique.memory.untraced
    ]
    return tuple(notes)
