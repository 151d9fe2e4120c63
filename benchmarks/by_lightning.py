"""The lecture's task under Lightning.

    python benchmarks/by_lightning.py --settings default|tuned|bf16 --model mlp|cnn --epochs N

default  as its documentation begins: a LightningModule, DataLoaders over the decoding data set
tuned    what its documentation advises for speed: `barebones=True`; batches from an iterable of our
         own, which gathers them from memory; fused Adam; channels last for the CNN
bf16     the same with precision `bf16-mixed`
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "fashion_mnist"))

import lightning
import torch
from by_hand import BATCH, Images, epoch_order
from data import find
from plain import FashionMNIST, cnn, mlp
from torch import nn
from torch.utils.data import DataLoader


class Lecture(lightning.LightningModule):
    """The lecture's model, loss and optimizer."""

    def __init__(self, model: nn.Module, *, fused: bool) -> None:
        super().__init__()
        self.model, self.fused = model, fused
        self.loss_fn = nn.CrossEntropyLoss()
        self.correct = 0

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        del index
        return self.loss_fn(self.model(batch[0]), batch[1])

    def validation_step(self, batch: Any, index: int) -> None:
        """Count what was told right."""
        self.correct = (0 if index == 0 else self.correct) + int(
            (self.model(batch[0]).argmax(dim=1) == batch[1]).sum()
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the lecture's Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3, fused=self.fused or None)

    def on_train_epoch_end(self) -> None:
        """Say how good it is."""
        print(f"epoch {self.current_epoch + 1}: {self.correct} of the held-out samples are right")


class Gathered:
    """Batches gathered from memory; Lightning takes any iterable with a length."""

    def __init__(self, images: Images, *, shuffle: bool) -> None:
        self.images, self.shuffle = images, shuffle

    def __len__(self) -> int:
        return -(-len(self.images.labels) // BATCH)

    def __iter__(self) -> Any:
        order = epoch_order(len(self.images.labels)) if self.shuffle else None
        return self.images.batches(order)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", choices=["default", "tuned", "bf16"], default="default")
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    # It advises more loader workers than this machine has cores for.
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    folder, is_default = find(), args.settings == "default"
    model = mlp() if args.model == "mlp" else cnn()
    if is_default:
        train: Any = DataLoader(FashionMNIST(folder, train=True), BATCH, shuffle=True)
        test: Any = DataLoader(FashionMNIST(folder, train=False), BATCH)
        options: dict[str, Any] = {"default_root_dir": tempfile.mkdtemp()}
    else:
        train = Gathered(Images(folder, train=True), shuffle=True)
        test = Gathered(Images(folder, train=False), shuffle=False)
        options = {"barebones": True}
        if args.settings == "bf16":
            options["precision"] = "bf16-mixed"
        if args.model == "cnn":
            model = model.to(memory_format=torch.channels_last)
    trainer = lightning.Trainer(max_epochs=args.epochs, **options)
    trainer.fit(Lecture(model, fused=not is_default), train, test)


if __name__ == "__main__":
    main()
