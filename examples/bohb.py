"""BOHB on handwritten digits: Optuna's TPE proposes, Hyperband decides how far trials train.

    .venv/bin/python examples/bohb.py

Any sampler goes with any tuner; this pair is BOHB (Falkner et al., ICML 2018). Hyperband's brackets
follow one another, so TPE proposes the trials of each knowing all before it. Learning rates start
from one of three values, and part when they decay: what is before is trained once.
"""

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dasktune as dt
from dasktune.torch import TorchTrainable

N_TRAINING = 600
"""Images to train on; 500 of other writers are evaluated."""


def digits(part: slice) -> TensorDataset:
    """Return images (n, 64) with values from 0 to 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(images[part] / 16).float(), torch.tensor(labels[part]))


class Digits(TorchTrainable):
    """A network of two layers; a step is an epoch."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        """Build the network."""
        return nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Dropout(hp["dropout"]), nn.Linear(64, 10)
        )

    def train_data(self) -> TensorDataset:
        """Return the digits to train on."""
        return digits(slice(N_TRAINING))

    def eval_data(self) -> TensorDataset:
        """Return the digits to evaluate on."""
        return digits(slice(-500, None))


bohb = dt.Study(
    Digits(),
    space={
        "lr": dt.step_decay(
            dt.choice([0.03, 0.1, 0.3]), factor=dt.loguniform(0.01, 1.0), at=[dt.randint(1, 6)]
        ),
        "batch_size": dt.choice([dt.constant(16), dt.piecewise({0: 16, 3: 64})]),
        "momentum": 0.9,
        "dropout": dt.choice([0.0, 0.2]),
    },
    sampler=dt.Optuna(),  # TPE, seeded by the study
    tuner=dt.Hyperband(min_steps=1, max_steps=9, reduction_factor=3),
    metric="loss",
    mode="min",
    n_trials=34,  # two rounds of 9 + 5 + 3
    seed=0,
    name="bohb",
)

if __name__ == "__main__":
    result = dt.run(bohb, workers=2)
    best = result.best
    if best is None:
        raise SystemExit(result.reason)
    for round_, first in (("first", 0), ("second", 17)):
        losses = [t.metrics["loss"] for t in result.trials[first : first + 17] if t.reports]
        print(f"{round_} round: {len(losses)} trials, lowest loss {min(losses):.3f}")
    print(f"best: loss {best.metrics['loss']:.3f}, accuracy {best.metrics['accuracy']:.3f}")
    for name, schedule in best.configuration.text.items():
        print(f"  {name} = {schedule}")
    print(
        f"{result.steps_requested} epochs requested, {result.steps_unique} distinct, "
        f"{result.steps_executed} trained"
    )
