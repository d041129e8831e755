"""The draw that gives a configuration is found again."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space import (
    Configuration,
    Point,
    Schedule,
    SearchSpace,
    choice,
    constant,
    cosine,
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
from dasktune.space.schedule import Constant
from tests.space.strategies import at_random, finite_spaces, spaces

seeds = st.integers(0, 9)
slow_to_draw = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def found(space: SearchSpace, configuration: object) -> Configuration | None:
    point = space.locate(configuration)  # type: ignore[arg-type]
    return None if point is None else space.configuration(point)


def as_written(schedule: Schedule) -> object:
    return schedule.v if isinstance(schedule, Constant) else schedule


@given(spaces | finite_spaces, seeds)
def test_what_was_drawn_is_found(space: SearchSpace, seed: int) -> None:
    configuration = space.draw(at_random(seed))[1]
    assert found(space, configuration) == configuration
    assert found(space, dict(configuration.schedules)) == configuration


@given(spaces | finite_spaces, seeds)
def test_what_was_drawn_is_found_by_its_plain_values(space: SearchSpace, seed: int) -> None:
    configuration = space.draw(at_random(seed))[1]
    written = {name: as_written(schedule) for name, schedule in configuration.schedules}
    assert found(space, written) == configuration
    assert space.configuration(space.point_of(written)) == configuration


@slow_to_draw
@given(finite_spaces, finite_spaces, seeds, st.booleans())
def test_a_configuration_is_found_where_one_of_all_points_gives_it(
    space: SearchSpace, other: SearchSpace, seed: int, is_mixed: bool
) -> None:
    assume((space.size or 0) <= 100)
    asked = other.draw(at_random(seed))[1]
    if is_mixed:  # near enough to be taken for one of its own
        mine = space.draw(at_random(seed))[1]
        asked = Configuration.of(dict(mine.schedules) | dict(asked.schedules[:1]))
    is_there = any(space.configuration(point) == asked for point in space.points())
    assert (space.locate(asked) is not None) == is_there
    if is_there:
        assert space.configuration(space.point_of(asked)) == asked
    elif space.locate(dict(asked.schedules)) is None:
        with pytest.raises(InvalidStudyError):
            space.point_of(asked)


any_step_decay: Any = step_decay
half = choice([0.5, 1, 2.0])
TEMPLATES: list[tuple[Any, Schedule]] = [
    (constant(uniform(0, 1)), constant(0.25)),
    (constant((1, half)), constant((1, 2.0))),
    (step_decay(randint(1, 9), factor=half, at=[randint(3, 6), 9]),
     step_decay(4, factor=0.5, at=[5, 9])),
    (step_decay(randint(1, 9), factor=2, at=choice([[6], [9, 12]])),
     step_decay(4, factor=2, at=[9, 12])),
    (any_step_decay(constant(randint(1, 3)), factor=0.5, at=[3]),
     step_decay(2, factor=0.5, at=[3])),
    (piecewise({9: uniform(0, 1), 0: half}), piecewise({0: 1, 9: 0.125})),
    (exponential(logint(1, 90), loguniform(0.1, 1)), exponential(70, 0.3)),
    (linear(half, uniform(0, 1, step=0.1), 5), linear(1, 0.3, 5)),
    (polynomial(1, 0, randint(3, 9), power=half), polynomial(1, 0, 4, power=2.0)),
    (warmup(randint(0, 5), choice([cosine(half, 7), half])), warmup(3, 2.0)),
    (warmup(randint(0, 5), choice([cosine(half, 7), half])), warmup(3, cosine(2.0, 7))),
    (join([choice([0.1, "a"]), cosine(uniform(0, 1), 9)], at=[randint(2, 9)]),
     join(["a", cosine(0.5, 9)], at=[7])),
    (join([0.1, lambda step: step, half], at=[2, randint(3, 9)]), constant(0)),
    (splice([uniform(0, 1), cosine(half, 9)], at=[randint(2, 9)]),
     splice([0.25, cosine(2.0, 9)], at=[7])),
    (splice([half, half, 3], at=[randint(2, 4), randint(5, 9)]), splice([1, 3], at=[7])),
    (splice([splice([half, cosine(half, 9)], at=[3]), 3], at=[randint(2, 9)]),
     splice([2.0, 3], at=[2])),
]  # fmt: skip


@pytest.mark.parametrize(("template", "schedule"), TEMPLATES)
def test_arguments_of_schedules_are_found(template: object, schedule: Schedule) -> None:
    for definition in (template, choice([0.3, choice([template])])):  # type: ignore[list-item]
        space = SearchSpace({"lr": definition, "wd": choice([1, 2])})
        asked = Configuration.of({"lr": schedule, "wd": 2})
        if schedule == constant(0):
            assert space.locate(asked) is None
        else:
            assert found(space, asked) == asked


def test_functions_of_the_step_are_found_as_themselves() -> None:
    def mine(step: int) -> int:
        return step

    def other(step: int) -> int:
        return step

    space = SearchSpace({"lr": choice([0.1, mine, warmup(randint(1, 3), other)]), "wd": mine})
    assert space.locate({"lr": mine, "wd": mine}) == Point.of({"lr": 1})
    assert space.locate({"lr": warmup(2, other)}) == Point.of({"lr": 2, "lr[2].n": 2})
    assert space.locate({"lr": other}) is None
    assert space.locate({"lr": warmup(2, mine)}) is None


def to(rate: float, parts_at: int = 99) -> Callable[[int], float]:
    def falling(step: int) -> float:
        return rate / (step + 1) if step < parts_at else 0.0

    return falling


def test_functions_that_give_the_same_up_to_a_step_are_one_if_that_is_asked() -> None:
    space = SearchSpace(
        {
            "lr": choice([0.1, to(0.1), to(0.2), warmup(randint(1, 3), to(0.3))]),
            "wd": choice(
                {0.5: {"decay": choice([join([0.2, to(0.4)], at=[2]), to(0.5)])}, 0.1: {}}
            ),
        }
    )
    for point in space.points():
        assert space.locate(space.configuration(point), until=9) == point
    anew = Configuration.of(
        {"lr": warmup(2, to(0.3)), "wd": 0.5, "decay": join([0.2, to(0.4)], at=[2])}
    )
    expected = Point.of({"lr": 3, "lr[3].n": 2, "wd": 0, "wd=0.5.decay": 0})
    assert space.locate(anew) is None
    assert space.locate(anew, until=9) == expected
    assert space.locate(dict(anew.schedules), until=9) == expected


@pytest.mark.parametrize("parts_at", [1, 5])
def test_functions_count_by_what_they_give_below_that_step_only(parts_at: int) -> None:
    space = SearchSpace({"lr": choice([0.1, to(0.2)])})
    for until in range(1, 9):
        found = space.locate({"lr": to(0.2, parts_at)}, until=until)
        assert (found is not None) == (until <= parts_at)


def test_a_function_without_an_answer_is_no_other_function() -> None:
    def short(step: int) -> float:
        return [0.2, 0.1][step]

    space = SearchSpace({"lr": choice([to(0.2), short])})
    assert space.locate({"lr": short}, until=9) == Point.of({"lr": 1})
    assert space.locate({"lr": partial(short)}, until=2) == Point.of({"lr": 0})
    assert space.locate({"lr": partial(short)}, until=9) is None


def test_the_very_function_is_found_first_then_one_of_its_name() -> None:
    def other(step: int) -> float:
        return to(0.2)(step)

    mine = to(0.2)
    space = SearchSpace({"lr": choice([other, to(0.2), mine])})
    assert space.locate({"lr": mine}, until=9) == Point.of({"lr": 2})
    assert space.locate({"lr": to(0.2)}, until=9) == Point.of({"lr": 1})
    assert space.locate({"lr": partial(other)}, until=9) == Point.of({"lr": 0})


def test_options_are_tried_in_order_but_exact_ones_first() -> None:
    space = SearchSpace({"lr": choice([uniform(0.5, 2), 1, uniform(0, 2)])})
    assert space.locate({"lr": 1.0}) == Point.of({"lr": 0, "lr[0]": 1.0})
    assert space.locate({"lr": 1}) == Point.of({"lr": 1})
    assert space.locate({"lr": 0.25}) == Point.of({"lr": 2, "lr[2]": 0.25})


def test_a_mapping_may_say_an_integer_for_a_float_and_a_configuration_may_not() -> None:
    space = SearchSpace({"lr": uniform(0, 2)})
    assert space.locate({"lr": 1}) == Point.of({"lr": 1.0})
    assert space.locate(Configuration.of({"lr": 1})) is None
    assert SearchSpace({"n": randint(0, 2)}).locate({"n": 1.0}) is None


SPACE = SearchSpace(
    {
        "lr": choice([0.1, warmup(randint(1, 3), uniform(0, 1))]),
        "optimizer": choice(
            {"sgd": {"momentum": uniform(0, 1), "nesterov": True}, "adam": {"beta": uniform(0, 1)}}
        ),
        "wd": 0.01,
    }
)


def test_what_is_fixed_may_be_left_out_of_a_mapping_at_any_depth() -> None:
    point = Point.of({"lr": 0, "optimizer": 0, "optimizer=sgd.momentum": 0.9})
    short: dict[str, object] = {"lr": 0.1, "optimizer": "sgd", "momentum": 0.9}
    assert SPACE.locate(short) == point
    assert SPACE.locate(short | {"wd": 0.01, "nesterov": True}) == point
    assert SPACE.locate(short | {"nesterov": False}) is None
    assert SPACE.locate(Configuration.of(short)) is None


def test_the_option_is_found_whose_sub_space_has_the_names() -> None:
    twice = choice([choice({"sgd": {"a": randint(1, 3)}}), choice({"sgd": {"b": randint(1, 3)}})])
    space = SearchSpace({"kind": twice})
    for name in ("a", "b"):
        asked = Configuration.of({"kind": "sgd", name: 2})
        assert found(space, asked) == asked
    assert space.locate({"kind": "sgd", "a": 1, "b": 1}) is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"lr": None}, "lr is missing: it must be in choice([0.1, warmup("),
        ({"lr": 0.2}, "lr must be in choice([0.1, warmup(randint(1, 3), then=uniform(0.0, 1.0))])"),
        ({"lr": warmup(4, 0.5)}, "got warmup(4, 0.5)"),
        ({"momentum": None}, "momentum is missing: it must be in uniform(0.0, 1.0) (with"),
        ({"momentum": 7}, "momentum must be in uniform(0.0, 1.0), got 7 (with optimizer 'sgd')"),
        ({"beta": 0.5}, "beta belongs to an option that is not chosen"),
        ({"optimizer": "lion"}, "optimizer must be in choice({'sgd': "),
        ({"learning_rate": 0.1}, "learning_rate is no hyper-parameter of this space, which has "
                                 "beta, lr, momentum, nesterov, optimizer, wd"),
        ({"wd": 0.02}, "wd must be 0.01, got 0.02"),
        ({"nesterov": False}, "nesterov must be True, got False (with optimizer 'sgd')"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change: dict[str, object], sentence: str) -> None:
    right: dict[str, object] = {"lr": 0.1, "optimizer": "sgd", "momentum": 0.9}
    written = {name: value for name, value in (right | change).items() if value is not None}
    assert SPACE.locate(right) is not None
    assert SPACE.locate(written) is None
    with pytest.raises(InvalidStudyError) as error:
        SPACE.point_of(written)
    assert sentence in str(error.value)


def test_what_a_user_wrote_may_be_a_configuration_or_a_mapping() -> None:
    written: dict[str, object] = {"lr": 0.1, "optimizer": "sgd", "momentum": 1}
    assert SPACE.point_of(Configuration.of(written)) == SPACE.point_of(written)


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(InvalidStudyError, match="still to be drawn"):
        SPACE.locate({"lr": uniform(0, 1)})
