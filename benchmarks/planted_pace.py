"""Runs a script, and writes how many seconds passed between two steps of its optimizer.

    python benchmarks/planted_pace.py SCRIPT FIRST LAST FILE

The time is taken when step FIRST and step LAST end; the script is then ended as by `sys.exit`, so
that it removes what it wrote. Of several optimizers the one that steps first counts.
"""

import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


def main() -> None:
    script, first, last, file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    steps, counted, began = 0, None, 0.0

    def count(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal steps, counted, began
        if counted is None:
            counted = optimizer
        if optimizer is not counted:
            return
        steps += 1
        if steps == first:
            began = time.perf_counter()
        elif steps == last:
            file.write_text(repr(time.perf_counter() - began))
            sys.exit(0)

    register_optimizer_step_post_hook(count)
    # What the script sees is what `python SCRIPT` shows it.
    sys.argv = [script]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
