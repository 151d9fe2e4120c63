"""A plain script's run is read part by part; what is unclear is refused, and no code is run."""

import argparse
import gzip
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import save_file

from hotlap.checkpoint.foreign import unpickle
from hotlap.checkpoint.foreign_run import PARTS, parse_keys, read_run
from hotlap.checkpoint.other_formats import describe_other
from hotlap.errors import CheckpointCorrupt, MissingFile, UsageError

MODEL = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
OPTIMIZER = {"state": {0: {"step": torch.tensor(4.0)}}, "param_groups": [{"lr": 0.1}]}
SCHEDULER = {"last_epoch": 2, "gamma": 0.1}


def held(**other: Any) -> dict[str, Any]:
    return {"model": MODEL, "optimizer": OPTIMIZER, "scheduler": SCHEDULER, "epoch": 1, **other}


def saved(content: Any, tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.pth.tar"
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("part", "key"), [(part, key) for part, keys in PARTS.items() for key in keys]
)
def test_every_part_is_found_under_the_keys_that_people_use(
    part: str, key: str, tmp_path: Path
) -> None:
    content = held(step=14)
    content[key] = content.pop(part)
    run = read_run(saved(content, tmp_path))
    assert run.keys[part] == key
    assert run.weights.keys() == MODEL.keys()
    assert run.optimizer["param_groups"] == OPTIMIZER["param_groups"]
    assert (run.scheduler, run.epoch, run.step) == (SCHEDULER, 1, 14)
    assert run.unused == ()


def test_a_file_of_lightning_is_read(tmp_path: Path) -> None:
    content = {
        "epoch": 1,
        "global_step": 14,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {f"net.{name}": tensor for name, tensor in MODEL.items()},
        "optimizer_states": [OPTIMIZER],
        "lr_schedulers": [SCHEDULER],
        "callbacks": {},
    }
    run = read_run(saved(content, tmp_path))
    assert set(run.weights) == {"net.weight", "net.bias"}
    assert (run.scheduler, run.epoch, run.step) == (SCHEDULER, 1, 14)
    assert run.unused == ("pytorch-lightning_version", "callbacks")
    content["optimizer_states"].append(OPTIMIZER)
    with pytest.raises(UsageError, match="a state dict of one optimizer is under none"):
        read_run(saved(content, tmp_path))


def test_what_compile_puts_into_names_is_removed_and_other_keys_are_told(tmp_path: Path) -> None:
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in MODEL.items()}
    content = held(model=compiled, args=argparse.Namespace(lr=0.1), best_acc=0.5, optimizer="adam")
    content["opt"] = OPTIMIZER
    run = read_run(saved(content, tmp_path))
    assert run.weights.keys() == MODEL.keys()
    assert run.keys["optimizer"] == "opt"
    assert run.unused == ("optimizer", "args", "best_acc")


def test_what_a_module_saves_of_its_own_may_be_no_tensor(tmp_path: Path) -> None:
    content = held(model={**MODEL, "norm._extra_state": {"count": 3}})
    assert read_run(saved(content, tmp_path)).weights.keys() == MODEL.keys()


@pytest.mark.parametrize("epoch", [3, 3.0, torch.tensor(3)])
def test_a_number_of_any_type_is_an_epoch(epoch: Any, tmp_path: Path) -> None:
    assert read_run(saved(held(epoch=epoch), tmp_path)).epoch == 3


@pytest.mark.parametrize("is_zip", [True, False])
def test_numbers_of_numpy_are_read_and_other_objects_of_it_are_not(
    is_zip: bool, tmp_path: Path
) -> None:
    path = tmp_path / "old.pth"
    numbers = {
        "accuracy": numpy.float64(0.1),
        "loss": numpy.float32(0.5),
        "big": numpy.array(3, dtype=">i8")[()],
        "is_best": numpy.bool_(True),
        "text": numpy.str_("x"),
        "kind": numpy.dtype("f8"),
    }
    content = held(epoch=numpy.int64(3), **numbers)
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    assert read_run(path).epoch == 3
    read = unpickle(path)
    assert {key: read[key] for key in ("accuracy", "loss", "big", "is_best", "text")} == {
        "accuracy": 0.1,
        "loss": 0.5,
        "big": 3,
        "is_best": True,
        "text": None,
    }
    torch.save(held(history=numpy.zeros(3)), path)
    with pytest.raises(UsageError, match="_reconstruct"):
        read_run(path)


@pytest.mark.parametrize("epoch", [None, "3", -1, True, 2.5, [3]])
def test_what_is_no_number_is_no_epoch(epoch: Any, tmp_path: Path) -> None:
    path = saved(held(epoch=epoch), tmp_path)
    assert read_run(path).epoch is None
    with pytest.raises(
        UsageError, match=r"--keys epoch=epoch: 'epoch' in .*a key that holds an integer of 0"
    ):
        read_run(path, {"epoch": "epoch"})


def test_keys_can_be_given_and_the_nearest_right_one_is_named(tmp_path: Path) -> None:
    path = saved({"wts": MODEL, "optima": OPTIMIZER, "lrs": SCHEDULER, "ep": 3}, tmp_path)
    keys = parse_keys("model=wts, optimizer=optima,scheduler=lrs,epoch=ep")
    run = read_run(path, keys)
    assert run.keys == keys
    assert run.epoch == 3
    with pytest.raises(UsageError, match=r"no key 'optim'\. .*Did you mean 'optima'\?"):
        read_run(path, {**keys, "optimizer": "optim"})
    with pytest.raises(UsageError, match=r"--keys optimizer=lrs: 'lrs' in .* is a dict"):
        read_run(path, {**keys, "optimizer": "lrs"})
    with pytest.raises(UsageError, match=r"--keys optimizer=none: .* has no key 'none'"):
        read_run(path, {**keys, "optimizer": "none"})
    run = read_run(path, {**keys, "scheduler": "none", "epoch": "none"})
    assert run.scheduler is None and run.epoch is None
    assert run.unused == ("lrs", "ep")


