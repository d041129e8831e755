import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space import Choice, logint, loguniform, randint, token, uniform
from dasktune.space.domain import Domain
from dasktune.space.value import canonical
from tests.space.strategies import continuous_domains, domains, finite_domains

units = st.floats(0, 1, exclude_max=True)
LAST_UNIT = math.nextafter(1, 0)


@given(domains, units)
def test_what_a_unit_number_maps_to_is_canonical_and_contained(domain: Domain, u: float) -> None:
    value = domain.from_unit(u)
    assert token(canonical(value, "v")) == token(value)
    assert domain.contains(value)
    assert token(domain.admit(value, "v")) == token(value)


@given(domains, units, units)
def test_from_unit_keeps_the_order(domain: Domain, u: float, v: float) -> None:
    low, high = sorted([u, v])
    assert domain.from_unit(low) <= domain.from_unit(high)


@given(domains)
def test_both_bounds_are_reached(domain: Domain) -> None:
    if isinstance(domain, Choice):
        low, high = 0, len(domain.options) - 1
    else:
        low, high = domain.low, domain.high  # type: ignore[attr-defined]
    assert token(domain.from_unit(0.0)) == token(low)
    assert token(domain.from_unit(LAST_UNIT)) == token(high)


@given(finite_domains)
def test_the_grid_is_all_that_is_contained_in_rising_order(domain: Domain) -> None:
    grid = list(domain.grid())
    assert len(grid) == domain.size
    assert grid == sorted(set(grid))
    assert all(domain.contains(value) for value in grid)
    assert [token(domain.grid()[k]) for k in range(len(grid))] == [token(v) for v in grid]
    assert list(domain.grid()[1:]) == grid[1:]
    between = [(a + b) / 2 for a, b in pairwise(grid)]
    outside = [grid[0] - 1, grid[-1] + 1]
    assert not any(domain.contains(value) for value in [*between, *outside])


@given(st.one_of(finite_domains), st.integers(1, 50))
def test_all_values_of_a_plain_finite_domain_are_as_likely(domain: Domain, n: int) -> None:
    size = domain.size
    assert size is not None
    if getattr(domain, "log", False):
        return
    drawn = [domain.from_unit((i + 0.5) / (n * size)) for i in range(n * size)]
    assert [drawn.count(value) for value in domain.grid()] == [n] * size


@given(st.integers(1, 40), st.integers(0, 40))
def test_logarithmic_integers_have_their_share_of_the_logarithm_also_at_both_ends(
    low: int, width: int
) -> None:
    domain = logint(low, low + width)
    whole = math.log((low + width + 0.5) / (low - 0.5))
    begin = 0.0
    for k in domain.grid():
        end = math.log((k + 0.5) / (low - 0.5)) / whole
        assert domain.from_unit(begin + (end - begin) * 1e-6) == k
        assert domain.from_unit(min(end - (end - begin) * 1e-6, LAST_UNIT)) == k
        begin = end


