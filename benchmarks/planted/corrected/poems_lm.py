"""Next-letter model of a few verses; begins from a saved state if there is one."""

import os
import tempfile

import torch
from torch import nn

VERSES = """the wind goes over the water and the reeds bend low
a boat lies waiting by the landing for somebody to row
the lamp is lit the door stands open nobody comes in
the evening gathers up its shadows and the stars begin
""" * 30

LETTERS = sorted(set(VERSES))


class LetterModel(nn.Module):
    def __init__(self, size=80):
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 24)
        self.rnn = nn.GRU(24, size, batch_first=True)
        self.out = nn.Linear(size, len(LETTERS))

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])


def main(steps=600):
    torch.manual_seed(19)
    text = torch.tensor([LETTERS.index(c) for c in VERSES])
    model = LetterModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "poems.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}, path)
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        for step in range(saved["step"], steps):
            at = torch.randint(0, len(text) - 33, (48,))
            window = text[at.unsqueeze(1) + torch.arange(33)]
            logits = model(window[:, :-1])
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), window[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if (step + 1) % 100 == 0:
                state = {
                    "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1
                }
                torch.save(state, path)
                print(f"step {step + 1}: {loss.item():.3f}, saved")


main()
