"""Explains what torch or Python says of loss(): labels out of range, no scalar, no gradient."""

import re
import traceback

from hotlap.distributed.reduce import explain_loss, is_of_lost_rank
from hotlap.errors import UsageError
from hotlap.usercode import is_users

_SAID_OF_LOSSES = {
    "has no attribute 'backward'": "loss() returned something that is not a tensor",
    "implicitly created only for scalar outputs": "loss() returned more than one number",
    "does not require grad": "loss() returned a number that does not depend on any parameter",
    "implicitly created only for real scalar": "loss() returned a complex number",
    "too many values to unpack": "loss() returned a tuple of more than two",
}
"""What Python or torch says -> what a user can act on."""


def raise_explained(error: Exception) -> None:
    """Raise what a user can act on, where torch says only what it stumbled over; else return."""
    told = _explain(error)
    if told is not error:
        # Where another rank failed, there is nothing to see beside the explanation.
        raise told from None if is_of_lost_rank(error) else error


def _explain(error: Exception) -> Exception:
    if is_of_lost_rank(error):
        # A sharded model calls collectives of its own.
        return explain_loss(error)
    text = str(error)
    found = re.search(r"Target (-?\d+) is out of bounds", text)
    if found is not None:
        return UsageError(
            f"label {found[1]} is out of range for the model's outputs. Expected: labels from 0 to "
            "the number of outputs minus 1. Update the labels in the dataset, or the number of "
            f"outputs in model(). If this label must not count, pass ignore_index={found[1]} to "
            "the loss function, as in `F.cross_entropy`."
        )
    if "got mixed torch.Tensor and DTensor" in text:
        return UsageError(
            "loss() used a parameter outside of a call of the model, but with `sharding` a "
            "parameter is complete only while the model is called. Call the `model` that is passed "
            "to loss(model, batch), or set only level = 'optimizer' in the plan's "
            "[techniques.sharding]."
        )
    for words, problem in _SAID_OF_LOSSES.items():
        if words in text and not _is_from_users_code(error):
            return UsageError(
                f"{problem} ({text}). Expected: a scalar tensor computed from the model's output "
                "(the mean over the batch's samples), or (sum, count)."
            )
    return error


def _is_from_users_code(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and is_users(frames[-1].filename)
