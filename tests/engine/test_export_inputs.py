"""What a program is exported with: what the loss gives its model, whatever either does with it."""

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.engine.export.example import example_of
from hotlap.engine.export.exporting import _onnx, export
from hotlap.errors import RunError
from tests.engine.test_export import Scorer, task


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.save(Scorer().state_dict(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


class Overwriting(Scorer):
    """Writes into its input."""

    def forward(self, inputs: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return super().forward(inputs.mul_(3), scale=scale)


def test_a_model_may_write_into_its_input(weights: Path, tmp_path: Path) -> None:
    done = export(task(Overwriting), weights, tmp_path / "model.pt2")
    assert "differs by at most 0.0e+00" in done.checked


def test_what_a_loss_does_after_its_model_may_need_gradients(weights: Path, tmp_path: Path) -> None:
    def by_forces(model: Any, batch: Any) -> torch.Tensor:
        place = batch[0].clone().requires_grad_()
        energy = model(place * 2, scale=2.0).sum()
        (force,) = torch.autograd.grad(energy, place, create_graph=True)
        return force.square().mean()

    done = export(dataclasses.replace(task(), loss=by_forces), weights, tmp_path / "model.pt2")
    program = torch.export.load(done.path).module()
    assert program(torch.ones(2, 4), scale=2.0).shape == (2, 3)


def test_a_loss_that_catches_exceptions_is_ended_too() -> None:
    def explains(model: Any, batch: Any) -> torch.Tensor:
        try:
            return model(batch[0]).mean()
        except Exception as error:
            raise RuntimeError("the model failed") from error

    example = example_of(dataclasses.replace(task(), loss=explains), Scorer())
    assert [tuple(leaf.shape) for leaf in example.leaves] == [(4, 4)]


def test_what_a_loss_does_after_its_model_was_called_is_not_done() -> None:
    def reuses(model: Any, batch: Any) -> torch.Tensor:
        value = model(batch[0]).mean()
        batch[0].zero_()
        return value

    example = example_of(dataclasses.replace(task(), loss=reuses), Scorer())
    assert all(bool(leaf.any()) for leaf in example.leaves)


@pytest.mark.parametrize("suffix", [".pt2", ".safetensors"])
def test_a_file_that_the_users_code_misses_is_no_failed_write(
    suffix: str, weights: Path, tmp_path: Path
) -> None:
    def reads(model: Any, batch: Any) -> torch.Tensor:
        (tmp_path / "labels.txt").read_text()
        return model(batch[0]).mean()

    given = dataclasses.replace(task(), loss=reads)
    if suffix == ".safetensors":
        # A state dict needs no example.
        assert export(given, weights, tmp_path / f"model{suffix}").bytes
        return
    with pytest.raises(FileNotFoundError, match=r"labels\.txt"):
        export(given, weights, tmp_path / f"model{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == ["weights.pt"]


class WithoutLoss(Scorer):
    """Returns a loss beside its output, None without targets, as nanoGPT does."""

    def forward(self, inputs: torch.Tensor, targets: Any = None) -> Any:
        return super().forward(inputs), targets


def logits_only(model: Any, batch: Any) -> torch.Tensor:
    return model(batch[0])[0].mean()


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_model_may_return_none_among_its_outputs(
    suffix: str, weights: Path, tmp_path: Path
) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime", reason="needs hotlap[export]")
        pytest.importorskip("onnxscript", reason="needs hotlap[export]")
    given = dataclasses.replace(task(WithoutLoss), loss=logits_only)
    done = export(given, weights, tmp_path / f"model{suffix}")
    assert "differs by at most" in done.checked


def test_none_is_no_output_of_an_onnx_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As `test_a_model_may_return_none_among_its_outputs`, also where onnxruntime is missing."""
    model = WithoutLoss().eval()

    class Session:
        def __init__(self, path: str, providers: list[str]) -> None:
            pass

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(name="inputs")]

        def run(self, names: None, given: dict[str, Any]) -> list[Any]:
            outputs = model(torch.from_numpy(given["inputs"]))
            return [each.numpy() for each in outputs if each is not None]

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    monkeypatch.setattr(torch.onnx, "export", lambda *args, **options: None)
    example = example_of(dataclasses.replace(task(WithoutLoss), loss=logits_only), model)
    said = _onnx(model, example, None, tmp_path / "model.onnx")
    assert said.startswith("differs by at most 0.0e+00") and said.endswith("in onnxruntime")


def test_a_program_with_another_number_of_outputs_is_not_kept() -> None:
    example = example_of(task(), Scorer())
    with pytest.raises(RunError, match=r"has 2 outputs, and the model 1\. Expected: as many"):
        example.compare(Scorer(), lambda inputs, scale: (inputs, inputs))
