"""Hypothesis strategies for histories, and for trials that ask to be trained along them.

A history is drawn as a *row*: the value of a hyper-parameter at each step. How a row is written as
a schedule is drawn too, so that a law stated on rows also says that writing does not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, product
from typing import TypeVar

from hypothesis import strategies as st

from dasktune.plan.keys import Family
from dasktune.plan.search_plan import SearchPlan
from dasktune.space import Configuration, Schedule, Value, constant, join, piecewise, token
from dasktune.space.schedule import FunctionSchedule
from dasktune.trial import TrialId
from dasktune.units import Step

T = TypeVar("T")

HORIZON = 7
"""Steps of the longest drawn history."""

FAMILIES = (Family("net", 0), Family("net", 1))
"""Two studies' worth of training code: the same class, two training seeds."""

Row = tuple[Value, ...]
"""The value of one hyper-parameter at each step from 0."""

Requests = tuple[tuple[Step, tuple[Step, ...]], ...]
"""Rising steps, each with the report steps since the one before."""

Pairs = tuple[tuple[str, str], ...]
"""(name, token) of all values during one step, by name."""

few_values: tuple[Value, ...] = (0.1, 1, True, 1.0, "1")
"""So few that rows are often equal, and some equal to Python without being the same value."""


def among(choices: Sequence[T]) -> st.SearchStrategy[T]:
    """Draw one of many; unlike `sampled_from`, does not list them all in messages."""
    return st.integers(0, len(choices) - 1).map(lambda i: choices[i])


def _row(at: tuple[Step, ...], pieces: tuple[Value, ...]) -> Row:
    starts = (0, *at, HORIZON)
    row: list[Value] = []
    for piece, start, stop in zip(pieces, starts[:-1], starts[1:], strict=True):
        row += [piece] * (stop - start)
    return tuple(row)


def _some_rows() -> list[Row]:
    found = []
    for first in (0.1, 0.1, 0.1, 0.1, 1):
        for n in range(3):
            for at in combinations(range(1, HORIZON), n):
                found += [_row(at, (first, *later)) for later in product(few_values, repeat=n)]
    return found


rows: st.SearchStrategy[Row] = among(_some_rows())
"""Rows that change at most twice and, often, begin like the others."""


def changes_of(row: Sequence[Value]) -> list[Step]:
    """List the steps at which a row changes; step 0 counts."""
    return [t for t in range(len(row)) if t == 0 or token(row[t]) != token(row[t - 1])]


def as_piecewise(row: Row) -> Schedule:
    """Write a row by its changes."""
    return piecewise({t: row[t] for t in changes_of(row)})


def as_long_piecewise(row: Row) -> Schedule:
    """Write a row step by step, equal neighbours and all."""
    return piecewise(dict(enumerate(row)))


def as_function(row: Row) -> Schedule:
    """Write a row as a function of the step, which equals no other function."""
    return FunctionSchedule(lambda step: row[min(step, len(row) - 1)])


def as_join(row: Row) -> Schedule:
    """Write a row as constants, one after the other."""
    at = changes_of(row)
    return join([constant(row[t]) for t in at], at=at[1:])


WAYS = (as_piecewise, as_long_piecewise, as_function, as_join)
"""All ways to write a row as a schedule."""


schedules: st.SearchStrategy[Schedule] = st.builds(
    lambda row, way: way(row), rows, st.sampled_from(WAYS)
)
"""A row and a way to write it."""

configurations: st.SearchStrategy[Configuration] = st.builds(
    lambda names, *drawn: Configuration.of(dict(zip(names, drawn, strict=False))),
    st.sampled_from([("lr", "size")] * 10 + [("lr", "rate"), ("lr",)]),
    schedules,
    schedules,
)
"""Two hyper-parameters, seldom another set of names."""

_close_rows = among([_row((), (0.1,)), *[_row((t,), (0.1, 1)) for t in range(1, HORIZON)]])

close_configurations: st.SearchStrategy[Configuration] = st.builds(
    lambda way, lr, size: Configuration.of({"lr": way(lr), "size": way(size)}),
    st.sampled_from(WAYS),
    _close_rows,
    _close_rows,
)
"""Configurations that all share step 0, and most of them more."""


