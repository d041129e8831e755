"""Our domains in Optuna's words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.samplers.distributions import (
    categories_of,
    distribution_of,
    distributions_of,
    drawn,
    suggested,
)
from dasktune.space.domain import Domain
from dasktune.space.search_space import SearchSpace

DOMAINS: list[Domain] = [
    dt.uniform(-1, 2),
    dt.uniform(-0.3, 0.3, step=0.1),
    dt.uniform(0.5, 0.5),
    dt.loguniform(1e-5, 1),
    dt.randint(-3, 9),
    dt.randint(8, 64, step=8),
    dt.logint(1, 1000),
    dt.choice(["sgd", "adam", None, 1, 1.0, True, "1", (3, 4)]),
    dt.choice({"sgd": {"momentum": dt.uniform(0, 1)}, "adam": {}}),
    dt.choice([dt.constant(0.1), dt.step_decay(0.1, factor=dt.uniform(0.1, 0.5), at=[3])]),
]
"""Of every kind, with options that Python holds equal."""


@given(st.sampled_from(DOMAINS), st.floats(0, 1, exclude_max=True))
def test_a_drawn_number_goes_to_optuna_and_comes_back_unchanged(domain: Domain, u: float) -> None:
    number = domain.from_unit(u)
    distribution = distribution_of(domain)
    value = suggested(number, distribution)
    assert distribution._contains(distribution.to_internal_repr(value))
    back = domain.admit(drawn(value, distribution), "x")
    assert (type(back), back) == (type(number), number)


@given(st.sampled_from(DOMAINS), st.floats(0, 1, exclude_max=True))
def test_what_optuna_may_suggest_is_admitted(domain: Domain, u: float) -> None:
    distribution = distribution_of(domain)
    if isinstance(distribution, CategoricalDistribution):
        value: object = distribution.choices[int(u * len(distribution.choices))]
    else:
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        step = distribution.step
        n = 0 if step is None else round((distribution.high - distribution.low) / step)
        span = distribution.high - distribution.low
        value = distribution.low + (u * span if step is None else round(u * n) * step)
    assert domain.contains(domain.admit(drawn(value, distribution), "x"))


def test_ranges_keep_their_bounds_steps_and_scales() -> None:
    assert distribution_of(dt.uniform(-1, 2)) == FloatDistribution(-1, 2)
    assert distribution_of(dt.uniform(0, 1, step=0.25)) == FloatDistribution(0, 1, step=0.25)
    assert distribution_of(dt.loguniform(1e-5, 1)) == FloatDistribution(1e-5, 1, log=True)
    assert distribution_of(dt.randint(8, 64, step=8)) == IntDistribution(8, 64, step=8)
    assert distribution_of(dt.logint(1, 99)) == IntDistribution(1, 99, log=True)


def test_options_are_called_as_people_write_them() -> None:
    warm = dt.warmup(3, dt.constant(0.1))
    assert categories_of(dt.choice(["sgd", 0.1, (3, 4), warm, dt.uniform(0, 1)])) == (
        "sgd",
        "0.1",
        "(3, 4)",
        "warmup(3, 0.1)",
        "uniform(0.0, 1.0)",
    )
    assert categories_of(dt.choice({"sgd": {"m": dt.uniform(0, 1)}, "adam": {}})) == ("sgd", "adam")


def test_options_that_read_alike_are_told_apart_by_index() -> None:
    assert categories_of(dt.choice(["1", 1])) == ("0: 1", "1: 1")


def test_a_space_has_a_distribution_for_each_place() -> None:
    space = SearchSpace(
        {
            "lr": dt.choice([0.1, dt.step_decay(0.1, factor=dt.uniform(0.1, 0.5), at=[3])]),
            "optimizer": dt.choice({"sgd": {"momentum": dt.choice([0.9, 0.95])}, "adam": {}}),
        }
    )
    assert set(distributions_of(space)) == {
        "lr",
        "lr[1].factor",
        "optimizer",
        "optimizer=sgd.momentum",
    }


@pytest.mark.parametrize(("domain", "value"), [(dt.choice(["a", "b"]), "c"), (DOMAINS[0], "x")])
def test_what_optuna_cannot_mean_is_refused(domain: Domain, value: object) -> None:
    with pytest.raises(InvalidStudyError, match="Optuna suggests"):
        drawn(value, distribution_of(domain))
