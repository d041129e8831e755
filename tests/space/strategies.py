"""Hypothesis strategies for values, schedules, domains and search spaces; slow, obvious oracles."""

import random
from collections.abc import Callable

from hypothesis import strategies as st

from dasktune.space import (
    Schedule,
    SearchSpace,
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
    token,
    uniform,
    warmup,
)
from dasktune.space.domain import Domain
from dasktune.space.schedule import FunctionSchedule
from dasktune.space.tree import Suggest
from dasktune.space.value import Value

HORIZON = 40
"""Steps that brute force looks at; the drawn schedules do most of what they do before."""


def token_of(value: object) -> str:
    """Give the token of a value that is canonical already."""
    return token(value)  # type: ignore[arg-type]


values: st.SearchStrategy[object] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
"""Values of every type, not yet canonical."""

few_values: st.SearchStrategy[object] = st.sampled_from(
    [True, False, 1, 1.0, 0, 0.0, None, "1", "a", (1,), (True,), (1.0, ("a",)), 0.1, 0.2]
)
"""So few that two draws are often equal, and equal to Python without being the same value."""

numbers = st.floats(-10, 10, allow_subnormal=False) | st.integers(-10, 10)
lengths = st.integers(1, 15)
milestones = st.lists(st.integers(1, 30), max_size=4, unique=True).map(sorted)


@st.composite
def functions(draw: st.DrawFn) -> Schedule:
    """Draw a function of the step that repeats a short row of values."""
    row = draw(st.lists(few_values, min_size=1, max_size=5))
    return FunctionSchedule(lambda step: row[step // 2 % len(row)])


@st.composite
def pieces(draw: st.DrawFn) -> Schedule:
    """Draw values of any type from given steps on."""
    steps = [0, *draw(milestones)]
    return piecewise({step: draw(few_values) for step in steps})  # type: ignore[misc]


numeric_schedules: st.SearchStrategy[Schedule] = st.one_of(
    numbers.map(constant),
    st.builds(
        lambda v, factor, at: step_decay(v, factor=factor, at=at),
        numbers,
        st.sampled_from([0.1, 0.5, 1, 2, 1.0, 3]),
        milestones,
    ),
    st.builds(exponential, numbers, st.sampled_from([0.5, 0.9, 1.0, 1.1, 1e-9])),
    st.builds(linear, numbers, numbers, lengths),
    st.builds(
        lambda v, end, steps, power: polynomial(v, end, steps, power=power),
        numbers,
        numbers,
        lengths,
        st.sampled_from([0.5, 1, 2.0]),
    ),
    st.builds(cosine, numbers, lengths, numbers),
    st.builds(cosine_restarts, numbers, lengths, st.integers(1, 3), numbers),
    st.builds(cyclic, numbers, numbers, lengths),
)
"""Schedules whose values are numbers throughout."""


@st.composite
def _joined(draw: st.DrawFn, inner: st.SearchStrategy[Schedule]) -> Schedule:
    at = draw(milestones)
    return join([draw(inner) for _ in range(len(at) + 1)], at=at)


@st.composite
def _spliced(draw: st.DrawFn, inner: st.SearchStrategy[Schedule]) -> Schedule:
    at = draw(milestones)
    return splice([draw(inner) for _ in range(len(at) + 1)], at=at)


warm_schedules: st.SearchStrategy[Schedule] = st.recursive(
    numeric_schedules,
    lambda inner: st.builds(warmup, st.integers(0, 6), inner) | _joined(inner) | _spliced(inner),
    max_leaves=4,
)
"""Numeric schedules, warmed up, joined and spliced to any depth."""

schedules: st.SearchStrategy[Schedule] = st.recursive(
    warm_schedules | pieces() | functions() | few_values.map(constant),  # type: ignore[arg-type]
    lambda inner: _joined(inner) | _spliced(inner),
    max_leaves=4,
)
"""All schedules."""

finite_domains: st.SearchStrategy[Domain] = st.one_of(
    st.builds(
        lambda low, n, step: uniform(low / 10, (low + n * step) / 10, step=step / 10),
        st.integers(-30, 30),
        st.integers(0, 6),
        st.integers(1, 7),
    ),
    st.builds(
        lambda low, n, step: randint(low, low + n * step, step=step),
        st.integers(-9, 9),
        st.integers(0, 6),
        st.integers(1, 5),
    ),
    st.builds(lambda low, n: logint(low, low + n), st.integers(1, 9), st.integers(0, 20)),
    st.lists(few_values, min_size=1, max_size=4, unique_by=token_of).map(
        choice  # type: ignore[arg-type]
    ),
)
continuous_domains: st.SearchStrategy[Domain] = st.one_of(
    st.builds(lambda low, width: uniform(low, low + width), numbers, st.floats(0.01, 10)),
    st.builds(
        lambda low, ratio: loguniform(low, low * ratio), st.floats(1e-9, 1e3), st.floats(1.01, 1e6)
    ),
)
domains = finite_domains | continuous_domains


@st.composite
def _conditional(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, object]]) -> object:
    keys = draw(st.lists(st.sampled_from(["sgd", "adam", 1, True]), min_size=1, unique_by=token_of))
    return choice({key: draw(inner) for key in keys})  # type: ignore[misc]


@st.composite
def _templates(draw: st.DrawFn) -> object:
    rate = choice([draw(st.floats(0.1, 0.9)), 0.95])
    decay = step_decay(randint(1, 2), factor=rate, at=choice([[6], [9, 12]]))
    spliced = splice([choice([0.1, 1]), choice([0.1, decay])], at=[randint(4, 6)])
    later = warmup(randint(0, 2), decay)
    return draw(st.sampled_from([decay, later, choice([decay, 0.1]), spliced]))


def _spaces(names: str, inner: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(list(names)), inner, min_size=0, max_size=2)


def _mappings(leaves: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    below = _conditional(_spaces("xyz", leaves))
    return st.dictionaries(
        st.sampled_from(["lr", "wd", "bs"]), leaves, min_size=1, max_size=2
    ) | st.fixed_dictionaries({"lr": leaves, "optimizer": below})


finite_spaces = _mappings(finite_domains | few_values | _templates()).map(SearchSpace)
"""Search spaces of at most some thousand points, some of them conditional."""
spaces = _mappings(domains | schedules | _templates()).map(SearchSpace)


def at_random(seed: int) -> Suggest:
    """Make a draw at random, each time the same one."""
    numbers = random.Random(seed)
    return lambda _, domain: domain.from_unit(numbers.random())


def brute_changes(schedule: Schedule, start: int, stop: int) -> list[tuple[int, Value]]:
    """List changes by comparing every value with the one before it."""
    row = [(step, schedule.at(step)) for step in range(start, stop)]
    before = [None if step == 0 else token(schedule.at(step - 1)) for step in range(start, stop)]
    return [(step, v) for (step, v), known in zip(row, before, strict=True) if token(v) != known]


def brute_same_until(a: Schedule, b: Schedule, stop: int) -> int:
    """Find the first difference by comparing every value."""
    unequal = (step for step in range(stop) if token(a.at(step)) != token(b.at(step)))
    return next(unequal, stop)


def counted(function: Callable[[int], object]) -> tuple[Callable[[int], object], list[int]]:
    """Wrap a function of the step and list the steps it is asked for."""
    asked: list[int] = []

    def wrapper(step: int) -> object:
        asked.append(step)
        return function(step)

    return wrapper, asked
