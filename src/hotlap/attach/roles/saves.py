"""`saved_row`: what tells whether an object that is saved holds the weights of the model."""

from typing import Any

from hotlap.attach.roles.networks import Networks
from hotlap.trial import digest


def saved_row(value: Any, networks: Networks, updates: int) -> list[Any]:
    """Return updates so far, tensors that are a weight or buffer bit by bit, digest of all tensors.

    Args:
        value: what is saved.
        networks: whose weights and buffers are meant.
        updates: of all optimizers so far.
    """
    tensors = digest.tensors_in(value)
    digests = digest.of_tensors(tensors)
    held = {*digest.of_tensors([tensor for _, tensor in networks.states()])}
    return [updates, sum(each in held for each in digests), digest.of_nested(digests)]
