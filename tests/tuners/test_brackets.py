"""The brackets of Hyperband against the paper's formulas, in whole numbers only."""

from fractions import Fraction
from itertools import pairwise

import pytest

import dasktune as dt
from dasktune.tuners.brackets import in_turn

LEASTS = (1, 2, 3, 5, 7, 15, 45, 100)
MOSTS = (1, 2, 3, 5, 7, 15, 16, 18, 45, 63, 64, 81, 100, 243, 1000, 59049)
FACTORS = (2, 3, 4, 10, 2.0, 2.5, 10 / 3, 7.3, 50, 1e308)

BOUNDS = [(least, most) for least in LEASTS for most in MOSTS if least <= most]


def parts_of(factor: float) -> tuple[int, int]:
    """Numerator and denominator of the factor that was meant: 2.5 is 5 / 2, 10 / 3 no decimal."""
    meant = Fraction(factor).limit_denominator(1000)
    return meant.numerator, meant.denominator


def n_halvings(least: int, most: int, p: int, q: int) -> int:
    """The largest s with r (p / q)^s <= R."""
    s = 0
    while least * p ** (s + 1) <= most * q ** (s + 1):
        s += 1
    return s


@pytest.mark.parametrize("factor", FACTORS)
def test_brackets_are_those_of_algorithm_1(factor: float) -> None:
    p, q = parts_of(factor)
    for least, most in BOUNDS:
        tuner = dt.Hyperband(min_steps=least, max_steps=most, reduction_factor=factor)
        s_max = n_halvings(least, most, p, q)
        assert len(tuner.brackets) == s_max + 1
        for s, bracket in zip(range(s_max, -1, -1), tuner.brackets, strict=True):
            # n = ceil((s_max + 1) / (s + 1) eta^s)
            over, under = (s_max + 1) * p**s, (s + 1) * q**s
            assert bracket.n_trials == (over + under - 1) // under
            # r_i = R eta^(i - s), rounded down
            rungs = [most * q ** (s - i) // p ** (s - i) for i in range(s + 1)]
            assert bracket.rungs == tuple(rungs)


@pytest.mark.parametrize("factor", FACTORS)
def test_every_bracket_ends_at_the_maximum_and_none_begins_below_the_minimum(
    factor: float,
) -> None:
    for least, most in BOUNDS:
        tuner = dt.Hyperband(min_steps=least, max_steps=most, reduction_factor=factor)
        for before, after in pairwise(tuner.brackets):
            assert before.rungs[1:] == after.rungs
        for bracket in tuner.brackets:
            assert least <= bracket.rungs[0]
            assert bracket.rungs[-1] == most
            assert all(a < b for a, b in pairwise(bracket.rungs))
        steps = {step for bracket in tuner.brackets for step in bracket.rungs}
        assert tuner.decision_steps == tuple(sorted(steps))


@pytest.mark.parametrize(
    ("least", "factor", "s_max"), [(1, 3, 4), (2, 2, 5), (7, 10, 2), (3, 4, 0)]
)
def test_where_the_maximum_is_a_power_the_rungs_are_those_of_halving(
    least: int, factor: int, s_max: int
) -> None:
    most = least * factor**s_max
    tuner = dt.Hyperband(min_steps=least, max_steps=most, reduction_factor=factor)
    for bracket in tuner.brackets:
        alone = dt.SuccessiveHalving(
            min_steps=bracket.rungs[0], max_steps=most, reduction_factor=factor
        )
        assert bracket.rungs == alone.rungs


@pytest.mark.parametrize("n_trials", [*range(8), 13, 14, 16, 17, 18, 20, 33, 34, 35, 100])
def test_brackets_take_trials_in_turn_until_there_are_none(n_trials: int) -> None:
    table = dt.Hyperband(min_steps=1, max_steps=9).brackets  # of 9, 5 and 3 trials
    parts = in_turn(table, n_trials)
    assert [trial for _, trials in parts for trial in trials] == list(range(n_trials))
    for index, (bracket, trials) in enumerate(parts):
        assert bracket == table[index % 3]
        assert len(trials) == bracket.n_trials or index == len(parts) - 1
        assert 0 < len(trials) <= bracket.n_trials


@pytest.mark.parametrize("n_trials", [0, 1, 2, 3, 8, 9, 10, 13, 14, 17, 20, 40])
@pytest.mark.parametrize("factor", [2, 2.5, 3, 100])
@pytest.mark.parametrize(("least", "most"), [(1, 9), (2, 17), (5, 5), (3, 100)])
def test_the_outlook_counts_who_is_left_of_each_bracket(
    least: int, most: int, factor: float, n_trials: int
) -> None:
    tuner = dt.Hyperband(min_steps=least, max_steps=most, reduction_factor=factor)
    p, q = parts_of(factor)
    counts = dict.fromkeys(tuner.decision_steps, 0)
    for bracket, trials in in_turn(tuner.brackets, n_trials):
        left, rungs = len(trials), list(bracket.rungs)
        for step in counts:
            counts[step] += left
            if step == rungs[0] and len(rungs) > 1:
                left, rungs = max(1, left * q // p), rungs[1:]
    assert tuner.outlook(n_trials) == tuple(counts.values())
