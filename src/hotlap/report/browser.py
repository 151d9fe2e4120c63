"""Opens a page in the user's browser."""

import webbrowser
from pathlib import Path

from hotlap.errors import RunError


def open_in_browser(path: Path) -> None:
    """Open a page in the browser that `BROWSER` names, else in the usual one.

    Raises:
        RunError: there is none, or it cannot be started.
    """
    try:
        is_open = webbrowser.get().open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        is_open = False
    if not is_open:
        raise RunError(
            f"the page was written to '{path}', but no browser was found to open it with. Open "
            "the file on a machine with a browser, set the environment variable `BROWSER` to the "
            "command of a browser, or pass --no-browser to write the file only."
        )
