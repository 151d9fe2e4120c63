"""Classify sentences with a GRU; words are looked up and batches padded as they are read."""

import random
import re
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 12
WORDS = [f"{a}{b}{c}" for a in "bcdfglmprst" for b in "aeiou" for c in "nrstl"]


def sentences(count):
    draw = random.Random(0)
    found = []
    for _ in range(count):
        label = draw.random() < 0.5
        words = draw.choices(WORDS[:200] if label else WORDS[75:], k=draw.randint(5, 60))
        found.append((" ".join(words).capitalize() + ".", int(label)))
    return found


class Sentences(Dataset):
    def __init__(self, pairs, vocabulary):
        self.pairs = pairs
        self.vocabulary = vocabulary

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        text, label = self.pairs[index]
        words = re.findall(r"[a-z]+", text.lower())
        return torch.tensor([self.vocabulary.get(word, 1) for word in words]), label


def collate(batch):
    texts, labels = zip(*batch, strict=True)
    lengths = torch.tensor([len(text) for text in texts])
    return pad_sequence(texts, batch_first=True), lengths, torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 32, padding_idx=0)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, 2)

    def forward(self, texts, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(texts), lengths, batch_first=True, enforce_sorted=False
        )
        _, hidden = self.gru(packed)
        return self.head(hidden[-1])


torch.manual_seed(0)
vocabulary = {word: number for number, word in enumerate(WORDS, 2)}
pairs = sentences(12_000)
loader = DataLoader(Sentences(pairs, vocabulary), batch_size=32, shuffle=True, collate_fn=collate)
model = Classifier(len(WORDS) + 2)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(EPOCHS):
    total = 0.0
    for texts, lengths, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(texts, lengths), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
