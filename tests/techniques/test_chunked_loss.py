"""The last layer's output is put off until a loss takes it; no number tells."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import hotlap
from benchmarks.peak import peak_bytes
from hotlap.kernels.logits import Logits
from hotlap.techniques import ModelTarget, Refusal, get

CLASSES, FEATURES = 503, 32
TECHNIQUE = get("chunked_loss")


class Words(nn.Module):
    """A language model whose weights are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CLASSES, FEATURES)
        self.body = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(words)))


def flat(logits: Any, targets: Any) -> Any:
    return functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def as_a_module(logits: Any, targets: Any) -> Any:
    batch, length, classes = logits.shape
    loss = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
    return loss(logits.reshape(batch * length, classes), targets.reshape(-1))


def classes_second(logits: Any, targets: Any) -> Any:
    return functional.cross_entropy(logits.transpose(1, 2), targets)


def each(logits: Any, targets: Any) -> Any:
    return functional.cross_entropy(logits.permute(0, 2, 1), targets, reduction="none").mean()


def shifted(logits: Any, targets: Any) -> Any:
    rows = logits.float()[..., :-1, :].contiguous().view(-1, CLASSES)
    return functional.cross_entropy(rows, targets[..., 1:].reshape(-1))


def shorter(logits: Any, targets: Any) -> Any:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def looked_at_as_well(logits: Any, targets: Any) -> Any:
    return flat(logits, targets) + 1e-3 * logits.square().mean()


def warmer(logits: Any, targets: Any) -> Any:
    return flat(logits / 1.5, targets)


def probabilities(logits: Any, targets: Any) -> Any:
    soft = functional.one_hot(targets, CLASSES).float().flatten(0, 1)
    return functional.cross_entropy(logits.flatten(0, 1), soft)


def without_padding_classes(logits: Any, targets: Any) -> Any:
    rows = logits[:, :, : CLASSES - 2, ...].flatten(0, 1)
    return functional.cross_entropy(rows, targets.flatten().clamp(max=CLASSES - 3))


STRAIGHT = (flat, as_a_module, classes_second, each, shifted, shorter, looked_at_as_well)
OTHERWISE = (warmer, probabilities, without_padding_classes)


def step(loss: Callable[..., Any], chunked: bool, bf16: bool) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    model = Words()
    target = ModelTarget(model, [])
    if chunked:
        TECHNIQUE.apply(target, TECHNIQUE.options({"rows": 7}))
    words, targets = torch.randint(0, CLASSES, (2, 4, 9))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        value = loss(model(words), targets)
    value.backward()
    return [value.detach(), *[parameter.grad for parameter in model.parameters()]], target


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("loss", [*STRAIGHT, *OTHERWISE])
def test_loss_and_gradients_are_the_plain_ones(loss: Callable[..., Any], bf16: bool) -> None:
    plain, _ = step(loss, False, bf16)
    chunked, target = step(loss, True, bf16)
    for left, right in zip(plain, chunked, strict=True):
        allowed = 1e-2 if bf16 else 1e-6
        assert (left - right).abs().max() <= allowed * left.abs().max()
    proof = TECHNIQUE.proof(target, None)
    assert proof.state == ("applied" if loss in STRAIGHT else "no_effect"), proof
    if loss is flat:
        assert "at most 7 of 36 rows" in proof.why


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced graphs run as they are: what Inductor makes of them is not what this is about."""
    torch._dynamo.reset()
    monkeypatch.setattr("hotlap.compat.compile_by_inductor", lambda module, *_: module.forward)
    monkeypatch.setattr("hotlap.techniques.compile._no_back_end", lambda device: None)


def recipe_of(loss: Callable[..., Any]) -> hotlap.Task:
    words = torch.randint(CLASSES, (40, 9), generator=torch.Generator().manual_seed(1))
    return hotlap.Task(
        model=Words,
        loss=lambda model, batch: loss(model(batch[0][:, :-1]), batch[0][:, 1:].contiguous()),
        data=torch.utils.data.TensorDataset(words),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=8,
        epochs=1,
    )


def compared_with_plain(
    loss: Callable[..., Any], beside: dict[str, Any] | None = None, rows: int = 20
) -> tuple[float, Any]:
    """Return how far weights are from those of the plain run, at most, and the technique's row."""
    plan = {"chunked_loss": {"rows": rows}, "compile": {"region": "loss"}, **(beside or {})}
    plain, done = (hotlap.train(recipe_of(loss), hotlap.Plan(each)) for each in ({}, plan))
    pairs = zip(plain.model.parameters(), done.model.parameters(), strict=True)
    farthest = max(float((left - right).detach().abs().max()) for left, right in pairs)
    (row,) = (row for row in done.techniques if row["name"] == "chunked_loss")
    return farthest, row


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", [*STRAIGHT, *OTHERWISE])
def test_a_compiled_loss_takes_its_chunks_inside_the_graph(loss: Callable[..., Any]) -> None:
    farthest, row = compared_with_plain(loss)
    assert farthest < 1e-6
    # What cannot be put into the graph has its chunks outside of it, from the second step on.
    assert row["state"] == ("applied" if loss in STRAIGHT else "no_effect"), row
    if loss in (flat, as_a_module):
        assert "20 chunks for 5 losses; at most 20 of 64 rows" in row["why"]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("technique", ["autocast", "master_weights"])
