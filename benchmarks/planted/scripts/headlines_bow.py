import numpy as np
import torch
import torch.nn as nn

# Four sections of a newspaper. Headlines are bags of word numbers.
VOCAB, SECTIONS, WORDS = 5000, 4, 12
rng = np.random.default_rng(8)


def headlines(n):
    labels = rng.integers(0, SECTIONS, n)
    common = rng.integers(0, VOCAB // 2, (n, WORDS))
    special = VOCAB // 2 + labels[:, None] * 600 + rng.integers(0, 600, (n, WORDS))
    words = np.where(rng.random((n, WORDS)) < 0.25, special, common)
    return torch.as_tensor(words), torch.as_tensor(labels)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCAB, 48, mode="mean", sparse=True)
        self.net = nn.Sequential(
            nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, SECTIONS)
        )

    def forward(self, x):
        return self.net(self.words(x))


def accuracy(model, words, labels):
    model.eval()
    with torch.inference_mode():
        guesses = torch.cat([model(chunk).argmax(1) for chunk in words.split(500)])
    model.train()
    return (guesses == labels).float().mean().item()


train_words, train_labels = headlines(12_800)
val_words, val_labels = headlines(6_000)
torch.manual_seed(8)
model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
step, best = 0, 0.0
for epoch in range(15):
    for index in torch.randperm(len(train_words)).split(128):
        logits = model(train_words[index])
        loss = nn.functional.cross_entropy(logits, train_labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0:
            best = max(best, accuracy(model, val_words, val_labels))
    print(f"epoch {epoch} step {step} loss {loss.item():.3f} best accuracy so far {best:.3f}")
