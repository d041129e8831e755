from fractions import Fraction
from math import inf, isqrt
from random import Random as Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.tuners.rungs import Ranking, Ties, check_factor, check_rungs, n_promoted, rung_steps

FACTORS = (2, 3, 4, 10, 1.07, 1.4, 1.5, 2.5, 10 / 3, 2.0, 50, 1e308)


def exactly(factor: float) -> Fraction:
    """The factor that was meant: 1.4 is 7/5, and 10 / 3 is no decimal."""
    return Fraction(factor).limit_denominator(1000)


@pytest.mark.parametrize("factor", FACTORS)
def test_rungs_are_whole_parts_of_powers_below_the_maximum_and_the_maximum(factor: float) -> None:
    for least in (1, 2, 3, 5, 7, 15, 45, 100):
        for most in (1, 2, 3, 5, 7, 15, 16, 18, 45, 63, 81, 100, 243, 1000):
            if least > most:
                continue
            below, power = set(), Fraction(least)
            while int(power) < most:
                below.add(int(power))
                power *= exactly(factor)
            assert rung_steps(least, most, factor) == (*sorted(below), most)


@pytest.mark.parametrize("factor", FACTORS)
def test_the_whole_part_of_n_over_the_factor_goes_on(factor: float) -> None:
    for n in range(700):
        assert n_promoted(n, factor) == n * exactly(factor).denominator // exactly(factor).numerator


def test_irrational_factors_are_rounded_down() -> None:
    assert rung_steps(1, 100, 2**0.5) == (
        *sorted({isqrt(2**k) for k in range(14) if isqrt(2**k) < 100}),
        100,
    )


def test_rungs_that_are_given_stay() -> None:
    assert dt.SuccessiveHalving(rungs=[2, 3, 50]).rungs == (2, 3, 50)
    assert dt.SuccessiveHalving(rungs=(7,)).decision_steps == (7,)
    assert dt.SuccessiveHalving(rungs=[2, 6, 18]) == dt.SuccessiveHalving(
        min_steps=2, max_steps=18, reduction_factor=3
    )


@pytest.mark.parametrize(
    ("least", "most", "factor", "message"),
    [
        (0, 9, 3, "min_steps must be at least 1, got 0"),
        (1.0, 9, 3, "min_steps must be an integer such as 3, got 1.0"),
        (1, True, 3, "max_steps must be an integer such as 3, got True"),
        (9, 8, 3, "min_steps is 9 and max_steps is 8; min_steps must not be larger"),
        (1, 9, 1, "reduction_factor is 1; it must be a number > 1"),
        (1, 9, 0.5, "reduction_factor is 0.5; it must be a number > 1"),
        (1, 9, True, "reduction_factor is True; it must be a number > 1"),
        (1, 9, inf, "reduction_factor is inf; it must be a number > 1"),
        (1, 9, "3", "reduction_factor is '3'; it must be a number > 1"),
    ],
)
def test_a_refusal_of_bounds_names_the_value_and_the_cure(
    least: int, most: int, factor: float, message: str
) -> None:
    for tuner in (dt.SuccessiveHalving, dt.ASHA):
        with pytest.raises(dt.InvalidStudyError) as refusal:
            tuner(min_steps=least, max_steps=most, reduction_factor=factor)
        assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ([], "rungs is []; it must be ascending steps, at least one"),
        ([6, 2], "rungs is [6, 2]; it must be ascending steps, at least one"),
        ([2, 2], "rungs is [2, 2]; it must be ascending steps, at least one"),
        ([0, 2], "rungs[0] must be at least 1, got 0"),
        ([2, "6"], "rungs[1] must be an integer such as 3, got '6'"),
        (6, "rungs is 6; it must be a list of steps such as [2, 6]"),
        ("26", "rungs is '26'; it must be a list of steps such as [2, 6]"),
    ],
)
def test_a_refusal_of_rungs_names_the_value_and_the_cure(rungs: object, message: str) -> None:
    with pytest.raises(dt.InvalidStudyError) as refusal:
        check_rungs(rungs)
    assert str(refusal.value) == message


def test_nan_is_no_factor() -> None:
    with pytest.raises(dt.InvalidStudyError, match="reduction_factor is nan"):
        check_factor(float("nan"))


@pytest.mark.parametrize("ties", ["numbers", None, []])
def test_an_unknown_rule_for_ties_is_refused(ties: object) -> None:
    for tuner in (dt.SuccessiveHalving, dt.ASHA):
        with pytest.raises(dt.InvalidStudyError, match="it must be 'number' or 'spread'"):
            tuner(min_steps=1, max_steps=9, ties=ties)  # type: ignore[arg-type]


places = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 0.5, -inf]), st.sampled_from([None, "a", "b", "c"])),
    max_size=12,
)
"""Scores and branches, by trial number."""


@given(places=places, order=st.randoms(use_true_random=False))
def test_by_number_equal_scores_rank_as_their_trials_are_numbered(
    places: list[tuple[float, str | None]], order: Generator
) -> None:
    ranking = Ranking("number")
    numbers = list(range(len(places)))
    order.shuffle(numbers)
    for trial in numbers:
        ranking.add(trial, *places[trial])
    expected = sorted(range(len(places)), key=lambda trial: (-places[trial][0], trial))
    assert [ranking.rank(trial) for trial in expected] == list(range(len(places)))
    usable = [trial for trial in expected if places[trial][0] > -inf]
    for n in range(len(places) + 1):
        assert ranking.best(n) == usable[:n]


@given(places=places)
def test_spread_ties_rank_distinct_branches_before_repeats(
    places: list[tuple[float, str | None]],
) -> None:
    ranking = Ranking("spread")
    for trial, place in enumerate(places):
        ranking.add(trial, *place)
    ranked = sorted(range(len(places)), key=ranking.rank)
    assert [places[trial][0] for trial in ranked] == sorted([s for s, _ in places], reverse=True)
    for score in {score for score, _ in places}:
        tied = [trial for trial in ranked if places[trial][0] == score]
        # The how-manieth of its branch each trial is; without a branch it is like no other.
        turns = [
            sum(places[t] == places[trial] for t in range(trial)) if places[trial][1] else 0
            for trial in tied
        ]
        assert turns == sorted(turns)
        for turn in set(turns):
            alike = [trial for trial, at in zip(tied, turns, strict=True) if at == turn]
            assert alike == sorted(alike)


@pytest.mark.parametrize("ties", ["number", "spread"])
@given(places=places)
def test_a_copy_of_a_ranking_grows_equally_and_by_itself(
    ties: Ties, places: list[tuple[float, str | None]]
) -> None:
    ranking, both = Ranking(ties), range(2 * len(places))
    for trial, place in enumerate(places):
        ranking.add(trial, *place)
    before = [ranking.rank(trial) for trial in range(len(places))]
    twin = ranking.copy()
    for trial, place in enumerate(places, start=len(places)):
        twin.add(trial, *place)
    assert [ranking.rank(trial) for trial in range(len(places))] == before
    for trial, place in enumerate(places, start=len(places)):
        ranking.add(trial, *place)
    assert [ranking.rank(trial) for trial in both] == [twin.rank(trial) for trial in both]
