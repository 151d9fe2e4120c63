"""A training script with much that a proof must see: what `python -m benchmarks lies` lies about.

Convolutions, batch norm, dropout, accumulation, two parameter groups, clipping, a cosine schedule,
an average of the weights, and evaluation of both models. Its images are made up.
"""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 2


def images(count: int, seed: int) -> TensorDataset:
    """Ten patterns of 12 x 12 with noise on them."""
    drawn = torch.Generator().manual_seed(seed)
    patterns = torch.randn(10, 1, 12, 12, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(0, 10, (count,), generator=drawn)
    noise = torch.randn(count, 1, 12, 12, generator=drawn)
    return TensorDataset(patterns[labels] + 2.5 * noise, labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 25, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def groups(model: nn.Module) -> list[dict[str, object]]:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    return right / len(loader.dataset)  # pyright: ignore[reportArgumentType]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    loader = DataLoader(images(2048, 1), batch_size=32, shuffle=True)
    held_out = DataLoader(images(256, 2), batch_size=64)
    model = network()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(groups(model), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * 32)
    for epoch in range(1, epochs + 1):
        model.train()
        for number, (inputs, labels) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(inputs), labels) / ACCUMULATE
            loss.backward()
            if number % ACCUMULATE:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            averaged.update_parameters(model)
        scores = accuracy(model, held_out), accuracy(averaged, held_out)
        print(f"epoch {epoch}: accuracy {scores[0]:.3f}, of the average {scores[1]:.3f}")


if __name__ == "__main__":
    main()
