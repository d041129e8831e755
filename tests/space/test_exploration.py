"""A point near another one, of the same space and with the same hyper-parameters."""

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space import (
    Exploration,
    Point,
    SearchSpace,
    choice,
    cosine,
    loguniform,
    randint,
    step_decay,
    uniform,
    warmup,
)
from dasktune.space.domain import Domain, Float, Int
from tests.space.strategies import (
    at_random,
    continuous_domains,
    finite_domains,
    finite_spaces,
    spaces,
)

PERTURB = Exploration(resample_probability=0)
RESAMPLE = Exploration(resample_probability=1)
seeds = st.integers(0, 9)
factors = st.sampled_from([0.1, 0.8, 0.99, 1.0, 1.01, 1.2, 7.0])
explorations = st.builds(
    lambda several, p: Exploration(factors=tuple(several), resample_probability=p),
    st.lists(factors, min_size=1, max_size=3),
    st.sampled_from([0, 0.25, 1]),
)


def explored(
    definition: object, number: float, salt: str, exploration: Exploration = PERTURB
) -> int | float:
    space = SearchSpace({"lr": definition})
    return exploration.explore(space, Point.of({"lr": number}), salt)["lr"]


def outcomes(definition: object, number: float, exploration: Exploration, n: int = 60) -> set[Any]:
    return {explored(definition, number, str(i), exploration) for i in range(n)}


@given(spaces | finite_spaces, seeds, explorations, st.text(max_size=3))
def test_a_varied_point_is_of_the_space_and_has_the_same_hyper_parameters(
    space: SearchSpace, seed: int, exploration: Exploration, salt: str
) -> None:
    point, configuration = space.draw(at_random(seed))
    varied = exploration.explore(space, point, salt)
    assert space.configuration(varied).names == configuration.names
    assert exploration.explore(space, point, salt) == varied
    assert space.draw(at_random(seed))[0] == point


@given(spaces, seeds, st.text(max_size=3))
def test_hyper_parameters_that_are_fixed_keep_their_schedules(
    space: SearchSpace, seed: int, salt: str
) -> None:
    point, before = space.draw(at_random(seed))
    for fixed in [(name,) for name in before.names] + [before.names]:
        exploration = Exploration(fixed=fixed)
        after = dict(space.configuration(exploration.explore(space, point, salt)).schedules)
        assert all(after[name] == dict(before.schedules)[name] for name in fixed)


@settings(max_examples=25)
@given(finite_domains)
def test_resampling_reaches_every_value(domain: Domain) -> None:
    values = set(domain.grid())
    assert outcomes(domain, domain.grid()[0], RESAMPLE, n=40 * len(values)) == values


@given(continuous_domains, st.floats(0, 1, exclude_max=True), factors, st.text(max_size=3))
def test_a_float_is_multiplied_and_clipped(
    domain: Float, u: float, factor: float, salt: str
) -> None:
    value = domain.from_unit(u)
    assume(value)
    got = explored(domain, value, salt, Exploration(factors=(factor,), resample_probability=0))
    assert domain.contains(got)
    clipped = min(max(value * factor, domain.low), domain.high)
    assert got == pytest.approx(clipped, rel=1e-11, abs=0)


@given(
    finite_domains.filter(lambda domain: isinstance(domain, Float | Int)),
    st.floats(0, 1, exclude_max=True),
    factors,
    st.text(max_size=3),
)
def test_a_value_on_a_grid_goes_to_the_nearest_one_and_moves_if_the_bounds_allow(
    domain: Domain, u: float, factor: float, salt: str
) -> None:
    value, grid = domain.from_unit(u), list(domain.grid())
    assume(value)
    got = explored(domain, value, salt, Exploration(factors=(factor,), resample_probability=0))
    ahead = [v for v in grid if (v > value if value * factor > value else v < value)]
    if factor == 1 or not ahead:
        assert got == value
    else:
        assert got in ahead
        best = min(abs(v - value * factor) for v in ahead)
        assert abs(got - value * factor) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_both_factors_occur_and_nothing_else() -> None:
    assert outcomes(uniform(0, 1), 0.5, PERTURB) == {0.4, 0.6}
    assert outcomes(loguniform(1e-4, 1), 0.9, PERTURB) == {0.72, 1.0}
    assert outcomes(uniform(-1, 0), -0.5, PERTURB) == {-0.4, -0.6}
    assert outcomes(randint(1, 9), 1, PERTURB) == {1, 2}
    assert outcomes(randint(1, 90), 50, PERTURB) == {40, 60}
    assert outcomes(uniform(0, 1, step=0.25), 0.5, PERTURB) == {0.25, 0.75}


def test_perturbing_and_resampling_both_occur_about_as_often_as_told() -> None:
    got = [explored(uniform(0, 1), 0.5, str(i), Exploration()) for i in range(2000)]
    kept = sum(value in {0.4, 0.6} for value in got)
    assert 1400 < kept < 1600  # 1500 expected, five standard deviations are 97
    assert 650 < got.count(0.4) < 850
    assert len(set(got)) > 400


@pytest.mark.parametrize("domain", [uniform(-1, 1), uniform(0, 1, step=0.5), randint(0, 5)])
def test_zero_which_no_factor_moves_is_drawn_anew(domain: Domain) -> None:
    assert len(outcomes(domain, type(domain.from_unit(0))(0), PERTURB)) > 2