@given(continuous_domains, units)
def test_continuous_values_are_where_their_scale_puts_them(domain: Domain, u: float) -> None:
    low, high = domain.low, domain.high  # type: ignore[attr-defined]
    scale = math.log if domain.log else float  # type: ignore[attr-defined]
    expected = scale(low) + u * (scale(high) - scale(low))
    assert scale(domain.from_unit(u)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_continuous_domains_have_no_size_and_no_grid() -> None:
    assert uniform(0, 1).size is None
    assert loguniform(0.1, 1).size is None
    with pytest.raises(InvalidStudyError, match=r"uniform\(0.0, 1.0\) is continuous.*step="):
        uniform(0, 1).grid()


@pytest.mark.parametrize(
    "domain", [uniform(0.5, 0.5), loguniform(0.5, 0.5), randint(3, 3), logint(3, 3)]
)
def test_a_domain_whose_bounds_meet_has_one_value(domain: Domain) -> None:
    assert domain.size == 1
    assert list(domain.grid()) == [domain.from_unit(0.0)] == [domain.from_unit(0.9)]


def test_steps_meet_decimal_values_exactly() -> None:
    assert list(uniform(-0.3, 0.3, step=0.1).grid()) == [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3]
    assert token(uniform(-0.3, 0.3, step=0.1).grid()[3]) == "f0.0"


def test_long_grids_are_not_made() -> None:
    assert uniform(0, 1e9, step=1).grid()[123456789] == 123456789.0
    assert len(randint(0, 10**18).grid()) == 10**18 + 1


def test_values_of_another_type_are_not_contained() -> None:
    assert not uniform(0, 2).contains(1)
    assert not uniform(0, 2).contains(True)
    assert not randint(0, 2).contains(1.0)
    assert not randint(0, 2).contains(True)
    assert not uniform(0, 2).contains(1 / 3)
    assert uniform(0, 2).contains(canonical(1 / 3, "v"))


def test_answers_from_outside_are_made_canonical() -> None:
    assert token(uniform(0, 2).admit(1, "lr")) == "f1.0"
    assert uniform(0, 2).admit(1 / 3, "lr") == canonical(1 / 3, "lr")
    assert uniform(-0.3, 0.3, step=0.1).admit(-0.3 + 3 * 0.1, "lr") == 0.0
    assert uniform(0.1, 0.3, step=0.1).admit(0.1 + 0.2, "lr") == 0.3


@pytest.mark.parametrize(
    ("domain", "answer"),
    [
        (uniform(0, 1), 1.5),
        (uniform(0, 1), math.nan),
        (uniform(0, 1), True),
        (uniform(0, 1), "0.5"),
        (uniform(0, 1, step=0.5), 0.4),
        (uniform(0, 1, step=0.5), 1.5),
        (uniform(0, 1, step=0.5), math.inf),
        (uniform(0, 1, step=0.5), math.nan),
        (loguniform(0.1, 1), 0.0),
        (randint(0, 4, step=2), 3),
        (randint(0, 4), 2.0),
        (randint(0, 4), False),
        (logint(1, 4), 5),
    ],
)
def test_answers_outside_are_refused_with_path_domain_and_value(
    domain: Domain, answer: object
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        domain.admit(answer, "lr[1].v")
    assert str(error.value) == f"lr[1].v must be in {domain.text}, got {answer!r}"


@given(domains, domains)
def test_domains_are_equal_if_their_calls_are(a: Domain, b: Domain) -> None:
    assert (a == b) == (a.text == b.text)
    if a == b:
        assert hash(a) == hash(b)


def test_texts_are_calls() -> None:
    assert uniform(0, 1).text == "uniform(0.0, 1.0)"
    assert uniform(0, 1, step=0.25).text == "uniform(0.0, 1.0, step=0.25)"
    assert loguniform(1e-5, 1).text == "loguniform(1e-05, 1.0)"
    assert randint(1, 9).text == "randint(1, 9)"
    assert repr(randint(1, 9, step=2)) == "randint(1, 9, step=2)"
    assert logint(1, 9).text == "logint(1, 9)"


@pytest.mark.parametrize("u", [-0.1, 1.0, math.nan])
@pytest.mark.parametrize("domain", [uniform(0, 1), uniform(0, 1, step=0.5), randint(0, 9)])
def test_only_unit_numbers_are_mapped(domain: Domain, u: float) -> None:
    with pytest.raises(InvalidStudyError, match=rf"of \[0, 1\), got {u}"):
        domain.from_unit(u)


REFUSED: list[tuple[Callable[[], object], str, str]] = [
    (lambda: uniform(1, 0), "1.0 and 0.0", "low must not exceed high"),
    (lambda: uniform(True, 2), "True", "finite number"),
    (lambda: uniform(0, math.inf), "inf", "finite number"),
    (lambda: uniform("0", 1), "'0'", "finite number"),  # type: ignore[arg-type]
    (lambda: uniform(0, 1, step=0), "0", "above 0"),
    (lambda: uniform(0, 1, step=0.3), "0.3", "the nearest right high is 0.9"),
    (lambda: uniform(0, 1.1, step=0.3), "0.3", "the nearest right high is 1.2"),
    (lambda: loguniform(0, 1), "0", "above 0"),
    (lambda: loguniform(1, 0.1), "1.0 and 0.1", "low must not exceed high"),
    (lambda: randint(1, 0), "1 and 0", "low must not exceed high"),
    (lambda: randint(0.0, 1), "0.0", "an integer such as 3"),  # type: ignore[arg-type]
    (lambda: randint(False, 1), "False", "an integer such as 3"),
    (lambda: randint(0, 10, step=4), "4", "the nearest right high is 8"),
    (lambda: randint(0, 11, step=4), "4", "the nearest right high is 12"),
    (lambda: randint(0, 10, step=0), "0", "at least 1"),
    (lambda: logint(0, 9), "0", "at least 1"),
    (lambda: logint(5, 4), "5 and 4", "low must not exceed high"),
]


@pytest.mark.parametrize(("call", "value", "cure"), REFUSED)
def test_wrong_bounds_are_refused_with_the_value_and_the_cure(
    call: Callable[[], object], value: str, cure: str
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        call()
    assert value in str(error.value)
    assert cure in str(error.value)
