"""Tune deep-learning models on Dask clusters without training any step twice."""

from dasktune.errors import BackendError, DasktuneError, InvalidStudyError, StageError
from dasktune.explain import explain
from dasktune.samplers.grid import Grid
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
    step_decay,
    uniform,
    warmup,
)
from dasktune.study.study import Study
from dasktune.tuners.asha import ASHA
from dasktune.tuners.full import FullTraining
from dasktune.tuners.successive_halving import SuccessiveHalving

__all__ = [
    "ASHA",
    "BackendError",
    "Configuration",
    "DasktuneError",
    "FullTraining",
    "Grid",
    "InvalidStudyError",
    "Random",
    "StageError",
    "Study",
    "SuccessiveHalving",
    "World",
    "choice",
    "constant",
    "cosine",
    "cosine_restarts",
    "cyclic",
    "explain",
    "exponential",
    "join",
    "linear",
    "logint",
    "loguniform",
    "piecewise",
    "polynomial",
    "randint",
    "simulate",
    "step_decay",
    "uniform",
    "warmup",
]
