"""Regions by the names of modules: which ones there are, and that a model stays as it is."""

import pickle
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.trace.chrome.reading import ANNOTATION, read_trace
from hotlap.trace.clock import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER
from hotlap.trace.regions import ModuleRegions, PhaseRegions


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.again = self.attention

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.again(self.attention(inputs))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inputs = self.blocks[0](inputs)
        return checkpoint(self.blocks[1], inputs, use_reentrant=False)


def names(path: Path, work: object) -> list[str]:
    """Return the regions of what `work` does, in the order in which they begin."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorder:
        work()  # pyright: ignore[reportCallIssue]
    recorder.export_chrome_trace(str(path))
    return [span.name for span in read_trace(path).of(ANNOTATION)]


def test_modules_have_regions_by_their_dotted_names(tmp_path: Path) -> None:
    model = Network()
    regions = ModuleRegions([model])
    assert (regions.named, regions.left_out) == (6, 0)
    found = names(tmp_path / "a.json", lambda: model(torch.ones(2, 8)).sum().backward())
    forward = ["Network"]
    for block in range(2):
        forward += [f"blocks.{block}", *[f"blocks.{block}.attention"] * 2]
    # The second block is recomputed in the backward.
    assert found[: len(forward)] == forward
    assert found[len(forward) :][:2] == ["blocks.1", "blocks.1.attention"]
    regions.remove()
    assert names(tmp_path / "b.json", lambda: model(torch.ones(2, 8)).sum().backward()) == []


def test_models_beside_others_come_before_the_names(tmp_path: Path) -> None:
    models = [Block(), Block(), nn.Linear(8, 8)]
    regions = ModuleRegions(models)
    found = names(tmp_path / "a.json", lambda: [model(torch.ones(2, 8)) for model in models])
    block = ["Block", *["Block.attention"] * 2]
    assert found == [*block, *["Block_1", *["Block_1.attention"] * 2], "Linear"]
    regions.remove()


def test_a_wrapper_of_ranks_is_not_in_the_names(tmp_path: Path) -> None:
    model = nn.DataParallel(Block())
    regions = ModuleRegions([model])
    found = names(tmp_path / "a.json", lambda: model(torch.ones(2, 8)))
    # The wrapper's is torch's own.
    assert found == ["DataParallel.forward", "Block", *["attention"] * 2]
    regions.remove()


def test_gradients_are_the_same_to_the_bit_and_nothing_stays_behind() -> None:
    torch.manual_seed(0)
    model, inputs = Network(), torch.randn(4, 8)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(inputs).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]  # pyright: ignore

    plain = gradients()
    regions = ModuleRegions([model])
    with torch.profiler.profile():
        named = gradients()
    regions.remove()
    assert all(torch.equal(a, b) for a, b in zip(plain, named, strict=True))
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_a_model_can_be_pickled_meanwhile() -> None:
    model = Block()
    regions = ModuleRegions([model])
    copy = pickle.loads(pickle.dumps(model))
    regions.remove()
    assert torch.equal(copy.attention.weight, model.attention.weight)


def test_a_forward_that_raises_leaves_its_region(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    regions = ModuleRegions([model])

    def work() -> None:
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 4))
        model[0](torch.ones(1, 4))

    assert names(tmp_path / "a.json", work) == ["Sequential", "0", "1", "0"]
    *failed, last = read_trace(tmp_path / "a.json").of(ANNOTATION)
    assert all(span.end <= last.start for span in failed)
    regions.remove()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_what_is_compiled_or_scripted_has_no_regions_in_it() -> None:
    model = nn.Sequential(Block(), Block(), torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 8))
    model[1].compile(backend="eager")
    regions = ModuleRegions([model])
    # The whole, the first block with its layer, and the last layer.
    assert (regions.named, regions.left_out) == (4, 3)
    assert not any(each._forward_hooks for each in model[1].modules())
    regions.remove()
    whole = ModuleRegions([torch.compile(Block(), backend="eager")])  # pyright: ignore
    assert whole.named == 0
    assert whole.left_out > 0


@pytest.mark.slow
@pytest.mark.parametrize("ignores_hooks", [True, False])
def test_regions_in_a_compiled_function_are_noticed(ignores_hooks: bool) -> None:
    torch._dynamo.reset()
    model, beside = Block(), nn.Linear(8, 8)
    function = torch.compile(lambda inputs: model(inputs), backend="eager")
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=ignores_hooks):  # pyright: ignore
        function(torch.ones(2, 8))
        regions = ModuleRegions([model, beside])
        assert not regions.have_caused_compilation()
        beside(function(torch.ones(2, 8)))
    assert regions.have_caused_compilation() == (not ignores_hooks)
    assert regions.unseen() == 1
    regions.remove()


def test_phases_follow_each_other_and_lie_in_none(tmp_path: Path) -> None:
    phases = PhaseRegions()

    def work() -> None:
        phases.enter(DATA)
        phases.begin()
        for phase in (FORWARD, FORWARD, BACKWARD):
            phases.enter(phase)
            torch.ones(3).sum()
        phases.enter_nested(OPTIMIZER)
        phases.leave_nested()
        phases.enter(OTHER)
        phases.enter(OPTIMIZER)
        phases.end()
        phases.enter(DATA)

    order = ("data", "forward", "backward", "optimizer", "backward", "optimizer")
    assert names(tmp_path / "a.json", work) == [f"hotlap.{phase}" for phase in order]
    spans = read_trace(tmp_path / "a.json").of(ANNOTATION)
    assert all(a.end <= b.start for a, b in pairwise(spans))
