"""Writes a text file as a whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file; one that was there stays until the new one is complete.

    Two processes may write at once: one of them wins as a whole.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
