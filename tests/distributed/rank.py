"""One of several ranks: makes every run of `cases`, and rank 0 prints what came of them."""

import json
import os
import sys
from typing import Any

import torch

import hotlap
from hotlap.engine.step import bucket_sums
from tests.distributed.cases import tasks

OVERLAPS = "TESTS_RANK_OVERLAP"
"""Variable: gradients are summed during the backward pass, in buckets of one or two tensors."""

SHORT_IN_CLIPPING = "TESTS_RANK_SHORT"
"""Variable: rank 1 runs out of memory where gradients are clipped, in its third step."""


def outcome(task: hotlap.Task, plan: Any, **options: Any) -> dict[str, Any]:
    """Train; return losses, measures, weights as text, and what was skipped and taken again."""
    done = hotlap.train(task, plan, device="cpu", **options)
    return {
        "losses": [epoch.loss for epoch in done.epochs],
        "held_out": [dict(epoch.held_out) for epoch in done.epochs],
        "weights": [each.tolist() for each in done.model.state_dict().values()],
        "skipped": done.skipped_steps,
        "retries": len(done.retries),
        "refused": [row["name"] for row in done.techniques if row["state"] == "refused"],
    }


def run_short_in_clipping(rank: int) -> None:
    clip, calls = torch.nn.utils.clip_grad_norm_, iter(range(10**6))

    def clip_or_fail(*arguments: Any, **options: Any) -> Any:
        if rank == 1 and next(calls) == 2:
            raise torch.OutOfMemoryError("no memory for norms")
        return clip(*arguments, **options)

    torch.nn.utils.clip_grad_norm_ = clip_or_fail
    outcome(*tasks(rank, 2)["ordinary, clipped"])


def main() -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    only = sys.argv[1:]
    if SHORT_IN_CLIPPING in os.environ:
        run_short_in_clipping(rank)
        return
    overlaps = OVERLAPS in os.environ
    if overlaps:
        bucket_sums.BUCKET_BYTES = bucket_sums.FIRST_BUCKET_BYTES = 16
    found = {
        name: outcome(*given, rank_overlap=overlaps)
        for name, given in tasks(rank, world).items()
        if not only or name in only
    }
    if rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
