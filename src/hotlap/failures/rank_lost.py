"""The process at the other end of a connection is gone.

What happened  another rank has died; this one noticed when it next talked to it. Its message is an
               effect: the cause is in the other rank's log.
Look at        the first error of all ranks, by time; a rank without any message was killed (memory:
               exit code -9 or 137; `dmesg`). NCCL names its own reason with NCCL_DEBUG=WARN.
What to do     mend what the other rank died of. Where the network is at fault, name the interface:
               NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME, as `ip addr` calls it.
"""

import re

from hotlap.failures.record import Failure


def explain(match: "re.Match[str]") -> list[str]:
    peer = re.search(r"\[([\w.:]+?)\]:(\d+)", match.group())
    return [] if peer is None else [f"The lost process listened at {peer[1]}, port {peer[2]}."]


FAILURE = Failure(
    name="rank_lost",
    patterns=(
        r"(?:gloo|c10d|TCPStore)[^\n]*Connection (?:closed|reset) by peer[^\n]*",
        r"ncclRemoteError[^\n]*",
        r"NCCL error[^\n]*(?:unhandled system error|remote process exited)[^\n]*",
    ),
    explain=explain,
)
