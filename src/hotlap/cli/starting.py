"""`script_of`, a first look for recipes, and `say`, which prints progress; it imports little.

`hotlap run` needs no more before the script starts: it is to start soon.
"""

import os
import shutil
import sys

from hotlap.attach.entry import Script
from hotlap.cli.target import Target
from hotlap.errors import MissingFile, UsageError


def script_of(target: Target, python: str) -> Script:
    """Return the script as it is started in the current folder.

    Raises:
        MissingFile: there is no such Python.
        UsageError: a Python was given for a command.
    """
    if target.program is not None and python != sys.executable:
        raise UsageError(
            f"--python {python} cannot be used with the command `{target}`, which chooses its own "
            f"Python. Remove --python, or give the Python script that `{target.program}` starts "
            "instead of the command."
        )
    if shutil.which(python) is None:
        raise MissingFile(
            f"--python '{python}' was not found, or is not executable. Expected: the path of a "
            "Python interpreter, as in `--python .venv/bin/python`."
        )
    return Script(
        path=target.script,
        module=target.module,
        program=target.program,
        args=target.args,
        python=python,
        cwd=os.getcwd(),
    )


def may_be_recipe(path: str) -> bool:
    """Return False if a file does not speak of hotlap: it need not be parsed then."""
    try:
        with open(path, "rb") as stream:
            return b"hotlap" in stream.read()
    except OSError:
        return False


def say(text: str) -> None:
    """Print one line of progress on standard error."""
    from hotlap.report.printable import printable

    # A daemon may have been started with its standard error closed.
    if sys.stderr is not None:
        sys.stderr.write(f"hotlap: {printable(text)}\n")
        sys.stderr.flush()
