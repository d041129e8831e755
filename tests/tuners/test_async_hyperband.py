from fractions import Fraction
from random import Random as Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.testing import TunerContract
from dasktune.testing.moves import Ask, End
from dasktune.testing.play import Play
from dasktune.trial import Report
from dasktune.tuners.rungs import Ties
from dasktune.tuners.tuner import Tuner, TunerContext
from tests.tuners.naive import Rungs, requested
from tests.worlds import small_study

rules: st.SearchStrategy[Ties] = st.sampled_from(["number", "spread"])


@st.composite
def async_hyperbands(draw: st.DrawFn) -> dt.AsyncHyperband:
    least = draw(st.integers(1, 4))
    return dt.AsyncHyperband(
        min_steps=least,
        max_steps=draw(st.integers(least, 40)),
        reduction_factor=draw(st.sampled_from([2, 2.5, 3, 4, 100])),
        ties=draw(rules),
    )


class TestAsyncHyperbandIsATuner(TunerContract):
    leaves_paused = True

    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return async_hyperbands()


class Brackets:
    """One naive ASHA for each bracket, and the trials in their order."""

    def __init__(self, tuner: dt.AsyncHyperband, n_trials: int) -> None:
        self.place = {trial: tuner.bracket_of(trial) for trial in range(n_trials)}
        self.rungs = [
            Rungs(
                bracket.rungs,
                tuner.reduction_factor,
                tuner.ties,
                [trial for trial in range(n_trials) if self.place[trial] == index],
            )
            for index, bracket in enumerate(tuner.brackets)
        ]

    def ask(self) -> tuple[int, int] | None:
        """Promote from the highest rung of all brackets, else let the next trial begin."""
        found = [(each, each.promotable()) for each in self.rungs]
        chances = [(each, *best) for each, best in found if best is not None]
        if chances:
            bracket, trial, rung = max(chances, key=lambda chance: chance[0].steps[chance[2]])
            return bracket.promote(trial, rung)
        waiting = [each for each in self.rungs if each.fresh]
        return min(waiting, key=lambda each: each.fresh[0]).begin() if waiting else None


@given(
    tuner=async_hyperbands(),
    n=st.integers(0, 25),
    bad=st.sampled_from([0.0, 0.1, 0.4]),
    rng=st.randoms(use_true_random=False),
)
def test_each_ask_gives_the_best_promotable_of_the_highest_rung_or_the_next_trial(
    tuner: dt.AsyncHyperband, n: int, bad: float, rng: Generator
) -> None:
    played, brackets = Play(tuner, n, rng, bad=bad).go(), Brackets(tuner, n)
    for move, answer in zip(played.moves, played.answers, strict=True):
        match move:
            case Ask():
                expected = brackets.ask()
                assert requested(answer) == ([] if expected is None else [expected])
            case Report():
                brackets.rungs[brackets.place[move.trial]].tell(move)
            case End(trial):
                brackets.rungs[brackets.place[trial]].end(trial)


@given(tuner=async_hyperbands(), n=st.integers(0, 200))
def test_of_the_first_trials_each_bracket_has_its_share_but_for_less_than_one(
    tuner: dt.AsyncHyperband, n: int
) -> None:
    """The best bound there is for m brackets: 1 - 1 / (2 m - 2)."""
    places = [tuner.bracket_of(trial) for trial in range(n)]
    sizes = [bracket.n_trials for bracket in tuner.brackets]
    bound = 1 - Fraction(1, max(2, 2 * len(sizes) - 2))
    for index, size in enumerate(sizes):
        assert abs(places.count(index) - Fraction(size * n, sum(sizes))) <= bound


@given(tuner=async_hyperbands(), rounds=st.integers(1, 3))
def test_whole_rounds_are_dealt_and_looked_out_for_as_in_hyperband(
    tuner: dt.AsyncHyperband, rounds: int
) -> None:
    twin = dt.Hyperband(
        min_steps=tuner.min_steps,
        max_steps=tuner.max_steps,
        reduction_factor=tuner.reduction_factor,
    )
    assert tuner.brackets == twin.brackets
    n = sum(bracket.n_trials for bracket in tuner.brackets)
    places = [tuner.bracket_of(trial) for trial in range(n)]
    assert [places.count(i) for i in range(len(tuner.brackets))] == [
        bracket.n_trials for bracket in tuner.brackets
    ]
    if rounds == 1:
        assert tuner.outlook(n) == twin.outlook(n)


def test_trials_of_one_bracket_are_not_compared_with_those_of_another() -> None:
    run = dt.AsyncHyperband(min_steps=1, max_steps=2, reduction_factor=2).start(
        TunerContext(n_trials=5, seed=0)  # two brackets of two: places 0, 1, 0, 1, 0
    )
    assert [requested(run.ask()) for _ in range(4)] == [[(0, 1)], [(1, 2)], [(2, 1)], [(3, 2)]]
    run.tell(Report(trial=0, step=1, metrics={}, score=1.0))
    (ending,) = run.tell(Report(trial=1, step=2, metrics={}, score=9.0))
    assert ending.reason == "bracket 0: trained to the last rung"
    (request,) = run.ask()
    assert (request.trial, request.reason) == (4, "bracket 1: begins at the first rung")
    run.tell(Report(trial=2, step=1, metrics={}, score=0.0))
    (request,) = run.ask()
    assert (request.trial, request.step) == (0, 2)
    assert request.reason == "bracket 1: promoted: among the best 1 of 2 at step 1"


def test_of_all_brackets_the_highest_rung_promotes_first_and_of_equal_ones_the_earlier() -> None:
    run = dt.AsyncHyperband(min_steps=1, max_steps=4, reduction_factor=2).start(
        TunerContext(n_trials=10, seed=0)  # four trials begin at step 1, three at step 2
    )
    begun = [requested(run.ask())[0] for _ in range(10)]
    at_1 = [trial for trial, step in begun if step == 1]
    at_2 = [trial for trial, step in begun if step == 2]
    for trial in at_1[:2]:
        run.tell(Report(trial=trial, step=1, metrics={}, score=-trial))
    assert requested(run.ask()) == [(at_1[0], 2)]
    for trial in at_1[2:]:
        run.tell(Report(trial=trial, step=1, metrics={}, score=-trial))
    for trial in at_2[:2]:
        run.tell(Report(trial=trial, step=2, metrics={}, score=-trial))
    assert requested(run.ask()) == [(at_2[0], 4)]
    assert requested(run.ask()) == [(at_1[1], 2)]
    for trial in at_1[:2]:
        run.tell(Report(trial=trial, step=2, metrics={}, score=-trial))
    run.tell(Report(trial=at_2[2], step=2, metrics={}, score=99))
    assert requested(run.ask()) == [(at_1[0], 4)]
    assert requested(run.ask()) == [(at_2[2], 4)]


@pytest.mark.parametrize("n_workers", [1, 4])
def test_it_runs_and_is_explained(n_workers: int) -> None:
    study = small_study(tuner=dt.AsyncHyperband(min_steps=2, max_steps=8, reduction_factor=2))
    assert "steps 0 to 2: 10 trials, 20 steps" in dt.explain(study)
    result = dt.simulate(study, dt.World(workers=n_workers))
    assert "bracket 2: begins at the first rung" in dt.explain(result, trial=0)
    assert result.steps_executed == result.steps_unique
