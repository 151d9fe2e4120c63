"""The lecture's task under Accelerate.

    python benchmarks/by_accelerate.py --settings default|tuned|bf16 --model mlp|cnn --epochs N

default  as its documentation begins: model, optimizer and loaders go through `prepare`
tuned    batches gathered from memory, which need no `prepare`; fused Adam; channels last for the
         CNN
bf16     the same with `mixed_precision="bf16"`
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fashion_mnist"))

import torch
from accelerate import Accelerator
from by_hand import BATCH, Images, epoch_order
from data import find
from plain import FashionMNIST, cnn, mlp
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", choices=["default", "tuned", "bf16"], default="default")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    folder, is_default = find(), args.settings == "default"
    accelerator = Accelerator(mixed_precision="bf16" if args.settings == "bf16" else "no")
    model = mlp() if args.model == "mlp" else cnn()
    if args.model == "cnn" and not is_default:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=not is_default or None)
    model, optimizer = accelerator.prepare(model, optimizer)
    loss_fn = nn.CrossEntropyLoss()
    if is_default:
        loaders = accelerator.prepare(
            DataLoader(FashionMNIST(folder, train=True), BATCH, shuffle=True),
            DataLoader(FashionMNIST(folder, train=False), BATCH),
        )
        samples = len(loaders[1].dataset)
    else:
        train, test = Images(folder, train=True), Images(folder, train=False)
        samples = len(test.labels)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        model.train()
        total, count = 0.0, 0
        batches: Any = loaders[0] if is_default else train.batches(epoch_order(len(train.labels)))
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            total += loss.item()
            count += 1
        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, labels in loaders[1] if is_default else test.batches(None):
                correct += int((model(inputs).argmax(dim=1) == labels).sum())
        seconds, score = time.perf_counter() - start, 100 * correct / samples
        print(
            f"epoch {epoch}: loss {total / count:.6f}, test accuracy {score:.2f} %, {seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
