"""The same as `plain.py`: batches of one number of tokens, of which few are padding.

Every token counts once, in whatever batch it is.

hotlap train recipe.py --epochs 3
"""

import torch
from plain import Paragraphs, Transformer

import hotlap


def loss(model, batch):
    tokens, lengths = batch
    targets = tokens[:, 1:].masked_fill(
        torch.arange(1, tokens.shape[1], device=tokens.device) >= lengths[:, None], -100
    )
    logits = model(tokens[:, :-1])
    total = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return total, (lengths - 1).sum()


def task(
    *,
    epochs: int = 3,
    lr: float = 3e-3,
    tokens_per_batch: int = 5120,
    samples: int = 2000,
    seed: int = 0,
) -> hotlap.Task:
    return hotlap.Task(
        model=Transformer,
        loss=loss,
        data=Paragraphs(train=True, most=samples),
        held_out=Paragraphs(train=False, most=samples),
        collate=hotlap.pad(0, lengths=True),
        lengths=len,
        tokens_per_batch=tokens_per_batch,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=lr),
        clip_norm=1.0,
        epochs=epochs,
        seed=seed,
    )
