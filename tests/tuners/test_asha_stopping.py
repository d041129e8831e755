"""The variant of ASHA that stops trials, against the quantile of NumPy that defines it."""

from math import inf
from random import Random as Generator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.testing import TunerContract
from dasktune.testing.moves import Ask, End
from dasktune.testing.play import Play
from dasktune.trial import Ending, Report, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from tests.tuners.naive import requested
from tests.worlds import small_study


@st.composite
def stopping_ashas(draw: st.DrawFn) -> dt.ASHA:
    least = draw(st.integers(1, 4))
    return dt.ASHA(
        min_steps=least,
        max_steps=draw(st.integers(least, 40)),
        reduction_factor=draw(st.sampled_from([1.5, 2, 3, 4, 100])),
        variant="stopping",
    )


class TestStoppingAshaIsATuner(TunerContract):
    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return stopping_ashas()


def goes_on(scores: list[float], factor: float) -> bool:
    """Whether the last of the scores of a rung is at or above their (1 - 1 / eta) quantile.

    Where the quantile lies on a score that ties with ours, interpolation may round it upwards.
    """
    finite = [max(score, -1000.0) for score in scores]
    return finite[-1] >= float(np.quantile(finite, 1 - 1 / factor)) - 1e-9


class Rungs:
    """All scores of each rung in the order in which they came, and who goes on."""

    def __init__(self, tuner: dt.ASHA, n_trials: int) -> None:
        self.tuner = tuner
        self.scores: list[list[float]] = [[] for _ in tuner.decision_steps]
        self.rung: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.queue: list[int] = []
        self.fresh = list(range(n_trials))

    def ask(self) -> list[tuple[int, int]]:
        if not self.queue and not self.fresh:
            return []
        trial = self.queue.pop(0) if self.queue else self.fresh.pop(0)
        self.waiting.add(trial)
        return [(trial, self.tuner.decision_steps[self.rung.get(trial, 0)])]

    def tell(self, report: Report) -> TrialStatus | None:
        rung = self.rung.get(report.trial, 0)
        self.waiting.remove(report.trial)
        self.rung[report.trial] = rung + 1
        if rung == len(self.scores) - 1:
            return TrialStatus.COMPLETED
        self.scores[rung].append(report.score)
        if not goes_on(self.scores[rung], self.tuner.reduction_factor):
            return TrialStatus.STOPPED
        self.queue.append(report.trial)
        return None

    def end(self, trial: int) -> None:
        if trial in self.queue:
            self.queue.remove(trial)
            return
        if trial in self.fresh:
            self.fresh.remove(trial)
        self.waiting.discard(trial)
        self.scores[self.rung.get(trial, 0)].append(-inf)


@given(
    tuner=stopping_ashas(),
    n=st.integers(0, 14),
    bad=st.sampled_from([0.0, 0.1, 0.4]),
    rng=st.randoms(use_true_random=False),
)
def test_a_trial_goes_on_while_it_is_at_or_above_the_quantile_of_its_rung(
    tuner: dt.ASHA, n: int, bad: float, rng: Generator
) -> None:
    played, rungs = Play(tuner, n, rng, bad=bad).go(), Rungs(tuner, n)
    for move, answer in zip(played.moves, played.answers, strict=True):
        match move:
            case Ask():
                assert requested(answer) == rungs.ask()
            case Report():
                status = rungs.tell(move)
                told = [(each.trial, each.status) for each in answer if isinstance(each, Ending)]
                assert told == ([] if status is None else [(move.trial, status)])
            case End(trial):
                rungs.end(trial)


def started(factor: float, n_trials: int) -> TunerRun:
    tuner = dt.ASHA(min_steps=1, max_steps=4, reduction_factor=factor, variant="stopping")
    return tuner.start(TunerContext(n_trials=n_trials, seed=0))


def tell(run: TunerRun, trial: int, score: float, step: int = 1) -> list[Ending]:
    return list(run.tell(Report(trial=trial, step=step, metrics={}, score=score)))


@given(n=st.integers(1, 20), factor=st.sampled_from([2, 3, 10]))
def test_trials_that_share_a_state_go_on_together(n: int, factor: float) -> None:
    run = started(factor, n)
    for _ in range(n):
        run.ask()
    for trial in range(n):
        assert tell(run, trial, 0.5) == []
    step = min(int(factor), 4)  # the second rung
    assert [requested(run.ask()) for _ in range(n)] == [[(trial, step)] for trial in range(n)]


def test_the_first_goes_on_whatever_it_scored_and_a_worse_one_is_stopped_for_good() -> None:
    run = started(2, 3)
    assert [requested(run.ask()) for _ in range(3)] == [[(0, 1)], [(1, 1)], [(2, 1)]]
    assert tell(run, 0, -5.0) == []
    (ending,) = tell(run, 1, -6.0)
    assert (ending.trial, ending.status) == (1, TrialStatus.STOPPED)
    assert ending.reason == "1 of 2 were better at step 1; a trial goes on if at most 0 are"
    assert tell(run, 2, -5.5) == []
    (request,) = run.ask()
    assert (request.trial, request.step, request.reason) == (
        0,
        2,
        "goes on: 0 of 1 were better at step 1",
    )
    assert requested(run.ask()) == [(2, 2)]
    assert list(run.ask()) == []


def test_trials_that_go_on_do_before_new_ones_begin() -> None:
    run = started(2, 3)
    run.ask()
    run.ask()
    tell(run, 1, 1.0)
    assert [requested(run.ask()), requested(run.ask())] == [[(1, 2)], [(2, 1)]]


def test_a_trial_that_diverged_before_it_could_go_on_does_not() -> None:
    run = started(2, 2)
    run.ask()
    tell(run, 0, 1.0)
    run.end(0, TrialStatus.DIVERGED)
    assert [requested(run.ask()), requested(run.ask())] == [[(1, 1)], []]


def test_no_trial_of_a_study_is_left_paused() -> None:
    study = small_study(
        tuner=dt.ASHA(min_steps=1, max_steps=8, reduction_factor=2, variant="stopping")
    )
    result = dt.simulate(study, dt.World(workers=3))
    assert result.steps_executed == result.steps_unique
    assert {trial.status for trial in result.trials} == {TrialStatus.COMPLETED, TrialStatus.STOPPED}
    for trial in result.trials:
        if trial.status is TrialStatus.STOPPED:
            assert "a trial goes on if at most" in dt.explain(result, trial=trial.number)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "stop"}, "variant is 'stop'; it must be 'promotion' or 'stopping'"),
        ({"variant": None}, "variant is None; it must be 'promotion' or 'stopping'"),
        (
            {"variant": "stopping", "ties": "spread"},
            "ties is 'spread' and variant 'stopping', which lets equal scores go on or stop "
            "together; leave ties out",
        ),
    ],
)
def test_a_refusal_names_the_value_and_the_cure(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(dt.InvalidStudyError) as refusal:
        dt.ASHA(min_steps=1, max_steps=9, **arguments)  # type: ignore[arg-type]
    assert str(refusal.value) == message
