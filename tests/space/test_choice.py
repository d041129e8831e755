from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space import choice, constant, cosine, piecewise, randint, step_decay, uniform
from tests.space.strategies import few_values, token_of

any_choice: Any = choice


def identity(step: int) -> int:
    return step


@given(st.lists(few_values, min_size=1, unique_by=token_of))
def test_a_choice_draws_indices(options: list[object]) -> None:
    drawn = any_choice(options)
    n = len(options)
    assert drawn.size == n
    assert list(drawn.grid()) == list(range(n))
    assert [drawn.from_unit((i + 0.5) / n) for i in range(n)] == list(range(n))
    assert not drawn.contains(n)
    assert not drawn.contains(True)


@given(st.lists(few_values, min_size=1))
def test_equal_options_are_refused_and_only_those(options: list[object]) -> None:
    has_equal = len({token_of(option) for option in options}) < len(options)
    if has_equal:
        with pytest.raises(InvalidStudyError, match="give each option once"):
            any_choice(options)
    else:
        assert any_choice(options).size == len(options)


@pytest.mark.parametrize(
    "twin",
    [
        lambda: constant(0.1),
        lambda: 0.1 + 1e-17,
        lambda: step_decay(0.1, factor=0.1, at=[6]),
        lambda: uniform(0, 1),
        lambda: cosine(uniform(0, 1), 5),
        lambda: choice([1, 2]),
        lambda: identity,
    ],
)
def test_options_that_are_equal_without_being_identical_are_refused(
    twin: Callable[[], object],
) -> None:
    with pytest.raises(InvalidStudyError, match="options 1 and 2 are both"):
        any_choice(["other", twin(), twin()])


def test_templates_that_differ_in_the_type_of_a_value_are_two_options() -> None:
    assert any_choice([piecewise({0: v, 5: uniform(0, 1)}) for v in (1, True)]).size == 2


def test_a_mapping_of_empty_sub_spaces_is_a_plain_choice() -> None:
    assert any_choice({"a": {}, "b": {}}) == choice(["a", "b"])


def test_any_ordered_iterable_gives_options() -> None:
    assert any_choice(range(3)) == choice([0, 1, 2]) == any_choice(iter((0, 1, 2)))


def test_texts_are_calls() -> None:
    assert choice([0.1, cosine(0.1, 5), randint(1, 2)]).text == (
        "choice([0.1, cosine(0.1, steps=5), randint(1, 2)])"
    )
    assert choice({"sgd": {"momentum": choice([0.9])}, "adam": {}}).text == (
        "choice({'sgd': {'momentum': choice([0.9])}, 'adam': {}})"
    )


@pytest.mark.parametrize(
    ("options", "value", "cure"),
    [
        ([], "[]", "at least one option"),
        ({}, "{}", "at least one option"),
        ("adam", "'adam'", "a list of options such as [0.1, 0.2]"),
        (3, "3", "a list of options"),
        ({1, 2}, "{1, 2}", "a list of options"),
        ([0.1, {"a": 1}], "{'a': 1}", "choice: option 1"),
        ([[0.1, object]], "<class 'object'>", "choice: option 0[1]"),
        ({"sgd": 0.9}, "0.9", "must map to its hyper-parameters such as"),
        ({"sgd": {"a-b": 0.9}}, "'a-b'", "an identifier such as 'weight_decay'"),
        ({"sgd": {"m": [0.9]}}, "[0.9]", "write choice([...])"),
    ],
)
def test_wrong_options_are_refused_with_the_value_and_the_cure(
    options: object, value: str, cure: str
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        any_choice(options)
    assert value in str(error.value)
    assert cure in str(error.value)


@pytest.mark.parametrize("answer", [-1, 2, True, 0.0, "0"])
def test_only_indices_are_admitted(answer: object) -> None:
    with pytest.raises(InvalidStudyError, match=r"lr must be an index from 0 to 1, got"):
        choice([0.1, 0.2]).admit(answer, "lr")


def test_only_unit_numbers_are_mapped() -> None:
    with pytest.raises(InvalidStudyError, match=r"got 1\.0"):
        choice([0.1, 0.2]).from_unit(1.0)
