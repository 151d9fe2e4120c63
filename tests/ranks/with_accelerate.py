"""A training loop with Accelerate, as its introduction has it."""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 16), torch.randint(4, (96,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    steps = 0
    for _ in range(args.epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
            steps += accelerator.sync_gradients
        scheduler.step()
    digest = hashlib.sha256()
    for weights in accelerator.unwrap_model(model).state_dict().values():
        digest.update(weights.numpy().tobytes())
    rank = accelerator.process_index
    # In one piece: an end of line of its own may come behind another rank's line.
    print(
        f"rank {rank} steps {steps} loss {loss.item()!r} weights {digest.hexdigest()}\n",
        end="",
        flush=True,
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
