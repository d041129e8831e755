"""What may be tried: values, schedules, domains, templates, and the search space made of them."""

from dasktune.space.choice import Choice, choice
from dasktune.space.composed import join, warmup
from dasktune.space.configuration import Configuration
from dasktune.space.domain import Domain, Float, Int, logint, loguniform, randint, uniform
from dasktune.space.exploration import Exploration
from dasktune.space.periodic import cosine_restarts, cyclic
from dasktune.space.schedule import Schedule, same_until
from dasktune.space.search_space import Point, SearchSpace
from dasktune.space.smooth import cosine, linear, polynomial
from dasktune.space.spliced import splice
from dasktune.space.stepwise import constant, exponential, piecewise, step_decay
from dasktune.space.template import Template
from dasktune.space.value import Value, canonical, token

__all__ = [
    "Choice",
    "Configuration",
    "Domain",
    "Exploration",
    "Float",
    "Int",
    "Point",
    "Schedule",
    "SearchSpace",
    "Template",
    "Value",
    "canonical",
    "choice",
    "constant",
    "cosine",
    "cosine_restarts",
    "cyclic",
    "exponential",
    "join",
    "linear",
    "logint",
    "loguniform",
    "piecewise",
    "polynomial",
    "randint",
    "same_until",
    "splice",
    "step_decay",
    "token",
    "uniform",
    "warmup",
]
