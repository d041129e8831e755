"""Search 36 schedules of learning rate and batch size for a network on Fashion-MNIST.

    .venv/bin/python examples/fashion_mnist.py    # on all cores of this computer
    .venv/bin/python examples/fashion_mnist.py --client tcp://host:8786

Needs the images where training runs: Debian's package `dataset-fashion-mnist`, or a folder with the
same four files named by the environment variable FASHION_MNIST, or torchvision, which downloads
them to `~/.cache/fashion-mnist`.
"""

import argparse
import gzip
import importlib
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from distributed import Client
from torch import nn
from torch.utils.data import TensorDataset

import dasktune as dt
from dasktune.torch import TorchTrainable

N_EVALUATED = 2_000
"""Images that every evaluation takes."""
MAX_STEPS = 18


def fashion(part: str, n: int) -> TensorDataset:
    """Return images (n, 1, 28, 28) with values from 0 to 1, and labels; of `train` or `t10k`."""
    folder = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
    if folder.is_dir():
        pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz", 16).view(-1, 28, 28)
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 8)
    else:
        pixels, labels = from_torchvision(part, folder)
    return TensorDataset(pixels[:n].unsqueeze(1) / 255, labels[:n].long())


def read_idx(file: Path, header_bytes: int) -> torch.Tensor:
    """Return the bytes that follow the header of an idx file."""
    with gzip.open(file) as stream:
        return torch.frombuffer(bytearray(stream.read()[header_bytes:]), dtype=torch.uint8)


def from_torchvision(part: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Let torchvision download what is not there."""
    try:
        datasets = importlib.import_module("torchvision.datasets")
    except ImportError:
        raise FileNotFoundError(
            f"Fashion-MNIST is not in {folder}: install Debian's package dataset-fashion-mnist, "
            "or torchvision, which downloads it"
        ) from None
    cache = Path.home() / ".cache" / "fashion-mnist"
    data = datasets.FashionMNIST(cache, train=part == "train", download=True)
    return data.data, data.targets


class Fashion(TorchTrainable):
    """A small convolutional network; a step is an epoch.

    It is small so that the whole search takes minutes on two cores: an epoch of 10,000 images takes
    about a quarter of a second on one. Small networks are also where Dask's allocator setting hurts
    most, since their time goes into taking and returning memory: plain Dask workers need over three
    times as long for the same epoch.
    """

    def __init__(self, n_images: int) -> None:
        """Train on the first images only; there are 60,000."""
        self.n_images = n_images

    def model(self, hp: Mapping[str, Any]) -> nn.Module:  # noqa: ARG002  (all trials have the same)
        """Build the network."""
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(4 * 7 * 7, 10),
        )

    def train_data(self) -> TensorDataset:
        """Return the images to train on."""
        return fashion("train", self.n_images)

    def eval_data(self) -> TensorDataset:
        """Return the images to evaluate on."""
        return fashion("t10k", N_EVALUATED)


def study(n_images: int) -> dt.Study:
    """Describe the search: 18 schedules of the learning rate times two of the batch size."""
    early, late = dt.choice([[6], [9], [12], [6, 12], [9, 15]]), dt.choice([[6], [9]])
    return dt.Study(
        Fashion(n_images),
        space={
            "lr": dt.choice(
                [
                    dt.constant(0.1),
                    dt.step_decay(0.1, factor=dt.choice([0.1, 0.3]), at=early),
                    dt.exponential(0.1, dt.choice([0.9, 0.8])),
                    dt.cosine(0.1, MAX_STEPS),
                    dt.warmup(3, dt.constant(0.1)),
                    dt.warmup(3, dt.step_decay(0.1, factor=0.1, at=late)),
                    dt.warmup(3, dt.exponential(0.1, 0.9)),
                ]
            ),
            "batch_size": dt.choice([dt.constant(64), dt.piecewise({0: 64, 9: 128})]),
            "momentum": 0.9,
        },
        sampler=dt.Grid(),
        tuner=dt.ASHA(min_steps=2, max_steps=MAX_STEPS, reduction_factor=3),
        metric="accuracy",
        mode="max",
        name=f"fashion-{n_images}",
    )


def main() -> None:
    """Run the search and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--client", metavar="ADDRESS", help="Dask scheduler of a running cluster")
    parser.add_argument("--images", type=int, default=10_000, metavar="N", help="to train on")
    parser.add_argument("--store", default="./dasktune-store", help="where states are kept")
    options = parser.parse_args()
    with ExitStack() as stack:
        client = None
        if options.client is not None:
            client = stack.enter_context(Client(options.client))
        else:
            fashion("t10k", 0)  # downloaded once here, and not by each worker; or refused at once
        result = dt.run(study(options.images), client=client, store=options.store)
    if result.best is None:
        raise SystemExit(result.reason)
    print(f"best of {len(result.trials)} trials: {result.best.configuration.text}")
    print(f"accuracy {result.best.metrics['accuracy']:.4f} after {result.best.steps} epochs")
    print(
        f"{result.steps_requested} epochs requested, {result.steps_unique} unique, "
        f"{result.steps_executed} trained: merge rate {result.merge_rate:.2f}, "
        f"{result.makespan_s:.0f} s"
    )


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from None
