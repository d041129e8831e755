"""Values of schedules compared with those of the libraries that people train with."""

import math
from collections.abc import Callable

import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dasktune.space import (
    Schedule,
    cosine,
    cosine_restarts,
    cyclic,
    exponential,
    join,
    linear,
    polynomial,
    step_decay,
    warmup,
)
from tests.space.strategies import milestones

pytestmark = pytest.mark.torch

N = 40
rates = st.floats(1e-5, 10)
factors = st.floats(0.05, 1)
lengths = st.integers(1, 20)
few = settings(max_examples=25)


def check_torch(
    mine: Schedule, theirs: Callable[[torch.optim.Optimizer], object], lr: float, n: int = N
) -> None:
    """Compare the first n values with those of a torch scheduler."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = theirs(optimizer)
    for step in range(n):
        expected = optimizer.param_groups[0]["lr"]
        assert mine.at(step) == pytest.approx(expected, rel=1e-9, abs=1e-12), step
        optimizer.step()
        scheduler.step()  # type: ignore[attr-defined]


def check_optax(mine: Schedule, theirs: Callable[[int], object], n: int = N) -> None:
    """Compare the first n values with those of an optax schedule, which are of single precision."""
    for step in range(n):
        assert mine.at(step) == pytest.approx(float(theirs(step)), rel=1e-4, abs=1e-6), step  # type: ignore[arg-type]


lr_scheduler = torch.optim.lr_scheduler


@few
@given(rates, factors, lengths)
def test_step_decay_at_multiples_is_torch_step_lr(v: float, factor: float, size: int) -> None:
    mine = step_decay(v, factor=factor, at=list(range(size, N, size)))
    check_torch(mine, lambda o: lr_scheduler.StepLR(o, size, factor), v)


@few
@given(rates, factors, milestones)
def test_step_decay_is_torch_multi_step_lr(v: float, factor: float, at: list[int]) -> None:
    mine = step_decay(v, factor=factor, at=at)
    check_torch(mine, lambda o: lr_scheduler.MultiStepLR(o, at, factor), v)


@few
@given(rates, factors)
def test_exponential_is_torch_exponential_lr(v: float, rate: float) -> None:
    check_torch(exponential(v, rate), lambda o: lr_scheduler.ExponentialLR(o, rate), v)


@few
@given(rates, lengths, rates)
def test_cosine_is_torch_cosine_annealing_lr(v: float, n: int, end: float) -> None:
    mine = cosine(v, n, end)
    check_torch(mine, lambda o: lr_scheduler.CosineAnnealingLR(o, n, eta_min=end), v, n + 1)


@few
@given(rates, lengths, st.integers(1, 3), rates)
def test_cosine_restarts_is_torch_cosine_annealing_warm_restarts(
    v: float, period: int, factor: int, end: float
) -> None:
    mine = cosine_restarts(v, period, factor, end)
    check_torch(
        mine,
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, period, factor, eta_min=end),
        v,
    )


@few
@given(rates, rates, lengths)
def test_cyclic_is_torch_triangular_cyclic_lr(low: float, high: float, half: int) -> None:
    check_torch(
        cyclic(low, high, half),
        lambda o: lr_scheduler.CyclicLR(o, low, high, half, cycle_momentum=False),
        low,
    )


@few
@given(rates, st.floats(0.01, 1), st.floats(0, 1), lengths)
def test_linear_is_torch_linear_lr(v: float, first: float, last: float, n: int) -> None:
    mine = linear(v * first, v * last, n)
    check_torch(mine, lambda o: lr_scheduler.LinearLR(o, first, last, n), v)


@few
@given(rates, lengths, st.sampled_from([0.5, 1.0, 2.0, 3.0]))
def test_polynomial_to_zero_is_torch_polynomial_lr(v: float, n: int, power: float) -> None:
    check_torch(
        polynomial(v, 0, n, power=power), lambda o: lr_scheduler.PolynomialLR(o, n, power), v
    )


@few
@given(rates, lengths, st.integers(1, 10))
def test_warmup_is_torch_linear_growth_and_then_the_schedule(v: float, n: int, size: int) -> None:
    mine = warmup(n, step_decay(v, factor=0.5, at=list(range(size, N, size))))
    check_torch(
        mine,
        lambda o: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.LinearLR(o, 1 / (n + 1), 1, n), lr_scheduler.StepLR(o, size, 0.5)],
            [n],
        ),
        v,
    )


@few
@given(rates, factors)
def test_exponential_is_optax_exponential_decay(v: float, rate: float) -> None:
    check_optax(exponential(v, rate), optax.exponential_decay(v, 1, rate))


@few
@given(rates, lengths, st.floats(0, 1))
def test_cosine_is_optax_cosine_decay(v: float, n: int, alpha: float) -> None:
    check_optax(cosine(v, n, v * alpha), optax.cosine_decay_schedule(v, n, alpha))


@few
@given(rates, rates, lengths)
def test_linear_is_optax_linear(v: float, end: float, n: int) -> None:
    check_optax(linear(v, end, n), optax.linear_schedule(v, end, n))


@few
@given(rates, rates, lengths, st.sampled_from([0.5, 1.0, 2.0, 3.0]))
def test_polynomial_is_optax_polynomial(v: float, end: float, n: int, power: float) -> None:
    check_optax(polynomial(v, end, n, power=power), optax.polynomial_schedule(v, end, power, n))


@few
@given(rates, lengths, st.integers(1, 20), st.integers(1, 10))
def test_join_is_optax_join(v: float, n: int, first: int, gap: int) -> None:
    mine = join([linear(0, v, n), cosine(v, n), exponential(v, 0.9)], at=[first, first + gap])
    theirs = optax.join_schedules(
        [
            optax.linear_schedule(0, v, n),
            optax.cosine_decay_schedule(v, n),
            optax.exponential_decay(v, 1, 0.9),
        ],
        [first, first + gap],
    )
    check_optax(mine, theirs)


def test_restarts_fall_as_the_sgdr_paper_says() -> None:
    mine = cosine_restarts(0.05, 10, 2)
    for done, at in [(0, 0), (5, 5), (9, 9)]:
        assert mine.at(at) == pytest.approx(0.5 * 0.05 * (1 + math.cos(math.pi * done / 10)))
    for done, at in [(0, 10), (10, 20), (19, 29)]:
        assert mine.at(at) == pytest.approx(0.5 * 0.05 * (1 + math.cos(math.pi * done / 20)))
