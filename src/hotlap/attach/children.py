"""Child processes of a script that train: they report to hotlap, and no plan is applied to them.

The script's own process is attached to. A child that `torch.multiprocessing` or a launcher starts
anew finds in its environment where to connect; it says who it is, when it takes its first optimizer
step, and at its end how many it has taken.
"""

import atexit
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotlap.trial.channel import Channel

INSIDE = "HOTLAP_INSIDE"
"""Holds a `ChildConfig` as JSON; in the environment of what is started during a run."""
_LAUNCHERS = frozenset(
    ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
)
_LAUNCHER_SCRIPTS = frozenset(("torchrun", "accelerate"))
_SITE = str(Path(__file__).parent / "site")
_SPAWN = "torch.multiprocessing.spawn"
_WORKERS = "torch.utils.data._utils.worker"


@dataclass(frozen=True)
class ChildConfig:
    """What a child is told."""

    address: str
    by: str
    """What starts it."""
    rank: int | None = None
    """Its number among those that are started together, None if the environment will say."""
    outside: tuple[str | None, str | None] | None = None
    """RANK and LOCAL_RANK of a launcher: whoever has them too is no rank that it has started."""


@dataclass
class Child:
    """A child that hotlap is in, as it has told."""

    by: str
    rank: int | None
    trains: bool = False
    steps: int | None = None
    """Optimizer steps, None if it did not say at its end."""

    def hear(self, message: dict[str, Any]) -> None:
        """Take in what it says."""
        self.trains = self.trains or message["kind"] == "trains"
        if message["kind"] == "report":
            self.steps = message["steps"]


def is_launcher() -> bool:
    """Return True if this process is a program whose only work is to start others."""
    words = sys.orig_argv[1:]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1] in _LAUNCHERS
    return any(os.path.basename(word) in _LAUNCHER_SCRIPTS for word in words[:1])


def pass_on_by_launcher(address: str) -> None:
    """Let what this process starts find the address, if it is a launcher: it copies its own."""
    if is_launcher():
        outside = os.environ.get("RANK"), os.environ.get("LOCAL_RANK")
        os.environ.update(_environment(ChildConfig(address, "a launcher", outside=outside)))


def pass_on(address: str) -> None:
    """Let processes that `multiprocessing` starts find the address; the script does not see it."""
    from multiprocessing.process import BaseProcess

    start = BaseProcess.start

    def start_with_address(self: Any) -> None:
        target = getattr(getattr(self, "_target", None), "__module__", "")
        if target == _WORKERS:
            start(self)
            return
        # torch's own function is called with the script's, and the number of the process.
        rank = self._args[1] if target == _SPAWN else None
        with _in_environment(_environment(ChildConfig(address, "torch.multiprocessing", rank))):
            start(self)

    BaseProcess.start = start_with_address
    os.register_at_fork(after_in_child=_take_back)


def attach(text: str) -> None:
    """In a child, once torch is there: connect, and tell of its optimizer steps.

    Args:
        text: a `ChildConfig`, as JSON.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    inside = ChildConfig(**json.loads(text))
    # Nobody may listen any more, and this is no reason to disturb a script.
    channel = Channel.connect(inside.address)
    os.register_at_fork(after_in_child=channel.close)
    rank = inside.rank
    if rank is None and os.environ.get("RANK", "").isdecimal():
        rank = int(os.environ["RANK"])
    channel.send("attached", by=inside.by, rank=rank)
    pid, steps = os.getpid(), 0

    def step_ends(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            channel.send("trains")

    def finish() -> None:
        if os.getpid() == pid:
            channel.send("report", steps=steps)

    register_optimizer_step_post_hook(step_ends)
    atexit.register(finish)


def _environment(inside: ChildConfig) -> dict[str, str]:
    before = os.environ.get("PYTHONPATH")
    return {
        INSIDE: json.dumps(asdict(inside)),
        "PYTHONPATH": os.pathsep.join([_SITE, *([before] if before else [])]),
        **({} if before is None else {"HOTLAP_PYTHONPATH": before}),
    }


@contextlib.contextmanager
def _in_environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for what is started meanwhile; `os.environ` does not show them."""
    for name, value in values.items():
        os.putenv(name, value)
        _put.add(name)
    try:
        yield
    finally:
        _take_back()


_put: set[str] = set()
"""Variables that are set for what is being started."""


def _take_back() -> None:
    """Let the environment be as the script knows it; a forked child is started in the middle."""
    for name in _put:
        if name in os.environ:
            os.putenv(name, os.environ[name])
        else:
            os.unsetenv(name)
    _put.clear()


def problem(steps: int | None, exit_code: int, heard: list[str]) -> str | None:
    """Return why a plan was applied to nothing, or not to all that trained; None if it was.

    Args:
        steps: optimizer steps of the script's own process, None if it did not say.
        exit_code: the script's.
        heard: what has started each child that trains.
    """
    if heard:
        by = " and ".join(sorted(set(heard)))
        many = f"{len(heard)} child processes train" if len(heard) > 1 else "a child process trains"
        who = "they" if len(heard) > 1 else "it"
        rest = f"{who} ran without the plan" if steps else "the plan was not applied"
        return (
            f"{many}, started by {by}: {rest}, because hotlap attaches only to the script's own "
            "process. Launchers and child processes are not supported yet"
        )
    if steps == 0 and exit_code == 0:
        return (
            "the script's own process took no torch optimizer step, so the plan was not applied. "
            "hotlap attaches only to that process: others that it starts ran without the plan"
        )
    return None
