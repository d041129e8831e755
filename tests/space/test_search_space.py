import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space import (
    Choice,
    Configuration,
    Point,
    SearchSpace,
    choice,
    constant,
    cosine,
    cyclic,
    join,
    linear,
    loguniform,
    piecewise,
    randint,
    splice,
    step_decay,
    uniform,
    warmup,
)
from dasktune.space.choice import Branch
from dasktune.space.domain import Domain
from dasktune.space.template import Items, Template
from tests.space.strategies import at_random, finite_spaces, spaces


def counted_size(definition: object) -> int:
    """Count outcomes by the definitions, not by the tree."""
    if isinstance(definition, Choice):
        return sum(counted_size(option) for option in definition.options)
    if isinstance(definition, Domain):
        return len(definition.grid())
    parts: list[object] = []
    if isinstance(definition, Template):
        parts = [part for _, part in definition.arguments]
    elif isinstance(definition, Items):
        parts = list(definition.items)
    elif isinstance(definition, Branch | SearchSpace):
        pairs = definition.space if isinstance(definition, Branch) else definition.definitions
        parts = [part for _, part in pairs]
    size = 1
    for part in parts:
        size *= counted_size(part)
    return size


@given(spaces, st.integers(0, 9))
def test_a_point_gives_back_its_configuration_also_through_json(
    space: SearchSpace, seed: int
) -> None:
    point, configuration = space.draw(at_random(seed))
    assert space.configuration(point) == configuration
    assert configuration.names == tuple(sorted(configuration.names))
    journal = json.loads(json.dumps(dict(point), sort_keys=True))
    assert Point.of(journal) == point
    assert hash(Point.of(journal)) == hash(point)
    assert space.configuration(journal) == configuration


@given(spaces, st.integers(0, 9))
def test_a_point_holds_the_places_that_were_asked_for_and_only_known_ones(
    space: SearchSpace, seed: int
) -> None:
    asked: dict[str, int | float] = {}
    answer = at_random(seed)

    def suggest(path: str, domain: Domain) -> int | float:
        assert path not in asked
        asked[path] = answer(path, domain)
        return asked[path]

    point, _ = space.draw(suggest)
    assert dict(point) == asked
    known = space.parameters()
    assert set(asked) <= {path for path, _ in known}
    assert len({path for path, _ in known}) == len(known)


@given(spaces)
def test_draws_ask_in_the_order_of_the_parameters(space: SearchSpace) -> None:
    order = [path for path, _ in space.parameters()]
    asked: list[int] = []
    answer = at_random(1)

    def suggest(path: str, domain: Domain) -> int | float:
        asked.append(order.index(path))
        return answer(path, domain)

    space.draw(suggest)
    assert asked == sorted(asked)


@given(finite_spaces)
def test_points_are_distinct_and_as_many_as_the_size(space: SearchSpace) -> None:
    size = counted_size(space)
    assert space.size == size
    if size <= 500:
        points = list(space.points())
        assert len(points) == size == len(set(points))
        assert all(space.draw(lambda path, _, p=point: p[path])[0] == point for point in points)  # type: ignore[misc]


@given(finite_spaces)
def test_points_come_in_the_order_of_the_grid(space: SearchSpace) -> None:
    if counted_size(space) <= 500:
        order = [path for path, _ in space.parameters()]
        rows = [
            [(order.index(path), point[path]) for path in sorted(point, key=order.index)]
            for point in space.points()
        ]
        assert rows == sorted(rows)


def test_the_last_name_changes_fastest() -> None:
    space = SearchSpace({"wd": choice([0.1, 0.2]), "lr": randint(1, 2)})
    assert [dict(point) for point in space.points()] == [
        {"lr": 1, "wd": 0},
        {"lr": 1, "wd": 1},
        {"lr": 2, "wd": 0},
        {"lr": 2, "wd": 1},
    ]


def test_points_are_made_lazily() -> None:
    space = SearchSpace({name: randint(0, 10**9) for name in "abcdef"})
    assert dict(next(space.points())) == dict.fromkeys("abcdef", 0)


def test_conditional_hyper_parameters_are_absent_where_their_option_is_not_drawn() -> None:
    space = SearchSpace(
        {
            "optimizer": choice({"sgd": {"momentum": choice([0.9, 0.95])}, "adam": {}}),
            "lr": 0.1,
        }
    )
    assert space.size == 3
    found = {tuple(p.items()): space.configuration(p).at(0) for p in space.points()}
    assert found == {
        (("optimizer", 0), ("optimizer=sgd.momentum", 0)): {
            "lr": 0.1,
            "momentum": 0.9,
            "optimizer": "sgd",
        },
        (("optimizer", 0), ("optimizer=sgd.momentum", 1)): {
            "lr": 0.1,
            "momentum": 0.95,
            "optimizer": "sgd",
        },
        (("optimizer", 1),): {"lr": 0.1, "optimizer": "adam"},
    }