def pairs_at(configuration: Configuration, step: Step) -> Pairs:
    """Ask every schedule for its value."""
    return tuple(sorted((name, token(value)) for name, value in configuration.at(step).items()))


def differ_at(a: Configuration, b: Configuration, stop: Step) -> Step:
    """Find the first step below `stop` at which any value differs, else `stop`."""
    return next((t for t in range(stop) if pairs_at(a, t) != pairs_at(b, t)), stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTrial:
    """A trial, where its tuner may decide, and what it will be asked for, in order."""

    id: TrialId
    family: Family
    configuration: Configuration
    stop: Step
    decision_steps: tuple[Step, ...]
    requests: Requests

    @property
    def furthest(self) -> Step:
        """The last step it is asked for; 0 if none."""
        return self.requests[-1][0] if self.requests else 0

    @property
    def report_steps(self) -> tuple[Step, ...]:
        """All report steps, rising."""
        return tuple([at for _, reports in self.requests for at in reports])


@cache
def _subsets(steps: tuple[Step, ...], most: int) -> st.SearchStrategy[list[Step]]:
    return among([some for n in range(most + 1) for some in combinations(steps, n)]).map(list)


def subsets(steps: Sequence[Step], max_size: int | None = None) -> st.SearchStrategy[list[Step]]:
    """Draw some of the steps, rising."""
    return _subsets(tuple(steps), len(steps) if max_size is None else min(max_size, len(steps)))


def _request_lists(stop: Step) -> list[Requests]:
    """List at most two requests up to `stop` that follow one another, with few report steps."""
    found: list[Requests] = []
    for n in range(3):
        for asked_steps in combinations(range(1, stop + 1), n):
            between = pairwise((0, *asked_steps))
            reports = [
                [some for m in range(3) for some in combinations(range(a + 1, b), m)]
                for a, b in between
            ]
            found += [tuple(zip(asked_steps, chosen, strict=True)) for chosen in product(*reports)]
    return found


_requests = {stop: among(_request_lists(stop)) for stop in range(1, HORIZON + 1)}
_families = st.sampled_from((FAMILIES[0],) * 9 + (FAMILIES[1],))
_stops = st.integers(1, HORIZON)


@st.composite
def trials(
    draw: st.DrawFn, number: int, n_studies: int, chosen: st.SearchStrategy[Configuration]
) -> DrawnTrial:
    """Draw a trial whose tuner decides at some of the steps it asks for, and at others."""
    stop = draw(_stops)
    asked_for = draw(_requests[stop])
    own = draw(subsets([step for step, _ in asked_for]))
    others = draw(subsets(range(1, stop + 1), max_size=1))
    return DrawnTrial(
        id=TrialId(draw(st.integers(0, n_studies - 1)), number),
        family=draw(_families),
        configuration=draw(chosen),
        stop=stop,
        decision_steps=tuple(sorted({*own, *others})),
        requests=asked_for,
    )


@st.composite
def trial_sets(
    draw: st.DrawFn,
    *,
    min_size: int = 1,
    max_size: int = 5,
    n_studies: int = 1,
    chosen: st.SearchStrategy[Configuration] = configurations,
) -> list[DrawnTrial]:
    """Draw trials that share much, and are numbered in order."""
    n = draw(st.integers(min_size, max_size))
    return [draw(trials(number, n_studies, chosen)) for number in range(n)]


def added(drawn: Sequence[DrawnTrial]) -> SearchPlan:
    """Return a plan that knows the trials, and was asked for nothing."""
    plan = SearchPlan()
    for trial in drawn:
        plan.add(
            trial.id,
            trial.family,
            trial.configuration,
            stop=trial.stop,
            decision_steps=trial.decision_steps,
        )
    return plan


def asked(drawn: Sequence[DrawnTrial]) -> SearchPlan:
    """Return a plan with all requests of the trials open, drawn before any is asked."""
    plan = added(drawn)
    for trial in drawn:
        for step, report_steps in trial.requests:
            assert plan.request(plan.trials[trial.id], step, report_steps) == []
    return plan
