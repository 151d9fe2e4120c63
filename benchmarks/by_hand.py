"""The loops that an expert writes by hand for `examples/fashion_mnist/plain.py`: what to beat.

    python benchmarks/by_hand.py --tier exact|rounding|bf16 --model mlp|cnn --epochs N

exact     bit-identical to the plain loop: decoded once, indexed by batch, foreach Adam
rounding  fused Adam on top, channels last for the CNN
bf16      bfloat16 weights with float32 masters for the MLP, autocast for the CNN
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fashion_mnist"))

from data import find, load
from plain import cnn, mlp

BATCH = 64


class Images:
    """The whole data set, decoded once, on the device."""

    def __init__(self, folder: Path | None, *, train: bool) -> None:
        images, labels = load(folder, train=train)
        self.inputs = torch.from_numpy(images.copy()).unsqueeze(1).to(torch.float32).div(255)
        self.labels = torch.from_numpy(labels.copy()).long()

    def batches(self, order: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if order is None:
            yield from zip(self.inputs.split(BATCH), self.labels.split(BATCH), strict=True)
            return
        for index in order.split(BATCH):
            yield self.inputs.index_select(0, index), self.labels.index_select(0, index)


def epoch_order(count: int) -> torch.Tensor:
    """Draw what `DataLoader(shuffle=True)` draws, from the same generator in the same order."""
    torch.empty((), dtype=torch.int64).random_()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def skip_loader_seed() -> None:
    """Every DataLoader iterator draws one seed, the test loader's too."""
    torch.empty((), dtype=torch.int64).random_()


class Float32Step:
    """One training step in float32."""

    def __init__(self, model: nn.Module, tier: str, channels_last: bool) -> None:
        self.model = model
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            model.to(memory_format=torch.channels_last)
        kind = {"foreach": True} if tier == "exact" else {"fused": True}
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **kind)
        self.loss_fn = nn.CrossEntropyLoss()

    def __call__(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Autocast(Float32Step):
    """bfloat16 where autocast allows it."""

    def __call__(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.loss_fn(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


class MasterWeights:
    """bfloat16 weights and gradients, float32 masters: no cast of a weight in the forward."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
        model.to(torch.bfloat16)
        self.weights = list(model.parameters())
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.gradients = [master.grad for master in self.masters]
        self.optimizer = torch.optim.Adam(self.masters, lr=1e-3, fused=True)
        self.loss_fn = nn.CrossEntropyLoss()

    def __call__(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        for weight in self.weights:
            weight.grad = None
        loss = self.loss_fn(self.model(inputs.bfloat16()).float(), labels)
        loss.backward()
        torch._foreach_copy_(self.gradients, [w.grad for w in self.weights])
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)
        return loss.item()


def build_step(model: nn.Module, tier: str, kind: str) -> Float32Step | MasterWeights:
    if tier == "bf16":
        return MasterWeights(model) if kind == "mlp" else Autocast(model, tier, channels_last=True)
    return Float32Step(model, tier, channels_last=kind == "cnn" and tier == "rounding")


def accuracy(model: nn.Module, images: Images) -> float:
    model.eval()
    dtype = next(model.parameters()).dtype
    skip_loader_seed()
    correct = 0
    with torch.inference_mode():
        for inputs, labels in images.batches(None):
            correct += int((model(inputs.to(dtype)).argmax(dim=1) == labels).sum())
    model.train()
    return 100 * correct / len(images.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tier", choices=["exact", "rounding", "bf16"], default="exact")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=None)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    folder = args.data or find()
    train, test = Images(folder, train=True), Images(folder, train=False)
    step = build_step(mlp() if args.model == "mlp" else cnn(), args.tier, args.model)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        total, count = 0.0, 0
        for inputs, labels in train.batches(epoch_order(len(train.labels))):
            total += step(inputs, labels)
            count += 1
        score = accuracy(step.model, test)
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch}: loss {total / count:.6f}, test accuracy {score:.2f} %, {seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
