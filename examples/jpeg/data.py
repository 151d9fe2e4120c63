"""Finds a folder of JPEG files in class folders: CIFAR-10's test images, or pictures of digits.

`python data.py` says where it is.
"""

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from PIL import Image

ARCHIVE = "cifar10-test-jpeg.tar"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotlap" / "jpeg"
HELD_OUT_EVERY = 5
"""Of each class, every fifth file is held out."""
SIZE = 32


def find() -> Path:
    """Return a folder that holds a folder of JPEG files for each class.

    Looked at in turn: `$HOTLAP_DATA` and the folder `cifar10-test-jpeg` in it, if they hold class
    folders; the archive `cifar10-test-jpeg.tar` there, unpacked into the user's cache; and, said
    aloud, scikit-learn's digits, written as JPEG files.

    Raises:
        ValueError: the archive holds something else than files and folders of its own.
        FileNotFoundError: there is no archive, and scikit-learn is not installed.
    """
    given = os.environ.get("HOTLAP_DATA")
    for folder in [Path(given), Path(given) / "cifar10-test-jpeg"] if given else []:
        if any(folder.glob("*/*.jpg")):
            return folder
    archive = Path(given) / ARCHIVE if given else CACHE / ARCHIVE
    if archive.is_file():
        return made("cifar10-test", lambda part: unpacked(archive, part))
    print(
        f"{ARCHIVE} is not here: pictures of scikit-learn's digits are used in its place.",
        file=sys.stderr,
    )
    return made("digits", digits)


def files(folder: Path, *, train: bool) -> list[tuple[Path, int]]:
    """Return each file with the number of its class, in the order of their names."""
    found = []
    for label, name in enumerate(sorted(path.name for path in folder.iterdir() if path.is_dir())):
        for number, path in enumerate(sorted((folder / name).glob("*.jpg"))):
            if (number % HELD_OUT_EVERY == 0) is not train:
                found.append((path, label))
    return found


def made(name: str, fill) -> Path:
    """Return a folder that `fill(folder)` filled, now or in an earlier run.

    It lies in the user's cache; where that cannot be written to, in a temporary folder.
    """
    for parent in (CACHE, Path(tempfile.gettempdir()) / f"hotlap-jpeg-{os.getuid()}"):
        if (parent / name).is_dir():
            return parent / name
        try:
            parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=parent))
        except OSError:
            continue
        try:
            content = fill(part)
            # A folder under its own name is always a whole one.
            content.rename(parent / name)
        except OSError:
            # Another process was faster, or there is no room.
            if not (parent / name).is_dir():
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return parent / name
    raise PermissionError(f"neither {CACHE} nor {tempfile.gettempdir()} can be written to.")


def unpacked(archive: Path, part: Path) -> Path:
    """Unpack into `part`, and return the folder that holds the class folders."""
    try:
        with tarfile.open(archive) as tar:
            # Refuses paths that lead out of the folder, links, devices and programs' rights.
            tar.extractall(part, filter="data")
    except tarfile.TarError as error:
        raise ValueError(f"{archive} cannot be unpacked: {error}") from error
    for path in (part, *sorted(part.iterdir())):
        if any(path.glob("*/*.jpg")):
            content = part / "whole"
            shutil.copytree(path, content) if path == part else path.rename(content)
            return content
    raise ValueError(f"{archive} holds no class folders of JPEG files.")


def digits(part: Path) -> Path:
    """Write scikit-learn's digits into `part` as JPEG files in class folders."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise FileNotFoundError(
            f"There are no JPEG files: {ARCHIVE} is not in $HOTLAP_DATA, and scikit-learn is not "
            "installed. `pip install scikit-learn` gives its digits, which serve as well."
        ) from None
    content = part / "whole"
    for number, (pixels, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        folder = content / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((pixels.reshape(8, 8) * 15.9).astype("uint8"))
        image.resize((SIZE, SIZE)).convert("RGB").save(folder / f"{number:04d}.jpg", quality=90)
    return content


if __name__ == "__main__":
    print(find())
