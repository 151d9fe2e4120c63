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
            raise ValueError(f"size={self.size} is not allowed. Allowed: 1 or more.")


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    if not target.own_order:
        raise Refusal("a script's step is its own; `hotlap train` offers this for recipes")
    source = target.loader
    if options.size > source.batch:
        raise PlanError(
            f"micro_batch has {options.size} samples, a step only {source.batch}. Allowed: a "
            f"size below {source.batch}."
        )
    if options.size == source.batch:
        raise Refusal(f"a step has {source.batch} samples, no more than a micro-batch")
    source.micro = options.size
    target.notes["micro_batch"] = -(-source.batch // options.size)
    return target


def proof(target: FeedTarget, options: Options) -> Proof:
    parts = target.notes.get("micro_batch")
    if parts is None:
        return Proof("no_effect", "no step was split")
    return Proof("applied", f"{parts} micro-batches of {options.size} samples a step")


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
