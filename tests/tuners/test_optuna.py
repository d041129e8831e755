"""Rungs, brackets and verdicts beside those of Optuna's pruners, where both define the same.

Optuna's trials are trained one after the other, from their first step to the step at which they are
pruned; its pruners never pause a trial.
"""

import math
from collections.abc import Iterator

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, SuccessiveHalvingPruner
from optuna.trial import TrialState

import dasktune as dt
from dasktune.testing.laws import SCORES
from dasktune.trial import Report
from dasktune.tuners.tuner import TunerContext, TunerRun

scores = st.sampled_from(SCORES)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


def study_of(pruner: BasePruner) -> optuna.Study:
    return optuna.create_study(direction="maximize", pruner=pruner)


def pruned_at(study: optuna.Study, course: dict[int, float]) -> int | None:
    """Train a new trial along its scores by step; return the step at which it is pruned."""
    trial = study.ask()
    for step, score in course.items():
        trial.report(score, step)
        if trial.should_prune():
            study.tell(trial, state=TrialState.PRUNED)
            return step
    study.tell(trial, score)
    return None


def stopped_at(run: TunerRun, course: dict[int, float]) -> int | None:
    """Train a new trial of ours along its scores; return the step at which it is stopped."""
    last = max(course)
    while requests := run.ask():
        (request,) = requests
        for step in (*request.report_steps, request.step):
            report = Report(trial=request.trial, step=step, metrics={}, score=course[step])
            if run.tell(report):
                return step if step < last else None
    raise AssertionError


@pytest.mark.parametrize(("least", "factor", "n"), [(1, 2, 5), (1, 3, 3), (2, 4, 2), (5, 10, 1)])
def test_rungs_are_at_the_same_steps(least: int, factor: int, n: int) -> None:
    """Whoever falls behind at a step is pruned at the next rung."""
    most = least * factor**n
    found = set()
    for worse_from in range(1, most + 1):
        study = study_of(SuccessiveHalvingPruner(min_resource=least, reduction_factor=factor))
        assert pruned_at(study, dict.fromkeys(range(1, most + 1), 1.0)) is None
        found.add(pruned_at(study, {step: float(step < worse_from) for step in range(1, most + 1)}))
    tuner = dt.ASHA(min_steps=least, max_steps=most, reduction_factor=factor)
    assert tuner.decision_steps == tuple(sorted(filter(None, found)))


@given(course=st.lists(scores, min_size=1, max_size=25), factor=st.sampled_from([2, 3, 4]))
def test_whoever_optuna_lets_go_on_goes_on(course: list[float], factor: int) -> None:
    """Of n, ours lets 1 + floor((n - 1) / eta) go on, Optuna's max(1, floor(n / eta))."""
    tuner = dt.ASHA(min_steps=1, max_steps=factor, reduction_factor=factor, variant="stopping")
    run = tuner.start(TunerContext(n_trials=len(course), seed=0))
    study = study_of(SuccessiveHalvingPruner(min_resource=1, reduction_factor=factor))
    for n, score in enumerate(course, start=1):
        theirs = pruned_at(study, {1: score})
        ours = stopped_at(run, {1: score, factor: score})
        if theirs is None or n % factor == 0:
            assert ours == theirs


@pytest.mark.parametrize("least", [1, 2, 5])
@pytest.mark.parametrize("factor", [2, 3, 4])
@pytest.mark.parametrize("most", [1, 5, 9, 16, 50, 81, 100, 250])
def test_brackets_have_the_same_numbers_of_trials(least: int, factor: int, most: int) -> None:
    """But where the logarithm of a power comes out below a whole number in floats, as of 243."""
    if least > most:
        return
    pruner = HyperbandPruner(min_resource=least, max_resource=most, reduction_factor=factor)
    study = study_of(pruner)
    pruned_at(study, {1: 0.0})
    ours = dt.Hyperband(min_steps=least, max_steps=most, reduction_factor=factor)
    assert [bracket.n_trials for bracket in ours.brackets] == pruner._trial_allocation_budgets


def test_optuna_misses_a_bracket_where_a_logarithm_is_rounded_down() -> None:
    assert math.floor(math.log(243, 3)) == 4
    pruner = HyperbandPruner(min_resource=1, max_resource=243, reduction_factor=3)
    pruned_at(study_of(pruner), {1: 0.0})
    assert len(pruner._trial_allocation_budgets) == 5
    ours = dt.Hyperband(min_steps=1, max_steps=243, reduction_factor=3).brackets
    assert [bracket.n_trials for bracket in ours] == [243, 98, 41, 18, 9, 6]


@given(
    levels=st.lists(st.tuples(scores, scores), min_size=1, max_size=16),
    min_trials=st.integers(1, 4),
    n_steps=st.integers(2, 5),
    grace=st.integers(0, 4),
)
def test_flat_courses_are_stopped_at_the_same_steps(
    levels: list[tuple[float, float]], min_trials: int, n_steps: int, grace: int
) -> None:
    """The average of a flat course is its score; a course may fall after its first steps only."""
    grace = min(grace, n_steps - 1)
    tuner = dt.MedianStopping(n_steps, grace_steps=grace, min_trials=min_trials)
    run = tuner.start(TunerContext(n_trials=len(levels), seed=0))
    study = study_of(MedianPruner(n_startup_trials=min_trials, n_warmup_steps=grace))
    for level, last in levels:
        course = dict.fromkeys(range(1, n_steps), level)
        theirs = pruned_at(study, course)
        assert stopped_at(run, course | {n_steps: last}) == theirs


def test_of_rising_courses_optuna_takes_the_score_of_the_step_and_the_paper_the_average() -> None:
    run = dt.MedianStopping(3, min_trials=1).start(TunerContext(n_trials=2, seed=0))
    study = study_of(MedianPruner(n_startup_trials=1))
    for course, theirs in (({1: 0.0, 2: 1.0}, None), ({1: 0.0, 2: 0.75}, 2)):
        assert pruned_at(study, course) == theirs
        assert stopped_at(run, course | {3: 1.0}) is None  # 0.75 is above (0 + 1) / 2