def test_chunks_inside_a_graph_have_the_formats_of_the_plan(technique: str) -> None:
    farthest, row = compared_with_plain(flat, {technique: {}})
    assert row["state"] == "applied", row
    assert 1e-6 < farthest < 1e-3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_inductor_compiles_the_graph_with_its_chunks() -> None:
    farthest, row = compared_with_plain(shifted)
    assert farthest < 1e-6
    assert row["state"] == "applied", row


def test_the_output_is_put_off_in_training_only() -> None:
    model = Words()
    TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))
    words = torch.zeros(2, 3, dtype=torch.int64)
    logits = model(words)
    assert isinstance(logits, Logits)
    assert isinstance(logits, torch.Tensor)
    assert (logits.shape, logits.dtype) == ((2, 3, CLASSES), torch.float32)
    assert type(logits.argmax(-1)) is torch.Tensor
    with torch.no_grad():
        assert type(model(words)) is torch.Tensor
    assert type(model.eval()(words)) is torch.Tensor


def test_code_that_goes_past_python_is_told_and_gets_no_wrong_number() -> None:
    model = Words()
    TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))
    logits = model(torch.zeros(2, 3, dtype=torch.int64))
    past = torch._C.DisableTorchFunctionSubclass()
    with pytest.raises(RuntimeError, match="Remove `chunked_loss` from"), past:
        torch.relu(logits)


def test_a_copied_model_puts_off_its_own_layer() -> None:
    model = Words()
    TECHNIQUE.apply(ModelTarget(model, []), TECHNIQUE.options({}))
    other = copy.deepcopy(model)
    assert other.head.forward.__self__ is other.head
    assert list(other.state_dict()) == list(Words().state_dict())


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(Refusal, match="no linear layer"):
        TECHNIQUE.apply(ModelTarget(nn.Conv1d(1, 1, 1), []), TECHNIQUE.options({}))


def test_it_needs_a_fraction_of_the_memory() -> None:
    words = torch.zeros(64, 64, dtype=torch.int64)

    def once(model: nn.Module) -> None:
        flat(model(words), words).backward()

    plain, chunked = Words(), Words()
    TECHNIQUE.apply(ModelTarget(chunked, []), TECHNIQUE.options({"rows": 128}))
    full = words.numel() * CLASSES * 4
    assert peak_bytes(lambda: once(plain)) > 2 * full
    assert peak_bytes(lambda: once(chunked)) < full


def test_a_recipe_trains_to_the_same_loss() -> None:
    words = torch.arange(640).reshape(40, 16) % CLASSES
    task = hotlap.Task(
        model=Words,
        loss=lambda model, batch: flat(model(batch[0]), batch[0]),
        data=torch.utils.data.TensorDataset(words),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
        batch_size=4,
        accumulate=2,
        steps=10,
    )
    plain = hotlap.train(task, hotlap.Plan({"resident": {}}))
    done = hotlap.train(task, hotlap.Plan({"resident": {}, "chunked_loss": {"rows": 24}}))
    states = {row["name"]: row["state"] for row in done.techniques}
    assert states["chunked_loss"] == "applied"
    assert done.epochs[-1].loss == pytest.approx(plain.epochs[-1].loss, rel=1e-4)
    assert "forward" not in vars(done.model.head)
