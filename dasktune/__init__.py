"""Tune deep-learning models on Dask clusters without training any step twice."""

from importlib import import_module
from typing import TYPE_CHECKING

from dasktune.errors import BackendError, DasktuneError, InvalidStudyError, StageError
from dasktune.explain import explain
from dasktune.samplers.grid import Grid
from dasktune.samplers.optuna import Optuna
from dasktune.samplers.prefix_aware import PrefixAware
from dasktune.samplers.random import Random
from dasktune.simulator.simulate import simulate
from dasktune.simulator.world import World
from dasktune.space import (
    Configuration,
    choice,
    constant,
    cosine,
    cosine_restarts,
    cyclic,
    exponential,
    join,
    linear,
    logint,
    loguniform,
    piecewise,
    polynomial,
    randint,
    splice,
    step_decay,
    uniform,
    warmup,
)
from dasktune.study.study import Study
from dasktune.tuners.asha import ASHA
from dasktune.tuners.async_hyperband import AsyncHyperband
from dasktune.tuners.full import FullTraining
from dasktune.tuners.hyperband import Hyperband
from dasktune.tuners.median_stopping import MedianStopping
from dasktune.tuners.population import PopulationBasedTraining
from dasktune.tuners.successive_halving import SuccessiveHalving

if TYPE_CHECKING:
    from dasktune.runner import extend, run
    from dasktune.runtime.check import check
    from dasktune.store.recorded import load_result
    from dasktune.store.store import Store

    __version__: str

__all__ = [
    "ASHA",
    "AsyncHyperband",
    "BackendError",
    "Configuration",
    "DasktuneError",
    "FullTraining",
    "Grid",
    "Hyperband",
    "InvalidStudyError",
    "MedianStopping",
    "Optuna",
    "PopulationBasedTraining",
    "PrefixAware",
    "Random",
    "StageError",
    "Store",
    "Study",
    "SuccessiveHalving",
    "World",
    "check",
    "choice",
    "constant",
    "cosine",
    "cosine_restarts",
    "cyclic",
    "explain",
    "exponential",
    "extend",
    "join",
    "linear",
    "load_result",
    "logint",
    "loguniform",
    "piecewise",
    "polynomial",
    "randint",
    "run",
    "simulate",
    "splice",
    "step_decay",
    "uniform",
    "warmup",
]


def __getattr__(name: str) -> object:
    """Import `run`, `check` and what reads stores, and dask with them, when they are asked for.

    The one lazy import: spaces and simulations need neither, and dask takes longer to import than
    all of the pure core.
    """
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("dasktune")
    raise AttributeError(f"module 'dasktune' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List what there is, also what is not imported yet, so that it can be completed."""
    return sorted({*globals(), *_LAZY, "__version__"})


_LAZY = {
    "Store": "dasktune.store.store",
    "check": "dasktune.runtime.check",
    "extend": "dasktune.runner",
    "load_result": "dasktune.store.recorded",
    "run": "dasktune.runner",
}
