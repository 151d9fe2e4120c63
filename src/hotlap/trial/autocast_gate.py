"""`AutocastGate`: hears of every region of `torch.autocast`, and can make them have no effect."""

import threading
from collections.abc import Callable
from typing import Any

import torch

ON, OFF = "on", "off"
"""What a trial does to autocast: switches it on around forward and loss, or switches it off."""


class AutocastGate:
    """While it is closed, regions of `torch.autocast` compute as if they were not there."""

    def __init__(self) -> None:
        self.is_open = True
        self.format = ""
        """Format of the newest region that was on, as in `bfloat16`; empty if there was none."""
        self._regions: list[tuple[Any, bool]] = []
        """(region, autocast was on in it) of those that are open, outermost first."""
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Follow the regions of this process from now on. To be called once per process."""
        kind: Any = torch.autocast
        enter, leave = kind.__enter__, kind.__exit__

        def __enter__(region: Any) -> Any:
            result = enter(region)
            self._region_begins(region)
            return result

        def __exit__(region: Any, *exc: Any) -> Any:
            # Not always the last one: two regions may end in any order.
            self._regions = [row for row in self._regions if row[0] is not region]
            return leave(region, *exc)

        kind.__enter__ = __enter__
        kind.__exit__ = __exit__

    def _region_begins(self, region: Any) -> None:
        kind = region.device
        is_on = torch.is_autocast_enabled(kind)
        if is_on:
            self.format = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        # What other threads do with autocast is theirs alone, and so is this list.
        if threading.get_ident() == self._thread:
            self._regions.append((region, is_on))
        if not self.is_open and is_on:
            torch.set_autocast_enabled(kind, False)

    def use(self, *, is_open: bool) -> None:
        """Open or close it, for regions that have begun too."""
        self.is_open = is_open
        # Of each kind of device the innermost region counts.
        innermost = {region.device: is_on for region, is_on in self._regions}
        for kind, is_on in innermost.items():
            torch.set_autocast_enabled(kind, is_on and is_open)


class AutocastTurns:
    """Opens and closes a gate in turns of steps: as the run is, switched, as the run is, ...

    Args:
        gate: what is opened and closed.
        change: `ON` where the gate's regions are the trial's own, `OFF` where they are the run's.
        length: steps of a turn; 0 for no turns, where the change holds from the start.
    """

    def __init__(self, gate: AutocastGate, change: str, length: int) -> None:
        self._gate, self._change, self._length = gate, change, length
        self.begin(0)

    def begin(self, step: int) -> None:
        """Let the gate be what it has to be in a step.

        Args:
            step: steps done before it.
        """
        is_changed = is_changed_in(step, self._length) if self._length else True
        self._gate.use(is_open=is_changed == (self._change == ON) if self._change else True)


def is_changed_in(step: int, length: int) -> bool:
    """True if a step, counted from 0, lies in a turn in which autocast is switched."""
    return step // length % 2 == 1


def enter_autocast(device: str) -> Callable[[], object]:
    """Begin a region in bfloat16 on a device; return what ends it."""
    region = torch.autocast(device.partition(":")[0], dtype=torch.bfloat16)
    region.__enter__()
    return lambda: region.__exit__(None, None, None)
