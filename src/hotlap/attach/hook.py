"""Import hook: waits for `import torch` in the script's process, then starts the session."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# The folder is noted when the process starts: the script may change to another before torch.
from hotlap import start_folder  # noqa: F401  # pyright: ignore[reportUnusedImport]
from hotlap.attach import children
from hotlap.attach.at_exit import explain_at_exit
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_CUT, OF_COMMAND, Config


class _AfterTorch(MetaPathFinder):
    """Finds torch as usual, once.

    Args:
        prepare: called right before torch is imported; what it returns is called right after.
    """

    def __init__(self, prepare: Callable[[], Callable[[], None] | None]) -> None:
        self.prepare = prepare

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        del path, target
        if fullname != "torch":
            return None
        # Off the list while looking, or this would find itself; and back on it until torch has
        # really been imported: many libraries only ask whether there is one.
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            then = self.prepare()
            execute(module)
            if then is not None:
                then()

        # The loader belongs to this one spec, so nobody else's import sees the change.
        spec.loader.exec_module = exec_module
        return spec


def _end() -> None:
    """End a trial that nobody hears any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_CUT)


def install_in_child(text: str) -> None:
    """Wait for torch in a child of a script that hotlap runs, see `children`.

    Args:
        text: what the child is told, as JSON.
    """
    sys.meta_path.insert(0, _AfterTorch(lambda: lambda: children.attach(text, lost=_end)))


def install(text: str) -> None:
    """Say that the process was reached, and wait for torch.

    Args:
        text: the configuration as JSON, see `hotlap.trial.protocol.Config`.
    """
    start = _connect(Config.from_text(text))
    if start is not None:
        sys.meta_path.insert(0, _AfterTorch(lambda: start))


def install_in_command(text: str) -> None:
    """Wait for torch in a process that a command has started, and only then say that it is there.

    Args:
        text: as of `install`.
    """
    config = Config.from_text(text)

    def prepare() -> Callable[[], None] | None:
        for name in ("HOTLAP_ATTACH", "HOTLAP_WAITS", "HOTLAP_INSIDE"):
            os.environ.pop(name, None)
        before = os.environ.pop("HOTLAP_PYTHONPATH", None)
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before
        # In a trial one process is measured, and what runs beside it is left alone.
        return None if config.role != "run" and not _claim(config.address) else _connect(config)

    sys.meta_path.insert(0, _AfterTorch(prepare))


def _claim(address: str | None) -> bool:
    """Return True if no other process that still lives has claimed this trial.

    Args:
        address: where the trial's messages are heard.
    """
    path = f"{address}.claim"
    try:
        with open(path) as file:
            claimed_by = int(file.read() or 0)
        os.kill(claimed_by, 0)
    except (FileNotFoundError, ProcessLookupError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    except (OSError, ValueError):
        return False
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    with open(descriptor, "w") as file:
        file.write(str(os.getpid()))
    return True


def _connect(config: Config) -> Callable[[], None] | None:
    """Say that the process was reached; return what starts its session once torch is there."""
    is_trial = config.role != "run"
    channel = Channel.connect(config.address, lost=_end if is_trial else None)
    # A forked child may outlive the script: whoever listens waits for the last holder to go.
    os.register_at_fork(after_in_child=channel.close)
    said = channel.send(
        "attached",
        python=sys.version.split()[0],
        executable=sys.executable,
        pid=os.getpid(),
        of_command=config.options.get(OF_COMMAND, False),
    )
    if is_trial and not said:
        _end()
    if is_trial:
        from hotlap.trial.stack import write_stack_when_asked

        write_stack_when_asked(config.stack_file)

    def start() -> None:
        try:
            from hotlap.attach.start import start as begin
        except ImportError as error:
            hides = (error.name or "").partition(".")[0] in sys.stdlib_module_names
            words = f"hotlap cannot be imported into the script: {error}"
            if hides:
                words += ". A module of the script has the name of one of Python's own: rename it"
            channel.send("failed", error=words, traceback=words)
            if is_trial:
                raise ImportError(words) from error
            return

        session = begin(config, channel)
        if config.address is not None:
            children.pass_on(config, session)

    if config.address is not None:
        children.pass_on_by_launcher(config)
    if not is_trial:
        explain_at_exit()
    elif children.is_launcher():
        # Its first rank is what is measured.
        return None
    return start
