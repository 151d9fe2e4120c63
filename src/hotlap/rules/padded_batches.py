"""Batches of sequences hold padding, and the model computes it.

What it sees   tensors of the training batches, (samples, length) or (samples, length, features), of
               which a fifth or more is padding: runs of one value at an end of the rows, which a
               mask or lengths in the batch confirm, or which differ in length and are rare
               elsewhere.
Why it costs   forward and backward take as long for padding as for what is filled.
What to do     pad to the longest sequence of each batch and not to a fixed length; put sequences of
               similar length into one batch (sort, or buckets). In a recipe: `hotlap.pad` and
               `tokens_per_batch`.
Evidence       convicted by batches that are cut: to their longest sequence where all are padded to
               one length, else to their mean length; in turns with the script as it is.
"""

from hotlap.plan import Plan
from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

_LEAST_SHARE = 0.2
"""Of the positions that must be padding."""
_LEAST_AVOIDABLE = 0.1


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate what asks for padded batches."""
    padding, means = trace.facts.padding, trace.phase_means()
    if padding is None or padding.share < _LEAST_SHARE or padding.avoidable < _LEAST_AVOIDABLE:
        return []
    return [
        Nomination(
            where=padding.where,
            evidence=(
                f"{padding.share:.0%} of the positions of `{padding.name}` (on average "
                f"{padding.length:.0f} for each sample) are padding"
            ),
            remedies=(),
            advice={},
            at_most_ms=padding.share * (means["forward"] + means["backward"]),
            bound=Plan({"cut_batches": {}}),
            bound_words=f"with {padding.avoidable:.0%} of the positions cut off",
            by_hand=padding.remedy,
        )
    ]


RULE = Rule(name="padded_batches", kind="speed", nominate=nominate)
