"""A step whose digests are right and whose meaning is wrong is seen before anything is loaded."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import hotlap
from hotlap.checkpoint.read import read
from hotlap.checkpoint.write import checksum
from hotlap.engine.build import BuiltRun, build
from hotlap.engine.state.content import capture, restore
from hotlap.engine.state.fitting import check_fits
from hotlap.engine.state.position import Position
from hotlap.engine.state.validity import LISTED, check
from hotlap.errors import CheckpointCorrupt, MissingFile, UsageError
from hotlap.plan import Plan
from tests.engine.test_resume import state as state_of
from tests.engine.test_resume import task
from tests.engine.test_saving import numbers

Change = Callable[[Path], None]


def sealed(folder: Path, *unlisted: str) -> None:
    """Make the digests right again."""
    path = folder / "MANIFEST.json"
    manifest = json.loads(path.read_text())
    manifest["files"] = {
        each.name: {
            "bytes": each.stat().st_size,
            "sha256": hashlib.sha256(each.read_bytes()).hexdigest(),
        }
        for each in folder.iterdir()
        if each.name not in (path.name, *unlisted)
    }
    manifest["checksum"] = checksum(manifest)
    path.write_text(json.dumps(manifest))


def in_state(change: Callable[[Any], Any]) -> Change:
    def damage(folder: Path) -> None:
        path = folder / "state.json"
        given = json.loads(path.read_text())
        change(given)
        path.write_text(json.dumps(given))
        sealed(folder)

    return damage


def in_tensors(file: str, change: Callable[[dict[str, torch.Tensor]], Any], relist: bool) -> Change:
    """Change tensors; with `relist` the step's own list of them too, so that only use can tell."""

    def damage(folder: Path) -> None:
        path = folder / f"{file}.safetensors"
        tensors = load_file(path)
        change(tensors)
        path.unlink()
        if tensors:
            save_file(tensors, path)
        if relist:
            state = json.loads((folder / "state.json").read_text())
            state.pop(LISTED)
            (folder / "state.json").write_text(json.dumps(state))
        sealed(folder)

    return damage


def _put(path: tuple[Any, ...], value: Any) -> Callable[[Any], None]:
    def change(given: Any) -> None:
        *above, last = path
        for key in above:
            given = given[key]
        given[last] = value

    return change


def _drop(path: tuple[Any, ...]) -> Callable[[Any], None]:
    def change(given: Any) -> None:
        *above, last = path
        for key in above:
            given = given[key]
        del given[last]

    return change


TABLES = ("position", "task", "optimizer", "random", "clock")
OTHER: dict[type, Any] = {dict: [], list: {}, int: "8", float: "8", str: 8, bool: "yes"}
MAY_BE_NULL = {
    "clip_norm",
    "clip_value",
    "budget",
    "transform",
    "batch_transform",
    "accumulate",
    "samples",
}


def of_state(folder: Path) -> Iterator[tuple[str, Change]]:
    """Every key of the state that a run is put together from: missing, null, of another type."""
    state = json.loads((folder / "state.json").read_text())
    state.pop(LISTED)
    paths = [(key,) for key in state] + [(t, key) for t in TABLES for key in state[t]]
    paths += [("optimizer", "groups", 0, key) for key in state["optimizer"]["groups"][0]]
    for path in paths:
        value: Any = state
        for key in path:
            value = value[key]
        name = ".".join(map(str, path))
        yield f"{name} missing", in_state(_drop(path))
        if path[-1] in ("foreach", "fused", "capturable", "maximize", "differentiable", "amsgrad"):
            continue
        if value is None or path[-1] in MAY_BE_NULL or path == ("scaler",):
            yield f"{name} of another type", in_state(_put(path, [1.5]))
            continue
        if path[0] == "optimizer" and path[-1] == "decoupled_weight_decay":
            continue
        yield f"{name} null", in_state(_put(path, None))
        yield f"{name} of another type", in_state(_put(path, OTHER[type(value)]))


def _switch(state: Any, key: str) -> None:
    group = state["optimizer"]["groups"][0]
    group[key] = not group[key]


def _in_schedule(state: Any, key: str, value: Any) -> None:
    pair = next(pair for pair in state["schedule"]["pairs"] if pair[0] == key)
    pair[1] = value


