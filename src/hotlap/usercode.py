"""Tells the user's files from libraries' and hotlap's own, and lists those that were imported."""

import linecache
import os
import sys
import sysconfig
from functools import lru_cache
from types import ModuleType
from typing import Any

from hotlap import start_folder

_FOLDERS = (
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
    os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{os.sep}torchinductor_",
)
"""Where libraries lie, also those of another Python than this one, and what Inductor writes."""
_HOTLAP = os.path.dirname(os.path.realpath(__file__))
_LIBRARIES = tuple(
    {
        os.path.realpath(path)
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(key))
    }
)


_CELL = ".ipynb#cell"
"""In the name that a cell's code has as a file, see `attach.notebook`."""


@lru_cache(maxsize=4096)
def is_hotlaps(filename: str) -> bool:
    """True if the file belongs to hotlap."""
    return os.path.realpath(filename).startswith(_HOTLAP + os.sep)


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """True if the file belongs neither to a library nor to hotlap."""
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    if path.startswith(_HOTLAP + os.sep) or any(f in path for f in _FOLDERS):
        return False
    return not any(path.startswith(root + os.sep) for root in _LIBRARIES)


_scripts: set[str] = set()


def keep_script() -> None:
    """Let `imported_files` know the script that runs: Python forgets its file when it has ended."""
    file = vars(sys.modules["__main__"]).get("__file__")
    if file is not None:
        _scripts.add(os.path.abspath(file))


def imported_files() -> list[str]:
    """Return the user's files that this process has imported so far, absolute and sorted.

    A notebook that runs is one of them.
    """
    # What an attribute is asked of may import itself only then.
    files = {vars_of.get("__file__") for vars_of in map(_vars_of, list(sys.modules.values()))}
    files |= {_notebook(), *_scripts}
    return sorted(
        {os.path.abspath(file) for file in files if isinstance(file, str) and is_users(file)}
    )


def files_to_report() -> list[str]:
    """Return the same for another process: a trial may run on a copy of the folder it started in.

    What is below that folder is given relative to it.
    """
    here = os.path.join(start_folder.FOLDER, "")
    return [path.removeprefix(here) for path in imported_files()]


def is_cell(filename: str) -> bool:
    """True if the code is a cell's of a notebook: what other cells do is not in that file."""
    return _CELL in filename


def source_files() -> list[str]:
    """Return the user's files that this process has imported, and of a notebook its cells, all of
    them by names that `linecache` knows."""
    notebook = _notebook()
    if notebook is None:
        return imported_files()
    cells = [name for name in list(linecache.cache) if is_cell(name)]
    path = os.path.abspath(notebook)
    return [*cells, *(file for file in imported_files() if file != path)]


def _notebook() -> str | None:
    """Return the path of the notebook that runs in this process, see `attach.notebook`."""
    return vars(sys.modules["__main__"]).get("__notebook__")


def _vars_of(module: Any) -> dict[str, Any]:
    return object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
