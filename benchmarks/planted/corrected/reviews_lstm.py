"""Good or bad? Film reviews, words reduced to their stems, an LSTM on top."""

import random
import re
from collections import Counter

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

GOOD = "wonderful brilliant charming moving delightful gripping masterful warmly laughing".split()
BAD = "boring tedious awful clumsy lifeless predictable painfully sleeping noisily".split()
PLAIN = """the a film movie story actors plot scenes director camera music moments watching was
were is in of and to with about ending beginning characters playing stunned seemed looking felt
talked walked running people houses cities nights evenings""".split()
SUFFIXES = ("fully", "fulness", "ingly", "edly", "ing", "ies", "ous", "ful", "ed", "ly", "es", "s")


def write_review(rng):
    mood = rng.random() < 0.5
    words = []
    for _ in range(rng.randint(15, 35)):
        if rng.random() < 0.1:
            words.append(rng.choice(GOOD if mood ^ (rng.random() < 0.2) else BAD))
        else:
            words.append(rng.choice(PLAIN))
    return " ".join(words).capitalize() + rng.choice(["!", ".", "..."]), int(mood)


def stem(word):
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    return word


def tokenize(text):
    return [stem(word) for word in re.findall(r"[a-z']+", text.lower())]


class Sentiment(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.linear = nn.Linear(32, 1)

    def forward(self, x):
        _, (h, _) = self.lstm(self.embedding(x))
        return self.linear(h[-1]).squeeze(1)


def main():
    rng = random.Random(1)
    torch.manual_seed(1)
    reviews = [write_review(rng) for _ in range(4000)]
    counts = Counter(word for text, _ in reviews for word in tokenize(text))
    vocabulary = {word: i for i, (word, _) in enumerate(counts.most_common(), 2)}

    def collate(batch):
        labels = torch.tensor([float(label) for _, label in batch])
        return pad_sequence([row.flip(0) for row, _ in batch], batch_first=True).flip(1), labels

    encoded = [
        (torch.tensor([vocabulary.get(w, 1) for w in tokenize(text)]), label)
        for text, label in reviews
    ]
    loader = DataLoader(encoded, batch_size=50, shuffle=True, collate_fn=collate)
    model = Sentiment(len(vocabulary) + 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(1, 13):
        right = 0
        for words, labels in loader:
            scores = model(words)
            loss = nn.functional.binary_cross_entropy_with_logits(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += ((scores > 0) == labels.bool()).sum().item()
        print(f"Epoch {epoch}: {right / len(reviews):.2%} right")


if __name__ == "__main__":
    main()
