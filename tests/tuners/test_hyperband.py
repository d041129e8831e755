from itertools import pairwise
from math import inf
from random import Random as Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.study.commands import AskTrial
from dasktune.testing import TunerContract
from dasktune.testing.moves import Ask, End
from dasktune.testing.play import Play
from dasktune.trial import Report, TrialStatus
from dasktune.tuners.rungs import Ties
from dasktune.tuners.tuner import Tuner, TunerContext
from tests.tuners.naive import Halved, requested
from tests.worlds import small_study

rules: st.SearchStrategy[Ties] = st.sampled_from(["number", "spread"])


@st.composite
def hyperbands(draw: st.DrawFn) -> dt.Hyperband:
    least = draw(st.integers(1, 4))
    return dt.Hyperband(
        min_steps=least,
        max_steps=draw(st.integers(least, 40)),
        reduction_factor=draw(st.sampled_from([2, 2.5, 3, 4, 100])),
        ties=draw(rules),
    )


class TestHyperbandIsATuner(TunerContract):
    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return hyperbands()


def halved(tuner: dt.Hyperband, n_trials: int) -> list[Halved]:
    """The brackets of a study, in the order in which they run."""
    found: list[Halved] = []
    first = 0
    while first < n_trials:
        bracket = tuner.brackets[len(found) % len(tuner.brackets)]
        trials = range(first, min(n_trials, first + bracket.n_trials))
        found.append(Halved(bracket.rungs, tuner.reduction_factor, tuner.ties, trials))
        first = trials.stop
    return found


@given(
    tuner=hyperbands(),
    n=st.integers(0, 40),
    bad=st.sampled_from([0.0, 0.1, 0.4]),
    rng=st.randoms(use_true_random=False),
)
def test_each_ask_gives_the_next_rung_of_the_first_bracket_that_is_not_over(
    tuner: dt.Hyperband, n: int, bad: float, rng: Generator
) -> None:
    played, brackets = Play(tuner, n, rng, bad=bad).go(), halved(tuner, n)
    numbers = [number for bracket in brackets for number in bracket.on_rung]
    assert numbers == list(range(n))
    of = {number: bracket for bracket in brackets for number in bracket.on_rung}
    for move, answer in zip(played.moves, played.answers, strict=True):
        match move:
            case Ask():
                going = [bracket for bracket in brackets if not bracket.is_over]
                assert requested(answer) == (going[0].ask() if going else [])
            case Report():
                of[move.trial].hear(move.trial, move.score, move.branch)
            case End(trial):
                bracket = of[trial]
                if not bracket.is_over and trial in bracket.on_rung:
                    bracket.hear(trial, -inf)


@pytest.mark.parametrize("n_workers", [1, 3, 100])
def test_a_bracket_begins_when_all_trials_of_the_one_before_are_over(n_workers: int) -> None:
    study = small_study(
        space={"x": dt.uniform(0, 1)},
        sampler=dt.Random(),
        tuner=dt.Hyperband(min_steps=1, max_steps=9),
        n_trials=20,
    )
    result = dt.simulate(study, dt.World(workers=n_workers))
    asked: dict[int, list[int]] = {}
    ended: dict[int, int] = {}
    for at, (_, command) in enumerate(result.timeline.commands()):
        if isinstance(command, AskTrial):
            asked.setdefault(command.trial.number, []).append(at)
        elif hasattr(command, "trial") and hasattr(command, "status"):
            ended[command.trial.number] = at
    brackets = [range(9), range(9, 14), range(14, 17), range(17, 20)]
    assert sorted(asked) == sorted(ended) == list(range(20))
    for before, after in pairwise(brackets):
        assert max(ended[t] for t in before) < min(asked[t][0] for t in after)


def test_the_brackets_are_those_of_the_paper() -> None:
    tuner = dt.Hyperband(min_steps=1, max_steps=81, reduction_factor=3)
    assert [(bracket.n_trials, bracket.rungs) for bracket in tuner.brackets] == [
        (81, (1, 3, 9, 27, 81)),
        (34, (3, 9, 27, 81)),
        (15, (9, 27, 81)),
        (8, (27, 81)),
        (5, (81,)),
    ]
    # Trials that train through steps 1, 3, 9, 27, 81, by bracket.
    on_rungs = [
        (81, 27, 9, 3, 1),
        (34, 34, 11, 3, 1),
        (15, 15, 15, 5, 1),
        (8, 8, 8, 8, 2),
        (5, 5, 5, 5, 5),
    ]
    assert tuner.outlook(143) == tuple(map(sum, zip(*on_rungs, strict=True)))
    assert tuner.outlook(2 * 143) == tuple(2 * n for n in tuner.outlook(143))
    assert tuner.outlook(81) == on_rungs[0]
    assert tuner.outlook(81 + 3) == (84, 30, 10, 4, 2)  # of three, one goes on from each rung
    assert tuner.decision_steps == (1, 3, 9, 27, 81)


