from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from random import Random as Generator
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.study.commands import StopPath
from dasktune.study.events import StageFinished
from dasktune.testing import TunerContract
from dasktune.testing.moves import Ask, End
from dasktune.testing.play import Play
from dasktune.trial import Ending, Report, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from tests.plays import Play as World
from tests.plays import rolled
from tests.tuners.naive import requested
from tests.worlds import small_study


@st.composite
def median_stoppings(draw: st.DrawFn) -> dt.MedianStopping:
    max_steps = draw(st.integers(1, 12))
    return dt.MedianStopping(
        max_steps,
        report_every=draw(st.integers(1, min(3, max_steps))),
        grace_steps=draw(st.integers(0, max_steps - 1)),
        min_trials=draw(st.integers(1, 4)),
    )


class TestMedianStoppingIsATuner(TunerContract):
    stretches: Sequence[Callable[[float], float]] = (
        lambda score: score - 100,
        lambda score: score + 100,
        lambda score: score / 1024,
        lambda score: score * 3,
    )
    """Averages need more than order; these are exact in floats."""

    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return median_stoppings()


class Courses:
    """Everything that each trial reported, and how it ended."""

    def __init__(self, tuner: dt.MedianStopping, n_trials: int) -> None:
        self.tuner = tuner
        self.fresh = list(range(n_trials))
        self.scores: dict[int, dict[int, Fraction]] = {}
        self.completed: list[int] = []

    def ask(self) -> list[tuple[int, int]]:
        if not self.fresh:
            return []
        trial = self.fresh.pop(0)
        self.scores[trial] = {}
        return [(trial, self.tuner.max_steps)]

    def average(self, trial: int, step: int) -> Fraction:
        told = [score for at, score in self.scores[trial].items() if at <= step]
        return sum(told, Fraction(0)) / len(told)

    def tell(self, report: Report) -> TrialStatus | None:
        mine = self.scores[report.trial]
        mine[report.step] = Fraction(report.score)
        if report.step == self.tuner.max_steps:
            self.completed.append(report.trial)
            return TrialStatus.COMPLETED
        if report.step < self.tuner.grace_steps or len(self.completed) < self.tuner.min_trials:
            return None
        others = [self.average(trial, report.step) for trial in self.completed]
        return TrialStatus.STOPPED if max(mine.values()) < median(others) else None


@given(
    tuner=median_stoppings(),
    n=st.integers(0, 14),
    bad=st.sampled_from([0.0, 0.1, 0.3]),
    rng=st.randoms(use_true_random=False),
)
def test_a_trial_is_stopped_where_its_best_is_below_the_median_of_averages(
    tuner: dt.MedianStopping, n: int, bad: float, rng: Generator
) -> None:
    played, courses = Play(tuner, n, rng, bad=bad).go(), Courses(tuner, n)
    for move, answer in zip(played.moves, played.answers, strict=True):
        match move:
            case Ask():
                assert requested(answer) == courses.ask()
            case Report():
                status = courses.tell(move)
                told = [(each.trial, each.status) for each in answer if isinstance(each, Ending)]
                assert told == ([] if status is None else [(move.trial, status)])
            case End(trial):
                if trial in courses.fresh:
                    courses.fresh.remove(trial)


def started(n_trials: int = 9, **changes: int) -> TunerRun:
    given = {"report_every": 2, "min_trials": 1} | changes
    return dt.MedianStopping(6, **given).start(TunerContext(n_trials=n_trials, seed=0))


def train(run: TunerRun, trial: int, scores: list[float]) -> list[Ending]:
    """Ask for the next trial, and tell of it what it scores at steps 2, 4 and 6."""
    (request,) = run.ask()
    assert (request.trial, request.step, request.report_steps) == (trial, 6, (2, 4))
    for step, score in zip((2, 4, 6), scores, strict=False):
        endings = run.tell(Report(trial=trial, step=step, metrics={}, score=score))
        if endings:
            return list(endings)
    return []


