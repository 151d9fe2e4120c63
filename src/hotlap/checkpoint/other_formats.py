"""Tells by its first bytes what a file is that `torch.save` did not write: HDF5, gzip, HTML."""

import zipfile
from pathlib import Path

_HEAD = 512
"""Bytes that are looked at."""
_SHOWN = 40
"""Characters of a text's first line in a message."""
_ZIP = b"PK\x03\x04"
_TORCH_MAGIC = b"l\xfc\x9cF\xf9 j\xa8P\x19"
"""In the first pickle of a file that an older `torch.save` wrote."""
_PICKLES = (2, 3, 4, 5)
"""Protocols of binary pickles."""
_BEGINNINGS = {
    b"\x1f\x8b": "a gzip archive: unpack it first",
    b"\x89HDF\r\n": "an HDF5 file",
    b"\x93NUMPY": "an array of NumPy",
    b"version https://git-lfs": "a Git LFS pointer: run `git lfs pull` to get the file itself",
}


def describe_other(path: Path) -> str | None:
    """Return what a file is in words; None if `torch.save` may have written it, cut or not."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        return "an empty file"
    if head.startswith(_ZIP):
        return _other_archive(path)
    if _ZIP.startswith(head) or head == b"\x80":
        # Of a file that was cut so early nothing is known.
        return None
    if head[0] == 0x80 and head[1] in _PICKLES:
        is_torchs = len(head) < 2 * len(_TORCH_MAGIC) or _TORCH_MAGIC in head[:32]
        return None if is_torchs else "a pickle of something else"
    for begins, what in _BEGINNINGS.items():
        if head.startswith(begins):
            return what
    if head[8:10] in (b'{"', b"{}") and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "a file of safetensors: give it the ending .safetensors"
    return _text(head) or "a file of another format"


def _other_archive(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        # It is cut: what it was is not known.
        return None
    if any(name.endswith("data.pkl") for name in names):
        return None
    such = f", such as '{names[0]}'" if names else ""
    return f"a zip archive of other files{such}"


def _text(head: bytes) -> str | None:
    # The last character may be cut.
    text = head.decode("utf-8", errors="ignore" if len(head) == _HEAD else "replace")
    if any(not (letter.isprintable() or letter in "\r\n\t\f") for letter in text):
        return None
    if "\ufffd" in text:
        return None
    if text.lstrip().lower().startswith(("<!doctype html", "<html")):
        return "a web page: download the file itself"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"a text file that begins with {first[:_SHOWN]!r}"