@pytest.mark.parametrize("text", ["", "model", "model=", "=net", "model=a,model=b", "model=a,,"])
def test_what_is_no_list_of_keys_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"Expected: pairs PART=KEY"):
        parse_keys(text)


def test_a_part_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"part 'optimiser' .* Did you mean 'optimizer'\?"):
        parse_keys("optimiser=opt")


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"state_dict": MODEL}, "model"),
        ({"opt": OPTIMIZER}, "optimizer"),
        ({"sched": SCHEDULER}, "scheduler"),
        ({"last_epoch": 2}, "epoch"),
    ],
)
def test_two_keys_that_could_be_one_part_are_refused(
    other: dict[str, Any], part: str, tmp_path: Path
) -> None:
    path = saved(held(**other), tmp_path)
    with pytest.raises(UsageError, match=f"several keys that could be the {part}: .*--keys {part}"):
        read_run(path)
    (key,) = other
    assert read_run(path, {part: key}).keys[part] == key
    # The same number twice is clear.
    assert read_run(saved(held(last_epoch=1), tmp_path)).epoch == 1


@pytest.mark.parametrize("content", [MODEL, {"model": MODEL, "epoch": 3}])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_alone_are_refused_with_the_option_for_them(
    content: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pt":
        torch.save(content, path)
    else:
        save_file(MODEL, path)
    with pytest.raises(UsageError, match="--weights"):
        read_run(path)


def test_what_is_no_file_of_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder.* pass its folder to --resume"):
        read_run(tmp_path)
    with pytest.raises(MissingFile, match="was not found"):
        read_run(tmp_path / "missing.pth")
    with pytest.raises(UsageError, match="contains a list"):
        read_run(saved([MODEL, OPTIMIZER], tmp_path))
    with pytest.raises(UsageError, match="a state dict of the model is under none of model"):
        read_run(saved({"optimizer": OPTIMIZER}, tmp_path))


def test_a_file_that_is_cut_anywhere_or_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = saved(held(), tmp_path)
    content = path.read_bytes()
    for length in range(0, len(content), 80):
        path.write_bytes(content[:length])
        with pytest.raises((CheckpointCorrupt, UsageError), match="checkpoint"):
            read_run(path)
    path.write_text("not a checkpoint")
    with pytest.raises((CheckpointCorrupt, UsageError), match="checkpoint"):
        read_run(path)
    path.write_bytes(content)
    assert read_run(path).epoch == 1


class Evil:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


OTHERS: dict[str, tuple[bytes, str]] = {
    "a log": (b"\nepoch 1, loss 0.31\n" * 99, "a text file that begins with 'epoch 1, loss 0.31'"),
    "letters of others": (
        "\u00e9poque 1".encode() * 99,
        "a text file that begins with '\u00e9poque",
    ),
    "a page": (b"<!DOCTYPE html>\n<html>404</html>", "a web page: download the file itself"),
    "a pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "run `git lfs pull`",
    ),
    "nothing": (b"", "an empty file"),
    "noise": (bytes(range(7, 255)), "a file of another format"),
    "packed": (gzip.compress(b"weights"), "a gzip archive: unpack it first"),
    "a pickle": (pickle.dumps({"model": 1}), "a pickle of something else"),
}


@pytest.mark.parametrize("kind", [*OTHERS, "a zip", "safetensors"])
def test_what_torch_save_did_not_write_is_said_to_be_what_it_is(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "log.pth"
    if kind == "a zip":
        numpy.savez(tmp_path / "x.npz", weight=numpy.ones(3))
        (tmp_path / "x.npz").rename(path)
        said = "a zip archive of other files, such as 'weight.npy'"
    elif kind == "safetensors":
        save_file(MODEL, path)
        said = "give it the ending .safetensors"
    else:
        content, said = OTHERS[kind]
        path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        read_run(path)
    assert f"'{path}' was not written by `torch.save`: it is " in str(raised.value)
    assert said in str(raised.value)
    assert "Expected: a file that your script wrote" in str(raised.value)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_torch_save_wrote_is_not_said_to_be_another_file(
    protocol: int, is_zip: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.pth"
    torch.save(held(), path, _use_new_zipfile_serialization=is_zip, pickle_protocol=protocol)
    content = path.read_bytes()
    for length in (len(content), len(content) - 9, len(content) // 2, 30, 9, 4, 1):
        path.write_bytes(content[:length])
        assert describe_other(path) is None, length


@pytest.mark.parametrize("part", [*PARTS, "extra"])
@pytest.mark.parametrize("form", ["zip", "legacy", "a bare pickle"])
def test_no_code_in_a_file_is_run(form: str, part: str, tmp_path: Path) -> None:
    path, done = tmp_path / "evil.pth", tmp_path / "done"
    content = held(**{part: Evil(done)})
    if form == "a bare pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises((UsageError, CheckpointCorrupt), match="evil"):
        read_run(path)
    assert not done.exists()
    # It is what it is said to be.
    with warnings.catch_warnings(action="ignore"):
        if form == "a bare pickle":
            pickle.loads(path.read_bytes())
        else:
            torch.load(path, weights_only=False)
    assert done.exists()
