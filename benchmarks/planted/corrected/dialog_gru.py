"""What does a caller want? Turns of a dialog as word numbers, bidirectional GRU."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

PAD = 0
INTENTS = 7
VOCAB = 900


class Turns:
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.intents = rng.integers(0, INTENTS, n)
        # most people say little, some a lot
        lengths = np.minimum(3 + rng.geometric(0.12, n), 110)
        self.words = [
            np.where(
                rng.random(k) < 0.3,
                100 + intent * 100 + rng.integers(0, 100, k),
                rng.integers(1, 100, k),
            )
            for intent, k in zip(self.intents, lengths)
        ]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return torch.from_numpy(self.words[i]), int(self.intents[i])


class IntentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32, padding_idx=PAD)
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(64, INTENTS)

    def forward(self, words):
        states, _ = self.gru(self.embedding(words))
        keep = (words != PAD).unsqueeze(-1)
        return self.linear((states * keep).sum(1) / keep.sum(1))


def collate(turns):
    size = max(len(turn) for turn, _ in turns)
    words = torch.full((len(turns), size), PAD, dtype=torch.long)
    for row, (turn, _) in enumerate(turns):
        words[row, : len(turn)] = turn
    return words, torch.tensor([intent for _, intent in turns])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()
    torch.manual_seed(0)
    turns = Turns(2400, seed=0)
    loader = DataLoader(turns, args.batch_size, shuffle=True, collate_fn=collate)
    model = IntentNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        losses = []
        for words, intents in loader:
            loss = nn.functional.cross_entropy(model(words), intents)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: mean loss {np.mean(losses):.3f}")


if __name__ == "__main__":
    main()
