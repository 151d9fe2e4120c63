"""Role `seeds`: `Losses` reports every loss that a `Watch` has seen."""

from typing import Any

from hotlap.attach.roles.observe import Watch
from hotlap.attach.roles.session import Part


class Losses(Part):
    """Reports every loss that was seen.

    Args:
        watch: what has seen them.
    """

    wants_phases = True

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def report(self) -> dict[str, Any]:
        return {"losses": self._watch.recorder.losses()}
