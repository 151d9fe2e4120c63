"""`Child`: what a child process has reported to the parent, and why no plan was applied to it."""

from collections.abc import Mapping
from typing import Any


class Child:
    """A child that hotlap is in, as it has told.

    Args:
        by: what has started it.
        rank: its number, None if it has none.
        is_rank: False for a child that has no plan: it only says whether it trains.
    """

    def __init__(self, by: str, rank: int | None, is_rank: bool = True) -> None:
        self.by, self.rank, self.is_rank = by, rank, is_rank
        self.trains = False
        self.ranks = 1
        """Processes in its group."""
        self.steps: int | None = None
        """Optimizer steps, None if it did not say at its end."""
        self.techniques: list[dict[str, str]] = []
        """{name, state, why}, as it has proven them itself."""
        self.failure: str | None = None
        """Why the plan was not applied to it, if it was not."""
        self.recorded: dict[str, Any] | None = None
        """What it said of its records."""

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take in what it says."""
        kind = message["kind"]
        if kind == "trains":
            self.trains = True
            # The number in its process group, which is what its own output calls it.
            self.rank = self.rank if message["rank"] is None else message["rank"]
            self.ranks = message["ranks"]
        elif kind == "failed":
            self.failure = message["error"]
        elif kind == "report":
            self.steps, self.techniques = message["steps"], message["techniques"]
            self.recorded = message.get("recorded")


def problem(steps: int | None, exit_code: int, heard: list[Child]) -> str | None:
    """Return why a plan was applied to nothing, or not to all that trained; None if it was.

    Args:
        steps: optimizer steps of the script's own process, None if it did not say.
        exit_code: the script's.
        heard: the children that train.
    """
    others = [child for child in heard if not child.is_rank]
    if others:
        by = " and ".join(sorted({child.by for child in others}))
        many = f"{len(others)} child processes" if len(others) > 1 else "a child process"
        verb, who = ("train", "they") if len(others) > 1 else ("trains", "it")
        rest = f"{who} ran without the plan" if steps else "the plan was not applied"
        return (
            f"{many} {verb}, started by {by}: {rest}, because hotlap attaches to the script's own "
            "process, to ranks of torchrun, and to processes of torch.multiprocessing.spawn"
        )
    if steps == 0 and exit_code == 0 and not heard:
        return (
            "no process that hotlap is attached to took a step of a torch optimizer, so the plan "
            "was not applied. hotlap attaches to the script's own process, to ranks of torchrun, "
            "and to processes of torch.multiprocessing.spawn"
        )
    return None
