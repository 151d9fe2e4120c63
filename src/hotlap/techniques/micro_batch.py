"""A step goes through the model in parts; what is learned from it stays the same.

What it does   splits the samples of a step into micro-batches of a given size, and sums their
               gradients under one normaliser.
When it helps  a step that does not fit into memory.
When it hurts  speed: small parts use the hardware less well.
Numerics       rounding: gradients are summed in another order. Refused by models with batch norm,
               whose statistics would be those of a part.
Measured       tests/engine/test_step.py: bit-equal where the arithmetic is exact.
Source         gradient accumulation; huggingface/transformers issue 34191 (wrong normalisers).
"""

from dataclasses import dataclass

from hotlap.errors import PlanError
from hotlap.techniques.record import FeedTarget, Memory, Numerics, Proof, Refusal, Technique


@dataclass(frozen=True)
class Options:
    size: int
    """Samples of a micro-batch."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size={self.size} is not allowed. Expected: 1 or more.")


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    if not target.own_order:
        raise Refusal("hotlap cannot split a script's steps. Use `hotlap train` with a recipe.")
    source = target.loader
    if options.size > source.batch:
        raise PlanError(
            f"micro_batch.size={options.size} is larger than the batch size {source.batch}. "
            f"Expected: at most {source.batch - 1}."
        )
    if options.size == source.batch == source.micro:
        raise Refusal(
            f"size={options.size} is the whole batch. Set a size below {source.batch} to split it."
        )
    source.micro = options.size
    target.notes["micro_batch"] = -(-source.batch // options.size)
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
    why_not=lambda: None,
    apply=apply,
    proof=proof,
    candidates=lambda: (),
    memory=Memory(micro_batch=lambda options: options.size),
)