def test_a_study_that_ends_inside_a_bracket_halves_those_it_has() -> None:
    run = dt.Hyperband(min_steps=1, max_steps=4, reduction_factor=2).start(
        TunerContext(n_trials=6, seed=0)  # brackets of 4, 3 and 3: the second has two trials
    )
    assert requested(run.ask()) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    for trial in range(4):
        run.tell(Report(trial=trial, step=1, metrics={}, score=-trial))
    assert requested(run.ask()) == [(0, 2), (1, 2)]
    run.end(0, TrialStatus.FAILED)
    run.tell(Report(trial=1, step=2, metrics={}, score=0))
    assert requested(run.ask()) == [(1, 4)]
    (ending,) = run.tell(Report(trial=1, step=4, metrics={}, score=0))
    assert (ending.trial, ending.status) == (1, TrialStatus.COMPLETED)
    assert requested(run.ask()) == [(4, 2), (5, 2)]
    assert list(run.tell(Report(trial=4, step=2, metrics={}, score=0))) == []
    (ending,) = run.tell(Report(trial=5, step=2, metrics={}, score=1))
    assert (ending.trial, ending.status) == (4, TrialStatus.STOPPED)
    assert ending.reason == "bracket 1: not among the best 1 of 2 at step 2: rank 2"
    (request,) = run.ask()
    assert (
        request.reason == "bracket 1, rung 1: 1 trials train to step 4, the best 1 of 2 at step 2"
    )


def test_a_bracket_of_which_all_trials_are_over_is_passed_by() -> None:
    run = dt.Hyperband(min_steps=1, max_steps=2, reduction_factor=2).start(
        TunerContext(n_trials=6, seed=0)  # brackets of 2, 2 and again 2
    )
    run.ask()
    for trial in (0, 1, 2, 3):
        assert list(run.end(trial, TrialStatus.DIVERGED)) == []
    assert requested(run.ask()) == [(4, 1), (5, 1)]


def test_it_is_explained_before_and_after_it_runs() -> None:
    study = small_study(tuner=dt.Hyperband(min_steps=2, max_steps=8, reduction_factor=2))
    text = dt.explain(study)
    assert "Hyperband(min_steps=2, max_steps=8, reduction_factor=2, ties='number')" in text
    assert "steps 0 to 2: 10 trials, 20 steps" in text
    # 4, 2, 1 of the first bracket; 3, 1 of the second; 3 of the third
    assert "steps 2 to 4: 8 trials, 16 steps" in text
    assert "steps 4 to 8: 5 trials, 20 steps" in text
    result = dt.simulate(study, dt.World())
    assert "bracket 2, rung 0: 4 trials train to step 2" in dt.explain(result, trial=0)


@pytest.mark.parametrize(
    ("least", "most", "factor", "message"),
    [
        (0, 9, 3, "min_steps must be at least 1, got 0"),
        (1, 9.0, 3, "max_steps must be an integer such as 3, got 9.0"),
        (True, 9, 3, "min_steps must be an integer such as 3, got True"),
        (9, 8, 3, "min_steps is 9 and max_steps is 8; min_steps must not be larger"),
        (1, 9, "3", "reduction_factor is '3'; it must be a number > 1"),
        (
            1,
            9,
            1.5,
            "reduction_factor is 1.5; for brackets it must be at least 2, or several would begin "
            "at the same step",
        ),
    ],
)
def test_a_refusal_names_the_value_and_the_cure(
    least: int, most: int, factor: float, message: str
) -> None:
    for tuner in (dt.Hyperband, dt.AsyncHyperband):
        with pytest.raises(dt.InvalidStudyError) as refusal:
            tuner(min_steps=least, max_steps=most, reduction_factor=factor)
        assert str(refusal.value) == message
        with pytest.raises(dt.InvalidStudyError, match="it must be 'number' or 'spread'"):
            tuner(min_steps=1, max_steps=9, ties="x")  # type: ignore[arg-type]
