# word vectors: skip-gram with negative samples
import numpy as np
import torch
import torch.nn.functional as F

VOCAB, DIM, NEGATIVE, BATCH = 4000, 64, 8, 1024


def corpus(tokens=120_000, topics=40):
    rng = np.random.default_rng(5)
    topic = np.repeat(rng.integers(0, topics, tokens // 20), 20)
    within = np.minimum(rng.geometric(0.05, tokens), VOCAB // topics) - 1
    return torch.from_numpy(topic * (VOCAB // topics) + within)


class SkipGram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.center = torch.nn.Embedding(VOCAB, DIM, sparse=True)
        self.context = torch.nn.Embedding(VOCAB, DIM, sparse=True)
        torch.nn.init.uniform_(self.center.weight, -0.5 / DIM, 0.5 / DIM)
        torch.nn.init.zeros_(self.context.weight)

    def forward(self, center, context):
        """context: one true word and some wrong ones for each center."""
        return torch.einsum("bd,bkd->bk", self.center(center), self.context(context))


torch.manual_seed(5)
text = corpus()
frequency = torch.bincount(text, minlength=VOCAB).float().pow(0.75)
model = SkipGram()
optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
target = torch.zeros(BATCH, 1 + NEGATIVE)
target[:, 0] = 1.0
for step in range(900):
    at = torch.randint(5, len(text) - 5, (BATCH,))
    shift = torch.randint(1, 6, (BATCH,)) * (2 * torch.randint(0, 2, (BATCH,)) - 1)
    wrong = torch.multinomial(frequency, BATCH * NEGATIVE, replacement=True).view(BATCH, NEGATIVE)
    candidates = torch.cat([text[at + shift].unsqueeze(1), wrong], 1)
    loss = F.binary_cross_entropy_with_logits(model(text[at], candidates), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"{step} {loss.item():.4f}")
