"""Finds and reads FashionMNIST: 60,000 and 10,000 grey images, 28 x 28, ten kinds of clothing.

`python data.py` says where it is; `python data.py --fetch` downloads it into the user's cache.
"""

import argparse
import gzip
import hashlib
import http.client
import math
import os
import sys
import tempfile
import urllib.request
import zlib
from pathlib import Path

import numpy as np

FILES = {
    "train-images-idx3-ubyte": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
    "train-labels-idx1-ubyte": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    "t10k-images-idx3-ubyte": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
    "t10k-labels-idx1-ubyte": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
}
"""Name of each file -> the SHA-256 of its gzipped form, which a download must have."""

ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotlap" / "fashion-mnist"
)
DIGITS_IN_TRAINING = 1500


def find() -> Path | None:
    """Return the folder that holds the four files, plain or gzipped; None if there is none.

    Looked at in turn: `$HOTLAP_DATA` and the folder `fashion-mnist` in it, the user's cache, and
    the place where Debian's package `dataset-fashion-mnist` puts them.
    """
    given = os.environ.get("HOTLAP_DATA")
    folders = [Path(given), Path(given) / "fashion-mnist"] if given else []
    for folder in (*folders, CACHE, DEBIAN):
        if all(_file(folder, name) is not None for name in FILES):
            return folder
    return None


def load(folder: Path | None, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 28, 28) and labels (n,), both uint8.

    Args:
        folder: where the IDX files are; None for scikit-learn's digits in their place.
        train: the training part, else the test part.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file is no IDX file of the kind that its name says.
    """
    if folder is None:
        return _digits(train=train)
    part = "train" if train else "t10k"
    images = _read(folder, f"{part}-images-idx3-ubyte", dimensions=3)
    labels = _read(folder, f"{part}-labels-idx1-ubyte", dimensions=1)
    if len(images) != len(labels):
        raise ValueError(f"{folder}: {len(images)} images but {len(labels)} labels ({part}).")
    return images, labels


def _file(folder: Path, name: str) -> Path | None:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    return None


def _read(folder: Path, name: str, *, dimensions: int) -> np.ndarray:
    path = _file(folder, name)
    if path is None:
        raise FileNotFoundError(
            f"'{folder}' holds neither {name}.gz nor {name}. Give the folder of "
            "the four FashionMNIST files, or leave --data out."
        )
    raw = _unpacked(path)
    # IDX: two zero bytes, 8 for unsigned bytes, the number of dimensions, then each as 4 bytes.
    end = 4 + 4 * dimensions
    if len(raw) < end or raw[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"'{path}' is no IDX file of {dimensions} dimensions of unsigned bytes.")
    shape = [int(n) for n in np.frombuffer(raw[4:end], dtype=">u4")]
    if len(raw) - end != math.prod(shape):
        raise ValueError(f"'{path}' says {shape}, but holds {len(raw) - end} bytes: cut short?")
    return np.frombuffer(raw, dtype=np.uint8, offset=end).reshape(shape)


def _unpacked(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"'{path}' is no whole gzip file ({error}). Delete it and download it again."
        ) from None


def _digits(*, train: bool) -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise FileNotFoundError(
            "neither FashionMNIST nor scikit-learn is here. `python data.py --fetch` downloads the "
            "one, `pip install scikit-learn` the other, whose digits serve as well."
        ) from None
    digits = load_digits()
    images = np.repeat(np.repeat(digits.images / 16 * 255, 3, axis=1), 3, axis=2).astype(np.uint8)
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    part = slice(None, DIGITS_IN_TRAINING) if train else slice(DIGITS_IN_TRAINING, None)
    return images[part], digits.target[part].astype(np.uint8)


def fetch() -> Path:
    """Download the four files into the user's cache and return the folder.

    Raises:
        OSError: no network, no room, or a file that is not what it should be.
        http.client.HTTPException: the answer broke off.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    for name, digest in FILES.items():
        if _file(CACHE, name) is None:
            _download(name, digest)
    return CACHE


def _download(name: str, digest: str) -> None:
    with urllib.request.urlopen(f"{ADDRESS}{name}.gz", timeout=10) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise OSError(
            f"what came as {name}.gz is not the file that was asked for: another SHA-256."
        )
    # A file under its own name is always a whole one.
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        part = Path(folder) / "part"
        part.write_bytes(content)
        part.replace(CACHE / f"{name}.gz")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fetch", action="store_true", help="download it if it is not here")
    args = parser.parse_args()
    folder = find()
    if folder is None and args.fetch:
        try:
            folder = fetch()
        except (OSError, http.client.HTTPException) as error:
            print(
                f"FashionMNIST could not be downloaded: {error}. Without a network, put the four "
                f"files into '{CACHE}', or name their folder in $HOTLAP_DATA.",
                file=sys.stderr,
            )
    if folder is None:
        print("FashionMNIST is not here: scikit-learn's digits are used in its place.")
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
