"""Blocks that run forward twice give the bits of blocks that run once."""

import copy
import io
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import hotlap
from benchmarks.peak import peak_bytes
from hotlap import rng
from hotlap.plan import Plan
from hotlap.techniques import ModelTarget, Refusal, get
from hotlap.techniques.recompute import blocks_of

TECHNIQUE = get("recompute")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"mode": "selective"}, {"every": 2})


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, scale: float = 1.0, cache: Any = None) -> torch.Tensor:
        del cache
        heads = x.unflatten(-1, (2, -1)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2)
        return x + scale * self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def task(model: Any = Model, steps: int = 6) -> hotlap.Task:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(40, 8, 32, generator=generator)
    return hotlap.Task(
        model=model,
        loss=lambda model, batch: model(batch[0]).square().mean(),
        data=torch.utils.data.TensorDataset(data),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
        batch_size=8,
        steps=steps,
        held_out=torch.utils.data.TensorDataset(data[:8]),
    )


def trained(*techniques: tuple[str, dict[str, Any]], model: Any = Model) -> Any:
    return hotlap.train(task(model), Plan({"resident": {}, **dict(techniques)}))


def same(left: Any, right: Any) -> bool:
    mine, theirs = left.model.state_dict(), right.model.state_dict()
    return list(mine) == list(theirs) and all(torch.equal(mine[k], theirs[k]) for k in mine)


def proof_of(done: Any) -> Any:
    return next(row for row in done.techniques if row["name"] == "recompute")


@pytest.mark.parametrize("beside", ["resident", "autocast", "master_weights"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_run_has_the_same_bits_dropout_included(options: dict[str, Any], beside: str) -> None:
    plain, again = trained((beside, {})), trained((beside, {}), ("recompute", options))
    assert same(plain, again)
    assert plain.epochs[-1].held_out == again.epochs[-1].held_out
    chosen = 2 if options.get("every") == 2 else 4
    # Six steps; the evaluation after each of two epochs recomputes nothing.
    assert proof_of(again)["why"].startswith(
        f"{chosen} of 4 blocks ran forward again, {6 * chosen} times"
    )


def test_without_dropouts_random_state_the_bits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail."""
    real = torch.utils.checkpoint.checkpoint

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs, preserve_rng_state=False)

    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", forgetful)
    assert not same(trained(), trained(("recompute", {})))


def test_a_step_holds_less() -> None:
    def once(options: dict[str, Any] | None) -> int:
        model = Model(64)
        if options is not None:
            TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options(options))
        return peak_bytes(lambda: model(torch.ones(32, 64, 64)).mean().backward())

    plain, whole, selective = once(None), once({}), once({"mode": "selective"})
    assert whole < selective < plain
    assert whole < 0.6 * plain


def test_the_model_is_handed_back_as_it_was() -> None:
    done = trained(("recompute", {}))
    assert not any("forward" in vars(block) for block in done.model.blocks)


def test_copies_and_pickles_of_a_model_run_their_own_blocks() -> None:
    model = Model()
    TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))
    other = copy.deepcopy(model)
    assert all(block.forward.__self__ is block for block in other.blocks)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False).eval()
    x = torch.ones(1, 2, 32)
    assert torch.equal(loaded(x), model.eval()(x))


class Drawing(nn.Module):
    """A block that multiplies by what a generator other than torch's gives."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.inner, self.draw = nn.Linear(32, 32), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x) * self.draw()).tanh()


def nothing() -> float:
    return 0.5


@pytest.mark.parametrize("draw", [random.random, np.random.random, nothing])
def test_the_second_forward_draws_from_python_and_numpy_what_the_first_drew(draw: Any) -> None:
    def gradients(is_applied: bool) -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        model = nn.Sequential(Drawing(draw), Drawing(draw))
        if is_applied:
            TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))
        rng.reseed(1)
        loss = model(torch.ones(1, 2, 32)).sum()
        # The script's own draws between the passes are not repeated.
        between = random.random(), np.random.random()
        loss.backward(retain_graph=True)
        loss.backward()
        drawn = between, random.random(), np.random.random()
        return [parameter.grad for parameter in model.parameters()], drawn

    plain, again = gradients(False), gradients(True)
    assert all(map(torch.equal, plain[0], again[0]))
    assert plain[1] == again[1]


class Late(Drawing):
    """Draws from its second forward on."""

    def __init__(self) -> None:
        super().__init__(None)
        self.begins = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.inner(x) * (random.random() if self.begins else 1)).tanh()


def test_draws_that_begin_later_are_drawn_again_too() -> None:
    def gradients(is_applied: bool) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(Late(), Late())
        if is_applied:
            TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))
        rng.reseed(1)
        for begins in (False, True):
            for block in model:
                block.begins = begins
            model(torch.ones(1, 2, 32)).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    assert all(map(torch.equal, gradients(False), gradients(True)))


@pytest.mark.parametrize(
    "generator",
    [torch.Generator(), random.Random(0), np.random.default_rng(0), [np.random.RandomState(0)]],
    ids=lambda each: type(each).__name__,
)
def test_a_block_with_a_generator_of_its_own_is_refused(generator: Any) -> None:
    model = nn.Sequential(Block(4), Block(4))
    model[1].drop.source = generator
    with pytest.raises(Refusal, match=r"`1\.drop\.source` is a random generator of module '1'"):
        TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))


def test_the_global_generators_may_hang_on_a_block() -> None:
    model = nn.Sequential(Block(4), Block(4))
    model[0].source, model[1].draw = torch.default_generator, random.random
    TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))


class Counting(nn.Module):
    """A block that remembers how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return nn.functional.dropout(self.inner(x)) * (1 + 0.1 * self.runs)


def test_a_block_that_changes_a_buffer_runs_once() -> None:
    def model() -> nn.Module:
        return nn.Sequential(Counting(), Counting())

    plain, again = trained(model=model), trained(("recompute", {}), model=model)
    assert same(plain, again)
    assert proof_of(again)["state"] == "refused"
    assert "changes its buffer runs" in proof_of(again)["why"]


def test_a_block_that_is_given_a_cache_runs_once() -> None:
    model = Model()
    target = ModelTarget(model, [])
    TECHNIQUE.apply(target, TECHNIQUE.options({}))
    model.blocks[0](torch.ones(1, 2, 32), cache=object()).sum().backward()
    proof = TECHNIQUE.proof(target, None)
    assert proof.state == "refused"
    assert "an argument of class object" in proof.why


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "no repeated blocks"),
        (nn.Sequential(normalised(), normalised()), "running statistics would be updated twice"),
    ],
)
def test_what_cannot_be_recomputed_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(Refusal, match=words):
        TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))


def test_blocks_are_found_by_structure_the_outermost_ones() -> None:
    assert list(blocks_of(Model())) == [f"blocks.{n}" for n in range(4)]
    stage = nn.Sequential(*[nn.Sequential(Block(4), Block(4)) for _ in range(2)], nn.Linear(4, 4))
    assert list(blocks_of(nn.ModuleDict({"a": stage}))) == ["a.0", "a.1"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_are_recomputed_in_the_graph() -> None:
    done = trained(("recompute", {"mode": "selective"}), ("compile", {}))
    plain = trained()
    assert proof_of(done)["state"] == "applied"
    assert done.epochs[0].loss == pytest.approx(plain.epochs[0].loss, rel=0.05)
