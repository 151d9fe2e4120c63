"""A loss compares each prediction with every target.

What it sees   a difference, or a loss of torch's, of n predictions in a column and n targets that
               are none, or the other way round: broadcasting makes a table of n x n of them.
Why it matters each prediction is drawn to the mean of all targets of the batch: the model learns
               hardly more than that mean, and the loss stays near the variance of the targets.
What to do     give both the same shape: `predictions.squeeze(1)`, or `targets.unsqueeze(1)`.
Evidence       the shapes in the graph of the loss. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of a loss of a table."""
    return [
        mistake(
            loss.where,
            f"{loss.table} predictions and {loss.table} targets of different shapes make a table "
            f"of {loss.table} x {loss.table} differences: each prediction is compared with every "
            "target",
            "the same shape for both: `predictions.squeeze(1)`, or `targets.unsqueeze(1)`",
        )
        for loss in trace.learning.losses
        if loss.table
    ]


RULE = Rule(name="broadcast_loss", kind="mistake", nominate=nominate)
