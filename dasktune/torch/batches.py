"""Say which samples make which batch: a function of training seed, position and batch size alone.

The order of the samples in an epoch depends on (training seed, epoch), never on the batch size, so
a batch size may change at any step, in mid-epoch too. Every batch has a seed of its own for what is
random in making it; so it comes out the same whoever makes it, and whenever.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from dasktune.errors import StageError
from dasktune.torch.randomness import derived_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where training stands in its data."""

    epoch: int
    """The current epoch, from 0."""
    sample: int
    """How many samples of its order came already; less than there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples that are trained on, or evaluated, together."""

    samples: tuple[int, ...]
    """Indices into the data set."""
    seed: int
    """For what is random in making the batch, such as augmentation."""


def training_batches(
    n_samples: int,
    begin: Position,
    *,
    training_seed: int,
    batch_size: int,
    n_batches: int | None,
    drop_last: bool,
) -> tuple[list[Batch], Position]:
    """Choose the batches of one step; return them and the position behind them.

    Args:
        n_samples: Of the data set.
        begin: Where the step begins.
        training_seed: Decides the orders.
        batch_size: Samples in a batch; the last of an epoch may have fewer.
        n_batches: How many; None for the rest of the epoch.
        drop_last: Leave out a last batch that has fewer.

    Raises:
        StageError: There is no batch to choose.
    """
    if drop_last and batch_size > n_samples:
        raise StageError(
            f"batch_size is {batch_size} and the training data has {n_samples} samples: with "
            "drop_last no batch is left"
        )
    chosen: list[Batch] = []
    epoch, sample = begin.epoch, begin.sample
    while True:
        order = _order(n_samples, training_seed, epoch)
        stop = n_samples - batch_size + 1 if drop_last else n_samples
        for first in range(sample, stop, batch_size):
            if len(chosen) == n_batches:
                return chosen, Position(epoch=epoch, sample=first)
            samples = tuple(order[first : first + batch_size].tolist())
            seed = derived_seed("dasktune-batch-1", training_seed, epoch, first)
            chosen.append(Batch(samples=samples, seed=seed))
        epoch, sample = epoch + 1, 0
        if n_batches is None or len(chosen) == n_batches:
            return chosen, Position(epoch=epoch, sample=0)


def evaluation_batches(n_samples: int, batch_size: int) -> list[Batch]:
    """Choose all samples, in their order."""
    return [
        Batch(
            samples=tuple(range(first, min(first + batch_size, n_samples))),
            seed=derived_seed("dasktune-evaluation-1", first),
        )
        for first in range(0, n_samples, batch_size)
    ]


@lru_cache(maxsize=2)  # steps of few batches would shuffle a large data set again and again
def _order(n_samples: int, training_seed: int, epoch: int) -> torch.Tensor:
    """Shuffle the indices of an epoch; (n_samples,)."""
    seed = derived_seed("dasktune-order-1", training_seed, epoch)
    return torch.randperm(n_samples, generator=torch.Generator().manual_seed(seed))
