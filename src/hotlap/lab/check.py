"""`Check`: what one check of a proof has found: its state, in words, and the figures for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check: `passed`, `failed`, or `not_made`, and what it rests on."""

    name: str
    state: str
    evidence: str
