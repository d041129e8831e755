from math import inf
from random import Random as Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.testing import TunerContract
from dasktune.testing.laws import SCORES
from dasktune.trial import Ending, Report, TrialStatus
from dasktune.tuners.rungs import Ties
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun

rules: st.SearchStrategy[Ties] = st.sampled_from(["number", "spread"])
factors = st.sampled_from([1.5, 2, 3, 4, 100])


@st.composite
def halvings(draw: st.DrawFn) -> Tuner:
    rungs = draw(st.sets(st.integers(1, 30), min_size=1, max_size=4))
    return dt.SuccessiveHalving(
        rungs=sorted(rungs), reduction_factor=draw(factors), ties=draw(rules)
    )


class TestSuccessiveHalvingIsATuner(TunerContract):
    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return halvings()


class Told:
    """What the trials of a rung said, and who is ahead of whom by the rule."""

    def __init__(self, trials: list[int], rng: Generator, rule: Ties, *, bad: float) -> None:
        self.scores = {
            trial: -inf if rng.random() < bad else rng.choice(SCORES) for trial in trials
        }
        self.branches = {trial: rng.randrange(3) for trial in trials}
        self.rule = rule

    def n_alike_before(self, trial: int) -> int:
        """How many trials of lower number tie with a trial and share its way to the next rung."""
        mine = (self.scores[trial], self.branches[trial])
        return sum((self.scores[t], self.branches[t]) == mine for t in self.scores if t < trial)

    def ranked(self) -> list[int]:
        def place(trial: int) -> tuple[float, int, int]:
            score = self.scores[trial]
            spreads = self.rule == "spread" and score > -inf
            return (-score, self.n_alike_before(trial) if spreads else 0, trial)

        return sorted(self.scores, key=place)


def tell_all(run: TunerRun, told: Told, step: int, rng: Generator) -> list[Ending]:
    """Tell a run a whole rung in any order; return what it says to the last news."""
    order = list(told.scores)
    rng.shuffle(order)
    endings: list[Ending] = []
    for trial in order:
        assert endings == [], "nobody is ended before the rung is full"
        score = told.scores[trial]
        if score == -inf:
            endings = list(run.end(trial, rng.choice([TrialStatus.DIVERGED, TrialStatus.FAILED])))
        else:
            endings = list(run.tell(Report(
                trial=trial, step=step, metrics={}, score=score, branch=told.branches[trial]
            )))  # fmt: skip
    return endings


@given(
    n=st.integers(1, 14),
    n_rungs=st.integers(1, 4),
    factor=factors,
    rule=rules,
    bad=st.sampled_from([0.0, 0.3, 1.0]),
    rng=st.randoms(use_true_random=False),
)
def test_exactly_the_best_of_each_rung_go_on_and_the_others_end_with_their_rank(
    n: int, n_rungs: int, factor: float, rule: Ties, bad: float, rng: Generator
) -> None:
    rungs = [2 * k + 1 for k in range(n_rungs)]
    tuner = dt.SuccessiveHalving(rungs=rungs, reduction_factor=factor, ties=rule)
    run = tuner.start(TunerContext(n_trials=n, seed=0))
    alive = list(range(n))
    for step in rungs:
        requests = run.ask()
        assert [(request.trial, request.step) for request in requests] == [(t, step) for t in alive]
        assert run.ask() == []
        told = Told(alive, rng, rule, bad=bad)
        endings = {each.trial: each for each in tell_all(run, told, step, rng)}
        ranked, usable = told.ranked(), [t for t in told.ranked() if told.scores[t] > -inf]
        if step == rungs[-1]:
            assert endings.keys() == set(usable)
            assert {e.status for e in endings.values()} <= {TrialStatus.COMPLETED}
            break
        n_best = max(1, int(len(alive) / factor))
        best = usable[:n_best]
        assert endings.keys() == set(usable) - set(best)
        for trial, ending in endings.items():
            assert ending.status is TrialStatus.STOPPED
            assert ending.reason == (
                f"not among the best {len(best)} of {len(alive)} at step {step}: "
                f"rank {ranked.index(trial) + 1}"
            )
        alive = sorted(best)
        if not alive:
            break
    assert list(run.ask()) == []


def test_a_study_with_fewer_trials_than_the_factor_ends_with_one_fully_trained() -> None:
    run = dt.SuccessiveHalving(rungs=[1, 2, 3], reduction_factor=10).start(
        TunerContext(n_trials=3, seed=0)
    )
    rng = Generator(0)
    for step, alive in ((1, [0, 1, 2]), (2, [2]), (3, [2])):
        assert [request.trial for request in run.ask()] == alive
        told = Told(alive, rng, "number", bad=0)
        told.scores = {trial: float(trial) for trial in alive}
        endings = tell_all(run, told, step, rng)
    assert [(each.trial, each.status) for each in endings] == [(2, TrialStatus.COMPLETED)]


def test_a_promoted_trial_that_is_over_before_it_is_asked_is_not_asked() -> None:
    run = dt.SuccessiveHalving(rungs=[1, 2], reduction_factor=2).start(
        TunerContext(n_trials=4, seed=0)
    )
    run.ask()
    told = Told([0, 1, 2, 3], Generator(0), "number", bad=0)
    told.scores = {0: 4.0, 1: 3.0, 2: 2.0, 3: 1.0}
    tell_all(run, told, 1, Generator(0))
    run.end(0, TrialStatus.DIVERGED)
    assert [request.trial for request in run.ask()] == [1]


def test_a_request_says_how_the_rung_before_was_decided() -> None:
    run = dt.SuccessiveHalving(rungs=[1, 2], reduction_factor=2).start(
        TunerContext(n_trials=4, seed=0)
    )
    assert run.ask()[0].reason == "rung 0: 4 trials train to step 1"
    tell_all(run, Told([0, 1, 2, 3], Generator(0), "number", bad=0), 1, Generator(0))
    assert run.ask()[0].reason == "rung 1: 2 trials train to step 2, the best 2 of 4 at step 1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "min_steps is None and max_steps is None; give both bounds, or the rungs"),
        ({"min_steps": 2}, "min_steps is 2 and max_steps is None; give both bounds, or the rungs"),
        (
            {"rungs": [2, 6], "max_steps": 6},
            "rungs is [2, 6] and min_steps or max_steps is given too; "
            "give either the rungs or both bounds",
        ),
    ],
)
def test_a_refusal_names_the_value_and_the_cure(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(dt.InvalidStudyError) as refusal:
        dt.SuccessiveHalving(**arguments)  # type: ignore[arg-type]
    assert str(refusal.value) == message
