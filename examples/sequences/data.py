"""Finds text and cuts it into paragraphs: Shakespeare's speeches, or Python's standard library.

Looked at in turn: `$HOTLAP_DATA`, the user's cache, and where there is no `tinyshakespeare.txt`
the source text of the standard library, which is always there.
"""

import os
import sysconfig
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotlap"
LONGEST = 512
"""Bytes; what is longer is cut."""
MOST = 1_200_000


def find() -> Path | None:
    """Return the file, None if it is nowhere."""
    given = os.environ.get("HOTLAP_DATA")
    folders = [Path(given)] if given else []
    for folder in (*folders, CACHE):
        if (folder / "tinyshakespeare.txt").is_file():
            return folder / "tinyshakespeare.txt"
    return None


def paragraphs(*, train: bool, most: int) -> list[bytes]:
    """Return paragraphs of 2 to 512 bytes; every tenth is held out of training.

    Args:
        train: the training part, else what is held out.
        most: so many, fewer if there are no more, over both parts.
    """
    path = find()
    text = path.read_bytes() if path is not None else _standard_library()
    cut = [each.strip()[:LONGEST] for each in text.replace(b"\r", b"").split(b"\n\n")]
    cut = [each for each in cut if len(each) > 1][:most]
    return [each for number, each in enumerate(cut) if (number % 10 != 9) is train]


def _standard_library() -> bytes:
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes() + b"\n\n"
        if len(text) > MOST:
            break
    return text[:MOST]
