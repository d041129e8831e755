"""Tune a small network on scikit-learn's handwritten digits, on all cores of this computer.

    .venv/bin/python examples/quickstart.py

Twenty-four trials differ in how the learning rate and the batch size change while they train. Many
agree for the first epochs: those are trained once. Run it again, and the answer comes from
`./dasktune-store`.

ASHA decides in the order in which trials report. On several cores that order differs from run to
run, and with it the numbers of epochs, and now and then the winner.
"""

import time
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


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 1, 8, 8) with values from 0 to 1, and labels."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16).float().view(-1, 1, 8, 8), torch.tensor(labels)


class Digits(TorchTrainable):
    """A convolutional network; a step is an epoch."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        """Build the network."""
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(hp["dropout"]),
            nn.Linear(512, 10),
        )

    def train_data(self) -> TensorDataset:
        """Return the digits to train on."""
        images, labels = digits()
        return TensorDataset(images[:N_TRAINING], labels[:N_TRAINING])

    def eval_data(self) -> TensorDataset:
        """Return the digits to evaluate on."""
        images, labels = digits()
        return TensorDataset(images[N_TRAINING:], labels[N_TRAINING:])


study = dt.Study(
    Digits(),
    space={
        "lr": dt.choice(
            [
                dt.constant(0.05),
                dt.step_decay(
                    0.05, factor=dt.choice([0.1, 0.3]), at=dt.choice([[6], [6, 12], [12]])
                ),
                dt.exponential(0.05, 0.9),
                dt.cosine(0.05, 18),
                dt.warmup(2, dt.constant(0.1)),
                dt.warmup(2, dt.step_decay(0.1, factor=0.1, at=[10])),
                dt.warmup(2, dt.cosine(0.1, 16)),
            ]
        ),
        "batch_size": dt.choice([dt.constant(16), dt.piecewise({0: 16, 6: 64})]),
        "momentum": 0.9,
        "dropout": 0.2,
    },
    sampler=dt.Grid(),
    tuner=dt.ASHA(min_steps=2, max_steps=18, reduction_factor=3),
    metric="accuracy",
    mode="max",
    name="digits",
)

if __name__ == "__main__":
    began_s, heard = time.perf_counter(), list[object]()
    result = dt.run(study, on_event=heard.append)
    call_s = time.perf_counter() - began_s
    best = result.best
    if best is None:
        raise SystemExit(result.reason)
    print(f"best of {len(result.trials)} trials: {best.configuration.text}")
    print(f"accuracy {best.metrics['accuracy']:.3f} after {best.steps} epochs")
    print(
        f"{result.steps_requested} epochs requested, {result.steps_unique} unique, "
        f"{result.steps_executed} trained: merge rate {result.merge_rate:.2f}"
    )
    if result.steps_executed:
        step_s = result.worker_seconds / result.steps_executed
        saved_s = step_s * (result.steps_requested - result.steps_executed)
        print(
            f"saved about {saved_s:.0f} s of training, at {step_s:.2f} s an epoch; "
            f"took {result.makespan_s:.0f} s on this computer's cores"
        )
    how = "the study ran" if heard else "the answer came from the store, nothing was trained"
    print(f"this call: {how}; {call_s:.1f} s")
