"""`Rounds`: the steps of an epoch, where no loader says when one begins."""

from collections.abc import Sequence

from hotlap.trace.frames import Loop


class Rounds:
    """Follows the outermost counted loop around the step, which has another loop inside."""

    def __init__(self) -> None:
        self.steps: int | None = None
        """Of its first round; None until that is over."""
        self.loop: Loop | None = None

    def step_done(self, steps: int, loops: Sequence[Loop]) -> None:
        """Note where the loops are.

        Args:
            steps: done so far.
            loops: around the step, innermost first.
        """
        counted = [loop for loop in loops[1:] if loop.total is not None]
        if self.steps is not None or not counted:
            return
        outer = counted[-1]
        if steps == 1 and outer.done == 0:
            self.loop = outer
        elif self.loop is not None and outer.where == self.loop.where and outer.done == 1:
            self.steps = steps - 1
