"""A port that was to be listened at is another process's.

What happened  one process at a time listens at a port. For several ranks it is MASTER_PORT (29500
               without one), at which rank 0 waits for the others.
Look at        `ss -ltnp | grep PORT` names the process: most often a run that was stopped and has
               left one behind, or a second run on this machine with the same port.
What to do     end the former run, all of its processes; let the launcher find a free port
               (`torchrun --standalone`, or `--rdzv-endpoint=localhost:0`), or give each run its
               own (`--master-port`). `hotlap train --devices N` finds a free one. For a server of
               your own (TensorBoard, a notebook), choose another port.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    port = re.search(r"', (\d+)\)|port `?(\d+)", match.group())
    return [] if port is None else [f"The port is {port[1] or port[2]}."]


FAILURE = Failure(
    name="port_in_use",
    patterns=(
        r"\[(?:Errno (?:48|98)|WinError 10048)\] [^\n]*[Aa]ddress already in use[^\n]*",
        r"RuntimeError: Address already in use[^\n]*",
        r"communication on port `?\d+`?, but another process is utilizing it",
        r"(?m)^\s*(?:Address already in use|EADDRINUSE)\s*$",
    ),
    explain=explain,
)
