"""Check what hooks, attributes and hyper-parameters give, and say in a sentence what would fit."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from dasktune.errors import StageError
from dasktune.space.value import shown
from dasktune.torch.loader import Samples

T = TypeVar("T")

Answer: TypeAlias = Any
"""What came from the user, and may be anything."""

_PRECISIONS: Mapping[object, torch.dtype | None] = {
    False: None,
    True: torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def instance(answer: object, kind: type[T], hook: str) -> T:
    """Return the answer if it is of the kind."""
    if isinstance(answer, kind):
        return answer
    hint = ": give an instance, not the class" if isinstance(answer, type) else ""
    raise StageError(
        f"{hook} returned {shown(answer)}; it must return a {kind.__module__.partition('.')[0]} "
        f"{kind.__name__}{hint}"
    )


def needed(hp: Mapping[str, Any], name: str) -> Answer:
    """Return the value of a hyper-parameter that must be there."""
    if name not in hp:
        raise StageError(
            f"there is no hyper-parameter {name!r} among {', '.join(sorted(hp)) or 'none'}: add it "
            "to the space, as a schedule, a domain or a fixed value"
        )
    return hp[name]


def count(value: object, name: str) -> int:
    """Return a number of things, at least one."""
    if type(value) is not int or value < 1:
        raise StageError(f"{name} is {shown(value)}; it must be a whole number, at least 1")
    return value


def truth(value: object, name: str) -> bool:
    """Return a switch."""
    if not isinstance(value, bool):
        raise StageError(f"{name} is {shown(value)}; it must be True or False")
    return value


def precision(amp: object) -> torch.dtype | None:
    """Return the type that autocast computes in; None: no autocast."""
    if not isinstance(amp, bool | str) or amp not in _PRECISIONS:
        raise StageError(f"amp is {shown(amp)}; it must be False, True, 'bfloat16' or 'float16'")
    return _PRECISIONS[amp]


def samples(data: Answer, hook: str) -> Samples:
    """Return a data set if its samples have numbers, and there is one."""
    is_stream = isinstance(data, IterableDataset)
    if is_stream or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise StageError(
            f"{hook}() returned {shown(data)}; it must return a data set with len() and samples by "
            "number, since only these can be taken up in the middle"
        )
    if not len(data):
        raise StageError(f"{hook}() returned a data set without samples")
    return cast("Samples", data)


def pair(answer: Answer, hook: str) -> tuple[Any, Any]:
    """Return the two parts of a batch, or of an answer."""
    if isinstance(answer, tuple | list) and len(answer) == 2:  # noqa: PLR2004
        return answer[0], answer[1]
    raise StageError(
        f"{hook} deals with pairs of inputs (or outputs) and targets, not with "
        f"{type(answer).__name__}: override it"
    )


def loss(answer: object) -> Tensor:
    """Return a loss if it is one number with a gradient."""
    if not isinstance(answer, Tensor) or answer.numel() != 1 or not answer.requires_grad:
        raise StageError(
            f"the loss of a batch is {shown(answer)}; it must be a tensor of one number, computed "
            "from the outputs of the model"
        )
    return answer


def tuned(group: Mapping[str, Any], hp: Mapping[str, Any]) -> Iterator[str]:
    """Yield the hyper-parameters that a parameter group knows."""
    return (name for name in hp if name in group and name != "params")


def check_groups(optimizer: Optimizer, hp: Mapping[str, Any]) -> None:
    """Refuse parameter groups that were made to differ in a hyper-parameter."""
    groups = optimizer.param_groups
    for name in {name for group in groups for name in tuned(group, hp)}:
        given = [group[name] for group in groups if name in group]
        if any(value != given[0] for value in given):
            raise StageError(
                f"optimizer(model, hp) made parameter groups with {name} {shown(given)}, and the "
                f"hyper-parameter {name} would reach all of them: override "
                "update_groups(optimizer, hp), which writes values to groups before each step"
            )


def are_classes(outputs: Answer, targets: Answer) -> bool:
    """Say whether targets are numbers of classes, and outputs a score for each class."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return False
    is_other = targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool
    return not is_other and outputs.ndim == targets.ndim + 1


def flattened(outputs: Answer, targets: Answer) -> tuple[Answer, Answer]:
    """Make of images or rows of classes, (N, C, ...) and (N, ...), a row of samples.

    What is no such pair comes back as it is.
    """
    if not are_classes(outputs, targets) or targets.ndim < 2:  # noqa: PLR2004
        return outputs, targets
    return outputs.movedim(1, -1).flatten(0, -2), targets.flatten()


def moved(batch: Answer, device: torch.device) -> Answer:
    """Bring the tensors of a batch to a device."""
    match batch:
        case Tensor():
            return batch.to(device, non_blocking=True)
        case Mapping():
            return {name: moved(part, device) for name, part in batch.items()}
        case tuple() if hasattr(batch, "_fields"):
            return type(batch)(*(moved(part, device) for part in batch))
        case tuple() | list():
            return type(batch)(moved(part, device) for part in batch)
    return batch