NAN = {"__kind__": "float", "value": "nan"}
OF_VALUES: dict[str, Callable[[Any], Any]] = {
    "step 8.5": _put(("position", "step"), 4.5),
    "step true": _put(("position", "step"), True),
    "step of another": _put(("position", "step"), 3),
    "epoch -1": _put(("position", "epoch"), -1),
    "in_epoch beyond": _put(("position", "in_epoch"), 10**6),
    "a key more in position": _put(("position", "more"), 1),
    "skipped beyond": _put(("skipped",), 10**6),
    "clock beyond": _put(("clock", "steps"), 10**6),
    "lr NaN": _put(("optimizer", "groups", 0, "lr"), NAN),
    "lr inf": _put(("optimizer", "groups", 0, "lr"), {"__kind__": "float", "value": "inf"}),
    "lr negative": _put(("optimizer", "groups", 0, "lr"), -1.0),
    "no groups": _put(("optimizer", "groups"), []),
    "one beta": _put(("optimizer", "groups", 0, "betas"), {"__kind__": "tuple", "items": [0.9]}),
    "beta beyond": _put(
        ("optimizer", "groups", 0, "betas"), {"__kind__": "tuple", "items": [1.9, 0.9]}
    ),
    "eps negative": _put(("optimizer", "groups", 0, "eps"), -1.0),
    "weight decay of another": _put(("optimizer", "groups", 0, "weight_decay"), 0.5),
    "amsgrad switched": lambda state: _switch(state, "amsgrad"),
    "maximize switched": lambda state: _switch(state, "maximize"),
    "epoch of another": _put(("position", "epoch"), 3),
    "in_epoch of another": _put(("position", "in_epoch"), 1),
    "schedule counts back": lambda state: _in_schedule(state, "last_epoch", -7),
    "unknown kind": _put(("schedule",), {"__kind__": "code", "pairs": []}),
    "pairs that are none": _put(("schedule", "pairs"), [1]),
    "schedule empty": _put(("schedule", "pairs"), []),
    "random python short": _put(("random", "python", "items", 1, "items"), [1, 2, 3]),
    "random numpy short": _put(("random", "numpy"), [1]),
    "random numpy beyond": _put(("random", "numpy", 0), 10**6),
    "weights of another shape": lambda state: state["task"]["weights"].update({"0.weight": [1]}),
    "scalars without a name": _put(("optimizer", "scalars"), {"": 1}),
    "scalars of nobody": _put(("optimizer", "scalars"), {"nobody/step": 1}),
    "extra of nobody": _put(("extra",), {"nobody": 1}),
}


def _short(file: str, name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: tensors[name].flatten()[:-1].clone()})


def _like(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


OF_TENSORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "weight missing": ("model", lambda t: t.pop("0.weight")),
    "weight more": ("model", lambda t: t.update({"more": torch.zeros(1)})),
    "weight short": ("model", _short("model", "0.weight")),
    "weight transposed": ("model", _like("0.weight", torch.t)),
    "weight NaN": ("model", _like("0.bias", lambda t: t * float("nan"))),
    "weight inf": ("model", _like("0.bias", lambda t: t + float("inf"))),
    "weight complex": ("model", _like("0.bias", lambda t: t.to(torch.complex64))),
    "weight of whole numbers": ("model", _like("0.bias", lambda t: t.to(torch.int64))),
    "weight in half": ("model", _like("0.bias", torch.Tensor.half)),
    "statistics short": ("model", _short("model", "1.running_mean")),
    "all weights": ("model", dict.clear),
    "moment missing": ("optimizer", lambda t: t.pop("0.weight/exp_avg_sq")),
    "moment short": ("optimizer", _short("optimizer", "0.weight/exp_avg")),
    "moment complex": ("optimizer", _like("0.bias/exp_avg", lambda t: t.to(torch.complex64))),
    "moment NaN": ("optimizer", _like("0.bias/exp_avg", lambda t: t * float("nan"))),
    "moment of squares negative": ("optimizer", _like("0.bias/exp_avg_sq", lambda t: t - 1)),
    "count beyond": ("optimizer", _like("0.bias/step", lambda t: t + 1e30)),
    "count negative": ("optimizer", _like("0.bias/step", lambda t: t - 100)),
    "moment more": ("optimizer", lambda t: t.update({"0.weight/more": torch.zeros(1)})),
    "moment of nobody": ("optimizer", lambda t: t.update({"nobody/exp_avg": torch.zeros(1)})),
    "step of an optimizer long": ("optimizer", _like("0.bias/step", lambda t: t.repeat(2))),
    "rng of torch missing": ("random", lambda t: t.pop("torch")),
    "rng of torch short": ("random", _short("random", "torch")),
    "rng of torch in floats": ("random", _like("torch", torch.Tensor.float)),
    "rng of numpy missing": ("random", lambda t: t.pop("numpy")),
    "rng of numpy short": ("random", _short("random", "numpy")),
    "rng of numpy negative": ("random", _like("numpy", torch.neg)),
    "rng of a device short": ("random", lambda t: t.update({"cuda 0": torch.zeros(3)})),
}


def of_files() -> Iterator[tuple[str, Change]]:
    for name, change in OF_VALUES.items():
        yield name, in_state(change)
    for name, (file, change) in OF_TENSORS.items():
        yield name, in_tensors(file, change, relist=False)
        yield f"{name}, and not listed", in_tensors(file, change, relist=True)
    for name in ("optimizer.safetensors", "random.safetensors", "model.safetensors"):
        yield f"{name} unlisted", lambda folder, name=name: sealed(folder, name)

        def delete(folder: Path, name: str = name) -> None:
            (folder / name).unlink()
            sealed(folder)

        yield f"{name} gone", delete


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    hotlap.train(task(steps=4), run_dir=folder, save_every="2steps")
    return folder


@pytest.fixture(scope="module")
def built() -> Iterator[BuiltRun]:
    made = build(task(steps=8), Plan())
    yield made
    made.end()