def test_the_same_name_in_two_options_has_two_paths() -> None:
    space = SearchSpace(
        {"kind": choice({"sgd": {"beta": choice([1, 2])}, "adam": {"beta": uniform(0, 1)}})}
    )
    assert [path for path, _ in space.parameters()] == [
        "kind",
        "kind=sgd.beta",
        "kind=adam.beta",
    ]
    assert space.configuration({"kind": 1, "kind=adam.beta": 0.5}).at(0) == {
        "kind": "adam",
        "beta": 0.5,
    }


def test_options_whose_texts_look_alike_have_different_paths() -> None:
    inner = {"x": choice([1, 2])}
    keys: list[Any] = [1, "1", True, "True", None, "None", 1.0, "a b", "ab", ("a",)]
    space = SearchSpace({"kind": choice({key: inner for key in keys if key != 1} | {1: inner})})
    paths = [path for path, _ in space.parameters()]
    assert len(set(paths)) == len(paths)
    for_types = choice([choice({key: inner}) for key in (1, True, 1.0)])
    paths = [path for path, _ in SearchSpace({"kind": for_types}).parameters()]
    assert len(set(paths)) == len(paths)


def test_paths_say_where_a_number_belongs() -> None:
    space = SearchSpace(
        {
            "lr": choice(
                [
                    0.1,
                    step_decay(loguniform(1e-3, 1), factor=choice([0.1, 0.3]), at=[randint(3, 5)]),
                    warmup(randint(1, 3), cosine(uniform(0, 1), 15)),
                    uniform(0, 1),
                    join([0.1, choice([0.2, linear(uniform(0, 1), 0, 5)])], at=[4]),
                ]
            ),
            "bs": piecewise({0: 64, 9: choice([64, 128])}),
        }
    )
    assert [path for path, _ in space.parameters()] == [
        "bs.values[9]",
        "lr",
        "lr[1].v",
        "lr[1].factor",
        "lr[1].at[0]",
        "lr[2].n",
        "lr[2].then.v",
        "lr[3]",
        "lr[4].schedules[1]",
        "lr[4].schedules[1][1].v",
    ]


def test_options_are_drawn_as_the_identical_object() -> None:
    space = SearchSpace({"lr": choice([cosine(0.1, 9), 0.1]), "wd": 0.5})
    one = space.configuration({"lr": 0})
    other = space.configuration({"lr": 0})
    assert all(a is b for (_, a), (_, b) in zip(one.schedules, other.schedules, strict=True))


def test_every_kind_of_definition_gives_a_schedule() -> None:
    space = SearchSpace(
        {
            "a": 1,
            "b": (1, "x"),
            "c": cosine(0.1, 4),
            "d": lambda step: step,
            "e": randint(5, 5),
            "f": None,
        }
    )
    assert space.size == 1
    (point,) = space.points()
    expected = {"a": 1, "b": (1, "x"), "c": 0.05, "d": 2, "e": 5, "f": None}
    assert space.configuration(point).at(2) == expected


def test_a_choice_mixing_continuous_and_finite_options_has_no_size() -> None:
    space = SearchSpace({"lr": choice([0.1, cosine(uniform(0, 1), 5)])})
    assert space.size is None
    with pytest.raises(InvalidStudyError, match=r"^lr\[1\]\.v is drawn from uniform\(0\.0, 1\.0\)"):
        space.points()


@pytest.mark.parametrize(
    ("definition", "is_unique"),
    [
        (uniform(0, 1), True),
        (uniform(0.5, 0.5), False),
        (uniform(0, 1, step=0.5), False),
        (randint(0, 9), False),
        (0.1, False),
        (constant(uniform(0, 1)), True),
        (warmup(3, constant(uniform(0, 1))), True),
        (warmup(randint(0, 3), uniform(0, 1)), True),
        (warmup(3, cosine(0.1, 5, uniform(0, 1))), False),
        (cosine(uniform(0, 1), 5), True),
        (cosine(0.1, 5, uniform(0, 1)), False),
        (step_decay(0.1, factor=loguniform(0.1, 1), at=[5]), False),
        (step_decay(loguniform(0.1, 1), factor=0.1, at=[5]), True),
        (linear(1, uniform(0, 1), 5), False),
        (cyclic(0, uniform(0, 1), 5), False),
        (cyclic(uniform(0, 1), 1, 5), True),
        (piecewise({5: uniform(0, 1), 0: 1}), False),
        (piecewise({5: 1, 0: uniform(0, 1)}), True),
        (join([0.1, uniform(0, 1)], at=[5]), False),
        (join([uniform(0, 1), 0.1], at=[5]), True),
        (splice([0.1, uniform(0, 1)], at=[5]), False),
        (splice([uniform(0, 1), 0.1], at=[5]), True),
        (choice([uniform(0, 1), 0.1]), False),
        (choice([uniform(0, 1), cosine(uniform(0, 1), 5)]), True),
    ],
)
def test_hyper_parameters_that_no_two_trials_can_share_are_named(
    definition: object, is_unique: bool
) -> None:
    space = SearchSpace({"lr": definition, "wd": choice([0.1, 0.2])})
    assert space.continuous_at_start() == (("lr",) if is_unique else ())
    values = {space.draw(at_random(seed))[1].schedules[0][1].at(0) for seed in range(40)}
    assert (len(values) == 40) == is_unique


