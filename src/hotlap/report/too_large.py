"""Says which trials of a search held more memory than `--memory` allows."""

import math
from collections.abc import Sequence

_MIB = 2**20


def held_text(held: Sequence[int], limit: int, trials: int) -> str:
    """Return how many trials held too much, and what the smallest of them held.

    Args:
        held: bytes of each trial that held more than the limit.
        limit: what `--memory` allows, in bytes.
        trials: all of the search.
    """
    # Rounded up: with --memory of what is shown, that trial is a candidate.
    least = math.ceil(min(held) / _MIB)
    allowed = f"--memory {limit / _MIB:,.0f} MiB"
    return f"{len(held)} of {trials} trials held more than {allowed} (the least: {least:,} MiB)"


def none_fits_text(held: Sequence[int], limit: int, trials: int) -> str:
    """Return why there is no best configuration where trials held too much, and what to do."""
    return (
        "No trial that stayed within --memory was trained to the end, so there is no best "
        f"configuration: {held_text(held, limit, trials)}. Begin a new search (--again, or another "
        "--run-dir) with a larger --memory, or with a --space of values that need less memory."
    )
