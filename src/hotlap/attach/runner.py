"""Runs an unedited script under a plan, as itself: its output, its signals, its exit code."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotlap.attach.channel import Channel, Config
from hotlap.attach.entry import Script, environment, is_off, plan_data
from hotlap.plan import Plan
from hotlap.techniques import Numerics, Technique, registry

_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT")
_PR_SET_PDEATHSIG = 1


@dataclass
class Outcome:
    """How a script ended that ran under a plan."""

    exit_code: int
    attached: bool = False
    torch: str | None = None
    techniques: list[dict[str, str]] = field(default_factory=list)
    failure: str | None = None
    """Why the plan was not applied, if it was not."""

    def problems(self, script: Script) -> list[str]:
        """Return, a line each, why the run was plain although a plan was to be applied."""
        if is_off():
            return []
        if not self.attached:
            return [
                f"hotlap never got into `{script}`, the run was plain: its Python was started "
                "without the environment that hotlap gave it (flags -I, -E or -S do that)"
            ]
        if self.failure:
            return [f"the plan was not applied: {self.failure}"]
        if self.torch is None and self.exit_code == 0:
            return [f"`{script}` never imported torch in its own process: nothing was applied"]
        return []


def exact_part(plan: Plan, known: Mapping[str, Technique] | None = None) -> Plan:
    """Return the plan without every technique that claims less than `exact`."""
    known = registry() if known is None else known
    kept = {
        name: values
        for name, values in plan.techniques.items()
        if known[name].numerics(known[name].options(values)) is Numerics.EXACT
    }
    return Plan(kept)


def run(
    script: Script, plan: Plan, *, techniques: tuple[str, ...] = (), stdout: int | None = None
) -> Outcome:
    """Run the script under the plan and return when it has ended.

    Args:
        script: what to run; its standard streams are this process's own.
        plan: checked before.
        techniques: techniques from outside, as `module:NAME`.
        stdout: descriptor of where its standard output goes, this process's own if None.
    """
    ours, theirs = socket.socketpair()
    config = Config("run", fd=theirs.fileno(), plan=plan_data(plan), techniques=techniques)
    process = subprocess.Popen(
        script.command(),
        env=environment(config, os.environ, trial=False),
        cwd=script.folder,
        stdout=stdout,
        pass_fds=(theirs.fileno(),),
        preexec_fn=_dies_with(os.getpid()) if sys.platform == "linux" else None,
    )
    theirs.close()
    outcome = Outcome(exit_code=1)
    channel = Channel(ours.detach())
    listener = threading.Thread(target=_listen, args=(channel, outcome), daemon=True)
    listener.start()
    with _SignalsTo(process):
        code = process.wait()
    listener.join(timeout=5)
    channel.close()
    outcome.exit_code = code if code >= 0 else 128 - code
    return outcome


def _listen(channel: Channel, outcome: Outcome) -> None:
    while (message := channel.receive()) is not None:
        kind = message["kind"]
        if kind == "attached":
            outcome.attached = True
        elif kind == "torch":
            outcome.torch = message["version"]
        elif kind == "failed":
            outcome.failure = message["error"]
        elif kind == "report":
            outcome.techniques = message["techniques"]


def _dies_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the line above.
        if os.getppid() != parent:
            os._exit(1)

    return prepare


class _SignalsTo:
    """While entered, hands this process's signals on to another."""

    def __init__(self, process: "subprocess.Popen[Any]") -> None:
        self.process = process
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for name in _FORWARDED:
            number = getattr(signal, name, None)
            if number is not None:
                self.previous[number] = signal.signal(number, self._forward)
        # A terminal's Ctrl-C reaches the script by itself; a second copy would cut its clean-up.
        handler = signal.SIG_IGN if sys.stdin and sys.stdin.isatty() else self._forward
        self.previous[signal.SIGINT] = signal.signal(signal.SIGINT, handler)

    def _forward(self, number: int, frame: Any) -> None:
        del frame
        self.process.send_signal(number)

    def __exit__(self, *exc: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
