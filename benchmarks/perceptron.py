"""A small torch Trainable that benchmarks/overhead.py launches (benchmarks/perceptron.py).

In a module of its own: see there.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dasktune.torch import TorchTrainable


class Perceptron(TorchTrainable):
    """A small network on random numbers, which leaves the same note at its first batch."""

    def __init__(self, note: str) -> None:
        self.note = note

    def model(self, hp: Mapping[str, Any]) -> nn.Module:  # noqa: ARG002
        """Build two layers."""
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def train_data(self) -> TensorDataset:
        """Draw samples."""
        return TensorDataset(torch.rand(256, 64), torch.randint(10, (256,)))

    def eval_data(self) -> TensorDataset:
        """Draw samples."""
        return self.train_data()

    def train_batch(self, model: nn.Module, batch: Any, hp: Mapping[str, Any]) -> Tensor:  # noqa: ANN401
        """Train as usual."""
        note = Path(self.note)
        if not note.exists():
            note.write_text(str(time.monotonic()))  # one clock for all processes
        return super().train_batch(model, batch, hp)
