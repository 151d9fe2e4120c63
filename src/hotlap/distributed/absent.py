"""`Meeting`: notes in the store of the ranks, which tell who never joined or does not answer."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.distributed.ranks import Ranks
from hotlap.distributed.stacks import LOG

_PATIENCE_S = 1.0
"""Seconds that the notes of the others may take: they notice at about the same time."""
_STORE_S = 3.0
"""Seconds after which the store itself is given up: the rank that holds it may be the one."""


@dataclass(frozen=True)
class Meeting:
    """The place where the ranks of one process group leave notes."""

    store: Any
    ranks: Ranks
    timeout_s: float
    """After which a rank that waits for another one gives up."""

    def arrive(self) -> None:
        """Note that this rank is about to join the group."""
        self.store.set(f"here/{self.ranks.rank}", "1")

    def never_arrived(self) -> list[int]:
        """Return the ranks that have not begun to join, none if that cannot be told."""
        return self._without("here", 0.0)

    def not_waiting(self) -> list[int]:
        """Note that this rank waited in vain, and return those that did not, none if that cannot
        be told."""

        def ask() -> list[int]:
            self.store.set(f"lost/{self.ranks.rank}", "1")
            return self._missing("lost", _PATIENCE_S)

        return _in_time(ask)

    def _without(self, note: str, patience_s: float) -> list[int]:
        return _in_time(lambda: self._missing(note, patience_s))

    def _missing(self, note: str, patience_s: float) -> list[int]:
        deadline = time.monotonic() + patience_s
        while True:
            missing = [
                rank
                for rank in range(self.ranks.world)
                if rank != self.ranks.rank and not self.store.check([f"{note}/{rank}"])
            ]
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.05)


def _in_time(ask: Callable[[], list[int]]) -> list[int]:
    """Return what a question to the store gives, nothing if it is lost or does not answer."""
    found: list[int] = []

    def answer() -> None:
        try:
            found.extend(ask())
        except RuntimeError:
            # The store went with its rank, and nothing can be told.
            return

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(_STORE_S)
    return [] if thread.is_alive() else found


def name_ranks(numbers: list[int]) -> str:
    """Return ranks in words, `another rank` if none are known."""
    if not numbers:
        return "another rank"
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def name_logs(numbers: list[int], environ: Mapping[str, str]) -> str:
    """Return in words where ranks have said why they ended: `hotlap` keeps it, others print it."""
    if LOG not in environ:
        return f"the output of {name_ranks(numbers) if numbers else 'the other ranks'}"
    folder = Path(environ[LOG]).parent
    if not numbers:
        return f"the logs of the other ranks in '{folder}'"
    return " and ".join(f"'{folder}/rank-{number}.log'" for number in numbers)
