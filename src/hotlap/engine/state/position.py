"""`Position`: how far a run has come, in steps and epochs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """How far a run has come."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """The epoch that the next step belongs to, from 0."""
    in_epoch: int = 0
    """Steps of it that are done."""
