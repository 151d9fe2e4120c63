"""The example finds its data, reads them, and says what is wrong with others."""

import gzip
import hashlib
import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def data(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("data", root / "examples/fashion_mnist/data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def fill(folder: Path, packed: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 5), ("t10k", 3)):
        images = np.arange(count * 4, dtype=np.uint8).reshape(count, 2, 2)
        for name, array in (("images-idx3", images), ("labels-idx1", images[:, 0, 0])):
            raw = idx(array)
            path = folder / f"{part}-{name}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(raw))
            else:
                path.write_bytes(raw)


@pytest.mark.parametrize("packed", [True, False])
def test_plain_and_gzipped_files_are_read(data: ModuleType, tmp_path: Path, packed: bool) -> None:
    fill(tmp_path, packed)
    images, labels = data.load(tmp_path, train=True)
    assert images.shape == (5, 2, 2)
    assert images[1, 0, 1] == 5
    assert labels.tolist() == [0, 4, 8, 12, 16]
    assert len(data.load(tmp_path, train=False)[0]) == 3


@pytest.mark.parametrize("below", ["", "fashion-mnist"])
def test_the_variable_names_the_folder_or_its_parent(
    data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    fill(tmp_path / below, packed=True)
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path))
    assert data.find() == tmp_path / below


def test_the_cache_comes_before_the_package_and_after_the_variable(
    data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, cache, package = (tmp_path / name for name in ("given", "cache", "package"))
    monkeypatch.setenv("HOTLAP_DATA", str(given))
    monkeypatch.setattr(data, "CACHE", cache)
    monkeypatch.setattr(data, "DEBIAN", package)
    for folder in (package, cache, given):
        fill(folder, packed=True)
        assert data.find() == folder
    # Three of the four files are not the data set.
    (given / "t10k-labels-idx1-ubyte.gz").unlink()
    assert data.find() == cache


def test_nothing_found_is_said_and_the_digits_serve(
    data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path))
    monkeypatch.setattr(data, "CACHE", tmp_path)
    monkeypatch.setattr(data, "DEBIAN", tmp_path)
    assert data.find() is None
    images, labels = data.load(None, train=True)
    assert images.shape == (1500, 28, 28)
    assert images.dtype == labels.dtype == np.uint8
    assert len(data.load(None, train=False)[0]) == 297


def test_a_wrong_file_is_named(data: ModuleType, tmp_path: Path) -> None:
    fill(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(b"no IDX file")
    with pytest.raises(ValueError, match="is no IDX file"):
        data.load(tmp_path, train=True)
    fill(tmp_path, packed=False)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut short"):
        data.load(tmp_path, train=True)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="holds neither"):
        data.load(tmp_path, train=True)


@pytest.mark.parametrize(
    "damage",
    [b"<html>", gzip.compress(bytes(999))[:-9], b""],
    ids=["another file", "cut short", "empty"],
)
def test_a_damaged_gzip_file_is_named(data: ModuleType, tmp_path: Path, damage: bytes) -> None:
    fill(tmp_path, packed=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"no whole gzip file|no IDX file") as error:
        data.load(tmp_path, train=False)
    assert str(path) in str(error.value)


def test_a_header_that_is_cut_short_is_named(data: ModuleType, tmp_path: Path) -> None:
    fill(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(ValueError, match="is no IDX file"):
        data.load(tmp_path, train=True)


def test_images_without_their_labels_are_refused(data: ModuleType, tmp_path: Path) -> None:
    fill(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(4, dtype=np.uint8)))
    with pytest.raises(ValueError, match="5 images but 4 labels"):
        data.load(tmp_path, train=True)


def test_without_scikit_learn_both_ways_out_are_named(
    data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(FileNotFoundError, match=r"--fetch.*pip install scikit-learn"):
        data.load(None, train=True)


@pytest.fixture
def mirror(data: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `fetch` downloads from, with the digests of what is in it."""
    folder = tmp_path / "mirror"
    fill(folder, packed=True)
    digests = {
        name: hashlib.sha256((folder / f"{name}.gz").read_bytes()).hexdigest()
        for name in data.FILES
    }
    monkeypatch.setattr(data, "FILES", digests)
    monkeypatch.setattr(data, "ADDRESS", f"{folder.as_uri()}/")
    monkeypatch.setattr(data, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(data, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.delenv("HOTLAP_DATA", raising=False)
    return folder


def test_what_is_fetched_is_found(data: ModuleType, mirror: Path) -> None:
    assert data.find() is None
    assert data.fetch() == data.find() == data.CACHE
    assert {path.name for path in data.CACHE.iterdir()} == {f"{name}.gz" for name in data.FILES}
    assert len(data.load(data.CACHE, train=True)[0]) == 5


def test_another_file_in_its_place_is_not_kept(data: ModuleType, mirror: Path) -> None:
    (mirror / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(OSError, match="another SHA-256"):
        data.fetch()
    assert not list(data.CACHE.glob("t10k-images*"))
    assert data.find() is None


def test_without_a_network_it_says_what_to_do(
    data: ModuleType,
    mirror: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(data, "ADDRESS", f"{(tmp_path / 'gone').as_uri()}/")
    monkeypatch.setattr(sys, "argv", ["data.py", "--fetch"])
    assert data.main() == 1
    told = capsys.readouterr()
    assert "could not be downloaded" in told.err and "$HOTLAP_DATA" in told.err
    assert "digits" in told.out
