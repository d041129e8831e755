"""Hold what is in training: a module, its optimizer, and where they stand in the data.

Everything here is either in the state, or made anew from the values of step 0 and the training
seed; nothing else may live in it, or an instance that goes on would differ from a restored one.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dasktune.torch.batches import Position
from dasktune.torch.datasets import Origin
from dasktune.torch.loader import Loader
from dasktune.torch.optimizer_state import load


@dataclass(slots=True, kw_only=True)
class Loop:
    """What `setup` made."""

    origin: Origin | None
    """Finds the data sets that are kept."""
    first_values: Mapping[str, Any]
    """Hyper-parameters of step 0."""
    training_seed: int
    """Decides orders and augmentation."""
    device: torch.device
    """Where the module is."""
    precision: torch.dtype | None
    """What autocast computes in; None: no autocast."""
    module: nn.Module
    """In the state, with all buffers."""
    optimizer: Optimizer
    """In the state."""
    scaler: torch.amp.GradScaler | None
    """In the state; only with float16."""
    position: Position = field(default_factory=lambda: Position(epoch=0, sample=0))
    """In the state."""
    loaders: dict[str, Loader] = field(default_factory=dict)
    """By hook; without a trace in results."""
    others: list[nn.Parameter] = field(default_factory=list)
    """Parameters of the module that are not the optimizer's; found anew in each step."""

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in lower precision inside, if that is wanted."""
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.precision)

    def begin_step(self) -> None:
        """Find the parameters of the module that the optimizer does not have, once for all batches.

        Their gradients would pile up for as long as the instance lives, and be gone in a restored
        one.
        """
        groups = self.optimizer.param_groups
        known = {id(parameter) for group in groups for parameter in group["params"]}
        self.others = [part for part in self.module.parameters() if id(part) not in known]

    def forget_gradients(self) -> None:
        """Drop the gradients of the batch before."""
        self.optimizer.zero_grad()
        for parameter in self.others:
            parameter.grad = None

    def backward(self, loss: Tensor) -> None:
        """Make the gradients of a loss."""
        if self.scaler is None:
            loss.backward()
            return
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        gradients = [part.grad for part in self.others if part.grad is not None]
        scale = self.scaler.get_scale() if gradients else 1.0  # a GPU is waited for
        for gradient in gradients:
            gradient.div_(scale)

    def update(self) -> None:
        """Let the optimizer use the gradients."""
        if self.scaler is None:
            self.optimizer.step()
            return
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state(self) -> dict[str, object]:
        """Return the state; its tensors are those in training."""
        state: dict[str, object] = {
            "model": self.module.state_dict(),
            "buffers": self._hidden_buffers(),
            "optimizer": self.optimizer.state_dict(),
            "position": asdict(self.position),
        }
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        return state

    def restore(self, state: object) -> None:
        """Take a state back, and keep none of its tensors."""
        saved = cast("dict[str, Any]", state)
        self.module.load_state_dict(saved["model"])
        for name, content in saved["buffers"].items():
            self._put_buffer(name, content)
        load(self.optimizer, saved["optimizer"])
        self.position = Position(**saved["position"])
        if self.scaler is not None:
            self.scaler.load_state_dict(saved["scaler"])

    def _put_buffer(self, name: str, content: Tensor) -> None:
        path, _, attribute = name.rpartition(".")
        owner = self.module.get_submodule(path)
        there = getattr(owner, attribute, None)
        if isinstance(there, Tensor) and there.shape == content.shape:
            there.copy_(content)  # in place: another name may stand for the same buffer
        else:
            setattr(owner, attribute, content.to(self.device, copy=True))

    def _hidden_buffers(self) -> dict[str, Tensor]:
        """Find the buffers that are not persistent: a module may change these too."""
        shown = self.module.state_dict()
        return {
            name: buffer.detach()
            for name, buffer in self.module.named_buffers(remove_duplicate=False)
            if name not in shown
        }
