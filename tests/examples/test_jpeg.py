"""The folder of JPEG files is found, unpacked safely, and augmented alike in both ways."""

import io
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from benchmarks.by_file import module_of


@pytest.fixture
def data(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = module_of(root / "examples" / "jpeg" / "data.py")
    monkeypatch.setattr(module, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path))
    return module


def packed(path: Path, names: list[str]) -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 30, 90)).save(file, "JPEG")
    with tarfile.open(path, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(file.getvalue())
            tar.addfile(member, io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("top", ["", "test/"])
def test_an_archive_is_unpacked_once(data: ModuleType, tmp_path: Path, top: str) -> None:
    names = [f"{top}{kind}/{n}.jpg" for kind in ("cat", "dog") for n in range(10)]
    packed(tmp_path / data.ARCHIVE, names)
    folder = data.find()
    (tmp_path / data.ARCHIVE).write_bytes(b"not read again")
    assert data.find() == folder
    train, test = data.files(folder, train=True), data.files(folder, train=False)
    assert [label for _, label in train] == [0] * 8 + [1] * 8
    assert len(test) == 4 and not {path for path, _ in train} & {path for path, _ in test}
    assert [path.name for path in data.CACHE.iterdir()] == [folder.name]


@pytest.mark.parametrize("name", ["../out.jpg", "/tmp/out.jpg"])
def test_nothing_is_written_outside(data: ModuleType, tmp_path: Path, name: str) -> None:
    packed(tmp_path / data.ARCHIVE, ["cat/1.jpg", f"cat/../../../{name}"])
    with pytest.raises(ValueError, match="cannot be unpacked"):
        data.find()
    assert not list(tmp_path.rglob("out.jpg")) and not list(data.CACHE.iterdir())


def test_an_archive_of_something_else_is_named(data: ModuleType, tmp_path: Path) -> None:
    packed(tmp_path / data.ARCHIVE, ["cat.txt"])
    with pytest.raises(ValueError, match="no class folders"):
        data.find()


def test_whole_batches_are_augmented_as_one_image_is(root: Path) -> None:
    from hotlap.feed.samples.draws import Draws

    recipe = module_of(root / "examples" / "jpeg" / "recipe.py")
    pixels = torch.randint(256, (16, 3, 32, 32), dtype=torch.uint8)
    images, labels = recipe.crop_and_flip_all([pixels, torch.arange(16)], Draws(7, range(16)))
    draws = Draws(7, range(16))
    corners, flipped = draws.integers(0, 9, 2).tolist(), (draws.uniform() < 0.5).tolist()
    for image, before, (top, left), flips in zip(images, pixels, corners, flipped, strict=True):
        padded = torch.nn.functional.pad(before, [4] * 4)
        expected = padded[:, top : top + 32, left : left + 32]
        assert torch.equal(image, expected.flip(2) if flips else expected)
    assert labels.tolist() == list(range(16)) and len(set(flipped)) == 2
