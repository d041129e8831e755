"""A splice switches from one schedule to another without shifting their steps."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.plan.history import key_of
from dasktune.plan.keys import Family
from dasktune.space import Configuration, Schedule, SearchSpace, same_until, token
from dasktune.space.schedule import Constant
from dasktune.space.spliced import Splice
from dasktune.space.stepwise import Piecewise
from dasktune.study.header import read_header, write_header
from tests.space.strategies import HORIZON, few_values, milestones, schedules, token_of
from tests.worlds import small_study

cuts = st.integers(1, 30)
FAMILY = Family("code", 0)


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[Schedule], list[int]]:
    """Draw schedules that take turns, often the same one again."""
    few = draw(st.lists(schedules, min_size=1, max_size=3))
    at = draw(milestones)
    return [draw(st.sampled_from(few)) for _ in range(len(at) + 1)], at


@given(rows())
def test_each_step_has_the_value_that_its_schedule_has_at_this_step(
    row: tuple[list[Schedule], list[int]],
) -> None:
    parts, at = row
    spliced = dt.splice(parts, at=at)
    for step in range(HORIZON):
        part = parts[sum(boundary <= step for boundary in at)]
        assert token(spliced.at(step)) == token(part.at(step))


@given(rows())
def test_a_splice_is_kept_in_its_simplest_form(row: tuple[list[Schedule], list[int]]) -> None:
    spliced = dt.splice(row[0], at=row[1])
    if isinstance(spliced, Splice):
        assert len(spliced.schedules) == len(spliced.boundaries) + 1 >= 2
        assert not any(isinstance(part, Splice | Piecewise) for part in spliced.schedules)
        assert not all(isinstance(part, Constant) for part in spliced.schedules)
        assert all(a != b for a, b in pairwise(spliced.schedules))
        assert set(spliced.boundaries) <= set(row[1]) | set(range(1, 31))
        assert dt.splice(spliced.schedules, at=spliced.boundaries) == spliced


@given(schedules, schedules, schedules, cuts, cuts)
def test_a_splice_of_a_splice_is_one_splice_without_what_was_cut_off(
    a: Schedule, b: Schedule, c: Schedule, first: int, second: int
) -> None:
    nested = dt.splice([dt.splice([a, b], at=[first]), c], at=[second])
    if first < second:
        assert nested == dt.splice([a, b, c], at=[first, second])
    elif a != c:
        assert nested == dt.splice([a, c], at=[second])
    else:
        assert same_until(nested, a, HORIZON) == HORIZON


@given(schedules, schedules, schedules, cuts, cuts)
def test_what_a_later_part_would_have_done_before_its_turn_does_not_matter(
    a: Schedule, b: Schedule, c: Schedule, first: int, second: int
) -> None:
    nested = dt.splice([c, dt.splice([a, b], at=[first])], at=[second])
    if first > second:
        assert nested == dt.splice([c, a, b], at=[second, first])
    elif b != c:
        assert nested == dt.splice([c, b], at=[second])
    else:
        assert same_until(nested, b, HORIZON) == HORIZON


@given(schedules, milestones)
def test_a_splice_of_one_schedule_is_that_schedule(schedule: Schedule, at: list[int]) -> None:
    assert dt.splice([schedule] * (len(at) + 1), at=at) is schedule


@given(st.lists(few_values, min_size=4, max_size=4, unique_by=token_of))
def test_constants_make_a_piecewise(values: list[object]) -> None:
    a, b, c, d = map(Constant, values)
    expected = dt.piecewise(dict(zip((0, 4, 7, 9), values, strict=True)))  # type: ignore[arg-type]
    assert dt.splice([a, b, c, d], at=[4, 7, 9]) == expected
    step_by_step = dt.splice([dt.splice([dt.splice([a, b], at=[4]), c], at=[7]), d], at=[9])
    assert step_by_step == expected


def test_a_part_counts_steps_of_training_where_a_part_of_a_join_counts_its_own() -> None:
    cooling = dt.linear(1, 0, 10)
    assert dt.splice([0.5, cooling], at=[5]).at(6) == 0.4
    assert dt.join([0.5, cooling], at=[5]).at(6) == 0.9


def test_functions_and_plain_values_may_stand_for_parts() -> None:
    spliced = dt.splice(["a", lambda step: 2 * step], at=[3])
    assert [spliced.at(step) for step in (2, 3, 4)] == ["a", 6, 8]


def test_a_function_is_asked_only_for_its_own_steps() -> None:
    asked: list[int] = []

    def function(step: int) -> int:
        asked.append(step)
        return step

    list(dt.splice([0.1, function, 0.2], at=[3, 6]).changes(0, 20))
    assert asked == [3, 4, 5]


def test_domains_may_be_inside() -> None:
    template = dt.splice([dt.uniform(0, 1), dt.cosine(0.1, dt.choice([5, 9]))], at=[3])
    space = SearchSpace({"lr": template})
    drawn = space.configuration({"lr.schedules[0]": 0.5, "lr.schedules[1].steps": 1})
    assert drawn == Configuration.of({"lr": dt.splice([0.5, dt.cosine(0.1, 9)], at=[3])})


# --- configurations

named = st.fixed_dictionaries({"lr": schedules, "bs": schedules}).map(Configuration.of)


@given(named, named, st.integers(0, 30))
def test_a_spliced_configuration_has_the_values_of_both_in_their_turns(
    before: Configuration, after: Configuration, at: int
) -> None:
    spliced = before.spliced(at, after)
    for step in range(HORIZON):
        expected = (before if step < at else after).at(step)
        values = spliced.at(step)
        assert {name: token(v) for name, v in values.items()} == {
            name: token(v) for name, v in expected.items()
        }


@given(named, named, cuts, st.integers(0, HORIZON))
def test_a_spliced_configuration_has_the_keys_of_one_that_says_the_same(
    before: Configuration, after: Configuration, at: int, step: int
) -> None:
    spliced = before.spliced(at, after)
    written = Configuration.of(
        {
            name: dt.piecewise({t: dict(c.schedules)[name].at(t) for t, c in turns})
            for turns in [[(t, before if t < at else after) for t in range(HORIZON)]]
            for name in before.names
        }
    )
    assert key_of(FAMILY, spliced, step) == key_of(FAMILY, written, step)
    if step <= at:
        assert key_of(FAMILY, spliced, step) == key_of(FAMILY, before, step)


def test_what_stays_the_same_stays_the_identical_object() -> None:
    cooling = dt.cosine(0.1, 9)
    spliced = Configuration.of({"a": cooling, "b": 1}).spliced(
        5, Configuration.of({"a": dt.cosine(0.1, 9), "b": 2})
    )
    assert dict(spliced.schedules)["a"] is cooling
    assert spliced.text["b"] == "piecewise({0: 1, 5: 2})"


def test_configurations_of_different_hyper_parameters_are_not_spliced() -> None:
    sgd = Configuration.of({"optimizer": "sgd", "momentum": 0.9})
    adam = Configuration.of({"optimizer": "adam", "beta": 0.9})
    with pytest.raises(InvalidStudyError, match=r"has beta, momentum: .* can't come or go"):
        sgd.spliced(3, adam)


@pytest.mark.parametrize("at", [-1, 2.0])
def test_a_splice_begins_at_a_step(at: int) -> None:
    one = Configuration.of({"lr": 0.1})
    with pytest.raises(InvalidStudyError, match="spliced: at must be"):
        one.spliced(at, Configuration.of({"lr": 0.2}))


# --- written down


def ramp(step: int) -> float:
    return 0.1 * (step + 1)


def test_a_splice_in_a_journal_is_read_back() -> None:
    space = {
        "lr": dt.choice([dt.splice([ramp, dt.cosine(0.1, 9), 0.3], at=[2, 5]), 0.1]),
        "wd": dt.splice([dt.choice([0.1, math.inf]), dt.linear(1, 0, 5)], at=[dt.randint(2, 4)]),
    }
    study = small_study(space=space)
    (back,) = read_header(write_header([study]))
    assert list(back.space.points()) == list(study.space.points())
    for point in study.space.points():
        mine, other = study.space.configuration(point), back.space.configuration(point)
        assert mine.text == other.text
        assert [mine.at(step) for step in range(12)] == [other.at(step) for step in range(12)]
