"""Invent names: a character model with one LSTM."""
import gc
import random

import torch
from torch import nn

ALPHABET = ".abcdefghijklmnopqrstuvwxyz"
SYLLABLES = ["ka", "ri", "mo", "ten", "la", "vi", "dor", "el", "an", "su", "bra", "mi", "no"]


def invent(rng):
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4)))


class CharModel(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), 24)
        self.lstm = nn.LSTM(24, hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(ALPHABET))

    def forward(self, x):
        states, _ = self.lstm(self.embed(x))
        return self.out(states)


def encode(names, length=14):
    table = torch.zeros(len(names), length, dtype=torch.long)
    for row, name in enumerate(names):
        codes = [ALPHABET.index(c) for c in name[: length - 1]]
        table[row, : len(codes)] = torch.tensor(codes)
    return table


def sample(model, rng):
    model.eval()
    name = rng.choice(ALPHABET[1:])
    with torch.no_grad():
        while len(name) < 12:
            x = torch.tensor([[ALPHABET.index(c) for c in name]])
            p = model(x)[0, -1].softmax(0)
            c = ALPHABET[torch.multinomial(p, 1).item()]
            if c == ".":
                break
            name += c
    model.train()
    return name


def main():
    rng = random.Random(4)
    torch.manual_seed(4)
    table = encode([invent(rng) for _ in range(8000)])
    model = CharModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    smooth = None
    for step in range(1, 1001):
        rows = table[torch.randint(0, len(table), (64,))]
        logits = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        if step % 10 == 0:
            # memory was tight on the old machine
            gc.collect()
        if step % 200 == 0:
            print(step, round(smooth, 3), [sample(model, rng) for _ in range(4)])


main()
