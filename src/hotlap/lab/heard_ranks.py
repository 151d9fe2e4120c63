"""`Ranks`: what the ranks of a trial have reported, and which one the others wait for."""

from collections.abc import Mapping
from typing import Any


class Ranks:
    """What the processes of a trial have said of themselves; none if only one trains."""

    def __init__(self) -> None:
        self.are_there = False
        """True if several processes train; what is heard of is the first of them."""
        self.followed: dict[int, dict[str, Any]] = {}
        """Reports of the other ranks, as far as they have come."""
        self.paces: dict[int, dict[str, Any]] = {}
        """Of the other ranks of a watched run: `phases` of a mean step, and `exposed_ms`."""
        self._idle: set[Any] = set()

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take in a message of any process."""
        kind, rank = message["kind"], message.get("rank")
        if kind == "attached" and message.get("is_rank"):
            self.are_there = True
            self._idle.add(rank)
        elif kind == "trains":
            self._idle.discard(rank)
        elif kind == "pace":
            self.paces[message["rank"]] = dict(message)
        elif kind == "followed":
            self.followed[message["rank"]] = dict(message)

    def whom_they_wait_for(self) -> str:
        """Return what is added to a sentence, empty if nothing is known."""
        for rank, report in sorted(self.followed.items()):
            return (
                f". Rank {rank} ended after {report['steps']} steps, and the others wait for it: "
                "give all ranks the same number of batches, or use the context manager "
                "`torch.distributed.algorithms.Join`"
            )
        if not self._idle:
            return ""
        names = ", ".join(map(str, sorted(self._idle)))
        return f". No optimizer step was seen on rank {names}"
