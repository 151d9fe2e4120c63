"""The ranks did not find each other.

What happened  one rank listens at MASTER_ADDR and MASTER_PORT, and the others connect to it. The
               port is taken, fewer ranks came than WORLD_SIZE, or the address is not reachable.
Look at        is a former run alive (`ps`, `ss -ltnp`)? Did all ranks start, with ranks of 0 to
               WORLD_SIZE - 1? Is MASTER_ADDR the name of the first node on every node?
What to do     end the former run; let the launcher find a free port (`torchrun --standalone`, or
               `--rdzv-endpoint=localhost:0`) instead of a fixed one in the script.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    text = match.group()
    joined = re.search(r"(\d+)/(\d+) clients joined", text)
    if joined is not None:
        return [f"{joined[1]} of {joined[2]} ranks came."]
    port = re.search(r"(?:port: |\]:)(\d+)", text)
    return [] if port is None else [f"Port {port[1]} is taken by another process."]


FAILURE = Failure(
    name="rendezvous_failed",
    patterns=(
        r"Timed out after \d+ seconds waiting for clients[^\n]*",
        r"The server socket has failed to (?:listen|bind)[^\n]*",
        r"The client socket has (?:timed out|failed to connect)[^\n]*",
    ),
    explain=explain,
)
