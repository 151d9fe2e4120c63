"""What several ranks say of one plan, merged: a line for each technique."""

from collections.abc import Sequence

from hotlap.attach.children import Child

_SHOWN = 3
"""Ranks that are named in a line."""


def lines(children: Sequence[Child], exit_code: int) -> list[str]:
    """Return what the ranks that train have proven; empty if there are none.

    Args:
        children: all that were heard.
        exit_code: the script's; a rank that was ended with the others says nothing.
    """
    ranks = _ranks(children)
    heard = [rank for rank in ranks if rank.steps is not None and rank.failure is None]
    names = list(dict.fromkeys(row["name"] for rank in heard for row in rank.techniques))
    found = [_line(name, heard, len(ranks)) for name in names]
    for rank in ranks:
        if rank.failure is not None:
            found.append(f"{_name(rank)}: the plan was not applied: {rank.failure}")
        elif rank.steps is None and exit_code == 0:
            found.append(f"{_name(rank)} did not say at its end which techniques took effect")
    return found


def _ranks(children: Sequence[Child]) -> list[Child]:
    """Return the ranks that train; one that was started again, for the last time."""
    ranks = [child for child in children if child.trains and child.is_rank]
    return [
        rank
        for number, rank in enumerate(ranks)
        if rank.steps is not None or rank.rank not in {each.rank for each in ranks[number + 1 :]}
    ]


def _line(name: str, heard: Sequence[Child], count: int) -> str:
    rows = [(rank, row) for rank in heard for row in rank.techniques if row["name"] == name]
    states = {row["state"] for _, row in rows}
    if len(rows) == count and len(states) == 1:
        (state,) = states
        why = "" if state == "applied" else f": {rows[0][1]['why']}"
        return f"{name}: {state} in {count} of {count} ranks{why}"
    applied = sum(row["state"] == "applied" for _, row in rows)
    others = [(rank, row) for rank, row in rows if row["state"] != "applied"]
    shown = "".join(
        f"; {_name(rank)}: {row['state']}, {row['why']}" for rank, row in others[:_SHOWN]
    )
    more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return f"{name}: applied in {applied} of {count} ranks{shown}{more}"


def _name(rank: Child) -> str:
    return "a rank" if rank.rank is None else f"rank {rank.rank}"
