"""Finds the text that the model learns: Shakespeare's plays, 1,115,394 characters, public domain.

`python text.py` says where it is; `python text.py --fetch` downloads it into the user's cache.
"""

import argparse
import hashlib
import http.client
import os
import sys
import sysconfig
import tempfile
import urllib.request
from pathlib import Path

NAME = "tinyshakespeare.txt"
DIGEST = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
ADDRESS = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotlap"
FALLBACK_BYTES = 1_115_394
HELD_OUT = 0.1
"""Share of the text, at its end, that is kept for evaluation."""


def find() -> Path | None:
    """Return the file; None if there is none.

    Looked at in turn: the folder `$HOTLAP_DATA`, and the user's cache.
    """
    given = os.environ.get("HOTLAP_DATA")
    folders = [Path(given)] if given else []
    return next((f / NAME for f in (*folders, CACHE) if (f / NAME).is_file()), None)


def load(path: Path | None, *, train: bool) -> bytes:
    """Return the text.

    Args:
        path: a file of any text; None for the source of Python's own standard library.
        train: the first nine tenths, else the rest.

    Raises:
        FileNotFoundError: the file is not there.
    """
    if path is not None and not path.is_file():
        raise FileNotFoundError(f"'{path}' is no file. Give a file of text, or leave --data out.")
    text = _standard_library() if path is None else path.read_bytes()
    end = round(len(text) * (1 - HELD_OUT))
    return text[:end] if train else text[end:]


def _standard_library() -> bytes:
    parts: list[bytes] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        if sum(map(len, parts)) >= FALLBACK_BYTES:
            break
    return b"".join(parts)[:FALLBACK_BYTES]


def fetch() -> Path:
    """Download the text into the user's cache and return the file.

    Raises:
        OSError: no network, no room, or a file that is not what it should be.
        http.client.HTTPException: the answer broke off.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(ADDRESS, timeout=10) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise OSError(f"what came is not the {NAME} that was asked for: another SHA-256.")
    # A file under its own name is always a whole one.
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        part = Path(folder) / "part"
        part.write_bytes(content)
        part.replace(CACHE / NAME)
    return CACHE / NAME


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="download it if it is not here")
    args = parser.parse_args()
    path = find()
    if path is None and args.fetch:
        try:
            path = fetch()
        except (OSError, http.client.HTTPException) as error:
            print(
                f"{NAME} could not be downloaded: {error}. Without a network, put it into "
                f"'{CACHE}', or name its folder in $HOTLAP_DATA.",
                file=sys.stderr,
            )
    if path is None:
        print(f"{NAME} is not here: the source of Python's standard library is used in its place.")
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