def test_an_integer_longer_than_a_float_is_moved_within_its_bounds() -> None:
    domain = randint(-(2**1000), 2**1000)
    for value in (2**1000 - 1, 3, -(2**1000)):
        for factor in (0.8, 1.2, 1e300):
            exploration = Exploration(factors=(factor,), resample_probability=0)
            assert domain.contains(explored(domain, value, "a", exploration))


def test_a_choice_moves_to_a_neighbour() -> None:
    options = choice(["a", "b", "c", "d"])
    assert [outcomes(options, i, PERTURB) for i in range(4)] == [{1}, {0, 2}, {1, 3}, {2}]
    assert outcomes(choice([1, 2]), 0, PERTURB) == {1}
    assert outcomes(choice([1]), 0, PERTURB) == {0}
    assert outcomes(options, 0, RESAMPLE) == {0, 1, 2, 3}


def test_a_number_varies_independently_of_others_and_of_other_salts() -> None:
    space = SearchSpace({name: uniform(0, 1) for name in "abc"})
    point = Point.of(dict.fromkeys("abc", 0.5))
    seen = {tuple(PERTURB.explore(space, point, str(i)).values()) for i in range(100)}
    assert len(seen) == 8
    alone = SearchSpace({"a": uniform(0, 1)})
    for i in range(20):
        salt = str(i)
        mine = PERTURB.explore(alone, Point.of({"a": 0.5}), salt)["a"]
        assert PERTURB.explore(space, point, salt)["a"] == mine


OPTIMIZERS = {"sgd": {"momentum": uniform(0, 1)}, "adam": {"beta": uniform(0, 1)}}


@pytest.mark.parametrize("definition", [choice(OPTIMIZERS), choice([choice(OPTIMIZERS), "none"])])
def test_options_with_hyper_parameters_of_their_own_are_kept(definition: object) -> None:
    space = SearchSpace({"optimizer": definition})
    point = space.point_of({"optimizer": "sgd", "momentum": 0.5})
    seen = {RESAMPLE.explore(space, point, str(i)) for i in range(50)}
    assert len(seen) == 50
    assert all(space.configuration(each).at(0)["optimizer"] == "sgd" for each in seen)


def test_numbers_that_a_new_option_brings_are_drawn() -> None:
    space = SearchSpace({"lr": choice([0.1, cosine(uniform(0, 1), randint(5, 9))])})
    seen = {PERTURB.explore(space, Point.of({"lr": 0}), str(i)) for i in range(200)}
    assert {point["lr"] for point in seen} == {1}
    assert {point["lr[1].steps"] for point in seen} == {5, 6, 7, 8, 9}
    assert len({point["lr[1].v"] for point in seen}) == 200
    back = space.point_of({"lr": cosine(0.5, 7)})
    assert {tuple(PERTURB.explore(space, back, str(i)).items()) for i in range(9)} == {(("lr", 0),)}


def test_arguments_of_schedules_vary() -> None:
    space = SearchSpace({"lr": warmup(randint(1, 9), loguniform(0.01, 1))})
    point = space.point_of({"lr": warmup(5, 0.1)})
    seen = {tuple(PERTURB.explore(space, point, str(i)).values()) for i in range(60)}
    assert seen == {(n, v) for n in (4, 6) for v in (0.08, 0.12)}


def test_a_template_that_refuses_most_numbers_still_gets_right_ones() -> None:
    late = step_decay(1, factor=0.5, at=[choice([1, 20]), choice([*range(30, 330), 15])])
    space = SearchSpace({"lr": late})
    point = space.point_of({"lr": step_decay(1, factor=0.5, at=[1, 15])})
    for i in range(30):
        space.configuration(PERTURB.explore(space, point, str(i)))


@pytest.mark.parametrize(
    ("arguments", "value", "cure"),
    [
        ({"factors": ()}, "()", "factors must be numbers such as"),
        ({"factors": 0.8}, "0.8", "factors must be numbers such as"),
        ({"factors": (0.8, 0)}, "0", "factors[1] must be above 0"),
        ({"factors": (-1.0,)}, "-1.0", "factors[0] must be above 0"),
        ({"factors": (math.inf,)}, "inf", "finite number"),
        ({"factors": ("1",)}, "'1'", "finite number"),
        ({"resample_probability": 1.5}, "1.5", "from 0 to 1"),
        ({"resample_probability": -0.1}, "-0.1", "from 0 to 1"),
        ({"resample_probability": math.nan}, "nan", "finite number"),
        ({"resample_probability": True}, "True", "finite number"),
        ({"fixed": "lr"}, "'lr'", "names of hyper-parameters such as"),
        ({"fixed": (1,)}, "(1,)", "names of hyper-parameters such as"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], value: str, cure: str) -> None:
    with pytest.raises(InvalidStudyError) as error:
        Exploration(**arguments)
    assert value in str(error.value)
    assert cure in str(error.value)


def test_fixed_names_must_be_of_the_space_its_fixed_and_conditional_ones_included() -> None:
    space = SearchSpace({"optimizer": choice(OPTIMIZERS), "wd": 0.1})
    Exploration(fixed=("wd", "beta", "optimizer")).check(space)
    with pytest.raises(InvalidStudyError, match=r"fixed has batch_size, .* there are beta, momen"):
        Exploration(fixed=("batch_size",)).check(space)


def test_a_point_of_another_space_is_refused() -> None:
    with pytest.raises(InvalidStudyError, match="lacks lr"):
        PERTURB.explore(SearchSpace({"lr": uniform(0, 1)}), Point.of({}), "")
