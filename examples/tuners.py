"""Search one space with every tuner at once: all of them share what they train.

    .venv/bin/python examples/tuners.py

Twenty schedules of learning rate and batch size, eight epochs, on handwritten digits.
All studies run together on one plan, so an epoch that several tuners ask for is trained once; the
table says what each would have had to train alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import dasktune as dt
from dasktune.torch import TorchTrainable
from dasktune.tuners.tuner import Tuner

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


space: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(0.1),
            dt.step_decay(0.1, factor=dt.choice([0.1, 0.3]), at=dt.choice([[3], [6], [3, 6]])),
            dt.warmup(2, dt.constant(0.1)),
            dt.warmup(2, dt.cosine(0.1, 6)),
            dt.constant(0.01),
        ]
    ),
    "batch_size": dt.choice([dt.constant(16), dt.piecewise({0: 16, 6: 64})]),
    "momentum": 0.9,
    "dropout": 0.2,
}

rungs: Any = {"min_steps": 2, "max_steps": 8, "reduction_factor": 2}
tuners: dict[str, Tuner] = {
    "full": dt.FullTraining(8),
    "halving": dt.SuccessiveHalving(**rungs),
    "asha": dt.ASHA(**rungs),
    "asha-stopping": dt.ASHA(**rungs, variant="stopping"),
    "hyperband": dt.Hyperband(**rungs),
    "async-hyperband": dt.AsyncHyperband(**rungs),
    "median-stopping": dt.MedianStopping(8, min_trials=2),
    "population": dt.PopulationBasedTraining(
        max_steps=8, ready_steps=2, quantile=0.25, fixed=("dropout", "momentum")
    ),
}

studies = [
    dt.Study(
        Digits(),
        space=space,
        tuner=tuner,
        metric="loss",
        mode="min",
        n_trials=8 if name == "population" else 16,
        name=name,
    )
    for name, tuner in tuners.items()
]

if __name__ == "__main__":
    results = dt.run(studies, workers=2)
    print(
        f"{'tuner':16} {'trials':>6} {'requested':>9} {'distinct':>8} {'loss':>6} {'accuracy':>8}"
    )
    for result in results:
        best = result.best
        if best is None:
            raise SystemExit(f"{result.study.name}: {result.reason}")
        print(
            f"{result.study.name:16} {len(result.trials):6} {result.steps_requested:9} "
            f"{result.steps_unique:8} {best.metrics['loss']:6.3f} {best.metrics['accuracy']:8.3f}"
        )
    requested = sum(result.steps_requested for result in results)
    distinct = sum(result.steps_unique for result in results)
    print(
        f"{requested} epochs requested; {distinct} if each tuner shared with itself only; "
        f"{results[0].steps_executed} trained"
    )