def bits(built: BuiltRun) -> tuple[dict[str, bytes], str]:
    tensors, state = capture(built, Position())
    flat = {
        f"{file}/{name}": each.detach().numpy().tobytes()
        for file, group in tensors.items()
        for name, each in group.items()
    }
    return flat, json.dumps(state)


def looked_at(folder: Path, built: BuiltRun) -> None:
    """Do what a run does before it loads anything."""
    found = read(folder)
    check(found)
    check_fits(built, found)


def test_every_damage_of_meaning_is_one_kind_of_error_and_changes_nothing(
    run: Path, built: BuiltRun, tmp_path: Path
) -> None:
    whole = run / "ckpt" / "step-000000000004"
    before, seen, wrong = bits(built), 0, []
    looked_at(whole, built)
    for name, damage in [*of_state(whole), *of_files()]:
        folder = shutil.copytree(whole, tmp_path / whole.name)
        damage(folder)
        try:
            looked_at(folder, built)
            wrong.append(f"{name}: nothing was seen")
        except CheckpointCorrupt as error:
            seen += str(folder) in str(error)
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        shutil.rmtree(folder)
    assert wrong == []
    assert seen > 150
    assert bits(built) == before


def test_a_schedule_of_other_rates_is_not_gone_on_with(tmp_path: Path) -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 3)

    stepped = task(steps=2, schedule=schedule)
    hotlap.train(stepped, run_dir=tmp_path)
    folder = tmp_path / "ckpt" / "step-000000000002"
    made = build(stepped, Plan())
    looked_at(folder, made)
    in_state(lambda state: _in_schedule(state, "base_lrs", [7.0]))(folder)
    with pytest.raises(CheckpointCorrupt, match="'base_lrs' of the schedule"):
        looked_at(folder, made)


def test_how_an_optimizer_computes_is_not_taken_from_a_step(run: Path) -> None:
    found = read(run / "ckpt" / "step-000000000004")
    found.state["optimizer"]["groups"][0] |= {"capturable": True, "fused": True}
    made = build(task(steps=8), Plan())
    restore(made, found)
    (group,) = made.optimizer.param_groups
    assert (group["capturable"], group["fused"]) == (False, None)


@pytest.mark.parametrize(
    "damage",
    [
        in_state(_put(("schedule",), None)),
        in_tensors("model", _like("0.bias", lambda t: t * float("nan")), True),
        in_tensors("optimizer", OF_TENSORS["moment missing"][1], True),
    ],
)
def test_the_step_before_is_gone_on_from_and_the_damaged_one_is_written_again(
    damage: Change, run: Path, tmp_path: Path
) -> None:
    hotlap.train(task(steps=6), run_dir=tmp_path / "whole")
    shutil.copytree(run, tmp_path / "run")
    damaged = tmp_path / "run" / "ckpt" / "step-000000000004"
    damage(damaged)
    with pytest.raises(CheckpointCorrupt, match="step-000000000004"):
        hotlap.train(task(steps=6), resume=str(damaged))
    said: list[str] = []
    options: dict[str, Any] = {"run_dir": tmp_path / "run", "notice": said.append}
    hotlap.train(task(steps=6), resume="auto", save_every="2steps", keep=3, **options)
    assert [line for line in said if line.startswith("skipped: ") and str(damaged) in line]
    assert [line for line in said if "resuming from" in line and "step 2" in line]
    assert numbers(tmp_path / "run") == [2, 4, 6]
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


def test_a_run_whose_every_step_means_nothing_does_not_begin_anew(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    for path in (tmp_path / "run" / "ckpt").glob("step-*"):
        in_tensors("optimizer", OF_TENSORS["moment missing"][1], True)(path)
    with pytest.raises(MissingFile, match="no usable checkpoint"):
        hotlap.train(task(steps=6), run_dir=tmp_path / "run", resume="auto")
    assert numbers(tmp_path / "run") == [2, 4]


def test_another_task_is_still_another_task(run: Path, built: BuiltRun) -> None:
    other = build(task(steps=8, seed=1), Plan())
    with pytest.raises(UsageError, match="seed was 0, now it is 1"):
        looked_at(run / "ckpt" / "step-000000000004", other)
    other.end()


def test_the_newest_step_whose_weights_are_finite_is_kept_and_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = capture

    def broken(built: BuiltRun, position: Position) -> Any:
        tensors, state = real(built, position)
        if position.step >= 3:
            name = "0.bias"
            tensors["model"] = {**tensors["model"], name: tensors["model"][name] * float("nan")}
        return tensors, state

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("hotlap.engine.state.saving.capture", broken)
        options: dict[str, Any] = {"run_dir": tmp_path, "save_every": "1steps"}
        hotlap.train(task(steps=6), keep=2, notice=said.append, **options)
    assert numbers(tmp_path) == [2, 5, 6]
    assert any("'0.bias' is not finite after step 3" in line for line in said)
    hotlap.train(task(steps=6), resume="auto", notice=said.append, **options)
    assert any("step-000000000006" in line and "not finite" in line for line in said)
    assert any("resuming from" in line and "step 2" in line for line in said)
    assert numbers(tmp_path) == [5, 6]
