"""`Target`: splits a command line into hotlap's options and the script's words; checks these."""

import errno
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hotlap.attach.entry import is_notebook
from hotlap.attach.launchers import ACCELERATE, COMMANDS, TORCHRUN, launched, split_command
from hotlap.errors import MissingFile, UsageError

_FORMS = "the path of a Python script or a notebook, `-m MODULE`, or a command"
_EXAMPLES = {
    TORCHRUN: ("torchrun", "--nproc_per_node"),
    ACCELERATE: ("accelerate launch", "--num_processes"),
}
_SHOWN = 100
"""Letters of a path in a message."""


class Target(NamedTuple):
    """What trains, as it was typed: one of `script`, `module` and `program`, and its arguments."""

    script: str | None = None
    module: str | None = None
    program: str | None = None
    """First word of a command."""
    args: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()
    """All tokens behind the command's name, its own options included."""

    @classmethod
    def parse(cls, tokens: Sequence[str], before: str = "hotlap tune") -> "Target":
        """Read the script's part of a command line, see `split`.

        Args:
            tokens: the script and its arguments.
            before: what stands before SCRIPT, for the message.

        Raises:
            UsageError: there is no script in it.
        """
        if not tokens or not tokens[0]:
            raise UsageError(f"no SCRIPT was given. Expected: {_FORMS}, as in `{before} train.py`.")
        command = split_command(tokens)
        if command is not None and not Path(tokens[0]).exists():
            # Of the Python that runs it, not the first one on the PATH.
            return cls(module=command[0], args=command[1])
        if _is_command(tokens[0]):
            return cls(program=tokens[0], args=tuple(tokens[1:]))
        if tokens[0] != "-m":
            return cls(script=tokens[0], args=tuple(tokens[1:]))
        if len(tokens) < 2 or not all(part.isidentifier() for part in tokens[1].split(".")):
            given = f"'{tokens[1]}'" if len(tokens) > 1 else "nothing"
            raise UsageError(
                f"-m was given {given}. Expected: the name of a module after it, as in `-m "
                "pkg.train`."
            )
        return cls(module=tokens[1], args=tuple(tokens[2:]))

    def resolve(self, *, own_interpreter: bool = True) -> "Target":
        """Return the same target after a look whether it is there. Nothing of it is run.

        Args:
            own_interpreter: False if another Python than this one will run it; then nothing is
                known of where it finds modules.

        Raises:
            MissingFile: there is no such file, or no such top-level module.
            UsageError: the file is something that Python does not run.
        """
        if self.script is not None:
            _check_script(self.script, own_interpreter=own_interpreter)
        elif self.module is not None and own_interpreter:
            _check_module(self.module)
        if self.module is not None and self.module in COMMANDS.values():
            _check_launched(self.module, self.args)
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """The script and its arguments, as a command line has them."""
        first = ("-m", self.module) if self.module else (self.program or str(self.script),)
        return *first, *self.args

    def __str__(self) -> str:
        return " ".join(self.words)


def split(
    argv: Sequence[str], options: Mapping[str, bool], before: int = 0
) -> tuple[list[str], list[str]]:
    """Split the tokens behind a command's name into hotlap's own and the script's.

    Before SCRIPT every token is hotlap's. Behind it those are that are exactly a long option of
    this command, with its value; all others are the script's. Behind `--` everything is the
    script's. `--help` behind SCRIPT is the script's.

    Args:
        argv: the tokens.
        options: long option of this command, as `--budget` -> True if a value follows it.
        before: words that stand before SCRIPT and are hotlap's.

    Returns:
        hotlap's tokens, and the script's: its path, or `-m` and a module, and its arguments.

    >>> split(["train.py", "--epochs", "10", "--budget", "2m"], {"--budget": True})
    (['--budget=2m'], ['train.py', '--epochs', '10'])
    """
    own: list[str] = []
    script: list[str] = []
    position = 0
    while position < len(argv):
        token = argv[position]
        position += 1
        if token == "--":
            return own, [*script, *argv[position:]]
        name, equals, _ = token.partition("=")
        if name in options and not (script and name == "--help"):
            if options[name] and not equals and position < len(argv):
                # In one piece: a value may begin with a dash, and be wrong for a reason of its own.
                token = f"{token}={argv[position]}"
                position += 1
            own.append(token)
        elif before and not token.startswith("-"):
            before -= 1
            own.append(token)
        elif script or token == "-m" or not token.startswith("-"):
            script.append(token)
            if len(script) == 1 and token == "-m" and position < len(argv):
                script.append(argv[position])
                position += 1
        else:
            own.append(token)
    return own, script


