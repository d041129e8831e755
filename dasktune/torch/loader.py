"""Make batches from a data set, here or in loader workers: the same ones, in the same order.

What is random in a data set (augmentation) draws from the global generators of the CPU. They are
seeded for each batch, around it, so neither the number of workers nor reading ahead leaves a trace:
not in the batches, and not in what training itself draws. Those of GPUs are left alone, here as in
workers, which have none: what a data set draws there is part of the step.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import torch
from torch.utils.data import DataLoader, TensorDataset

from dasktune.errors import StageError
from dasktune.torch.batches import Batch
from dasktune.torch.randomness import seeded

Content: TypeAlias = Any
"""What the user's data and hooks hand to one another: mostly tensors in tuples, lists or dicts."""


class Samples(Protocol):
    """A data set with a length whose samples have numbers."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, index: int, /) -> Content:
        """Return one sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """System parameters of loading: they change speed, and no bit of the result."""

    num_workers: int = 0
    """Processes that make batches ahead; 0: they are made where training runs."""
    pin_memory: bool = False
    """Whether batches come in page-locked memory, from where a GPU copies them by itself."""
    prefetch_factor: int = 2
    """Batches that each worker makes ahead."""

    def changed(self, parameters: Mapping[str, object]) -> "Knobs":
        """Take over the parameters that are meant for loading.

        Raises:
            StageError: A value does not fit.
        """
        return Knobs(
            num_workers=_whole(parameters, "num_workers", 0, self.num_workers),
            pin_memory=bool(parameters.get("pin_memory", self.pin_memory)),
            prefetch_factor=_whole(parameters, "prefetch_factor", 1, self.prefetch_factor),
        )


class Loader:
    """Batches of one data set; its workers live as long as it does."""

    def __init__(
        self,
        data: Samples,
        collate: Callable[[list[Content]], Content] | None,
        *,
        knobs: Knobs,
        device: torch.device,
    ) -> None:
        """Prepare; workers start with the first batch.

        Args:
            data: Where samples come from.
            collate: Makes a batch of samples; None: torch's way.
            knobs: How batches are made.
            device: Where they are wanted.

        Raises:
            StageError: There may be no worker processes here.
        """
        self.n_samples = len(data)
        self._wanted: list[Batch] = []
        self._batches: Callable[[], Iterator[Content]]
        if collate is None and type(data) is TensorDataset:
            tensors = data.tensors
            self._batches = lambda: (_rows(tensors, batch) for batch in self._wanted)
            return
        fetch = _Fetch(data, collate or torch.utils.data.default_collate)
        if knobs.num_workers:
            loader = _with_workers(fetch, self._wanted, knobs, device)
            self._batches = lambda: iter(loader)
        else:
            self._batches = lambda: (fetch[batch] for batch in self._wanted)

    def batches(self, wanted: Sequence[Batch]) -> Iterator[Content]:
        """Yield the batches; all of them, before others are asked for."""
        self._wanted[:] = wanted
        return self._batches()


class _Fetch:
    """A data set whose items are whole batches."""

    def __init__(self, data: Samples, collate: Callable[[list[Content]], Content]) -> None:
        self._data = data
        self._collate = collate

    def __getitem__(self, batch: Batch) -> Content:
        many = getattr(self._data, "__getitems__", None)
        with seeded(batch.seed, on_devices=False):
            if callable(many):
                return self._collate(many(list(batch.samples)))
            return self._collate([self._data[index] for index in batch.samples])


def _rows(tensors: Sequence[torch.Tensor], batch: Batch) -> Content:
    """Take what collating single samples of a TensorDataset gives, many times as fast."""
    index = torch.tensor(batch.samples)
    return [tensor[index] for tensor in tensors]


def _with_workers(
    fetch: _Fetch, wanted: list[Batch], knobs: Knobs, device: torch.device
) -> "DataLoader[Content]":
    if multiprocessing.current_process().daemon:
        raise StageError(
            f"num_workers is {knobs.num_workers}, but this worker is a daemonic process and may "
            "start no other: set distributed.worker.daemon to False, or num_workers to 0"
        )
    return DataLoader(
        cast("Any", fetch),  # all that torch asks of it are items
        batch_size=None,  # an item is a batch already
        sampler=wanted,
        collate_fn=_same,
        num_workers=knobs.num_workers,
        prefetch_factor=knobs.prefetch_factor,
        persistent_workers=True,
        pin_memory=knobs.pin_memory and device.type == "cuda",
        generator=torch.Generator(),  # otherwise it draws a number from the global one
        # Classes of a script or a notebook reach no process that is not forked.
        multiprocessing_context="fork" if sys.platform == "linux" else None,
    )


def _same(batch: Content) -> Content:
    return batch


def _whole(parameters: Mapping[str, object], name: str, least: int, otherwise: int) -> int:
    value = parameters.get(name, otherwise)
    if type(value) is not int or value < least:
        raise StageError(f"{name} is {value!r}; it must be a whole number, at least {least}")
    return value
