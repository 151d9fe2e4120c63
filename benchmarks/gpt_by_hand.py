"""The loops that an expert writes by hand for `examples/gpt/plain.py`: what to beat.

    python benchmarks/gpt_by_hand.py --way float32|masters|autocast [--attention products]
        [--compile] [--keep-memory] --size 1m

float32   fused AdamW, and batches taken by one index
masters   bfloat16 weights with float32 masters
autocast  float32 weights, matrix products in bfloat16

`--attention products` writes attention as three matrix products and a softmax: torch's own flash
kernel for CPUs is slow in bfloat16 where heads are small. `--keep-memory` lets the process keep
what a step frees for the next one. With a CUDA device all of it runs there.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gpt"))

import plain
from plain import GPT, SIZES, learning_rate, loss_of
from text import find, load

PEAK = 1e-3
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of mallopt(3)."""


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of (batch, heads, time, width) by matrix products in the inputs' format."""
    batch, heads, length, width = q.shape
    q, k, v = (x.reshape(batch * heads, length, width) for x in (q, k, v))
    future = torch.full((length, length), float("-inf"), dtype=q.dtype, device=q.device).triu_(1)
    scores = torch.baddbmm(future, q, k.transpose(1, 2), alpha=width**-0.5)
    return (scores.softmax(dim=-1) @ v).view(batch, heads, length, width)


def attention_by_products(self: plain.Attention, x: torch.Tensor) -> torch.Tensor:
    """Stand in for `Attention.forward`."""
    batch, length, width = x.shape
    q, k, v = (
        part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        for part in self.qkv(x).split(width, dim=2)
    )
    return self.out(attend(q, k, v).transpose(1, 2).reshape(batch, length, width))


class Lookup(torch.autograd.Function):
    """An embedding of bfloat16 rows whose gradient is summed in float32."""

    @staticmethod
    def forward(ctx, weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows = len(weight)
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (tokens,) = ctx.saved_tensors
        wide = torch.ops.aten.embedding_dense_backward(
            gradient.float(), tokens, ctx.rows, -1, False
        )
        return wide.to(gradient.dtype), None


def optimizer_over(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), fused=True)


class Float32:
    """A step in float32, or under autocast."""

    def __init__(self, model: nn.Module, autocast: bool) -> None:
        self.model, self.autocast = model, autocast
        self.parameters = list(model.parameters())
        self.optimizer = optimizer_over(self.parameters)

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            loss = loss_of(self.model, inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss.detach()


class Masters:
    """bfloat16 weights and gradients, float32 masters: no cast of a weight in the forward."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
        model.to(torch.bfloat16)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.forward = lambda tokens, module=module: Lookup.apply(module.weight, tokens)
        self.weights = list(model.parameters())
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.gradients = [master.grad for master in self.masters]
        self.optimizer = optimizer_over(self.masters)

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            weight.grad = None
        logits = self.model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        torch._foreach_copy_(self.gradients, [weight.grad for weight in self.weights])
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)
        return loss.detach()


def step_of(way: str, model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return Masters(model) if way == "masters" else Float32(model, autocast=way == "autocast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=["float32", "masters", "autocast"], default="float32")
    parser.add_argument("--attention", choices=["torch", "products"], default="torch")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--keep-memory", action="store_true")
    parser.add_argument("--size", choices=SIZES, default="1m")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    if args.keep_memory:
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    torch.manual_seed(args.seed)
    if args.attention == "products":
        plain.Attention.forward = attention_by_products
    config = SIZES[args.size]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = torch.frombuffer(bytearray(load(find(), train=True)), dtype=torch.uint8).long()
    text, window = text.to(device), torch.arange(config.block + 1, device=device)
    model = GPT(config).to(device)
    step = step_of(args.way, model)
    if args.compile:
        model.compile()
    warm_up = max(1, args.steps // 20)
    start = time.perf_counter()
    for number in range(args.steps):
        for group in step.optimizer.param_groups:
            group["lr"] = learning_rate(number, PEAK, warm_up, args.steps)
        starts = torch.randint(len(text) - config.block, (args.batch_size, 1))
        batch = text[starts.to(device, non_blocking=True) + window]
        loss = step(batch[:, :-1], batch[:, 1:])
        if (number + 1) % 10 == 0:
            tokens = (number + 1) * args.batch_size * config.block / (time.perf_counter() - start)
            print(f"step {number + 1}: loss {float(loss):.4f}, {tokens:,.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
