"""Let torch choose algorithms that give the same bits each time.

On a CPU it does so anyway, at an equal number of threads. On a GPU many sums are made in whatever
order threads come: `index_add`, the backward pass of interpolation or of attention, and more.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from dasktune.errors import StageError

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_REFUSAL = "use_deterministic_algorithms"
"""Stands in each of torch's errors about an operation that has no such algorithm."""


def prepare(device: torch.device) -> None:
    """Let cuBLAS repeat itself, unless the user has decided; it asks at its first use only."""
    if device.type == "cuda":
        os.environ.setdefault(_CUBLAS, ":4096:8")


@contextmanager
def repeatable(device: torch.device, *, strict: bool) -> Iterator[None]:
    """Choose repeatable algorithms inside; put the choice back, whatever happens.

    Args:
        device: Where is computed. On a CPU only cuDNN's settings are touched.
        strict: Whether an operation on a GPU that has no such algorithm is refused; otherwise only
            convolutions are sure to repeat.

    Raises:
        StageError: There is such an operation.
    """
    with _repeatable_convolutions():
        if not strict or device.type != "cuda":
            yield
            return
        with _strict():
            try:
                yield
            except RuntimeError as error:
                if _REFUSAL not in str(error):
                    raise
                raise StageError(
                    "training must give the same bits each time, and torch refused "
                    f"({error}); {_advice(str(error))}"
                ) from error


def _advice(refusal: str) -> str:
    if _CUBLAS in refusal:  # older versions of torch ask once in a process, at the first use
        return f"start the process with {_CUBLAS}=:4096:8 in its environment"
    return (
        "use another operation, or set the trainable's attribute deterministic to False: then a "
        "state that has to be made again may differ"
    )


@contextmanager
def _repeatable_convolutions() -> Iterator[None]:
    """Let cuDNN choose by rule, and not by stopwatch."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


@contextmanager
def _strict() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic: Any = torch.utils.deterministic  # its type does not say what it has
    fills = deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=False)
    # A pass over all memory that is taken, for the sake of code that reads what nobody wrote.
    deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        deterministic.fill_uninitialized_memory = fills
