"""Learn to write text, byte by byte, with a GPT.

python plain.py --size 1m --steps 500
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from text import find, load
from torch import nn


@dataclass(frozen=True)
class Config:
    layers: int
    heads: int
    width: int
    block: int
    vocabulary: int = 256


SIZES = {
    "1m": Config(layers=5, heads=4, width=128, block=128),
    "10m": Config(layers=6, heads=6, width=384, block=256),
    "30m": Config(layers=10, heads=8, width=512, block=256),
    # GPT-2: its vocabulary is kept (rounded up), though bytes need only the first 256 rows of it.
    "124m": Config(layers=12, heads=12, width=768, block=1024, vocabulary=50304),
}


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens (batch, time) -> logits (batch, time, vocabulary)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.block, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # What is added to the residual stream is scaled down, as GPT-2 does.
                onto = name.endswith(("out.weight", "down.weight"))
                std = 0.02 / math.sqrt(2 * config.layers) if onto else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def optimizer_of(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=lr,
        betas=(0.9, 0.95),
    )


def learning_rate(step: int, peak: float, warm_up: int, steps: int) -> float:
    if step < warm_up:
        return peak * (step + 1) / warm_up
    progress = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def get_batch(data: torch.Tensor, batch_size: int, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - block, (batch_size,))
    inputs = torch.stack([data[i : i + block] for i in starts])
    targets = torch.stack([data[i + 1 : i + 1 + block] for i in starts])
    return inputs, targets


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: torch.Tensor, batch_size: int, device: str) -> float:
    model.eval()
    losses = torch.zeros(10)
    for number in range(len(losses)):
        inputs, targets = get_batch(data, batch_size, model.config.block)
        losses[number] = loss_of(model, inputs.to(device), targets.to(device)).item()
    model.train()
    return losses.mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="1m")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=None, help="any text")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = args.data or find()
    train_data = torch.tensor(list(load(path, train=True)), dtype=torch.long)
    test_data = torch.tensor(list(load(path, train=False)), dtype=torch.long)

    config = SIZES[args.size]
    model = GPT(config).to(device)
    optimizer = optimizer_of(model, args.lr)
    warm_up = max(1, args.steps // 20)
    start = time.perf_counter()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.lr, warm_up, args.steps)
        inputs, targets = get_batch(train_data, args.batch_size, config.block)
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 10 == 0:
            tokens = (step + 1) * args.batch_size * config.block / (time.perf_counter() - start)
            print(f"step {step + 1}: loss {loss.item():.4f}, {tokens:,.0f} tokens/s")
        if (step + 1) % args.evaluate_every == 0 or step + 1 == args.steps:
            held_out = evaluate(model, test_data, args.batch_size, device)
            print(f"step {step + 1}: held-out loss {held_out:.4f}")


if __name__ == "__main__":
    main()
