"""A page as a terminal shows it."""

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console


def shown(page: Callable[..., None], record: Any, *, width: int = 200, **options: Any) -> str:
    """Return what a page prints of a record, its markup as it is."""
    stream = io.StringIO()
    console = Console(file=stream, width=width, markup=False, highlight=False, emoji=False)
    page(record, console, **options)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def words(page: Callable[..., None], record: Any, **options: Any) -> str:
    """Return the same without regard to lines and columns."""
    return " ".join(shown(page, record, **options).split())
