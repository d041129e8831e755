"""Small studies whose trials share a lot, random ones, and a trainable that does nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random as Generator
from typing import Any, Literal

import dasktune as dt
from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space.search_space import Point
from dasktune.study.study import Study
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun


class Nothing:
    """Training code that does nothing: simulated worlds never call it."""

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def setup(self, hp: Mapping[str, object], seed: int) -> None:
        pass

    def step(self, hp: Mapping[str, object], t: int) -> None:
        pass

    def evaluate(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> object:
        return None

    def load_state_dict(self, state: object) -> None:
        pass


class OwnTuner(Tuner):
    """A tuner of a user's own, which says nothing of itself."""

    compares = False

    def __init__(self, steps: int = 8) -> None:
        self.steps = steps

    @property
    def decision_steps(self) -> tuple[int, ...]:
        return (self.steps,)

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        return (n_trials,)

    def start(self, context: TunerContext) -> TunerRun:
        return dt.FullTraining(self.steps).start(context)


SPACE: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(0.1),
            dt.step_decay(0.1, factor=0.1, at=[3]),
            dt.piecewise({0: 0.1, 3: 0.01, 6: 0.001}),
            dt.piecewise({0: 0.1, 6: 0.01}),
            dt.warmup(2, dt.constant(0.1)),
        ]
    ),
    "momentum": dt.choice([0.9, dt.piecewise({0: 0.9, 5: 0.95})]),
}
"""Ten configurations that share many prefixes; they part at steps 0, 3, 5 and 6."""


@dataclass(frozen=True, slots=True)
class OneByOne(Sampler):
    """Draw a trial only when it is asked to train: whatever costs the fewest new steps."""

    is_reversed: bool = False

    def start(self, context: SamplerContext) -> "SamplerRun":
        return _OneByOneRun(context, is_reversed=self.is_reversed)


class _OneByOneRun(SamplerRun):
    def __init__(self, context: SamplerContext, *, is_reversed: bool) -> None:
        self._context = context
        self._is_reversed = is_reversed
        self._drawn: set[Point] = set()

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        del number, attempt
        left = [p for p in self._context.space.points() if p not in self._drawn]
        costs = [new_steps(self._context.space.configuration(point), 4) for point in left]
        best = max if self._is_reversed else min
        return left[costs.index(best(costs))] if left else None

    def record(self, number: int, point: Point) -> None:
        del number
        self._drawn.add(point)

    def copy(self) -> "_OneByOneRun":
        twin = _OneByOneRun(self._context, is_reversed=self._is_reversed)
        twin._drawn = set(self._drawn)
        return twin


def small_study(**changes: Any) -> Study:  # noqa: ANN401
    """Make a study of the whole `SPACE`; anything may be changed."""
    given: dict[str, Any] = {
        "trainable": Nothing(),
        "space": SPACE,
        "sampler": dt.Grid(),
        "tuner": dt.FullTraining(8),
        "metric": "accuracy",
        "mode": "max",
    }
    given |= changes
    return Study(given.pop("trainable"), **given)


def synchronous_tuner(rng: Generator) -> Tuner:
    """Choose a tuner whose decisions do not depend on time."""
    chance = rng.random()
    if chance < 0.4:
        return dt.FullTraining(rng.choice([1, 6, 8]), report_every=rng.choice([None, 1]))
    if chance < 0.6:
        return dt.Hyperband(min_steps=rng.choice([1, 2]), max_steps=8, reduction_factor=2)
    return halving_tuner(rng)


def halving_tuner(rng: Generator) -> Tuner:
    """Choose successive halving with some rungs."""
    rungs = rng.choice([[1, 8], [3, 8], [2, 4, 8], [5], [2, 3, 6]])
    ties: Literal["number", "spread"] = rng.choice(["number", "spread"])
    return dt.SuccessiveHalving(rungs=rungs, reduction_factor=rng.choice([1.5, 2, 3]), ties=ties)


def asynchronous_tuner(rng: Generator) -> Tuner:
    """Choose a tuner whose decisions depend on who is first."""
    first = rng.choice([1, 2])
    ties: Literal["number", "spread"] = rng.choice(["number", "spread"])
    tuners: list[Tuner] = [
        dt.ASHA(min_steps=first, max_steps=8, reduction_factor=2, ties=ties),
        dt.ASHA(min_steps=first, max_steps=8, reduction_factor=2, variant="stopping"),
        dt.AsyncHyperband(min_steps=first, max_steps=8, reduction_factor=2, ties=ties),
    ]
    return rng.choice(tuners)


def any_tuner(rng: Generator) -> Tuner:
    """Choose any tuner that we ship."""
    if rng.random() < 0.15:
        return dt.MedianStopping(8, report_every=rng.choice([1, 2]), min_trials=1)
    return asynchronous_tuner(rng) if rng.random() < 0.5 else synchronous_tuner(rng)


def random_studies(
    rng: Generator, *, n: int | None = None, is_synchronous: bool = False
) -> list[Study]:
    """Make one or two small studies that mostly share their training code."""
    studies = []
    for index in range(n or rng.choice([1, 2])):
        tuner = synchronous_tuner(rng) if is_synchronous else any_tuner(rng)
        studies.append(
            small_study(
                sampler=rng.choice([dt.Random(), dt.Grid(), OneByOne()]),
                tuner=tuner,
                metric=rng.choice(["accuracy", "accuracy", "loss"]),
                mode=rng.choice(["max", "min"]),
                n_trials=rng.choice([1, 3, 6, 9, 12]),
                seed=rng.randrange(100),
                training_seed=rng.choice([0, 0, 0, 1]),
                retries=rng.choice([0, 1, 2]),
                max_failures=rng.choice([1, 2, 3]),
                name=f"study-{index}",
            )
        )
    return studies
