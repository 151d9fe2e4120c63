"""Hands the configuration to a script's child processes and ranks, and attaches to them.

A rank is what a launcher or `torch.multiprocessing.spawn` starts. It finds in its environment what
the script's own process was told, and is attached to in the same way.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hotlap.attach.at_exit import explain_at_exit
from hotlap.attach.launchers import ACCELERATE, launched
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import Config

INSIDE = "HOTLAP_INSIDE"
"""Holds a `ChildConfig` as JSON; in the environment of what is started during a run."""
_LAUNCHERS = frozenset(("torch.distributed.run", "torch.distributed.launch", ACCELERATE))
_LAUNCHER_SCRIPTS = frozenset(("torchrun", "accelerate"))
_BY_LAUNCHER, _BY_SCRIPT = "a launcher", "subprocess.Popen"
_OF_A_RANK = ("RANK", "LOCAL_RANK")
"""Variables that launchers give each rank; the first one counts."""
_OF_MPI = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""The same from mpirun, of several makes."""
_ROLES = ("run", "observe", "race", "verify", "profile")
_REFUSED = (
    "the script trains on several ranks, where only plans that are exact can be proven, and memory "
    "is not followed yet. Use a plan of exact techniques, or run one process."
)
_SITE = str(Path(__file__).parent / "site")
_SPAWN = "torch.multiprocessing.spawn"
_WORKERS = "torch.utils.data._utils.worker"


class ChildConfig(NamedTuple):
    """What a child is told."""

    config: Config
    """As for the script's own process; without a plan for a child that is no rank."""
    by: str
    """What starts it."""
    is_rank: bool = False
    rank: int | None = None
    """Its number among those that are started together, None if the environment will say."""
    outside: tuple[str | None, str | None] | None = None
    """RANK and LOCAL_RANK of a launcher: whoever has them too is no rank that it has started."""
    alone: tuple[str, ...] | None = None
    """What is behind Python on the command line of a process that is a rank without a number."""

    def to_text(self) -> str:
        """Return it as JSON."""
        return json.dumps({**self._asdict(), "config": self.config.to_text()})

    @classmethod
    def from_text(cls, text: str) -> "ChildConfig":
        """Read back what `to_text` wrote."""
        values = json.loads(text)
        return cls(**{**values, "config": Config.from_text(values["config"])})


def is_launcher() -> bool:
    """Return True if this process is a program whose only work is to start others."""
    words = sys.orig_argv[1:]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1] in _LAUNCHERS
    return any(os.path.basename(word) in _LAUNCHER_SCRIPTS for word in words[:1])


def _started_alone() -> tuple[str, ...] | None:
    """Return the command of the one process that Accelerate starts where it starts no ranks."""
    words = sys.orig_argv[1:]
    if ACCELERATE in words:
        args = words[words.index(ACCELERATE) + 1 :]
    elif [os.path.basename(word) for word in words[:2]] == ["accelerate", "launch"]:
        args = words[2:]
    else:
        return None
    started = launched(args, ACCELERATE)
    return started.words if started is not None and started.words else None


def pass_on_by_launcher(config: Config) -> None:
    """Let what this process starts find the configuration, if it is a launcher: it copies its own.

    Args:
        config: of this process.
    """
    if is_launcher():
        inside = ChildConfig(
            config,
            _BY_LAUNCHER,
            is_rank=True,
            outside=(os.environ.get("RANK"), os.environ.get("LOCAL_RANK")),
            alone=_started_alone(),
        )
        os.environ.update(_environment(inside, os.environ))


def pass_on(config: Config, session: Any) -> None:
    """Let what `multiprocessing` starts find the configuration, and ranks that the script starts.

    The script does not see it.

    Args:
        config: of this process.
        session: of this process, None if it could not begin.
    """
    from multiprocessing.process import BaseProcess

    start = BaseProcess.start

    def start_with_config(self: Any) -> None:
        target = getattr(getattr(self, "_target", None), "__module__", "")
        if not _is_told(self, target, config, session):
            start(self)
            return
        with _in_environment(_environment(_told(self, target, config), os.environ)):
            start(self)

    BaseProcess.start = start_with_config
    os.register_at_fork(after_in_child=_take_back)
    _pass_on_to_own_ranks(config, session)


