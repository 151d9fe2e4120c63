"""What several ranks say of one plan, merged: a line for each technique."""

from collections.abc import Sequence

from hotlap.attach.heard_child import Child

_SHOWN = 3
"""Ranks that are named in a line."""


def lines(children: Sequence[Child], exit_code: int) -> list[str]:
    """Return what the ranks that train have proven; empty if there are none.

    Args:
        children: all that were heard.
        exit_code: the script's; where it failed, nobody need know why no rank reports.
    """
    ranks = _ranks(children)
    names = list(dict.fromkeys(row["name"] for rank in ranks for row in rank.techniques))
    found = [_line(name, ranks) for name in names]
    found += [
        f"{_name(rank)}: the plan was not applied: {rank.failure}"
        for rank in ranks
        if rank.failure is not None
    ]
    if ranks and exit_code == 0 and all(rank.steps is None for rank in ranks):
        found.append("it is not known which techniques took effect: no rank reports at its end")
    count = len({rank.rank for rank in ranks})
    world = max((rank.ranks for rank in ranks), default=1)
    if ranks and exit_code == 0 and count < world:
        found.append(
            f"{count} of {world} ranks are known to this `hotlap run`, which has started no others"
        )
    return found


def _ranks(children: Sequence[Child]) -> list[Child]:
    """Return the ranks that train; one that was started again, for the last time."""
    ranks = [child for child in children if child.trains and child.is_rank]
    ranks.sort(key=lambda child: -1 if child.rank is None else child.rank)
    return [
        rank
        for number, rank in enumerate(ranks)
        if rank.steps is not None or rank.rank not in {each.rank for each in ranks[number + 1 :]}
    ]


def _line(name: str, ranks: Sequence[Child]) -> str:
    proofs = [_proof(name, rank) for rank in ranks]
    count, (state, why) = len(ranks), proofs[0]
    if all(each == state for each, _ in proofs):
        said = f"{name}: {state} in {count} of {count} ranks"
        return f"{said}{_copies(name, ranks)}" if state == "applied" else f"{said}: {why}"
    others = [(rank, *proof) for rank, proof in zip(ranks, proofs, strict=True)]
    others = [row for row in others if row[1] != "applied"]
    shown = "".join(f"; {_name(rank)}: {state}, {why}" for rank, state, why in others[:_SHOWN])
    more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return f"{name}: applied in {count - len(others)} of {count} ranks{shown}{more}"


def _copies(name: str, ranks: Sequence[Child]) -> str:
    """Return what the ranks have together by a technique, once if all of them say the same."""
    said = [
        (rank, row["on_ranks"])
        for rank in ranks
        for row in rank.techniques
        if row["name"] == name and "on_ranks" in row
    ]
    if len({words for _, words in said}) == 1 and len(said) == len(ranks):
        return f"; {said[0][1]}"
    more = f"; and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    return "".join(f"; {_name(rank)}: {words}" for rank, words in said[:_SHOWN]) + more


def _proof(name: str, rank: Child) -> tuple[str, str]:
    """Return the state of a technique in a rank, and why."""
    for row in rank.techniques:
        if row["name"] == name:
            return row["state"], row["why"]
    return "unknown", "it did not report at its end"


def _name(rank: Child) -> str:
    return "a rank" if rank.rank is None else f"rank {rank.rank}"
