"""Data-parallel training as people write it, on CPUs: under torchrun, or in processes it spawns."""

import argparse
import hashlib
import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Items(Dataset):
    def __init__(self, count: int, first: int = 0) -> None:
        self.pixels = torch.arange(count * 64, dtype=torch.float32).reshape(count, 64) + first

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self.pixels[index]
        for _ in range(20):
            sample = sample.sin().mul(3).add(1).div(4)
        return sample, index % 10


def train(rank: int, args: argparse.Namespace) -> None:
    if args.spawn:
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = args.port
        distributed.init_process_group(args.backend, rank=rank, world_size=args.spawn)
    else:
        distributed.init_process_group(args.backend)
        rank = distributed.get_rank()
    torch.manual_seed(0)
    dataset = Items(100, first=rank if args.own_data else 0)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=args.workers)
    layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(
        model.parameters(), foreach=True if rank == args.own_foreach else None
    )
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if rank == args.slow:
                time.sleep(0.05)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # In one piece: an end of line of its own may come behind another rank's line.
        print(f"rank {rank} epoch {epoch} loss {loss.item()!r}\n", end="", flush=True)
        if rank == args.dies:
            raise ValueError("this rank was told to die")
    digest = hashlib.sha256()
    for weights in model.state_dict().values():
        digest.update(weights.numpy().tobytes())
    print(f"rank {rank} weights {digest.hexdigest()}\n", end="", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--own_foreach", type=int)
    parser.add_argument("--own_data", action="store_true")
    parser.add_argument("--dies", type=int)
    parser.add_argument("--slow", type=int)
    parser.add_argument("--spawn", type=int, default=0)
    parser.add_argument("--port", default="12355")
    args = parser.parse_args()
    if args.spawn:
        torch.multiprocessing.spawn(train, args=(args,), nprocs=args.spawn)
    else:
        train(0, args)


if __name__ == "__main__":
    main()
