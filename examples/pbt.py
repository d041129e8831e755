"""Train a population on handwritten digits: the worst go on from where the best stand.

    .venv/bin/python examples/pbt.py

Eight members train in parallel. Every two epochs the worst two take over the state of one of the
best two, with a learning rate, a batch size and a momentum near its own. No state is copied: a new
trial follows the better one's schedule up to that epoch, and shares what was trained. So the best
of all is an ordinary schedule, which the end of this example trains again: from the store.
"""

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dasktune as dt
from dasktune.torch import TorchTrainable

N_TRAINING = 1297
"""Images to train on; the other 500, from other writers, are evaluated."""


def digits(part: slice) -> TensorDataset:
    """Return images (n, 1, 8, 8) with values from 0 to 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images[part] / 16).float().view(-1, 1, 8, 8)
    return TensorDataset(pixels, torch.tensor(labels[part]))


class Digits(TorchTrainable):
    """A small convolutional network; a step is an epoch."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        """Build the network."""
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(hp["dropout"]),
            nn.Linear(256, 10),
        )

    def train_data(self) -> TensorDataset:
        """Return the digits to train on."""
        return digits(slice(N_TRAINING))

    def eval_data(self) -> TensorDataset:
        """Return the digits to evaluate on."""
        return digits(slice(N_TRAINING, None))


population = dt.Study(
    Digits(),
    space={
        "lr": dt.loguniform(0.001, 0.5),
        "batch_size": dt.choice([32, 64, 128]),
        "momentum": dt.choice([0.0, 0.5, 0.9]),
        "dropout": dt.choice([0.1, 0.3]),
    },
    tuner=dt.PopulationBasedTraining(
        max_steps=8,
        ready_steps=2,
        quantile=0.25,
        fixed=("dropout",),  # the network is built with it, once
    ),
    metric="loss",
    mode="min",
    n_trials=8,
    name="population",
)

if __name__ == "__main__":
    result = dt.run(population, workers=2)
    best = result.best
    if best is None:
        raise SystemExit(result.reason)
    n_replaced = len(result.trials) - population.n_trials
    print(f"{n_replaced} of {len(result.trials)} trials took over where a better one stood")
    print(
        f"{result.steps_requested} epochs in their histories, {result.steps_unique} distinct, "
        f"{result.steps_executed} trained: {result.merge_rate:.1f} epochs for one"
    )
    print(f"loss {best.metrics['loss']:.3f}, accuracy {best.metrics['accuracy']:.3f}")
    for name, schedule in best.configuration.text.items():
        print(f"  {name} = {schedule}")

    alone = dt.Study(
        Digits(),
        space=dict(best.configuration.schedules),
        tuner=dt.FullTraining(best.steps),
        metric="loss",
        mode="min",
        n_trials=1,
        name="best-alone",
    )
    again = dt.run(alone, workers=0)
    assert again.best is not None
    print(
        f"the same schedule alone: loss {again.best.metrics['loss']:.3f}, "
        f"{again.steps_executed} epochs trained, the others were in the store"
    )
