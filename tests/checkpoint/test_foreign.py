"""Weights from elsewhere are found under any wrapper's names, fit exactly, or are refused."""

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hotlap.checkpoint.foreign import (
    SUFFIXES,
    by_plain_name,
    fit_to_model,
    is_foreign,
    read_foreign,
)
from hotlap.errors import CheckpointCorrupt, MissingFile, UsageError

WANTED = {"first.weight": torch.arange(6.0).view(2, 3), "second.bias": torch.tensor([0.1, -0.0])}
SOME = Path("some.pt")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def write(weights: dict[str, torch.Tensor], path: Path) -> None:
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_ending_is_read_to_the_bit(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    weights = {"half": torch.tensor([0.1, 3.0], dtype=torch.bfloat16), **WANTED}
    write(weights, path)
    assert is_foreign(path)
    found = read_foreign(path)
    assert same(found, weights)
    assert torch.equal(found["second.bias"].signbit(), weights["second.bias"].signbit())


def test_a_folder_and_another_ending_are_no_file_of_weights(tmp_path: Path) -> None:
    (tmp_path / "run.ckpt").mkdir()
    (tmp_path / "x.npz").write_bytes(b"")
    assert not is_foreign(tmp_path / "run.ckpt")
    assert not is_foreign(tmp_path / "x.npz")
    with pytest.raises(MissingFile, match="not a regular file"):
        read_foreign(tmp_path / "run.ckpt")
    with pytest.raises(
        UsageError, match=r"not have the suffix of a file of weights. Expected: \.safetensors, \.pt"
    ):
        read_foreign(tmp_path / "x.npz")
    (tmp_path / "link.pt").symlink_to("nowhere.pt")
    with pytest.raises(MissingFile, match=r"link to 'nowhere\.pt', which does not exist"):
        read_foreign(tmp_path / "link.pt")


@pytest.mark.parametrize("key", ["model", "state_dict", "model_state", "net", "network", "weights"])
def test_the_weights_are_found_beside_an_optimizer_and_an_epoch(key: str, tmp_path: Path) -> None:
    held = {"epoch": 3, "optimizer": {"state": {}, "param_groups": []}, key: WANTED}
    torch.save(held, tmp_path / "x.pt")
    assert same(read_foreign(tmp_path / "x.pt"), WANTED)


def test_what_torch_compile_puts_before_names_is_taken_away_wherever_it_is(tmp_path: Path) -> None:
    save_file(
        {"_orig_mod.a": torch.zeros(1), "inner._orig_mod.b": torch.ones(1)},
        tmp_path / "x.safetensors",
    )
    assert read_foreign(tmp_path / "x.safetensors").keys() == {"a", "inner.b"}
    save_file({"_orig_mod.a": torch.zeros(1), "a": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="the parameter 'a' twice: with the prefix '_orig_mod"):
        read_foreign(tmp_path / "x.safetensors")


class Evil:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("form", ["zip", "legacy", "a bare pickle"])
@pytest.mark.parametrize("suffix", [".pt", ".ckpt", ".safetensors"])
def test_no_format_runs_what_is_inside(form: str, suffix: str, tmp_path: Path) -> None:
    path, done = tmp_path / f"evil{suffix}", tmp_path / "done"
    held = {"model": WANTED, "extra": Evil(done)}
    if form == "a bare pickle":
        path.write_bytes(pickle.dumps(held))
    else:
        torch.save(held, path, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises((UsageError, CheckpointCorrupt), match="evil"):
        read_foreign(path)
    assert not done.exists()
    # It is what it is said to be.
    with warnings.catch_warnings(action="ignore"):
        if form == "a bare pickle":
            pickle.loads(path.read_bytes())
        else:
            torch.load(path.rename(tmp_path / "named.pt"), weights_only=False)
    assert done.exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_that_is_cut_anywhere_is_refused_by_its_name(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    write(WANTED, path)
    content = path.read_bytes()
    for length in range(0, len(content), 40):
        path.write_bytes(content[:length])
        with pytest.raises((UsageError, CheckpointCorrupt), match="weights"):
            read_foreign(path)
    path.write_bytes(content)
    assert same(read_foreign(path), WANTED)


@pytest.mark.parametrize("front", ["", "module.", "model.", "net.module.", "a.b.c."])
def test_weights_are_given_under_the_models_own_names(front: str) -> None:
    given = {front + name: tensor for name, tensor in WANTED.items()}
    assert same(fit_to_model(given, WANTED, SOME), WANTED)


@pytest.mark.parametrize("front", ["", "module.", "net."])
@pytest.mark.parametrize("place", ["_orig_mod.{}", "a._orig_mod.{}"])
def test_names_that_the_recipes_own_model_has_from_torch_compile_are_kept(
    front: str, place: str, tmp_path: Path
) -> None:
    """The model is what `torch.compile(Net())` returns, or has a part that is compiled."""
    wanted = {place.format(name): tensor for name, tensor in WANTED.items()}
    torch.save({front + name: tensor for name, tensor in wanted.items()}, tmp_path / "x.pt")
    assert same(fit_to_model(read_foreign(tmp_path / "x.pt"), wanted, SOME), wanted)
    # As a checkpoint of hotlap holds them, and as a file of the plain model does.
    assert same(fit_to_model(wanted, wanted, SOME), wanted)
    plain = {name.replace("_orig_mod.", ""): tensor for name, tensor in wanted.items()}
    assert same(fit_to_model(plain, wanted, SOME), wanted)
    del plain[min(plain)]
    with pytest.raises(UsageError, match=rf"missing keys: {min(wanted)}\. Use"):
        fit_to_model(plain, wanted, SOME)


def test_names_of_the_model_that_would_become_one_are_kept_apart() -> None:
    wanted = {"a._orig_mod.b": torch.zeros(1), "a.b": torch.ones(1)}
    assert same(fit_to_model(wanted, wanted, SOME), wanted)
    assert by_plain_name(wanted) == {name: name for name in wanted}
    with pytest.raises(UsageError, match=r"unexpected keys: a\.b\. Use"):
        fit_to_model(wanted, {"a._orig_mod.b": torch.zeros(1)}, SOME)


def test_a_name_that_is_the_models_own_is_not_taken_for_a_wrappers() -> None:
    wanted = {"module.weight": torch.zeros(2), "module.bias": torch.zeros(1)}
    given = {"module.weight": torch.ones(2)}
    with pytest.raises(UsageError, match=r"missing keys: module\.bias"):
        fit_to_model(given, wanted, SOME)


def test_a_wrapper_is_seen_where_the_models_only_part_has_its_name() -> None:
    wanted = {"model.weight": torch.zeros(2), "model.bias": torch.zeros(1)}
    given = {f"model.{name}": tensor + 1 for name, tensor in wanted.items()}
    found = fit_to_model(given, wanted, SOME)
    assert found.keys() == wanted.keys() and float(found["model.bias"]) == 1.0


def test_what_a_module_gives_as_extra_state_need_not_be_there() -> None:
    wanted: Any = {**WANTED, "_extra_state": {"count": 3}}
    assert same(fit_to_model(WANTED, wanted, SOME), WANTED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"first.weight": torch.zeros(3, 2)}, r"weight has shape \(3, 2\), in the model \(2, 3\)"),
        ({"third": torch.zeros(1)}, "unexpected keys: third"),
        ({"second.bias": None}, "missing keys: second.bias"),
        ({"second.bias": torch.tensor([1.0, float("nan")])}, "NaN or infinite .* second.bias"),
        ({"second.bias": torch.tensor([1.0, float("inf")])}, "NaN or infinite .* second.bias"),
        ({"second.bias": torch.tensor([1.0, 2j])}, "complex values in second.bias"),
        ({"second.bias": torch.ones(2, dtype=torch.int8)}, r"torch.int8 for floating-point values"),
        ({"second.bias": torch.empty(2, device="meta")}, r"without dense values \(meta\)"),
        ({"second.bias": torch.zeros(2).to_sparse()}, r"without dense values \(torch.sparse_coo\)"),
        ({f"extra{k}": torch.zeros(1) for k in range(5)}, "extra0, extra1, extra2 and 2 more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_weights_of_another_model_are_refused_with_what_differs(changes: Any, words: str) -> None:
    given = {k: v for k, v in {**WANTED, **changes}.items() if v is not None}
    said = rf"'some.pt' cannot be used for this model: .*{words}.* Use a file"
    with pytest.raises(UsageError, match=said):
        fit_to_model(given, WANTED, SOME)


def test_a_mask_may_be_infinite_and_never_not_a_number() -> None:
    mask = {"mask": torch.tensor([0.0, float("-inf")])}
    assert same(fit_to_model(mask, mask, SOME), mask)
    with pytest.raises(UsageError, match="NaN"):
        fit_to_model({"mask": torch.tensor([0.0, float("nan")])}, mask, SOME)
