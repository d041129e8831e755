"""What every sampler owes: propose configurations, one at a time.

A *sampler* is a frozen description that a study holds; `start` makes a `SamplerRun` of it, whose
state is a function of the draws it was told of. So a recorded draw can be fed to it instead of
asked from it, and a resumed study goes on as if nothing had happened.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point, SearchSpace
from dasktune.units import Step

NewSteps: TypeAlias = Callable[[Configuration, Step], int]
"""How many steps that nobody has asked for yet a configuration would cost up to a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext:
    """What a run may know about its study."""

    space: SearchSpace
    n_trials: int
    """Trials there will be at most."""
    seed: int
    """Seed of the study: draws depend on it and on nothing else that is random."""


class Sampler(ABC):
    """The description of a policy: which configurations."""

    __slots__ = ()

    draws_ahead: bool = False
    """True: draws do not depend on reports, so all are made when the study starts. The plan then
    knows every fork before it trains."""

    @abstractmethod
    def start(self, context: SamplerContext) -> "SamplerRun":
        """Begin a run of this policy; refuse a space that it cannot search."""


class SamplerRun(ABC):
    """One run of a policy."""

    @abstractmethod
    def ask(self, number: int, new_steps: NewSteps) -> Point | None:
        """Propose a draw for the trial of this number; None if the space is exhausted."""

    @abstractmethod
    def record(self, number: int, point: Point) -> None:
        """Hear which draw the trial of this number got, proposed here or recorded earlier."""

    @abstractmethod
    def copy(self) -> Self:
        """Return a run that goes on from here by itself."""
