"""One rank of several, each with worker processes: what every rank was fed, step by step.

python -m tests.feed.rank RANK WORLD FILE; the ranks meet in FILE, rank 0 prints JSON.
"""

import json
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader

from hotlap.feed.sources.stream import Stream
from tests.feed.numbers import Numbers, SplitsItself

COUNT, BATCH, WORKERS = 65, 8, 2


def fed(dataset: Any, rank: int, world: int) -> list[list[int]]:
    stream = Stream(dataset, BATCH, micro=3, rank=rank, world=world)
    stream.num_workers = WORKERS
    return [[x for _, batch in step for x in batch.tolist()] for step in stream.epoch(0)]


def main() -> None:
    rank, world, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=world
    )
    plain = DataLoader(Numbers(COUNT), batch_size=BATCH, num_workers=WORKERS)
    mine = {
        "numbers": fed(Numbers(COUNT), rank, world),
        "splits itself": fed(SplitsItself(COUNT), rank, world),
        "a DataLoader": [batch.tolist() for batch in plain],
    }
    ranks: list[Any] = [None] * world
    torch.distributed.all_gather_object(ranks, mine)
    if rank == 0:
        print(json.dumps(ranks))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
