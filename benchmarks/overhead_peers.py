"""What a step of a peer costs beyond the raw loop, in a process of its own.

    python -m benchmarks.overhead_peers WAY --rounds N

An epoch of the raw loop goes before each epoch of the peer; both are printed, us per step, as JSON.
The defaults are fed by a DataLoader over a TensorDataset; tuned ones gather from memory as the raw
loop does, and switch off what their documentation says costs time.
"""

import argparse
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.tiny_step import BATCH, EPOCH, Gathered, data, loss, model, optimizer, raw


class Clock:
    """Times epochs, each behind one of the raw loop."""

    def __init__(self) -> None:
        self.raw: list[float] = []
        self.peer: list[float] = []
        self._begin = 0.0

    def start(self) -> None:
        """Run an epoch of the raw loop, and begin to count."""
        self.raw.append(raw())
        self._begin = time.perf_counter()

    def stop(self) -> None:
        """End an epoch."""
        self.peer.append((time.perf_counter() - self._begin) / EPOCH * 1e6)


def _loader() -> Any:
    return DataLoader(TensorDataset(*data()), BATCH, shuffle=True)


def lightning(clock: Clock, epochs: int, *, tuned: bool) -> None:
    """Lightning's Trainer: as it comes, or `barebones=True`."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            del index
            return loss(self.net, batch)

        def configure_optimizers(self) -> Any:
            return optimizer(self.net)

        def on_train_epoch_start(self) -> None:
            clock.start()

        def on_train_epoch_end(self) -> None:
            clock.stop()

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"barebones": True} if tuned else {"default_root_dir": folder}
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", **options)
        trainer.fit(Module(), Gathered() if tuned else _loader())


def accelerate(clock: Clock, epochs: int, *, tuned: bool) -> None:
    """A loop of one's own with Accelerate: everything prepared, or all but the batches."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model()
    net, opt = accelerator.prepare(net, optimizer(net))
    batches: Any = Gathered() if tuned else accelerator.prepare(_loader())
    for _ in range(epochs):
        clock.start()
        for batch in batches:
            opt.zero_grad()
            accelerator.backward(loss(net, batch))
            opt.step()
        clock.stop()


def trainer(clock: Clock, epochs: int, *, tuned: bool) -> None:
    """The Trainer of transformers: as it comes, or without clipping, NaN filter and progress."""
    import transformers

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": loss(self.net, (x, y))}

    class Rows(Dataset):
        def __init__(self) -> None:
            self.x, self.y = data()

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": self.x[index], "y": self.y[index]}

    class Batches(Gathered):
        dataset = Rows()

        def __iter__(self) -> Any:
            for x, y in super().__iter__():
                yield {"x": x, "y": y}

    class Timed(transformers.TrainerCallback):
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            clock.start()

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            clock.stop()

    class Tuned(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return Batches()

    less: dict[str, Any] = {
        "max_grad_norm": 0.0,
        "logging_nan_inf_filter": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    net = Net()
    opt = optimizer(net)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=epochs,
            use_cpu=True,
            report_to=[],
            **(less if tuned else {}),
        )
        kind = Tuned if tuned else transformers.Trainer
        kind(
            net,
            arguments,
            train_dataset=Rows(),
            optimizers=(opt, torch.optim.lr_scheduler.StepLR(opt, 10**6)),
            callbacks=[Timed()],
        ).train()


WAYS: dict[str, Callable[..., None]] = {
    "Lightning": lightning,
    "Accelerate": accelerate,
    "Trainer of Hugging Face": trainer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--out", required=True, help="file for the JSON: peers print what they like"
    )
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    clock = Clock()
    WAYS[args.way](clock, args.rounds + 1, tuned=args.tuned)
    with open(args.out, "w") as file:
        json.dump({"raw": clock.raw[1:], "peer": clock.peer[1:]}, file)


if __name__ == "__main__":
    main()
