"""The example finds its data, reads them, and says what is wrong with others."""

import gzip
import importlib.util
import struct
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
