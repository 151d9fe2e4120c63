"""Runs the code cells of a notebook one after another, as `__main__`, in one process.

Started as a file, so that the Python that runs it needs no hotlap. It imports nothing that is not
Python's own, but for IPython where a cell asks for it.
"""

import __future__

import ast
import asyncio
import inspect
import json
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

MARK = "#cell"
"""Between a notebook's path and the number of a cell, in the name that its code has as a file."""
_AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_FUTURES = [getattr(__future__, name).compiler_flag for name in __future__.all_feature_names]
_SHOWING = re.compile(r"%(matplotlib|config|autoreload|load_ext\s+autoreload|reload_ext)\b")
"""Line magics that only concern what a browser shows, or a session that goes on."""
_TIMED = re.compile(r"%%time\b[^\n]*")
_MAGIC = re.compile(r"\s*(%%?\w|!|\?)|.*\?\s*$|\s*[\w., ]+=\s*(%\w|!)")
_EXIT_USAGE = 2


class Cell(NamedTuple):
    """One code cell."""

    number: int
    """Among the code cells that are not empty, from 1, as Jupyter counts those that it runs."""
    text: str


class NotebookError(Exception):
    """Something is no notebook, or cannot be run as one."""


def read_cells(path: str) -> list[Cell]:
    """Return the code cells of a notebook that are not empty.

    Args:
        path: of a file as Jupyter writes it (nbformat 3 or 4).

    Raises:
        NotebookError: it is no notebook, or none in Python.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError) as error:
        raise NotebookError(f"it cannot be read as JSON ({error})") from error
    cells = _cells_of(content)
    if cells is None:
        raise NotebookError("it has no cells as Jupyter writes them (nbformat 3 or 4)")
    language = _language_of(content)
    if language != "python":
        raise NotebookError(f"its language is {language}, not Python")
    texts = [_text_of(cell) for cell in cells if cell.get("cell_type") == "code"]
    written = [text for text in texts if text.strip()]
    if not written:
        raise NotebookError("it has no code")
    return [Cell(number, text) for number, text in enumerate(written, 1)]


def _cells_of(content: Any) -> list[dict[str, Any]] | None:
    holder = content
    if isinstance(content, dict) and content.get("worksheets"):
        # Format 3.
        holder = content["worksheets"][0]
    cells = holder.get("cells") if isinstance(holder, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        return None
    return cells


def _language_of(content: dict[str, Any]) -> str:
    metadata = content.get("metadata") or {}
    kernel, language = metadata.get("kernelspec") or {}, metadata.get("language_info") or {}
    return str(kernel.get("language") or language.get("name") or "python").lower()


def _text_of(cell: dict[str, Any]) -> str:
    # Format 3 calls it `input`.
    source = cell.get("source", cell.get("input", ""))
    return "".join(source) if isinstance(source, list) else str(source)


def plain_text(text: str) -> str:
    """Return a cell's code without the magics that change nothing of what it computes."""
    text = _TIMED.sub("", text, count=1) if text.lstrip().startswith("%%time") else text
    lines = text.splitlines(keepends=True)
    # A line stays a line: those behind it keep their numbers.
    return "".join("\n" if _SHOWING.match(line.strip()) else line for line in lines)


def find_problem(cells: Sequence[Cell], *, knows_magics: bool) -> str | None:
    """Return why these cells cannot be run, None if they can.

    Args:
        cells: of a notebook.
        knows_magics: True if IPython will be there, which knows what `%` and `!` mean.
    """
    for cell in cells:
        text = plain_text(cell.text)
        try:
            compile(text, "<cell>", "exec", flags=_AWAITS, dont_inherit=True)
        except SyntaxError as error:
            line = error.lineno or 1
            lines = text.splitlines()
            shown = lines[line - 1].strip() if line <= len(lines) else ""
            magics = [each for each in enumerate(lines, 1) if _MAGIC.match(each[1])]
            if not magics:
                return f"cell {cell.number}, line {line}: {error.msg} in `{shown}`"
            if not knows_magics:
                number, magic = magics[0]
                return (
                    f"cell {cell.number}, line {number}: only IPython knows what "
                    f"`{magic.strip()}` means, and it is not installed"
                )
    return None


def has_magics(cells: Sequence[Cell]) -> bool:
    """Return whether IPython is needed to run these cells."""
    return find_problem(cells, knows_magics=False) is not None


def run_cells(path: str, cells: Sequence[Cell]) -> None:
    """Run the cells in a new `__main__`.

    Args:
        path: of the notebook, absolute.
        cells: what to run.
    """
    main = ModuleType("__main__")
    # What hotlap finds the notebook's file by: `__file__` is not there in Jupyter either.
    main.__dict__["__notebook__"] = path
    sys.modules["__main__"] = main
    names = vars(main)
    sys.excepthook = _shows_cells(path)
    translate = _translator(main) if has_magics(cells) else plain_text
    flags = _AWAITS
    for cell in cells:
        flags = _run_cell(f"{path}{MARK}{cell.number}", translate(cell.text), names, flags)


def _run_cell(name: str, text: str, names: dict[str, Any], flags: int) -> int:
    """Run a cell; return the compiler's flags for the next one: an import from `__future__` holds
    for all that follow."""
    lines = text.splitlines(keepends=True)
    # Without a time the entry is kept, although there is no such file.
    linecache.cache[name] = (len(text), None, lines, name)
    tree = ast.parse(text, name)
    shown: ast.Interactive | None = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
        shown = ast.Interactive([tree.body.pop()])
    code = compile(tree, name, "exec", flags=flags, dont_inherit=True)
    flags |= code.co_flags & sum(_FUTURES)
    _execute(code, names)
    if shown is not None:
        _execute(compile(shown, name, "single", flags=flags, dont_inherit=True), names)
    return flags


def _execute(code: CodeType, names: dict[str, Any]) -> None:
    waits = bool(code.co_flags & inspect.CO_COROUTINE)
    done = eval(code, names)
    if waits:
        asyncio.run(done)


def _translator(main: ModuleType) -> Callable[[str], str]:
    """Return what makes Python of a cell's magics; `get_ipython` is there from now on."""
    from IPython.core.interactiveshell import InteractiveShell  # pyright: ignore

    shell = InteractiveShell.instance(user_module=main)
    return lambda text: shell.transform_cell(plain_text(text))


def _shows_cells(path: str) -> Callable[..., None]:
    """Return a hook that prints a traceback from the cell on, with the cell's lines.

    Python's own looks for the lines in a file.
    """

    def show(kind: Any, error: BaseException, place: TracebackType | None) -> None:
        begin = place
        while begin is not None and not begin.tb_frame.f_code.co_filename.startswith(path + MARK):
            begin = begin.tb_next
        traceback.print_exception(kind, error, begin or place)

    return show


def main(argv: Sequence[str]) -> None:
    """Run a notebook.

    Args:
        argv: its path and its arguments.
    """
    path = os.path.abspath(argv[0])
    # As for a script; and hotlap's own modules are nobody's to find.
    sys.path[0] = os.path.dirname(path)
    sys.argv = list(argv)
    # Nobody closes a window.
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        cells = read_cells(path)
        problem = find_problem(cells, knows_magics=has_ipython())
    except NotebookError as error:
        problem, cells = str(error), []
    if problem is not None:
        sys.stderr.write(f"{argv[0]}: {problem}\n")
        sys.exit(_EXIT_USAGE)
    run_cells(path, cells)


def has_ipython() -> bool:
    """Return whether this Python has IPython."""
    import importlib.util

    return importlib.util.find_spec("IPython") is not None


if __name__ == "__main__":
    main(sys.argv[1:])
