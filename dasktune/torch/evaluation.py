"""Evaluate a module so that training goes on as if nobody had looked."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from dasktune.errors import StageError
from dasktune.torch.randomness import derived_seed, seeded

Nested: TypeAlias = Any
"""Tensors, or tuples, lists and dicts of them."""

_SEED = derived_seed("dasktune-evaluate-1")


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation, without gradients; put modes, buffers and generators back."""
    modes = [(part, part.training) for part in module.modules()]
    buffers = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    module.eval()
    try:
        with seeded(_SEED), torch.no_grad():
            yield
    finally:
        for part, is_training in modes:
            part.training = is_training
        with torch.no_grad():
            for part, name, buffer, content in buffers:
                if getattr(part, name) is not buffer:
                    setattr(part, name, buffer)
                buffer.copy_(content)


def joined(pieces: Sequence[Nested]) -> Nested:
    """Put the outputs of all batches together, sample by sample.

    Raises:
        StageError: They are not tensors, or tuples, lists or dicts of them.
    """
    first = pieces[0]
    match first:
        case torch.Tensor():
            return torch.cat([piece if piece.ndim else piece.unsqueeze(0) for piece in pieces])
        case Mapping():
            return {name: joined([piece[name] for piece in pieces]) for name in first}
        case tuple() | list():
            return tuple(joined(parts) for parts in zip(*pieces, strict=True))
    raise StageError(
        f"eval_batch() gave an object of {type(first).__name__}; it must give a pair of outputs "
        "and targets, and these must be tensors, or tuples, lists or dicts of tensors"
    )
