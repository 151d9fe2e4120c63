"""Habits of data-parallel scripts, each as people write it and corrected; started by torchrun."""

import argparse
import contextlib

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("habit", choices=["search", "sums", "order", "stale"])
    parser.add_argument("--corrected", action="store_true")
    parser.add_argument("--epochs", type=int, default=1000)
    args = parser.parse_args()
    has = None if args.corrected else args.habit
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    layers = [layer for _ in range(24) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model: nn.Module = nn.Sequential(*layers, nn.Linear(32, 10))
    if args.habit == "stale":
        model, optimizer = sharded(model, makes_optimizer_first=has == "stale")
    else:
        model = DistributedDataParallel(model, find_unused_parameters=has == "search")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every = 4 if args.habit == "sums" else 1
    for epoch in range(args.epochs):
        if has != "order":
            sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, 1):
            is_last = number % every == 0
            waits = has == "sums" or is_last or not isinstance(model, DistributedDataParallel)
            with contextlib.nullcontext() if waits else model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    distributed.destroy_process_group()


def sharded(
    model: nn.Module, *, makes_optimizer_first: bool
) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    early = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    return model, early if makes_optimizer_first else torch.optim.SGD(model.parameters(), lr=0.1)


if __name__ == "__main__":
    main()
