"""A step goes through the model in parts; what is learned from it stays the same.

What it does   splits the samples of a step into micro-batches of a given size, and sums their
               gradients under one normaliser.
When it helps  a step that does not fit into memory; on a CPU also one whose activations do not fit
               into its caches.
When it hurts  speed, usually: small parts use the hardware less well.
Numerics       rounding: gradients are summed in another order. Refused by models with batch norm,
               whose statistics would be those of a part.
Measured       tests/engine/test_step.py: bit-equal where the arithmetic is exact.
Source         gradient accumulation; huggingface/transformers issue 34191 (wrong normalisers).
"""

from dataclasses import dataclass

from hotlap.errors import PlanError
from hotlap.task import TaskFacts
from hotlap.techniques.record import FeedTarget, Memory, Numerics, Proof, Refusal, Technique

_LEAST, _PARTS = 16, 16
"""Samples of the smallest micro-batch worth a race, and micro-batches of a step at most."""


@dataclass(frozen=True)
class Options:
    size: int
    """Samples of a micro-batch."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size} is not allowed. Expected: 1 or more.")


def why_not(task: TaskFacts) -> str | None:
    norm = next((name for name in task.layers if "BatchNorm" in name), None)
    if norm is None:
        return None
    return (
        f"the model has {norm}, which would compute its statistics per micro-batch instead of per "
        "batch. Use another normalization, or use a plan without micro_batch."
    )


def candidates(task: TaskFacts) -> tuple[dict[str, int], ...]:
    """Return powers of two below the batch, those at a quarter and a half of it first."""
    most = max((each.batch_size or 0 for each in task.loaders if each.training), default=0)
    sizes = [1 << exponent for exponent in range(most.bit_length())]
    sizes = [size for size in reversed(sizes) if max(_LEAST, most // _PARTS) <= size < most]
    return tuple({"size": size} for size in (*sizes[1:2], *sizes[:1], *sizes[2:]))


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    if not target.own_order:
        raise Refusal(
            "micro_batch cannot split the steps of a script. Use `hotlap train` with a recipe, or "
            "use a plan without micro_batch."
        )
    from hotlap.feed.sources.source import share

    source = target.loader
    # A rank reads only its own samples of a step.
    mine = share(source.batch, source.world)
    if target.is_held_out and options.size != source.batch:
        # Its batches may be smaller than a step.
        source.micro = min(options.size, source.micro)
        target.notes["micro_batch"] = -(-mine // source.micro)
        return target
    if options.size > source.batch:
        raise PlanError(
            f"size={options.size} in the plan's [techniques.micro_batch] is larger than the batch "
            f"size {source.batch}. Set a size below {source.batch}, or use a plan without "
            "micro_batch."
        )
    if options.size >= mine == source.micro:
        whole = "batch" if source.world == 1 else f"share of a rank ({mine} samples)"
        raise Refusal(
            f"size={options.size} in the plan's [techniques.micro_batch] is the whole {whole}, so "
            f"nothing would be split. Set a size below {mine}, or use a plan without micro_batch."
        )
    source.micro = min(options.size, mine)
    target.notes["micro_batch"] = -(-mine // source.micro)
    return target


def proof(target: FeedTarget, options: Options) -> Proof:
    parts = target.notes.get("micro_batch")
    if parts is None:
        return Proof("no_effect", "no step was split")
    return Proof("applied", f"{parts} micro-batches of {options.size} samples per step")


TECHNIQUE = Technique(
    name="micro_batch",
    seam="feed",
    Options=Options,
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=candidates,
    without_candidates=f"no batch of more than {_LEAST} samples was seen, which could be split",
    # Smaller activations stay in a cache, and need no new pages.
    phases=("forward", "backward"),
    saves=0.1,
    engine_only=True,
    memory=Memory(micro_batch=lambda options: options.size),
    on_ranks=True,
)
