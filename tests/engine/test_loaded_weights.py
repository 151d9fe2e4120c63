"""Weights are loaded as those of the model's own version, under whatever names it has them."""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hotlap
from hotlap.engine.export.exporting import export
from hotlap.engine.export.stored_weights import weights_of
from hotlap.engine.state.weights import load_model
from tests.engine.test_export_refused import TASK


class Versioned(nn.Linear):
    """Refuses weights of another version, as some models of torchvision do."""

    _version = 3

    def _load_from_state_dict(self, state: Any, prefix: str, versions: Any, *rest: Any) -> None:
        if versions.get("version") != 3:
            raise ValueError(f"version {versions.get('version')} at '{prefix}'")
        super()._load_from_state_dict(state, prefix, versions, *rest)


def model() -> nn.Module:
    return nn.Sequential(OrderedDict(inner=Versioned(200, 100)))


def partly_compiled() -> nn.Module:
    part: Any = torch.compile(Versioned(200, 100), backend="eager")
    return nn.Sequential(OrderedDict(inner=part))


def wholly_compiled() -> Any:
    return torch.compile(model(), backend="eager")


def test_modules_are_told_of_which_version_weights_are() -> None:
    given = model().state_dict()
    with pytest.raises(ValueError, match="version None"):
        model().load_state_dict(dict(given))
    loaded = model()
    load_model(loaded, dict(given))
    assert all(torch.equal(loaded.state_dict()[name], each) for name, each in given.items())
    # A state dict of a model's own making may say nothing of versions.
    bare = nn.Linear(2, 2)
    state = dict(bare.state_dict())
    bare.state_dict = lambda: state  # type: ignore[method-assign, assignment]
    load_model(bare, {"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    assert bool((bare.weight == 1).all())


def test_a_run_of_a_model_that_asks_for_versions_resumes_and_is_exported(tmp_path: Path) -> None:
    task = replace(TASK, model=model)
    first = hotlap.train(replace(task, epochs=None, steps=1), run_dir=tmp_path / "run")
    resumed = hotlap.train(task, run_dir=tmp_path / "run", resume="auto")
    assert (first.begun_step, resumed.begun_step, resumed.steps) == (0, 1, 2)
    done = export(task, tmp_path / "run", tmp_path / "model.pt")
    model().load_state_dict(torch.load(done.path, weights_only=True))
    hotlap.train(task, weights=done.path)


@pytest.mark.parametrize("make", [partly_compiled, wholly_compiled])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_model_that_model_compiles_is_exported_for_the_plain_one(
    make: Any, suffix: str, tmp_path: Path
) -> None:
    compiled = make()
    assert all("_orig_mod." in name for name in compiled.state_dict())
    torch.save(compiled.state_dict(), tmp_path / "given.pt")
    # `--weights` and `--continue` name what the model has.
    found = weights_of(tmp_path / "given.pt", compiled.state_dict())
    assert found.keys() == compiled.state_dict().keys()
    task = replace(TASK, model=make)
    done = export(task, tmp_path / "given.pt", tmp_path / f"model{suffix}")
    plain = model()
    if suffix == ".pt":
        # It asks for the version, which it finds under its own names.
        plain.load_state_dict(torch.load(done.path, weights_only=True))
    else:
        load_model(plain, load_file(done.path))
    weights = compiled.state_dict()
    assert [*map(torch.equal, plain.state_dict().values(), weights.values())] == [True, True]
    export(task, done.path, tmp_path / "again.pt")