def test_the_best_so_far_is_compared_with_the_averages_so_far() -> None:
    run = started()
    assert train(run, 0, [0.0, 1.0, 9.0])[0].status is TrialStatus.COMPLETED
    assert train(run, 1, [0.0, 0.5, 0.0])[0].status is TrialStatus.COMPLETED  # 0.5 = (0 + 1) / 2
    (ending,) = train(run, 2, [0.0, 0.25])  # averages at step 4 are 0.5 and 0.25: median 0.375
    assert (ending.trial, ending.status) == (2, TrialStatus.STOPPED)
    assert ending.reason == (
        "its best score by step 4 is below the median of the running averages of 2 completed trials"
    )
    assert train(run, 3, [0.375, -9.0, -9.0])[0].status is TrialStatus.COMPLETED


def test_the_last_report_completes_whatever_it_scores() -> None:
    run = started()
    train(run, 0, [1.0, 1.0, 1.0])
    (ending,) = train(run, 1, [1.0, 1.0, -99.0])
    assert ending.status is TrialStatus.COMPLETED


def test_nobody_is_stopped_in_the_grace_period_or_before_enough_are_completed() -> None:
    run = started(grace_steps=3)
    train(run, 0, [1.0, 1.0, 1.0])
    (ending,) = train(run, 1, [0.0, 0.0])
    assert "by step 4" in ending.reason
    run = started(min_trials=2)
    train(run, 0, [1.0, 1.0, 1.0])
    assert train(run, 1, [0.0, 0.0, 0.0])[0].status is TrialStatus.COMPLETED
    assert train(run, 2, [0.25])[0].status is TrialStatus.STOPPED


def test_trials_that_did_not_complete_count_for_nothing() -> None:
    run = started()
    train(run, 0, [1.0, 1.0, 1.0])
    train(run, 1, [0.0])
    train(run, 2, [5.0, 5.0])
    run.end(2, TrialStatus.DIVERGED)
    assert train(run, 3, [1.0, 1.0, 1.0])[0].status is TrialStatus.COMPLETED
    assert train(run, 4, [0.9])[0].status is TrialStatus.STOPPED


def test_reports_that_come_late_are_judged_by_the_best_of_all() -> None:
    run = started()
    train(run, 0, [1.0, 1.0, 1.0])
    run.ask()
    assert list(run.tell(Report(trial=1, step=4, metrics={}, score=1.0))) == []
    assert list(run.tell(Report(trial=1, step=2, metrics={}, score=0.0))) == []
    run.tell(Report(trial=1, step=6, metrics={}, score=1.0))
    # The averages of trial 1 are 0 and 0.5, those of trial 0 are 1: medians 0.5 and 0.75.
    assert train(run, 2, [0.5, 0.5])[0].status is TrialStatus.STOPPED


def test_the_largest_scores_do_not_overflow() -> None:
    run = started()
    for trial in range(3):
        assert train(run, trial, [1e308, 1.7e308, 0.0])[0].status is TrialStatus.COMPLETED
    assert train(run, 3, [-1.7e308])[0].status is TrialStatus.STOPPED


# --- in a study -----------------------------------------------------------------------------------


RATES = [0.9, 0.1, 0.2, 0.8]


def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
    """A trial is as good as its rate, from its first step to its last."""
    rate = configuration.at(max(0, step - 1))["lr"]
    assert isinstance(rate, float)
    return {"accuracy": rate}