def _is_command(word: str) -> bool:
    """Return True if a word names a program that is not Python's to run."""
    path = Path(word)
    try:
        is_file = path.is_file()
        if not is_file or word.endswith((".py", ".ipynb")):
            return not path.exists() and os.sep not in word and shutil.which(word) is not None
        if not os.access(path, os.X_OK):
            return False
        with path.open("rb") as file:
            line = file.readline(_SHOWN)
    except OSError:
        return False
    return line.startswith(b"\x7fELF") or (line.startswith(b"#!") and b"python" not in line)


def _check_launched(launcher: str, args: Sequence[str]) -> None:
    started = launched(args, launcher)
    if started is None and not {"-h", "--help"} & {*args}:
        name, option = _EXAMPLES[launcher]
        raise UsageError(
            f"{name} was given no script. Expected: its options and then a script, as in "
            f"`{name} {option} 2 train.py`."
        )
    # Whether another word is a value of an option, only torchrun itself knows for sure.
    if started is not None and started.is_script and started.name.endswith((".py", ".ipynb")):
        _check_script(started.name, is_launched=True)


def _check_script(script: str, *, own_interpreter: bool = True, is_launched: bool = False) -> None:
    path = Path(script)
    try:
        path.stat()
    except OSError as error:
        # What only is not there is answered below, with the nearest name.
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            shown = script if len(script) < _SHOWN else f"{script[:_SHOWN]}..."
            raise UsageError(
                f"'{shown}' cannot be read: {error.strerror}. Check the path and its permissions. "
                f"Expected: {_FORMS}."
            ) from error
    if path.is_dir():
        if (path / "__main__.py").is_file():
            return
        raise UsageError(f"'{script}' is a folder without a __main__.py. Expected: {_FORMS}.")
    if path.is_file():
        if is_notebook(script):
            _check_notebook(script, own_interpreter=own_interpreter, is_launched=is_launched)
        return
    if path.exists():
        raise UsageError(f"'{script}' is not a regular file. Expected: {_FORMS}.")
    raise MissingFile(f"script '{script}' was not found. Expected: {_FORMS}.{_nearest_file(path)}")


def _check_notebook(script: str, *, own_interpreter: bool, is_launched: bool) -> None:
    if is_launched:
        raise UsageError(
            f"'{script}' is a notebook, which torchrun and accelerate cannot start. Convert it "
            f"with `jupyter nbconvert --to script {script}`, and pass the Python script that this "
            "writes instead of the notebook."
        )
    from hotlap.attach.notebook import NotebookError, find_problem, has_ipython, read_cells

    try:
        # Another Python may have what this one has not.
        problem = find_problem(
            read_cells(script), knows_magics=not own_interpreter or has_ipython()
        )
    except NotebookError as error:
        problem = str(error)
    if problem is not None:
        raise UsageError(
            f"'{script}' cannot be run as a notebook: {problem}. Expected: a notebook in Python "
            "whose cells run from top to bottom. Correct the notebook; if it has lines that begin "
            "with % or !, install IPython with `pip install ipython`."
        )


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder '{path.parent}' was not found either."
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py"]
    except OSError:
        return ""
    import difflib

    near = difflib.get_close_matches(path.name, sorted(names), n=1, cutoff=0.6)
    return f" Did you mean '{path.parent / near[0]}'?" if near else ""


def _check_module(module: str) -> None:
    import importlib.machinery
    import importlib.util

    # Only the first part: to look for the others, Python would have to run the package.
    top = module.partition(".")[0]
    if importlib.machinery.PathFinder.find_spec(top, [os.getcwd()]) is not None:
        return
    try:
        found = importlib.util.find_spec(top) is not None
    except ValueError:
        found = True
    if not found:
        raise MissingFile(
            f"module '{module}' was not found: '{top}' is neither in the current folder nor on "
            f"this Python's path. Change to the folder that contains '{top}', or add that folder "
            "to PYTHONPATH."
        )
