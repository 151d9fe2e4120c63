"""Weights that people have are taken, and what was trained is given to others."""

import argparse
import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.checkpoint.foreign import read_foreign
from hotlap.engine.export import exporting
from hotlap.engine.export.example import _relative_difference
from hotlap.engine.export.exporting import export
from hotlap.engine.export.stored_weights import weights_of
from hotlap.errors import CheckpointCorrupt, MissingFile, RunError, UsageError


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.second(torch.relu(self.first(inputs))) * scale


def task(model: Any = Scorer) -> hotlap.Task:
    generator = torch.Generator().manual_seed(0)
    return hotlap.Task(
        model=model,
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0], scale=2.0), batch[1]),
        data=TensorDataset(torch.randn(20, 4, generator=generator), torch.arange(20) % 3),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        batch_size=5,
        epochs=2,
    )


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    done = hotlap.train(task(), run_dir=tmp_path / "run")
    return tmp_path / "run", done.model.state_dict()


def prefixed(front: str, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {front + name: tensor for name, tensor in weights.items()}


@pytest.mark.parametrize("front", ["", "_orig_mod.", "module.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("key", [None, "model", "state_dict", "model_state_dict"])
def test_state_dicts_are_read_whatever_wrapped_them(
    front: str, key: str | None, run: Any, tmp_path: Path
) -> None:
    weights = prefixed(front, run[1])
    held = weights if key is None else {key: weights, "optimizer": {}, "epoch": 3}
    torch.save(held, tmp_path / "old.pth")
    found = weights_of(tmp_path / "old.pth", Scorer().state_dict())
    assert found.keys() == run[1].keys()
    assert all(torch.equal(found[name], run[1][name]) for name in found)


def test_a_run_begins_with_weights_that_it_is_given(run: Any, tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(Scorer().parameters())
    checkpoint = {
        "model": prefixed("_orig_mod.", run[1]),
        "optimizer": optimizer.state_dict(),
        "epoch": 7,
        "args": argparse.Namespace(lr=0.1),
    }
    torch.save(checkpoint, tmp_path / "checkpoint.pth")
    plans = [hotlap.Plan(), hotlap.Plan({"master_weights": {}})]
    for plan in plans:
        begun = hotlap.train(task(), plan, weights=tmp_path / "checkpoint.pth").epochs[0].loss
        assert begun < hotlap.train(task(), plan).epochs[0].loss - 0.01
        by_folder = hotlap.train(task(), plan, weights=run[0]).epochs[0].loss
        assert by_folder == begun


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVIL"],)


def test_code_inside_a_file_is_not_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "done"))
    torch.save({"model": run[1], "extra": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(UsageError, match="can run code"):
        weights_of(tmp_path / "evil.pth", run[1])
    assert not (tmp_path / "done").exists()
    # The file is what it is said to be: torch's other way of loading runs it.
    torch.load(tmp_path / "evil.pth", weights_only=False)
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([1, 2], "contains a list"),
        ({"epoch": 3}, "Expected: the model's state dict"),
        (nn.Linear(4, 4), "can run code"),
        ({"first.weight": torch.zeros(8, 4)}, "missing keys: first.bias, second.bias"),
        ({**Scorer().state_dict(), "third": torch.zeros(1)}, "unexpected keys: third"),
        ({**Scorer().state_dict(), "first.bias": torch.zeros(9)}, r"first.bias has shape \(9,\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    held: Any, message: str, tmp_path: Path
) -> None:
    torch.save(held, tmp_path / "x.pt")
    with pytest.raises(UsageError, match=message):
        weights_of(tmp_path / "x.pt", Scorer().state_dict())


def test_damaged_and_missing_files_are_told(tmp_path: Path) -> None:
    torch.save(Scorer().state_dict(), tmp_path / "cut.pt")
    content = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(content[: len(content) // 2])
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    for name in ("cut.pt", "cut.safetensors"):
        with pytest.raises(CheckpointCorrupt, match="cut"):
            weights_of(tmp_path / name, {})
    for name in ("none.pt", "none"):
        with pytest.raises(MissingFile, match="was not found"):
            weights_of(tmp_path / name, {})


def test_weights_of_an_older_step_are_said_to_be(run: Any, tmp_path: Path) -> None:
    older, newest = sorted((run[0] / "ckpt").glob("step-*"))
    assert export(task(), run[0], tmp_path / "whole.pt").source == newest
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    exporting, training = [], []
    done = export(task(), run[0], tmp_path / "model.pt", notice=exporting.append)
    assert done.to_json()["source"] == str(older)
    hotlap.train(task(), weights=run[0], notice=training.append)
    assert training == [*exporting, f"loading weights from '{older}'"]
    assert len(exporting) == 1
    assert exporting[0].startswith("skipped: ")
    assert newest.name in exporting[0]


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_state_dict_loads_into_the_plain_model(ending: str, run: Any, tmp_path: Path) -> None:
    done = export(task(), run[0], tmp_path / f"model.{ending}")
    assert done.bytes == done.path.stat().st_size
    plain = Scorer()
    plain.load_state_dict(read_foreign(done.path))
    assert all(torch.equal(value, run[1][name]) for name, value in plain.state_dict().items())
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"model.{ending}", "run"]


class Counter(Scorer):
    """Keeps what is no tensor in its state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, inputs: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.calls += self.training
        return super().forward(inputs, scale=scale)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_what_is_no_tensor_is_exported_where_the_format_can_hold_it(tmp_path: Path) -> None:
    given = task(Counter)
    hotlap.train(given, run_dir=tmp_path / "run")
    done = export(given, tmp_path / "run", tmp_path / "model.pt")
    plain = Counter()
    plain.load_state_dict(torch.load(done.path, weights_only=True))
    assert plain.calls == 8 and "without" not in done.checked
    tensors = export(given, tmp_path / "run", tmp_path / "model.safetensors")
    assert "without _extra_state" in tensors.checked
    assert read_foreign(tensors.path).keys() == Scorer().state_dict().keys()


def test_a_program_gives_what_the_model_gives_for_any_batch(run: Any, tmp_path: Path) -> None:
    save_file(run[1], tmp_path / "w.safetensors")
    done = export(task(), tmp_path / "w.safetensors", tmp_path / "model.pt2")
    assert "differs by at most" in done.checked
    program = torch.export.load(tmp_path / "model.pt2").module()
    plain = Scorer()
    plain.load_state_dict(run[1])
    inputs = torch.randn(17, 4)
    assert torch.allclose(program(inputs, scale=2.0), plain(inputs, scale=2.0), atol=1e-6)


class Reader(nn.Module):
    """Takes sequences with the batch in the second dimension, and weights as long as a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.outer(inputs.sum(0)) * weights


def sequences(**options: Any) -> hotlap.Task:
    generator = torch.Generator().manual_seed(0)
    given = {
        "model": Reader,
        "data": TensorDataset(torch.randn(9, 6, 4, generator=generator)),
        "loss": lambda model, batch: model(batch[0].transpose(0, 1), torch.ones(4)).mean(),
    }
    return dataclasses.replace(task(), **{**given, **options})


def exported(task: hotlap.Task, folder: Path) -> tuple[Any, nn.Module]:
    """Return the program of an untrained model, and the model."""
    model = task.model()
    torch.save(model.state_dict(), folder / "weights.pt")
    export(task, folder / "weights.pt", folder / "model.pt2")
    return torch.export.load(folder / "model.pt2").module(), model.eval()


def test_the_batch_is_found_in_whatever_dimension_it_is(tmp_path: Path) -> None:
    program, model = exported(sequences(), tmp_path)
    inputs, weights = torch.randn(6, 7, 4), torch.randn(4)
    assert torch.allclose(program(inputs, weights), model(inputs, weights), atol=1e-6)


def test_a_dimension_may_be_a_multiple_of_the_batch(tmp_path: Path) -> None:
    every_place = sequences(
        model=Scorer, loss=lambda model, batch: model(batch[0].flatten(0, 1)).mean()
    )
    program, model = exported(every_place, tmp_path)
    inputs = torch.randn(7 * 6, 4)
    assert torch.allclose(program(inputs), model(inputs), atol=1e-6)


def test_samples_of_different_lengths_are_padded_alike(tmp_path: Path) -> None:
    data = [torch.randn(length, 4) for length in (1, 2, 6, 3, 5)]
    padded = sequences(
        data=data,
        collate=hotlap.pad(0.0),
        lengths=len,
        loss=lambda model, batch: model(batch.transpose(0, 1), torch.ones(4)).mean(),
    )
    program, model = exported(padded, tmp_path)
    inputs, weights = torch.randn(6, 7, 4), torch.randn(4)
    assert torch.allclose(program(inputs, weights), model(inputs, weights), atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: model(batch[0][:, 0], scale=len(batch[0])).mean(), "with 4 for"),
        (lambda model, batch: model(batch[0][1:].flatten(0, 1)).mean(), r"shape \(18, 4\) for"),
        (
            lambda model, batch: model(batch[0], **{"scale": 2.0} if len(batch[0]) == 4 else {}),
            "arguments of the structure",
        ),
    ],
    ids=["a number", "a size", "arguments"],
)
def test_a_call_that_fits_one_batch_only_is_refused(
    loss: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        exported(sequences(model=Scorer, loss=loss), tmp_path)


def test_a_model_of_single_samples_is_said_to_be_one(run: Any, tmp_path: Path) -> None:
    def singly(model: Any, batch: Any) -> torch.Tensor:
        return torch.stack([model(each) for each in batch[0]]).mean()

    done = export(dataclasses.replace(task(), loss=singly), run[0], tmp_path / "model.pt2")
    assert "do not depend on the batch size" in done.checked


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_the_model_gets_is_what_transforms_make(is_stream: bool, tmp_path: Path) -> None:
    # Of a class that no batch can be made of, and in a shape that the model does not take.
    samples = [(f"{number} 1 2 3", number % 3) for number in range(9)]
    transformed = dataclasses.replace(
        task(),
        data=Words(samples) if is_stream else samples,
        transform=lambda sample, generator: (
            torch.tensor([float(word) for word in sample[0].split()])
            + torch.rand((), generator=generator),
            sample[1],
        ),
        batch_transform=lambda batch, draws: [batch[0].double() * draws.uniform(1), batch[1]],
        model=lambda: Scorer().double(),
    )
    program, model = exported(transformed, tmp_path)
    inputs = torch.randn(7, 4, dtype=torch.float64)
    assert torch.allclose(program(inputs, scale=2.0), model(inputs, scale=2.0))


class Words:
    """A stream of samples."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(self.samples)


class Random(Scorer):
    def forward(self, inputs: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return super().forward(inputs, scale=scale) + torch.randn(1)


def test_a_program_that_gives_something_else_is_not_kept(run: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="differs from the model's"):
        export(task(Random), run[0], tmp_path / "model.pt2")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("name", "reader"), [("m.pt", "torch.load"), ("m.safetensors", "load_file")]
)
def test_a_file_that_reads_back_otherwise_is_not_kept(
    name: str, reader: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, attribute = (torch, "load") if reader == "torch.load" else (exporting, "load_file")
    read = getattr(holder, attribute)

    def damaged(path: Any, **options: Any) -> Any:
        found = read(path, **options)
        found["second.bias"] = found["second.bias"] + 1
        return found

    monkeypatch.setattr(holder, attribute, damaged)
    with pytest.raises(RunError, match="was read back, and its tensors differ"):
        export(task(), run[0], tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_onnx_gives_what_the_model_gives(run: Any, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs hotlap[export]")
    pytest.importorskip("onnxscript", reason="needs hotlap[export]")
    done = export(task(), run[0], tmp_path / "model.onnx")
    assert "onnxruntime" in done.checked
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    inputs = torch.randn(9, 4)
    (given,) = [each.name for each in session.get_inputs()]
    plain = Scorer()
    plain.load_state_dict(run[1])
    (output,) = session.run(None, {given: inputs.numpy()})
    assert torch.allclose(torch.from_numpy(output), plain(inputs, scale=2.0), atol=1e-5)


def test_wrong_targets_are_refused_before_anything_is_written(run: Any, tmp_path: Path) -> None:
    (tmp_path / "there.pt").write_bytes(b"mine")
    for to, message in (
        ("model.h5", "no known suffix"),
        ("there.pt", "exists"),
        ("no/model.pt", "folder"),
    ):
        with pytest.raises(UsageError, match=message):
            export(task(), run[0], tmp_path / to)
    assert (tmp_path / "there.pt").read_bytes() == b"mine"
    assert export(task(), run[0], tmp_path / "there.pt", overwrite=True).bytes > 100


@pytest.mark.parametrize(
    ("left", "right", "off"),
    [
        (torch.tensor([2.0, -math.inf]), torch.tensor([1.0, -math.inf]), 0.5),
        (torch.tensor([2.0, math.nan]), torch.tensor([2.0, math.nan]), 0.0),
        (torch.tensor([2.0, -math.inf]), torch.tensor([2.0, 0.0]), math.inf),
        (torch.tensor([2.0]), torch.tensor([math.nan]), math.inf),
        (torch.tensor([True, False]), torch.tensor([True, True]), math.inf),
        (torch.tensor([True]), torch.tensor([True]), 0.0),
        (3, 3, 0.0),
        (None, torch.ones(1), math.inf),
    ],
)
def test_outputs_of_every_kind_are_compared(left: Any, right: Any, off: float) -> None:
    assert _relative_difference(left, right) == off