def _pass_on_to_own_ranks(config: Config, session: Any) -> None:
    """Tell processes that the script starts with a rank in their environment, as Lightning does.

    Whoever starts them says so by a RANK or LOCAL_RANK that is not its own.
    """
    init = subprocess.Popen.__init__

    @functools.wraps(init)
    def init_with_config(self: Any, *args: Any, **kwargs: Any) -> None:
        env = kwargs.get("env")
        rank = None if not env or INSIDE in env else _rank_given(env)
        if env and rank is not None and _is_rank_told(rank, config, session):
            inside = ChildConfig(config, _BY_SCRIPT, is_rank=True, rank=rank)
            kwargs["env"] = {**env, **_environment(inside, env)}
        init(self, *args, **kwargs)

    subprocess.Popen.__init__ = init_with_config


def _rank_given(env: Mapping[str, str]) -> int | None:
    """Return the rank that an environment gives to a process, None if it is this process's own."""
    given = [env.get(name) for name in _OF_A_RANK]
    if given == [os.environ.get(name) for name in _OF_A_RANK]:
        return None
    return next((int(text) for text in given if isinstance(text, str) and text.isdecimal()), None)


def _is_rank_told(rank: int, config: Config, session: Any) -> bool:
    if config.role == "run":
        return True
    # In a trial the first rank is measured: this process, unless it starts the first one, too.
    return session is not None and (rank != 0 or session.leave_to_ranks())


def _is_told(process: Any, target: str, config: Config, session: Any) -> bool:
    if target == _WORKERS:
        return False
    if config.role == "run":
        return True
    # In a trial one process is measured: the first rank, if this one does not train itself. A
    # forked one cannot be told.
    from multiprocessing import get_start_method

    is_forked = (process._start_method or get_start_method()) == "fork"
    is_rank = target == _SPAWN and not is_forked
    return is_rank and session is not None and session.leave_to_ranks()


def _told(process: Any, target: str, config: Config) -> ChildConfig:
    if target == _SPAWN:
        # torch's own function is called with the script's, and the number of the process.
        rank = process._args[1]
        return ChildConfig(config, "torch.multiprocessing.spawn", is_rank=True, rank=rank)
    # It may be anything, and only says whether it trains.
    return ChildConfig(config._replace(plan={}, techniques=()), "multiprocessing")


def attach(text: str, lost: Callable[[], None]) -> None:
    """In a child, once torch is there: connect, and begin a session as in the script's process.

    Args:
        text: a `ChildConfig`, as JSON.
        lost: ends a trial that nobody hears any more.
    """
    from hotlap.attach.start import start

    inside = ChildConfig.from_text(text)
    config, is_trial = inside.config, inside.config.role != "run"
    # Of a run nobody may listen any more, and this is no reason to disturb a script.
    channel = Channel.connect(config.address, lost=lost if is_trial else None)
    os.register_at_fork(after_in_child=channel.close)
    rank = _own_rank(inside)
    channel.send("attached", by=inside.by, rank=rank, is_rank=inside.is_rank, pid=os.getpid())
    if is_trial and rank == 0:
        from hotlap.trial.stack import write_stack_when_asked

        write_stack_when_asked(config.stack_file)
    if config.role not in _ROLES:
        channel.send("refused", error=_REFUSED)
    if is_trial and rank != 0:
        config = _following(config, rank)
    if inside.by in (_BY_LAUNCHER, _BY_SCRIPT) and not is_trial:
        # Of a process that torch starts, the script's own process prints the traceback.
        explain_at_exit()
    start(config, channel, is_rank=inside.is_rank)


def _own_rank(inside: ChildConfig) -> int | None:
    if inside.rank is not None:
        return inside.rank
    names = ("RANK", *(_OF_MPI if inside.alone is not None else ()))
    given = next((text for name in names if (text := os.environ.get(name, "")).isdecimal()), None)
    if given is None:
        # Who has no number was started alone.
        return None if inside.alone is None else 0
    return int(given)


def _following(config: Config, rank: int | None) -> Config:
    """Return what a rank is told that is not measured: it runs along, or is followed too."""
    options = {**config.options, "follows": rank}
    if config.role != "verify":
        options["is_watched"] = config.role == "observe"
        return config._replace(role="follow", options=options)
    # Steps are kept whole, and gradients compared, of the first rank.
    folder = Path(config.options["folder"]) / f"rank-{rank}"
    folder.mkdir(exist_ok=True)
    kept = {"samples": (), "gradients": None, "beside": None, "folder": str(folder)}
    return config._replace(options={**options, **kept})


def _environment(inside: ChildConfig, base: Mapping[str, str]) -> dict[str, str]:
    before = base.get("PYTHONPATH")
    return {
        INSIDE: inside.to_text(),
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
