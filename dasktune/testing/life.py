"""A study as its sampler sees it, with draws, reports and endings in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias

from dasktune.samplers.sampler import SamplerRun
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point
from dasktune.testing.laws import SCORES
from dasktune.testing.moves import End
from dasktune.trial import Report, TrialStatus

_DRAWS = 0.4
"""How often a trial is drawn, of all moves."""
_ENDS = 0.4
"""How often a trial ends, of the news of trials."""
_RESTS = 0.7
"""How often a trial that reports has reported all that it was asked for."""


def no_steps(configuration: Configuration, step: int) -> int:  # noqa: ARG001
    """Say what a plan says that has everything already."""
    return 0


def draw_all(run: SamplerRun, numbers: Sequence[int]) -> list[Point | None]:
    """Ask for each trial and tell which draw it got, as a study does."""
    points = []
    for number in numbers:
        point = run.ask(number, no_steps)
        if point is not None:
            run.record(number, point)
        points.append(point)
    return points


@dataclass(frozen=True, slots=True)
class Drew:
    """A trial got a draw; None: there was none left."""

    number: int
    point: Point | None


@dataclass(frozen=True, slots=True)
class Told:
    """A trial reported."""

    report: Report
    rests: bool


Event: TypeAlias = Drew | Told | End
"""What a sampler hears of."""


class Life:
    """What happened to a run of a sampler."""

    def __init__(self, rng: Random) -> None:
        """Begin with nothing drawn.

        Args:
            rng: Chooses what happens.
        """
        self.events: list[Event] = []
        self._rng = rng
        self._steps: dict[int, int] = {}  # of living trials, the last report's
        self._resting: set[int] = set()

    def live(self, run: SamplerRun, n_events: int) -> "Life":
        """Let a run live through so many events; it must ask for draws."""
        for _ in range(n_events):
            event = self._next(run)
            hear(run, event)
            self.events.append(event)
        return self

    def _next(self, run: SamplerRun) -> Event:
        rng, alive = self._rng, sorted(self._steps)
        if not alive or rng.random() < _DRAWS:
            number = sum(isinstance(event, Drew) for event in self.events)
            point = run.ask(number, no_steps)
            if point is not None:
                self._steps[number] = 0
            return Drew(number, point)
        trial = rng.choice(alive)
        if rng.random() < _ENDS:
            ways = [TrialStatus.STOPPED, TrialStatus.DIVERGED, TrialStatus.FAILED]
            ways += [TrialStatus.COMPLETED] * 6 if trial in self._resting else []
            del self._steps[trial]
            self._resting.discard(trial)
            return End(trial, rng.choice(ways))
        self._steps[trial] += 1
        rests = rng.random() < _RESTS
        (self._resting.add if rests else self._resting.discard)(trial)
        score = rng.choice(SCORES)
        report = Report(
            trial=trial, step=self._steps[trial], metrics={"a": score}, score=score, scores=(score,)
        )
        return Told(report, rests)


def hear(run: SamplerRun, event: Event) -> None:
    """Tell a run what happened, asking it for nothing."""
    match event:
        case Drew(number, point) if point is not None:
            run.record(number, point)
        case Told(report, rests):
            run.tell(report, rests=rests)
        case End(trial, status):
            run.end(trial, status)


def mirrored(event: Event) -> Event:
    """Return what a run hears in a study with the other mode, of metrics with the other sign."""
    if not isinstance(event, Told):
        return event
    metrics = {name: -value for name, value in event.report.metrics.items()}
    return replace(event, report=replace(event.report, metrics=metrics))
