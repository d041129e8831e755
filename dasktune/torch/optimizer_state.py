"""Give an optimizer its state back to the last bit.

torch brings what it loads to the type of the parameters: with parameters of another type than
float32 that changes running products (NAdam), counters, and any float32 copy that an optimizer
keeps on purpose. It also takes to the GPU what was made on the CPU.
"""

from collections.abc import Mapping, Set
from copy import deepcopy
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import ASGD, Optimizer

Piece: TypeAlias = Any
"""A part of an optimizer's state: a tensor, a number, or a collection of them."""

_ON_CPU: Set[object] = frozenset({"step", "mu_product"})
"""Numbers that stay on the CPU unless an optimizer is capturable or fused; but for ASGD."""


def load(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """Take a state back; it stays the caller's own.

    Args:
        optimizer: With the parameter groups that it had.
        saved: What `state_dict()` gave, all tensors on the CPU or where they were.
    """
    own = deepcopy(dict(saved))  # it keeps what it is given
    optimizer.load_state_dict(own)
    state = own.get("state", {})
    there, here = own.get("param_groups", []), optimizer.param_groups
    for saved_group, group in zip(there, here, strict=False):
        takes_all = bool(group.get("capturable") or group.get("fused"))
        on_cpu = frozenset() if takes_all else _ON_CPU
        for number, parameter in zip(saved_group["params"], group["params"], strict=False):
            if number in state and parameter in optimizer.state:
                mended = _mended(state[number], optimizer.state[parameter], on_cpu)
                if isinstance(optimizer, ASGD):  # it computes with its count where the parameter is
                    mended["step"] = mended["step"].to(parameter.device)
                optimizer.state[parameter] = mended


def _mended(saved: Piece, loaded: Piece, on_cpu: Set[object], name: object = None) -> Piece:
    """Return what was loaded, with values and types as they were saved."""
    match saved:
        case Tensor() if isinstance(loaded, Tensor):
            device = saved.device if name in on_cpu else loaded.device
            is_same = saved.dtype == loaded.dtype and device == loaded.device
            return loaded if is_same else saved.to(device)
        case dict() if isinstance(loaded, dict):
            return {
                key: _mended(saved[key], part, on_cpu, key) if key in saved else part
                for key, part in loaded.items()
            }
        case list() | tuple() if isinstance(loaded, type(saved)) and len(saved) == len(loaded):
            parts = zip(saved, loaded, strict=True)
            return type(saved)([_mended(one, other, on_cpu) for one, other in parts])
        case str() | bytes():
            return saved  # torch takes it for a collection
    return loaded