@pytest.mark.parametrize(("mode", "expected"), [("max", [8, 2, 2, 2]), ("min", [8, 8, 8, 2])])
def test_a_trial_that_falls_behind_is_stopped_in_passing(mode: str, expected: list[int]) -> None:
    study = small_study(
        space={"lr": dt.choice(RATES)},
        tuner=dt.MedianStopping(8, report_every=2, min_trials=1),
        mode=mode,
    )
    result = dt.simulate(study, dt.World(workers=1, curve=curve))
    trained = {0: 0, 1: 0, 2: 0, 3: 0}
    for event in (entry.event for entry in result.timeline.entries):
        if isinstance(event, StageFinished):
            trained[event.path - 1] += event.executed_steps
    status = {8: TrialStatus.COMPLETED, 2: TrialStatus.STOPPED}
    assert [trial.status for trial in result.trials] == [status[steps] for steps in expected]
    # A stage ends at the first boundary after the report, at most one step later.
    assert all(0 <= trained[n] - expected[n] <= 1 for n in range(4))
    assert result.steps_executed == sum(trained.values())
    stopped = expected.index(2)
    assert "is below the median" in dt.explain(result, trial=stopped)
    assert "steps 0 to 8: 4 trials" in dt.explain(study)


def test_whoever_shares_the_steps_of_a_stopped_trial_goes_on() -> None:
    space = {"lr": dt.choice(RATES)}
    tuner = dt.MedianStopping(8, report_every=2, min_trials=1)
    play = World(
        [
            small_study(space=space, tuner=tuner, name="stops"),
            small_study(space=space, tuner=dt.FullTraining(8, report_every=2), name="goes-on"),
        ]
    )
    play.start(0)
    play.start(1)
    play.join("worker", 1)
    play.finish_all()
    stops, goes_on = play.core.runs
    assert TrialStatus.STOPPED in {trial.status for trial in stops.trials}
    assert {trial.status for trial in goes_on.trials} == {TrialStatus.COMPLETED}
    assert play.core.plan.steps_executed == play.core.plan.steps_unique == 8 * len(RATES)
    commands = [command for _, command in play.timeline.commands()]
    assert not any(isinstance(command, StopPath) for command in commands)


def test_a_path_is_stopped_when_the_last_trial_that_waits_for_it_is() -> None:
    play = World(
        [small_study(tuner=dt.MedianStopping(8, report_every=2, min_trials=1), sampler=dt.Grid())]
    )
    play.start(0)
    play.join("worker", 1)
    play.finish_all()
    (run,) = play.core.runs
    stopped = [trial for trial in run.trials if trial.status is TrialStatus.STOPPED]
    commands = [command for _, command in play.timeline.commands()]
    reasons = [command.reason for command in commands if isinstance(command, StopPath)]
    assert stopped
    assert set(reasons) == {"no trial waits for it any more"}
    assert all("is below the median" in trial.reason for trial in stopped)


def test_whatever_happens_every_study_ends_and_every_check_holds() -> None:
    n_stopped = 0
    for seed in range(15):
        rng = Generator(seed)
        studies = [
            small_study(
                tuner=dt.MedianStopping(8, report_every=rng.choice([1, 2, 3]), min_trials=1),
                sampler=rng.choice([dt.Grid(), dt.Random()]),
                n_trials=10,
                name="one",
            ),
            small_study(
                tuner=rng.choice([dt.FullTraining(8, report_every=3), dt.MedianStopping(6)]),
                name="two",
            ),
        ]
        play = rolled(seed, n_events=60, studies=studies)
        play.finish_all()
        n_stopped += sum("below" in trial.reason for run in play.core.runs for trial in run.trials)
    assert n_stopped > 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"max_steps": 5, "report_every": 0}, "report_every must be at least 1, got 0"),
        (
            {"max_steps": 5, "report_every": 6},
            "report_every is 6; it must not be larger than max_steps, which is 5",
        ),
        ({"max_steps": 5, "grace_steps": -1}, "grace_steps must be at least 0, got -1"),
        (
            {"max_steps": 5, "grace_steps": 5},
            "grace_steps is 5; it must be less than max_steps, which is 5, or no trial would ever "
            "be stopped",
        ),
        ({"max_steps": 5, "min_trials": 0}, "min_trials must be at least 1, got 0"),
    ],
)
def test_a_refusal_names_the_value_and_the_cure(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(dt.InvalidStudyError) as refusal:
        dt.MedianStopping(**arguments)
    assert str(refusal.value) == message
