"""Small trainables, each with something that could break exactness."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from dasktune.torch import TorchTrainable

HP: TypeAlias = Mapping[str, Any]

Content: TypeAlias = Any
"""What hooks hand to one another."""


def examples(n: int, seed: int) -> TensorDataset:
    """Images (n, 1, 6, 6) of three classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=generator)
    images = torch.randn(n, 1, 6, 6, generator=generator) + labels.view(n, 1, 1, 1)
    return TensorDataset(images, labels)


class Convolution(TorchTrainable):
    """A convolution with batch normalisation and dropout, under the optimizer that is asked for."""

    def __init__(
        self,
        kind: str = "sgd",
        batches_per_step: int | None = None,
        amp: bool | str = False,
        drop_last: bool = False,
    ) -> None:
        self.kind = kind
        self.batches_per_step = batches_per_step
        self.amp = amp  # type: ignore[assignment]  # the wrong ones too
        self.drop_last = drop_last
        self.eval_batch_size = 7

    def model(self, hp: HP) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(64, 3),
        )

    def optimizer(self, model: nn.Module, hp: HP) -> torch.optim.Optimizer:
        match self.kind:
            case "adam":
                return torch.optim.Adam(model.parameters(), amsgrad=True)
            case "adamw":
                return torch.optim.AdamW(model.parameters(), weight_decay=0.1)
            case "rprop":
                return torch.optim.Rprop(model.parameters())
        return super().optimizer(model, hp)

    def train_data(self) -> TensorDataset:
        return examples(23, 0)

    def eval_data(self) -> TensorDataset:
        return examples(17, 1)


class Augmented(Dataset[tuple[Tensor, int]]):
    """Draws from all three global generators for each sample, and multiplies as autocast might."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import random  # noqa: PLC0415  (a worker imports what it needs)

        import numpy as np  # noqa: PLC0415

        noise = torch.eye(4) @ torch.rand(4) + random.random() + float(np.random.random())
        return noise + index % 3, index % 3


class Noisy(TorchTrainable):
    """Dropout while training on augmented samples; both draw from the global generators."""

    def __init__(self, batches_per_step: int | None = None) -> None:
        self.batches_per_step = batches_per_step

    def model(self, hp: HP) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def train_data(self) -> Augmented:
        return Augmented(30)

    def eval_data(self) -> Augmented:
        return Augmented(10)


class Counter(nn.Module):
    """Changes buffers whenever it is called, by evaluation too; one of them is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(36, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(36), persistent=False)
        self.calls: Tensor
        self.mean: Tensor

    def forward(self, images: Tensor) -> Tensor:
        inputs = images.flatten(1)
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
        scores: Tensor = self.linear(inputs - self.mean + 0.01 * self.calls)
        return scores


class Counting(Convolution):
    """A module with buffers of its own."""

    def model(self, hp: HP) -> nn.Module:
        return Counter()


class Sampling(Convolution):
    """A module that draws when it is evaluated, too."""

    def eval_batch(self, model: nn.Module, batch: Content) -> tuple[Content, Content]:
        model[3].train()  # type: ignore[index]  # dropout
        return super().eval_batch(model, batch)
