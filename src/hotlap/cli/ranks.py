"""What `hotlap train` does differently where several ranks train one model."""

import os
import sys
from pathlib import Path


def is_first_rank() -> bool:
    """True in the process that speaks for the run: the first of several ranks, or the only one."""
    from hotlap.distributed.ranks import detect_ranks

    return detect_ranks(os.environ).rank == 0


def launch_ranks(
    tokens: tuple[str, ...], devices: int | None, device: str | None, run_dir: str | None
) -> int | None:
    """Run this command once for each device; return its exit code, None if this is all of it.

    Args:
        tokens: of the command line, behind `hotlap train`.
        devices: as it was given; None for one.
        device: as it was given.
        run_dir: the logs of the ranks are kept in it.

    Raises:
        UsageError: there are not as many devices, or none were asked for.
        RunError: a rank died.
    """
    from hotlap.distributed.launch import check_devices, launch
    from hotlap.distributed.ranks import detect_ranks

    if devices is None or detect_ranks(os.environ).world > 1:
        return None
    check_devices(devices, device)
    if devices == 1:
        return None
    logs = None if run_dir is None else Path(run_dir) / "logs"
    return launch([sys.executable, "-m", "hotlap", "train", *tokens], devices, logs=logs)
