"""The two consoles for text: progress on standard error, results on standard output."""

from rich.console import Console


def progress_console() -> Console:
    """Return the console for what happens meanwhile. Text is shown as it is, never as markup."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def page_console() -> Console:
    """Return the console for results. Text is shown as it is, never as markup."""
    return Console(markup=False, highlight=False, emoji=False)
