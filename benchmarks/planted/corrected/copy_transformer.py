"""Can a small decoder learn to copy a sequence?"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 32
HALF = 24


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attend = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attend(self.n1(x), mask)
        return x + self.mlp(self.n2(x))


def causal_mask(size):
    mask = torch.zeros(size, size)
    for i in range(size):
        for j in range(i + 1, size):
            mask[i, j] = float("-inf")
    return mask


def positions(size, dim):
    table = torch.zeros(size, dim)
    for pos in range(size):
        for i in range(0, dim, 2):
            angle = pos / 10000 ** (i / dim)
            table[pos, i] = math.sin(angle)
            table[pos, i + 1] = math.cos(angle)
    return table


class Copier(nn.Module):
    def __init__(self, dim=64, heads=4, layers=2):
        super().__init__()
        self.register_buffer("mask", causal_mask(2 * HALF), persistent=False)
        self.register_buffer("places", positions(2 * HALF, dim), persistent=False)
        self.embed = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, tokens):
        size = tokens.shape[1]
        x = self.embed(tokens) + self.places[:size]
        mask = self.mask[:size, :size]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


torch.manual_seed(3)
model = Copier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(601):
    half = torch.randint(1, VOCAB, (32, HALF))
    tokens = torch.cat([half, torch.zeros(32, 1, dtype=torch.long), half], dim=1)
    logits = model(tokens[:, :-1])[:, HALF:]
    loss = F.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, HALF + 1 :].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        hits = (logits.argmax(-1) == half).float().mean()
        print(f"step {step}: loss={loss.item():.3f} copied={hits.item():.1%}")
