"""Hold what is in training: a module, its optimizer, and where they stand in the data.

Everything here is either in the state, or made anew from the values of step 0 and the training
seed; nothing else may live in it, or an instance that goes on would differ from a restored one.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dasktune.torch.batches import Position
from dasktune.torch.datasets import Origin
from dasktune.torch.loader import Loader


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

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in lower precision inside, if that is wanted."""
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.precision)

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
        self.optimizer.load_state_dict(deepcopy(saved["optimizer"]))  # it keeps what it is given
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


@contextmanager
def repeatable_convolutions() -> Iterator[None]:
    """Let cuDNN choose algorithms that give the same bits each time, and not by stopwatch."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before
