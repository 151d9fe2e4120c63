"""Predict the next byte of paragraphs, each of its own length, the way people write it.

python plain.py --epochs 3
"""

import argparse
import time

import torch
from data import paragraphs
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Paragraphs(Dataset):
    def __init__(self, *, train: bool, most: int) -> None:
        self.texts = paragraphs(train=train, most=most)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(list(self.texts[index]))


class Transformer(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, longest: int = 512) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.bytes(tokens) + self.places(places)
        return self.out(self.layers(hidden, mask=mask, is_causal=True))


def collate(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = pad_sequence(samples, batch_first=True, padding_value=0)
    targets = pad_sequence(samples, batch_first=True, padding_value=-100)
    return tokens[:, :-1], targets[:, 1:]


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(tokens)
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def evaluate(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    losses = []
    with torch.no_grad():
        for tokens, targets in loader:
            losses.append(loss_of(model, tokens.to(device), targets.to(device)).item())
    return sum(losses) / len(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2000, help="use so many paragraphs")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    training = Paragraphs(train=True, most=args.samples)
    held_out = Paragraphs(train=False, most=args.samples)
    train_loader = DataLoader(training, batch_size=32, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(held_out, batch_size=32, collate_fn=collate)

    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        model.train()
        losses = []
        for tokens, targets in train_loader:
            tokens, targets = tokens.to(device), targets.to(device)
            loss = loss_of(model, tokens, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        score = evaluate(model, test_loader, device)
        print(
            f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}, held-out loss {score:.4f}, "
            f"{seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
