"""An optimizer that takes its state back is the one that gave it, whatever its parameters' type."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from dasktune.store.codec import decode, encode
from dasktune.torch.optimizer_state import load

pytestmark = pytest.mark.torch


class Master(Optimizer):
    """Keeps copies in float32, counters and names, nested in several ways."""

    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    master = parameter.detach().float()
                    state.update(kind="slow", calls=torch.tensor(0), nested={"copies": [master]})
                    state.update(pair=(1.5, torch.zeros(2, dtype=torch.bool)), raw=b"\0")
                master = state["nested"]["copies"][0]
                master -= 0.01 * parameter.grad
                state["calls"] += (1 << 60) + 1
                parameter.data.copy_(master)


MAKERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "Master": Master,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": torch.optim.Adagrad,
    "Adam": lambda params: torch.optim.Adam(params, amsgrad=True),
    "AdamW": lambda params: torch.optim.AdamW(params, foreach=True),
    "Adamax": torch.optim.Adamax,
    "ASGD": lambda params: torch.optim.ASGD(params, t0=1, lambd=0.3),
    "LBFGS": lambda params: torch.optim.LBFGS(params, max_iter=2),
    "NAdam": lambda params: torch.optim.NAdam(params, momentum_decay=0.1),
    "NAdam, foreach": lambda params: torch.optim.NAdam(params, foreach=True),
    "RAdam": torch.optim.RAdam,
    "RMSprop": lambda params: torch.optim.RMSprop(params, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam, fused": lambda params: torch.optim.Adam(params, fused=True),
    "SparseAdam": torch.optim.SparseAdam,
    "Muon": getattr(torch.optim, "Muon", torch.optim.SGD),  # newer than the oldest that we take
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def advance(optimizer: Optimizer, params: list[Tensor], steps: range) -> None:
    is_sparse = isinstance(optimizer, torch.optim.SparseAdam)

    def closure() -> float:
        return float(sum(parameter.detach().double().square().sum() for parameter in params))

    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in params:
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = gradient.to_sparse() if is_sparse else gradient
        optimizer.step(closure)


def made(maker: str, values: Iterable[Tensor]) -> tuple[list[Tensor], Optimizer]:
    params: list[Tensor] = [torch.nn.Parameter(value.clone()) for value in values]
    return params, MAKERS[maker](params)


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_restored_optimizer_goes_on_as_the_one_that_was_saved(
    maker: str, dtype: torch.dtype, steps: int
) -> None:
    generator = torch.Generator().manual_seed(99)
    warm, one = made(maker, [torch.randn(3, 2, generator=generator).to(dtype) for _ in range(2)])
    advance(one, warm, range(steps))
    saved = encode(one.state_dict())
    state = decode(saved)
    cold, other = made(maker, [parameter.detach() for parameter in warm])

    load(other, state)

    assert encode(other.state_dict()) == saved
    for step in range(steps, steps + 2):
        advance(one, warm, range(step, step + 1))
        advance(other, cold, range(step, step + 1))
        assert encode(other.state_dict()) == encode(one.state_dict())
        assert encode([p.detach() for p in cold]) == encode([p.detach() for p in warm])
    assert encode(state) == saved  # it stays the caller's own


def test_an_optimizer_that_loads_in_its_own_way_is_left_alone() -> None:
    class Own(torch.optim.SGD):
        def state_dict(self) -> dict[str, Any]:
            return {"own": torch.ones(2)}

        def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
            self.own = state_dict["own"]

    optimizer = Own([torch.nn.Parameter(torch.zeros(2))])
    load(optimizer, {"own": torch.full((2,), 3.0)})

    assert optimizer.own.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("is_capturable", [False, True])
def test_what_an_optimizer_keeps_on_the_cpu_comes_back_to_the_cpu(is_capturable: bool) -> None:
    """The device `meta` stands for a GPU."""
    parameter = torch.nn.Parameter(torch.zeros(2, device="meta"))
    optimizer = torch.optim.NAdam([parameter], capturable=is_capturable)
    one = torch.tensor(0.5)
    state = {"step": one, "mu_product": one, "exp_avg": torch.ones(2)}
    groups = [group | {"params": [0]} for group in optimizer.state_dict()["param_groups"]]

    load(optimizer, {"state": {0: state}, "param_groups": groups})

    devices = {name: part.device.type for name, part in optimizer.state[parameter].items()}
    scalars = "meta" if is_capturable else "cpu"
    assert devices == {"step": scalars, "mu_product": scalars, "exp_avg": "meta"}
