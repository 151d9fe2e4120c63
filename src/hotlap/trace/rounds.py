"""`Rounds`: the steps of an epoch, where no loader says when one begins."""

from collections.abc import Sequence

from hotlap.trace.frames import Loop


class Rounds:
    """Follows the outermost counted loop around the step, which has another loop inside."""

    def __init__(self) -> None:
        self.steps: int | None = None
        """Of its first round; None until that is over."""
        self.loop: Loop | None = None
        self.is_open = True
        """True while it may be found in later steps."""

    def step_done(self, steps: int, loops: Sequence[Loop]) -> None:
        """Note where the loops are.

        Args:
            steps: done so far.
            loops: around the step, innermost first.
        """
        counted = [loop for loop in loops[1:] if loop.total is not None]
        outer = counted[-1] if counted else None
        if steps == 1 and outer is not None and outer.done == 0:
            self.loop = outer
        elif outer is not None and self._is_second_pass(outer):
            self.steps = steps - 1
        self.is_open = self.steps is None and (steps < 1 or self.loop is not None)

    def _is_second_pass(self, outer: Loop) -> bool:
        return self.loop is not None and outer.where == self.loop.where and outer.done == 1
