"""A traced loss has the plain one's value and gradients, whether its chunks are put in or not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hotlap.kernels.cross_entropy import Chunks
from hotlap.kernels.traced_loss import counted, rewrite

BATCH, LENGTH, WIDTH, CLASSES = 4, 6, 16, 11
# Dynamo looks at attributes that torch warns of.
pytestmark = pytest.mark.filterwarnings("ignore")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(words)))


Loss = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def plain(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words).flatten(0, 1), targets.flatten())


def summed(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    options: dict[str, Any] = {"ignore_index": 3, "reduction": "sum", "label_smoothing": 0.2}
    return functional.cross_entropy(model(words).view(-1, CLASSES), targets.flatten(), **options)


def twice(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return plain(model, words, targets) + plain(model, targets, words)


def masked(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    targets = targets.clone()
    targets[:, -1] = -100
    return plain(model, words, targets)


def all_ignored(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return plain(model, words, torch.full_like(targets, -100)).nan_to_num() + plain(
        model, words, targets
    )


def strided(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words)[:, 0], torch.stack([words, targets], 1)[:, 1, 0])


def columns(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words)[:, :1].view(-1, CLASSES), targets.t()[0])


def frozen(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    hidden = torch.tanh(model.embedding(words))
    logits = functional.linear(hidden, model.head.weight.detach(), model.head.bias)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def sliced_rows(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words).view(-1, CLASSES)[2:], targets.flatten()[:-2])


def sliced_classes(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(words)[..., :CLASSES].flatten(0, 1), targets.flatten())


def without_gradient(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = model(words).flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten()) + model.embedding(words).sum()


def written_to(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    hidden = model.embedding(words) * 2
    logits = functional.linear(hidden, model.head.weight.detach(), None)
    hidden.add_(1.0)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) + hidden.sum()


def mapped(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.vmap(functional.cross_entropy)(model(words), targets).mean()


def in_float64(model: Any, words: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(words).double().flatten(0, 1)
    return functional.cross_entropy(logits, targets.flatten()).float()


TAKEN = {plain: 1, summed: 1, twice: 2, masked: 1, all_ignored: 2, columns: 1, frozen: 1}
LEFT = (*(strided, sliced_rows, sliced_classes, without_gradient, written_to, mapped, in_float64),)


def learned(model: Any, loss: Loss, seen: Chunks) -> list[torch.Tensor]:
    words, targets = torch.randint(
        CLASSES, (2, BATCH, LENGTH), generator=torch.Generator().manual_seed(1)
    )
    with counted(seen):
        value = loss(model, words, targets)
    value.backward()
    gradients = (p.grad for p in model.parameters())
    return [value.detach(), *(torch.zeros(()) if g is None else g for g in gradients)]


@pytest.mark.parametrize("loss", [*TAKEN, *LEFT])
def test_value_and_gradients_are_the_plain_ones(loss: Loss) -> None:
    torch._dynamo.reset()
    taken = 0

    def back_end(module: Any, inputs: Any) -> Any:
        nonlocal taken
        del inputs
        taken += rewrite(module, 5)
        return module.forward

    model, seen = Model(), Chunks()
    expected = learned(copy.deepcopy(model), loss, Chunks())
    found = learned(model, torch.compile(loss, backend=back_end), seen)
    for left, right in zip(expected, found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    assert taken == seen.losses == TAKEN.get(loss, 0)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    torch._dynamo.reset()

    def back_end(module: Any, inputs: Any) -> Any:
        del inputs
        assert rewrite(module, 5)
        return module.forward

    model = Model()
    words = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
    value = torch.compile(plain, backend=back_end)(model, words, words)
    with pytest.raises(RuntimeError, match="has no gradient of its own"):
        torch.autograd.grad(value, [model.head.weight], create_graph=True)