def test_a_conditional_name_is_continuous_only_if_it_is_so_in_all_options() -> None:
    free, fixed = {"a": uniform(0, 1)}, {"a": 0.5}
    mixed = SearchSpace({"kind": choice({"x": free, "y": fixed})})
    reverse = SearchSpace({"kind": choice({"x": fixed, "y": free})})
    both = SearchSpace({"kind": choice({"x": free, "y": free, "z": {}})})
    assert mixed.continuous_at_start() == reverse.continuous_at_start() == ()
    assert both.continuous_at_start() == ("a",)


@given(spaces)
def test_spaces_are_values(space: SearchSpace) -> None:
    again = SearchSpace(dict(reversed(space.definitions)))
    assert again == space
    assert hash(again) == hash(space)


def test_a_space_survives_pickling() -> None:
    space = SearchSpace(
        {
            "kind": choice({"x": {"a": uniform(0, 1)}, "y": {}}),
            "lr": step_decay(uniform(0, 1), factor=0.1, at=choice([[6], [9]])),
        }
    )
    again = pickle.loads(pickle.dumps(space))
    assert again == space
    assert again.draw(at_random(3)) == space.draw(at_random(3))


SPACE = SearchSpace(
    {"kind": choice({"x": {"a": uniform(0, 1)}, "y": {}}), "lr": choice([0.1, 0.2])}
)


@pytest.mark.parametrize(
    ("point", "value", "cure"),
    [
        ({"kind": 1}, "lacks lr", "choice([0.1, 0.2])"),
        ({"kind": 0, "lr": 0}, "lacks kind=x.a", "uniform(0.0, 1.0)"),
        ({"kind": 1, "lr": 0, "kind=x.a": 0.5}, "has kind=x.a", "right are kind, lr"),
        ({"kind": 1, "lr": 2}, "2", "lr must be an index from 0 to 1"),
        ({"kind": 1, "lr": 0.1}, "0.1", "lr must be an index from 0 to 1"),
        ({"kind": 0, "lr": 0, "kind=x.a": 7}, "7", "kind=x.a must be in uniform(0.0, 1.0)"),
        ({}, "{}", "lacks kind"),
    ],
)
def test_points_that_do_not_fit_are_refused_naming_the_path(
    point: dict[str, float], value: str, cure: str
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        SPACE.configuration(point)
    assert value in str(error.value)
    assert cure in str(error.value)


def test_an_answer_outside_its_domain_is_refused_naming_the_path() -> None:
    with pytest.raises(InvalidStudyError, match=r"^kind must be an index from 0 to 1, got 5$"):
        SPACE.draw(lambda _, __: 5)


def test_a_template_that_refuses_its_draw_names_the_path() -> None:
    late = step_decay(1, factor=0.5, at=[choice([1, 20]), choice([*range(30, 330), 15])])
    space = SearchSpace({"lr": choice([0, late])})
    with pytest.raises(InvalidStudyError, match=r"^lr\[1\]: step_decay: at must .* \[20, 15\]"):
        space.configuration({"lr": 1, "lr[1].at[0]": 1, "lr[1].at[1]": 300})


@pytest.mark.parametrize(
    ("definitions", "value", "cure"),
    [
        ({}, "{}", "at least one hyper-parameter"),
        ([("lr", 0.1)], "[('lr', 0.1)]", "a mapping with at least one"),
        ({"lr": [0.1, 0.2]}, "lr is the list [0.1, 0.2]", "write choice([...])"),
        ({"lr": {"a": {}}}, "lr is the mapping {'a': {}}", "write choice({...})"),
        ({"lr": {1, 2}}, "lr is {1, 2}", "a value is"),
        ({"learning rate": 1}, "'learning rate'", "an identifier"),
        ({"lr.x": 1}, "'lr.x'", "an identifier"),
        ({1: 1}, "1", "an identifier"),
        ({"a": 1, "k": choice({"x": {"a": 2}})}, "'a'", "options of one choice"),
        ({"a": choice({"x": {"a": 2}})}, "'a'", "options of one choice"),
        (
            {"k": choice({"x": {"m": 1}}), "l": choice({"y": {"m": 2}})},
            "'m'",
            "options of one choice",
        ),
        (
            {"k": choice({"x": {"m": choice({"y": {"k": 2}})}})},
            "'k'",
            "options of one choice",
        ),
    ],
)
def test_wrong_spaces_are_refused_with_the_value_and_the_cure(
    definitions: Any,  # noqa: ANN401
    value: str,
    cure: str,
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        SearchSpace(definitions)
    assert value in str(error.value)
    assert cure in str(error.value)


def test_a_point_is_a_mapping() -> None:
    point = Point.of({"b": 1, "a": 0.5})
    assert list(point.items()) == [("a", 0.5), ("b", 1)]
    assert len(point) == 2
    assert point["b"] == 1
    assert "c" not in point


def test_a_configuration_of_a_point_is_that_of_plain_values() -> None:
    configuration = SPACE.configuration({"kind": 0, "kind=x.a": 0.25, "lr": 1})
    assert configuration == Configuration.of({"kind": "x", "a": 0.25, "lr": 0.2})
