"""Checks that an optimizer can train the shares that each rank has of the parameters."""

from typing import Any

from hotlap.distributed.shares import is_share
from hotlap.errors import UsageError
from hotlap.techniques.sharding import ELEMENTWISE, torchs_name


def check_sharding(optimizer: Any, sharding: Any) -> None:
    """Raise UsageError if each rank's updates of its shares would not be those of whole tensors.

    Args:
        optimizer: over the shares.
        sharding: of the model; None if there is none.
    """
    if sharding is None:
        return
    kind = type(optimizer)
    if torchs_name(kind) not in ELEMENTWISE:
        raise UsageError(
            f"optimizer() returned {kind.__name__}, whose update of one element may depend on "
            "others, but with `sharding` each rank has only its part of a parameter. Use one of "
            f"{', '.join(ELEMENTWISE)} of torch.optim or a subclass, or set level = 'optimizer' in "
            "the plan's [techniques.sharding]."
        )
    trained = [each for group in optimizer.param_groups for each in group["params"]]
    if not all(map(is_share, trained)):
        raise UsageError(
            "optimizer() returned an optimizer that also holds a parameter outside of the model, "
            "which `sharding` cannot split. Make that parameter one of the model's, or set level = "
            "'optimizer' in the plan's [techniques.sharding]."
        )
