"""A training script whose batches are named tuples, or encodings as tokenizers give them."""

import sys
from collections import UserDict
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset


class Pair(NamedTuple):
    images: Any
    labels: Any


class Encoding(UserDict):
    """A mapping that can be moved as a whole, and whose entries are attributes too."""

    def __init__(self, data: Any = None, sequences: int | None = None) -> None:
        super().__init__(data)
        self.sequences = sequences

    def __getattr__(self, name: str) -> Any:
        if name == "data":
            raise AttributeError(name)
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None

    def to(self, device: str) -> "Encoding":
        return Encoding({key: value.to(device) for key, value in self.items()}, self.sequences)


class Items(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Pair:
        return Pair(torch.arange(6, dtype=torch.float32).add(index).sin(), index % 3)


class Encoded(Items):
    def __getitem__(self, index: int) -> Any:
        images, label = super().__getitem__(index)
        return Encoding({"input_ids": images, "labels": torch.tensor(label)}, sequences=1)


def main(kind: str) -> None:
    torch.manual_seed(0)
    items = Encoded() if kind == "encoding" else Items()
    loader = DataLoader(items, batch_size=8, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        for batch in loader:
            if kind == "encoding":
                assert type(batch) is Encoding, type(batch)
                assert batch.sequences == 1
                batch = batch.to("cpu")
                inputs, labels = batch.input_ids, batch.labels
            else:
                assert type(batch) is Pair, type(batch)
                inputs, labels = batch.images, batch.labels
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            print(loss.item())


if __name__ == "__main__":
    main(sys.argv[1])
