"""What every sampler owes: propose configurations, one at a time.

A *sampler* is a frozen description that a study holds; `start` makes a `SamplerRun` of it, whose
state is a function of the draws and reports it was told of. So a recorded draw can be fed to it
instead of asked from it, and a resumed study goes on as if nothing had happened.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point, SearchSpace
from dasktune.trial import Report, TrialStatus
from dasktune.units import Step

NewSteps: TypeAlias = Callable[[Configuration, Step], int]
"""How many steps that nobody has asked for yet a configuration would cost up to a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTrial:
    """A trial of an earlier study, for a sampler to learn from."""

    point: Point
    """Where it lies in the space of this study."""
    reports: tuple[Report, ...]
    """What it reported, by step, with the scores of this study."""
    status: TrialStatus
    """How it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext:
    """What a run may know about its study."""

    space: SearchSpace
    n_trials: int
    """Trials there will be at most."""
    seed: int
    """Seed of the study: draws depend on it and on nothing else that is random."""
    max_steps: Step = 1
    """The furthest step that a trial is asked for."""
    n_scores: int = 1
    """How many metrics are tuned: the length of a report's `scores`."""
    earlier: tuple[EarlierTrial, ...] = ()
    """What is known before the study begins."""


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
    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        """Propose a draw for the trial of this number; None if the space is exhausted.

        Args:
            number: Of the trial; draws may be asked for more than once, and recorded or not.
            new_steps: What a configuration would cost.
            attempt: Asks for another proposal for the same trial, if it is not 0.
        """

    @abstractmethod
    def record(self, number: int, point: Point) -> None:
        """Hear which draw the trial of this number got, proposed here or recorded earlier."""

    @abstractmethod
    def copy(self) -> Self:
        """Return a run that goes on from here by itself."""

    def tell(self, report: Report, *, rests: bool) -> None:  # noqa: B027  (few learn)
        """Hear a report of a trial whose draw was recorded.

        Args:
            report: Of any step, those in passing too.
            rests: Whether the trial has reported all it was asked for; it may be asked again.
        """

    def end(self, trial: int, status: TrialStatus) -> None:  # noqa: B027  (few learn)
        """Hear that a trial whose draw was recorded is over, its reports told before."""
