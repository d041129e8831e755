import json
import math
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space.value import canonical, named, rounded, same, token
from tests.space.strategies import few_values, values

GOLDEN = json.loads(Path(__file__).with_name("golden_values.json").read_text("utf-8"))


class Scalar:
    """Looks like a numpy scalar."""

    def __init__(self, value: object) -> None:
        self.value = value

    def item(self) -> object:
        return self.value


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@given(values)
def test_canonical_is_idempotent(value: object) -> None:
    once = canonical(value, "v")
    assert token(canonical(once, "v")) == token(once)


@given(values, values)
def test_two_values_have_one_token_only_if_they_are_equal_and_of_equal_types(
    a: object, b: object
) -> None:
    one, other = canonical(a, "a"), canonical(b, "b")
    assert (token(one) == token(other)) == (typed(one) == typed(other))
    assert same(one, other) == (token(one) == token(other))


@given(few_values, few_values)
def test_values_that_python_calls_equal_are_told_apart_by_type(a: object, b: object) -> None:
    one, other = canonical(a, "a"), canonical(b, "b")
    assert (token(one) == token(other)) == (typed(one) == typed(other))
    assert same(one, other) == (token(one) == token(other))


@given(st.lists(st.text(alphabet="12:tfisn", max_size=4), max_size=4))
def test_no_string_can_imitate_the_boundary_between_two_items(parts: list[str]) -> None:
    whole = token(tuple(parts))
    for i in range(len(parts) - 1):
        fused = (*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :])
        assert token(fused) != whole
        assert token((*parts[:i], (parts[i], parts[i + 1]), *parts[i + 2 :])) != whole


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_keeps_twelve_significant_digits(number: float) -> None:
    assert f"{rounded(number):.11e}" == f"{number + 0.0:.11e}"
    assert math.isclose(rounded(number), number, rel_tol=1e-11, abs_tol=5e-324)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_rounding_never_changes_the_order(a: float, b: float) -> None:
    low, high = sorted([a, b])
    assert rounded(low) <= rounded(high)


def test_negative_zero_is_zero() -> None:
    assert token(canonical(-0.0, "v")) == token(0.0) == "f0.0"
    assert token(canonical(-1e-400, "v")) == "f0.0"


def test_infinities_are_values() -> None:
    assert canonical(math.inf, "v") == math.inf
    assert canonical(-math.inf, "v") == -math.inf


def test_numpy_like_scalars_become_pythons() -> None:
    assert token(canonical(Scalar(0.1), "v")) == token(0.1)
    assert token(canonical(Scalar(3), "v")) == token(3)
    assert token(canonical([Scalar(True)], "v")) == token((True,))


def test_a_float_of_a_subclass_becomes_a_plain_float() -> None:
    class Double(float):
        pass

    assert type(canonical(Double(0.1), "v")) is float


@pytest.mark.parametrize(
    ("value", "path", "part"),
    [
        (math.nan, "lr", "nan"),
        ([0.1, [math.nan]], "lr[1][0]", "nan"),
        ({"a": 1}, "lr", "{'a': 1}"),
        ({1, 2}, "lr", "{1, 2}"),
        (b"x", "lr", "b'x'"),
        (1j, "lr", "1j"),
        (object, "lr", "<class 'object'>"),
        (Scalar(1j), "lr", "Scalar"),
        (Scalar(math.nan), "lr", "nan"),
        (Unprintable(), "lr", "<Unprintable>"),
        ("\ud800", "lr", "'\\ud800'"),
        (2**2000, "lr", "2001 bits"),
        ("x" * 9 + "\ud800" * 999, "lr", "..."),
    ],
)
def test_what_has_no_deterministic_form_is_refused_with_its_path(
    value: object, path: str, part: str
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        canonical(value, "lr")
    assert str(error.value).startswith(f"{path} ")
    assert part in str(error.value)
    assert len(str(error.value)) < 300


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidStudyError, match="nested too deeply"):
        canonical(endless, "lr")


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: str(case["token"]))
def test_tokens_never_change(case: dict[str, object]) -> None:
    assert token(canonical(case["value"], "v")) == case["token"]


class Silent:
    """Says nothing of itself."""

    def __call__(self, step: object) -> object:
        return step


class Speaking(Silent):
    """Tells what it holds, with addresses."""

    def __repr__(self) -> str:
        return f"Speaking({Silent.__repr__(self)}, {[to_be_named]})"


class Broken(Silent):
    """Cannot say what it is."""

    def __repr__(self) -> str:
        raise ArithmeticError


def to_be_named(step: int, rate: object = 1) -> object:
    return step, rate


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (to_be_named, "to_be_named"),
        (Silent().__call__, "Silent.__call__"),
        (Silent(), "Silent"),
        (Broken(), "Broken"),
        (Silent, "Silent"),
        (abs, "abs"),
        (
            Speaking(),
            "Speaking(<tests.space.test_value.Speaking object>, [<function to_be_named>])",
        ),
        (partial(to_be_named), "partial(to_be_named)"),
        (partial(to_be_named, 1, rate="a"), "partial(to_be_named, 1, rate='a')"),
        (partial(partial(to_be_named, 1), rate=abs), "partial(to_be_named, 1, rate=abs)"),
        (partial(Silent(), step=Silent()), "partial(Silent, step=Silent)"),
        (partial(to_be_named, rate="x" * 999), f"partial(to_be_named, rate='{'x' * 119})"),
        (lru_cache(to_be_named), "to_be_named"),
    ],
)
def test_functions_are_named_alike_in_every_process(
    function: Callable[..., object], name: str
) -> None:
    assert named(function) == name


def typed(value: object) -> object:
    """Spell a value out with the types of all its parts."""
    if isinstance(value, tuple):
        return ("tuple", [typed(item) for item in value])
    return (type(value).__name__, value)
