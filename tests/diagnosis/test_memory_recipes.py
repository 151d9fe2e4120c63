"""The memory of recipes: what the engine's own steps allocate, and what of a recipe holds it."""

from pathlib import Path

import pytest

import hotlap
from hotlap.errors import UsageError
from hotlap.plan import Plan
from tests.diagnosis.memory_runs import BATCH, LAYERS, SAMPLES, WIDTH, diagnosed, recipe

ACTIVATION = BATCH * WIDTH * 4
WEIGHTS = (LAYERS * (WIDTH * WIDTH + WIDTH) + WIDTH + 1) * 4


def line_of(text: str, words: str) -> str:
    """Return `train.py:line` of the only line with these words."""
    (number,) = [n for n, line in enumerate(text.splitlines(), 1) if words in line]
    return f"train.py:{number}"


@pytest.mark.slow
def test_losses_that_keep_their_graph_are_found_at_their_line(tmp_path: Path) -> None:
    text = recipe(kept="model[:-1](batch[0]).square().mean()")
    found = diagnosed(tmp_path, text, budget="6s")
    (finding,) = found["findings"]
    assert (finding["rule"], finding["holder"]) == ("retained_loss", "losses")
    assert finding["where"] == line_of(text, "losses.append")
    # The output of every tanh: the next layer saves the same tensor.
    assert finding["cost_bytes"] == pytest.approx(LAYERS * ACTIVATION, rel=0.1)
    assert found["is_recipe"]
    assert found["memory"]["growth_bytes_per_step"] == finding["cost_bytes"]


@pytest.mark.slow
def test_nothing_is_found_in_a_corrected_recipe_whose_bytes_are_known(tmp_path: Path) -> None:
    text = recipe()
    found = diagnosed(tmp_path, text, budget="6s")
    assert found["findings"] == []
    memory = found["memory"]
    assert memory["by_kind"]["parameters"] == WEIGHTS
    assert memory["by_kind"]["activations"] == pytest.approx(LAYERS * ACTIVATION, rel=0.1)
    # The recipe's samples, and the rows in which `resident`, which is on by default, keeps them.
    kept = 2 * SAMPLES * (WIDTH + 1) * 4
    assert memory["by_kind"]["other"] == pytest.approx(kept, rel=0.01)
    assert memory["peak_phase"] in ("forward", "backward")
    made_by = {row["where"] for row in memory["at_peak"] if row["kind"] == "activations"}
    assert line_of(text, "outputs = model(batch[0])") in made_by


@pytest.mark.slow
def test_micro_batches_of_the_recipe_are_what_is_observed(tmp_path: Path) -> None:
    options = (f"--batch-size={BATCH // 4}", "--accumulate=4")
    found = diagnosed(tmp_path, recipe(), *options, budget="6s")
    assert found["findings"] == []
    activations = found["memory"]["by_kind"]["activations"]
    assert activations == pytest.approx(LAYERS * ACTIVATION / 4, rel=0.1)


@pytest.mark.slow
def test_what_a_module_or_a_closure_keeps_is_found(tmp_path: Path) -> None:
    text = """
import hotlap
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 256)
        self.seen = []

    def forward(self, inputs):
        outputs = self.layer(inputs)
        self.seen.append(outputs.detach().tanh())
        return outputs


def task():
    kept = []

    def loss(model, batch):
        outputs = model(batch[0])
        kept.append(outputs.detach().exp())
        return outputs.square().mean()

    return hotlap.Task(
        model=Network,
        loss=loss,
        data=TensorDataset(torch.randn(1280, 64)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-3),
        batch_size=64,
        epochs=10,
    )
"""
    found = diagnosed(tmp_path, text, budget="6s")["findings"]
    by_holder = {finding["holder"]: finding for finding in found}
    assert set(by_holder) == {"model.seen", "kept"}
    assert by_holder["model.seen"]["where"] == line_of(text, "self.seen.append")
    assert by_holder["kept"]["where"] == line_of(text, "kept.append")
    for finding in found:
        assert finding["rule"] == "retained_outputs"
        assert finding["cost_bytes"] == pytest.approx(64 * 256 * 4, rel=0.1)


def test_a_plan_is_refused_with_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    with pytest.raises(UsageError, match="cannot be used with a script"):
        hotlap.diagnose_memory(tmp_path / "train.py", plan=Plan())
