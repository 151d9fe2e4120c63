"""Import hook: waits for `import torch` in the script's process, then starts the session."""

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hotlap.attach import children
from hotlap.attach.at_exit import explain_at_exit
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_CUT, Config


class _AfterTorch(MetaPathFinder):
    """Finds torch as usual, once, and calls `then` when it has been imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

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
            execute(module)
            self.then()

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
    sys.meta_path.insert(0, _AfterTorch(lambda: children.attach(text, lost=_end)))


def install(text: str) -> None:
    """Say that the process was reached, and wait for torch.

    Args:
        text: the configuration as JSON, see `hotlap.trial.protocol.Config`.
    """
    config = Config.from_text(text)
    is_trial = config.role != "run"
    channel = Channel.connect(config.address, lost=_end if is_trial else None)
    # A forked child may outlive the script: whoever listens waits for the last holder to go.
    os.register_at_fork(after_in_child=channel.close)
    said = channel.send("attached", python=sys.version.split()[0], executable=sys.executable)
    if is_trial and not said:
        _end()
    if is_trial:
        from hotlap.trial.start_watch import note_late_start

        note_late_start(config.options)

    def start() -> None:
        from hotlap.attach.start import start as begin

        session = begin(config, channel)
        if config.address is not None:
            children.pass_on(config, session)

    if config.address is not None:
        children.pass_on_by_launcher(config)
    if not is_trial:
        explain_at_exit()
    elif children.is_launcher():
        # Its first rank is what is measured.
        return
    sys.meta_path.insert(0, _AfterTorch(start))
