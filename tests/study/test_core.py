"""What the core promises, event by event; random worlds are in `tests/stateful/test_core.py`."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf, nan
from random import Random as Generator
from typing import cast

import pytest

import dasktune as dt
from dasktune.errors import BackendError, InvalidStudyError
from dasktune.study.commands import (
    AskTrial,
    EndRun,
    EndTrial,
    ReportDemand,
    ReturnWorker,
    RunPath,
    StopPath,
    StudyStatus,
)
from dasktune.study.core import StudyCore
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    StageFailed,
    StageFinished,
    StateLost,
    StudyStarted,
    WorkerJoined,
    WorkerLeft,
)
from dasktune.study.journal import write_entry
from dasktune.trial import TrialStatus
from dasktune.units import Digest, Seconds, WorkerId
from tests.plays import Play, Truth, reports_of, roll, rolled
from tests.worlds import OneByOne, random_studies, small_study

ONE_RATE = {"lr": 0.1}
FORK_AT_3 = {"lr": dt.choice([dt.constant(0.1), dt.step_decay(0.1, factor=0.1, at=[3])])}
APART = {"lr": dt.choice([0.1, 0.2, 0.3])}


class Told(Truth):
    """A truth with given metrics at some steps."""

    def __init__(self, accuracy: dict[int, float | None], loss: float = 0.5) -> None:
        super().__init__()
        object.__setattr__(self, "accuracy", accuracy)
        object.__setattr__(self, "loss", loss)

    def metrics(self, state: str) -> dict[str, float]:
        given = cast("dict[int, float]", self.accuracy)  # type: ignore[attr-defined]
        step = int(state.partition(":")[0])
        return {"accuracy": given.get(step, 0.5), "loss": self.loss}  # type: ignore[attr-defined]


def statuses(play: Play, study: int = 0) -> list[TrialStatus]:
    return [trial.status for trial in play.core.runs[study].trials]


def begun(*studies: dt.Study, truth: Truth | None = None, n_slots: int = 1) -> Play:
    play = Play(studies, truth)
    for index in range(len(studies)):
        play.start(index)
    play.join("a", n_slots)
    return play


def only_path(play: Play) -> int:
    (number,) = play.running
    return number


def line(core: StudyCore, event: Event, now: Seconds) -> str:
    """Write down what a core decides: NaN is equal to itself there."""
    return write_entry(now, event, core.handle(event, now))


# --- forks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_a_fork_decides_as_the_original_at_the_same_events(seed: int) -> None:
    play = rolled(seed, n_events=50, trouble=0.3)
    play.finish_all()
    lines = list(play.timeline.lines())
    core = StudyCore(play.studies, play.scheduler)
    forks: list[StudyCore] = []
    for index, entry in enumerate(play.timeline.entries):
        if index % 5 == seed % 5:
            forks.append(core.fork())
        assert line(core, entry.event, entry.at_s) == lines[index]
        for fork in forks:
            assert line(fork, entry.event, entry.at_s) == lines[index]


@pytest.mark.parametrize("seed", range(30))
def test_what_a_fork_is_told_leaves_the_original_as_it_was(seed: int) -> None:
    play = rolled(seed, n_events=50, trouble=0.3)
    play.finish_all()
    lines = list(play.timeline.lines())
    core = StudyCore(play.studies, play.scheduler)
    rng = Generator(seed)
    for index, entry in enumerate(play.timeline.entries):
        astray = rng.sample(play.timeline.entries, k=min(4, len(lines)))
        tell_all(core.fork(), [other.event for other in astray])
        assert line(core, entry.event, entry.at_s) == lines[index]


@pytest.mark.parametrize("seed", range(10))
def test_what_the_original_is_told_leaves_a_fork_as_it_was(seed: int) -> None:
    play = rolled(seed, n_events=40, trouble=0.3)
    entries, lines = play.timeline.entries, list(play.timeline.lines())
    for at in range(0, len(entries), 7):
        core = StudyCore(play.studies, play.scheduler)
        for entry in entries[:at]:
            core.handle(entry.event, entry.at_s)
        fork = core.fork()
        tell_all(core, [entry.event for entry in Generator(seed).sample(entries, k=len(entries))])
        told = [line(fork, entry.event, entry.at_s) for entry in entries[at:]]
        assert told == lines[at:]


def tell_all(core: StudyCore, events: Iterable[Event]) -> None:
    """Tell a core events that may not fit."""
    for event in events:
        try:
            core.handle(event, core.now)
        except BackendError:
            continue


@pytest.mark.parametrize("ask", [StudyCore.why_idle, StudyCore.fork])
def test_asking_a_core_changes_no_decision(ask: Callable[[StudyCore], object]) -> None:
    # Two paths of equal length: which is first depends on when their stages became ready.
    short = small_study(space=ONE_RATE, tuner=dt.FullTraining(1), name="short")
    long = small_study(space={"lr": dt.choice([0.2, 0.1])}, tuner=dt.FullTraining(5), name="long")
    events: list[Event] = [
        StudyStarted(study=0),
        StudyStarted(study=1),
        WorkerJoined(worker=WorkerId("a")),
    ]
    asked, silent = StudyCore([short, long]), StudyCore([short, long])
    for event in events:
        answer = ask(asked)
        told = line(silent, event, 0.0)
        assert line(asked, event, 0.0) == told
        if isinstance(answer, StudyCore):
            assert line(answer, event, 0.0) == told


# --- metrics that are no finite number ------------------------------------------------------------


@pytest.mark.parametrize("odd", [nan, inf, -inf, None])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_all_trials_that_share_a_state_with_an_odd_metric_diverge_at_once(
    odd: float | None, mode: str
) -> None:
    study = small_study(
        space=FORK_AT_3, tuner=dt.FullTraining(6, report_every=2), mode=mode, n_trials=2
    )
    play = begun(study, truth=Told({2: odd}))

    play.report(only_path(play), 2)

    assert statuses(play) == [TrialStatus.DIVERGED, TrialStatus.DIVERGED]
    assert f"accuracy is {odd} at step 2" in play.core.runs[0].trials[1].reason
    play.finish_all()


def test_an_odd_metric_after_the_fork_ends_one_branch_only() -> None:
    play = begun(small_study(space=FORK_AT_3, tuner=dt.FullTraining(6)))
    play.finish(only_path(play))
    play.truth = Told({6: nan})
    play.finish(only_path(play))
    play.truth = Told({6: 0.5})
    play.finish(only_path(play))

    assert sorted(s.value for s in statuses(play)) == ["completed", "diverged"]


def test_reports_before_an_odd_metric_stay_and_count() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.FullTraining(6, report_every=2))
    play = begun(study, truth=Told({2: 0.7, 4: nan}))

    play.finish_all()

    (trial,) = play.core.runs[0].trials
    assert trial.status is TrialStatus.DIVERGED
    assert [(report.step, report.score) for report in trial.reports] == [(2, 0.7)]


def test_an_odd_metric_ends_trials_of_the_study_that_tunes_it_and_of_no_other() -> None:
    tuned = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), name="tuned")
    other = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), metric="loss", name="other")
    play = begun(tuned, other, truth=Told({4: nan}))

    play.finish_all()

    assert statuses(play, 0) == [TrialStatus.DIVERGED]
    assert statuses(play, 1) == [TrialStatus.COMPLETED]
    assert len(play.core.runs[1].trials[0].reports) == 1


def test_an_odd_metric_ends_no_trial_that_only_has_the_same_number_in_another_study() -> None:
    def curve(configuration: dt.Configuration, step: int) -> dict[str, float]:
        is_odd = configuration.at(0)["lr"] == 0.1
        return {"accuracy": nan if is_odd else 0.5, "loss": float(step)}

    rates = [0.1, 0.2]
    tuned = small_study(space={"lr": dt.choice(rates)}, tuner=dt.FullTraining(4), name="tuned")
    other = small_study(
        space={"lr": dt.choice(rates[::-1])}, tuner=dt.FullTraining(4), metric="loss", name="other"
    )

    results = dt.simulate([tuned, other], dt.World(curve=curve))

    ended = [[trial.status.value for trial in result.trials] for result in results]
    assert ended == [["diverged", "completed"], ["completed", "completed"]]


def test_nothing_is_heard_of_a_trial_after_it_has_diverged() -> None:
    tuner = dt.FullTraining(6, report_every=2)
    early = small_study(space=ONE_RATE, tuner=tuner, metric="loss", name="early")
    late = small_study(space=ONE_RATE, tuner=tuner, name="late")
    play = Play([early, late], Told({2: nan}))
    play.start(0)
    play.join("a")
    for step in (2, 4):
        play.report(only_path(play), step)
    play.finish(only_path(play))

    play.start(1)  # all three metrics are known, the first of them odd

    assert statuses(play, 1) == [TrialStatus.DIVERGED]
    assert play.core.runs[1].trials[0].reports == []


def test_a_trial_that_diverged_before_it_began_is_never_asked_to_train() -> None:
    study = small_study(
        space=FORK_AT_3, tuner=dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2)
    )
    play = begun(study, truth=Told({2: nan}))

    play.finish_all()

    assert statuses(play) == [TrialStatus.DIVERGED] * 2
    asked = [c.trial.number for _, c in play.timeline.commands() if isinstance(c, AskTrial)]
    assert asked == [0]


def test_a_diverged_trial_is_never_promoted_even_if_all_diverge() -> None:
    study = small_study(space=APART, tuner=dt.SuccessiveHalving(rungs=[2, 4], reduction_factor=3))
    play = begun(study, truth=Told({2: inf}))

    play.finish_all()

    assert set(statuses(play)) == {TrialStatus.DIVERGED}
    assert play.core.runs[0].status is StudyStatus.COMPLETED


def test_a_metric_that_evaluate_does_not_give_ends_the_study_at_the_first_report() -> None:
    wrong = small_study(space=APART, metric="accuracies", tuner=dt.FullTraining(4), name="wrong")
    right = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), name="right")
    core = StudyCore([wrong, right])
    core.handle(StudyStarted(study=0), 0.0)
    core.handle(StudyStarted(study=1), 0.0)
    first, second = paths(core.handle(WorkerJoined(worker=WorkerId("a"), n_slots=2), 1.0))

    commands = core.handle(finished(first), 2.0)

    run = core.runs[0]
    assert run.status is StudyStatus.FAILED
    assert run.reason == "evaluate() gave no 'accuracies'; it gave: accuracy, loss"
    assert all(trial.status is TrialStatus.STOPPED for trial in run.trials)
    assert core.runs[1].is_running == (second.stages[0].configuration.at(0) == {"lr": 0.1})
    stops = [command for command in commands if isinstance(command, StopPath)]
    assert [stop.path for stop in stops] == [second.path]


def paths(commands: Sequence[object]) -> list[RunPath]:
    return [command for command in commands if isinstance(command, RunPath)]


def finished(path: RunPath, index: int = 0, accuracy: float = 0.5) -> StageFinished:
    stage = path.stages[index]
    return StageFinished(
        path=path.path,
        stage=stage.key,
        reached=stage.stop,
        metrics={"loss": 1.0, "accuracy": accuracy},
        executed_steps=stage.n_steps,
        seconds=2.0,
    )


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_stage_is_tried_again_as_often_as_the_study_allows(retries: int) -> None:
    study = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), retries=retries)
    play = begun(study)
    for _ in range(retries):
        play.fail(only_path(play))
        assert statuses(play) == [TrialStatus.WAITING]

    play.finish_all()

    assert statuses(play) == [TrialStatus.COMPLETED]


@pytest.mark.parametrize("retries", [0, 2])
def test_one_failure_more_than_retries_fails_whoever_waits_with_the_traceback(
    retries: int,
) -> None:
    study = small_study(space=FORK_AT_3, tuner=dt.FullTraining(4), retries=retries)
    play = begun(study)
    for _ in range(retries + 1):
        play.fail(only_path(play), executed_steps=2)

    assert statuses(play) == [TrialStatus.FAILED] * 2
    for trial in play.core.runs[0].trials:
        assert trial.reason == "ValueError: test\nTraceback: line 1"
    assert play.core.plan.steps_recomputed == 2 * (retries + 1)
    assert play.core.runs[0].status is StudyStatus.FAILED
    assert play.is_over


def test_trials_that_do_not_need_a_failed_stage_go_on() -> None:
    study = small_study(space=APART, tuner=dt.FullTraining(4), retries=0, max_failures=2)
    play = begun(study)
    play.fail(only_path(play))

    play.finish_all()

    assert sorted(s.value for s in statuses(play)) == ["completed", "completed", "failed"]
    assert play.core.runs[0].status is StudyStatus.COMPLETED


def test_a_study_asks_for_a_stage_that_failed_before_it_started_and_fails_at_once() -> None:
    early = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), retries=0, name="early")
    late = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), retries=0, name="late")
    play = Play([early, late])
    play.start(0)
    play.join("a")
    play.fail(only_path(play))

    play.start(1)

    assert statuses(play, 1) == [TrialStatus.FAILED]
    assert play.is_over


@pytest.mark.parametrize("max_failures", [1, 2, 3])
def test_the_study_gives_up_when_the_first_trials_all_fail(max_failures: int) -> None:
    study = small_study(space=APART, tuner=dt.FullTraining(4), retries=0, max_failures=max_failures)
    play = begun(study)
    for _ in range(max_failures):
        assert play.core.runs[0].is_running
        play.fail(only_path(play))

    run = play.core.runs[0]
    assert run.status is StudyStatus.FAILED
    assert f"{max_failures} trials" in run.reason
    assert statuses(play).count(TrialStatus.FAILED) == max_failures
    assert play.is_over


def test_one_report_keeps_a_study_going_whatever_fails_later() -> None:
    study = small_study(space=APART, tuner=dt.FullTraining(4), retries=0, max_failures=1)
    play = begun(study)
    play.finish(only_path(play))
    play.fail(only_path(play))
    play.fail(only_path(play))

    assert play.core.runs[0].status is StudyStatus.COMPLETED
    assert sorted(s.value for s in statuses(play)) == ["completed", "failed", "failed"]


def test_three_deaths_on_one_stage_fail_it_and_blame_no_innocent() -> None:
    study = small_study(space=FORK_AT_3, tuner=dt.FullTraining(6), max_failures=1)
    play = begun(study)
    play.finish(only_path(play))  # the common steps: stored
    blamed = play.running[only_path(play)].stage
    n_deaths = 0
    while play.running:
        if play.running[only_path(play)].stage != blamed:
            play.finish(only_path(play))
            continue
        play.leave("a", died=True)
        n_deaths += 1
        assert (TrialStatus.FAILED in statuses(play)) == (n_deaths == 3)
        play.join("a")

    assert sorted(s.value for s in statuses(play)) == ["completed", "failed"]
    (reason,) = [t.reason for t in play.core.runs[0].trials if t.status is TrialStatus.FAILED]
    assert reason == "steps 3 to 6 killed 3 workers: test"


def test_stages_behind_the_one_that_kills_its_workers_are_not_suspected() -> None:
    play = begun(small_study(space=FORK_AT_3, tuner=dt.FullTraining(6)))
    deaths: Counter[Digest] = Counter()

    def die() -> None:
        deaths[play.running[only_path(play)].stage.key] += 1
        play.leave("a", died=True)
        play.join("a")

    die()
    die()
    play.finish(only_path(play))  # steps 0 to 3, after two deaths of workers that had two stages
    while TrialStatus.FAILED not in statuses(play):
        assert max(deaths.values()) < 3
        die()

    assert max(deaths.values()) == 3
    assert statuses(play).count(TrialStatus.FAILED) == 1


def test_workers_that_leave_as_asked_raise_no_suspicion() -> None:
    play = begun(small_study(space=ONE_RATE, tuner=dt.FullTraining(6)))
    for _ in range(10):
        play.leave("a", died=False)
        play.join("a")

    play.finish_all()

    assert statuses(play) == [TrialStatus.COMPLETED]


# --- what is stored, and what is asked twice ------------------------------------------------------


def test_a_state_stored_without_metrics_is_evaluated_by_a_stage_of_no_steps() -> None:
    early = small_study(space=FORK_AT_3, tuner=dt.FullTraining(6), name="early")
    late = small_study(space=ONE_RATE, tuner=dt.FullTraining(3), name="late")
    play = Play([early, late])
    play.start(0)
    play.join("a", 2)
    play.finish(only_path(play))  # step 3, where the two part: nobody wanted its metrics
    play.start(1)
    play.finish(next(iter(play.running)))

    (evaluation,) = [p for p in play.running.values() if p.stage.n_steps == 0]

    assert (evaluation.stage.start, evaluation.stage.stop) == (3, 3)
    play.finish(evaluation.command.path)
    assert statuses(play, 1) == [TrialStatus.COMPLETED]
    play.finish_all()
    assert play.core.plan.steps_executed == 9


def test_a_late_study_hears_what_is_known_without_any_work() -> None:
    early = small_study(tuner=dt.FullTraining(8), name="early")
    late = small_study(tuner=dt.FullTraining(8), name="late")
    play = begun(early)
    play.finish_all()
    again = Play([early, late])
    again.start(0)
    again.join("a")
    while again.running:
        again.finish(only_path(again))
    n_paths = again.n_paths

    again.start(1)

    assert again.is_over
    assert again.n_paths == n_paths
    assert reports_of(again.core.runs[1]) == reports_of(play.core.runs[0])


def test_a_late_study_hears_its_reports_in_passing_before_the_last_one_that_is_known() -> None:
    early = small_study(space=ONE_RATE, tuner=dt.FullTraining(6), name="early")
    late = small_study(space=ONE_RATE, tuner=dt.FullTraining(6, report_every=2), name="late")
    alone = begun(late)
    alone.finish_all()
    play = Play([early, late])
    play.start(0)
    play.join("a")
    while play.running:
        play.finish(only_path(play))

    play.start(1)

    assert statuses(play, 1) == [TrialStatus.WAITING]
    assert not play.core.runs[1].trials[0].reports
    play.finish_all()
    assert [report.step for report in play.core.runs[1].trials[0].reports] == [2, 4, 6]
    assert reports_of(play.core.runs[1]) == reports_of(alone.core.runs[0])


def test_a_stage_that_ends_early_is_continued_from_where_it_stopped() -> None:
    play = begun(small_study(space=ONE_RATE, tuner=dt.FullTraining(8)))
    play.finish(only_path(play), reached=5)

    stage = play.running[only_path(play)].stage

    assert (stage.start, stage.stop) == (5, 8)
    play.finish_all()
    assert play.core.plan.steps_executed == 8
    assert play.core.plan.steps_recomputed == 0


def test_a_lost_state_is_made_again_only_if_somebody_needs_it() -> None:
    play = begun(small_study(space=FORK_AT_3, tuner=dt.FullTraining(6)))
    play.finish(only_path(play))
    shared = play.answered[0].stage
    play.finish(only_path(play))
    play.lose(shared)
    play.finish(only_path(play))  # the second branch was on its way
    assert play.is_over
    assert play.core.plan.steps_recomputed == 0

    play = begun(small_study(space=FORK_AT_3, tuner=dt.FullTraining(6)))
    play.finish(only_path(play))
    play.lose(play.answered[0].stage)
    play.finish_all()
    assert play.core.plan.steps_recomputed == 3


def test_an_evaluation_that_fails_fails_those_who_wait_for_it_and_none_beyond() -> None:
    early = small_study(space=FORK_AT_3, tuner=dt.FullTraining(6), retries=0, name="early")
    late = small_study(space=ONE_RATE, tuner=dt.FullTraining(3), retries=0, name="late")
    later = small_study(space=ONE_RATE, tuner=dt.FullTraining(3), retries=0, name="later")
    play = Play([early, late, later])
    play.start(0)
    play.join("a", 2)
    play.finish(only_path(play))  # step 3, without metrics
    play.start(1)
    play.finish(next(iter(play.running)))
    (evaluation,) = [n for n, path in play.running.items() if not path.stage.n_steps]
    play.fail(evaluation)

    assert statuses(play, 1) == [TrialStatus.FAILED]
    play.start(2)
    assert statuses(play, 2) == [TrialStatus.FAILED]
    play.finish_all()
    assert statuses(play, 0) == [TrialStatus.COMPLETED] * 2


def test_losing_a_state_behind_one_that_was_given_up_fails_whoever_waits_beyond() -> None:
    play = begun(small_study(space=FORK_AT_3, tuner=dt.FullTraining(6), retries=0))
    play.finish(only_path(play))
    shared = play.answered[0].stage
    play.finish(only_path(play), reached=5)  # one branch has its own state from here
    play.lose(shared)
    play.finish(only_path(play), reached=3)
    play.fail(only_path(play))  # the shared steps, for the other branch
    assert sorted(s.value for s in statuses(play)) == ["failed", "waiting"]
    own = play.running[only_path(play)].stage.start_key
    assert own is not None

    play.leave("a", died=False)
    play.lose(own)

    assert statuses(play) == [TrialStatus.FAILED] * 2


def test_steps_before_a_state_that_is_being_evaluated_can_be_trained_meanwhile() -> None:
    early = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), name="early")
    late = small_study(space=ONE_RATE, tuner=dt.FullTraining(1), name="late")
    play = Play([early, late])
    play.start(0)
    play.join("a", 2)
    play.finish(only_path(play), is_evaluated=False)
    assert play.running[only_path(play)].stage.n_steps == 0

    play.start(1)

    stages = [(path.stage.start, path.stage.stop) for path in play.running.values()]
    assert stages == [(4, 4), (0, 1)]
    play.finish_all()


def test_a_tuner_that_is_asked_on_demand_has_asked_for_something_before_a_worker_joins() -> None:
    tuner = dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2)
    play = Play([small_study(tuner=tuner, name=f"study-{n}") for n in range(2)])
    play.start(0)
    play.start(1)
    assert sorted(play.asked) == [(0, 0), (1, 0)]
    assert play.core.why_idle() == "1 stages are ready and no worker has joined"


def test_stopping_a_path_before_its_first_step_stores_nothing() -> None:
    play = begun(small_study(space=FORK_AT_3, tuner=dt.FullTraining(6)))
    play.finish(only_path(play))
    play.lose(play.answered[0].stage)

    play.finish(only_path(play), reached=3)

    assert play.running[only_path(play)].stage.start == 0


def test_answers_that_come_twice_change_nothing_but_the_count_of_steps() -> None:
    play = begun(small_study(space=FORK_AT_3, tuner=dt.FullTraining(6)))
    play.finish(only_path(play))
    before = [trial.status for trial in play.core.runs[0].trials]

    play.repeat(play.answered[0])

    assert statuses(play) == before
    assert play.core.plan.steps_executed == 6
    assert play.core.plan.steps_recomputed == 3


def test_work_of_a_worker_that_was_given_up_is_used_if_it_is_committed_after_all() -> None:
    play = begun(small_study(space=ONE_RATE, tuner=dt.FullTraining(6)))
    play.leave("a", died=False)

    play.finish_late(play.ghosts[0], 6)

    assert statuses(play) == [TrialStatus.COMPLETED]
    assert play.is_over
    assert play.core.plan.steps_recomputed == 0


def test_a_path_that_nobody_waits_for_any_more_is_stopped_once() -> None:
    study = small_study(space=APART, tuner=dt.FullTraining(6), retries=0, max_failures=1)
    play = begun(study, n_slots=2)
    play.fail(next(iter(play.running)))

    stops = [c for _, c in play.timeline.commands() if isinstance(c, StopPath)]

    assert [stop.reason for stop in stops] == ["no trial waits for it any more"]
    assert not play.is_over
    play.finish(only_path(play), reached=1)
    assert play.is_over


def test_states_found_in_the_store_are_not_counted_as_executed() -> None:
    core = StudyCore([small_study(space=ONE_RATE, tuner=dt.FullTraining(6))])
    core.handle(StudyStarted(study=0), 0.0)
    (path,) = paths(core.handle(WorkerJoined(worker=WorkerId("a")), 0.0))
    stage = path.stages[0]

    core.handle(
        StageFinished(
            path=1, stage=stage.key, reached=6, metrics={"accuracy": 1.0}, executed_steps=2
        ),
        1.0,
    )

    assert core.is_over
    assert (core.plan.steps_unique, core.plan.steps_executed) == (6, 2)
    assert core.plan.steps_recomputed == 0


# --- interruptions --------------------------------------------------------------------------------


def test_an_interrupted_run_stops_every_path_and_ends_when_all_have_answered() -> None:
    play = begun(small_study(), n_slots=3)
    play.interrupt("the store is full")
    numbers = list(play.running)

    stops = [c.path for _, c in play.timeline.commands() if isinstance(c, StopPath)]
    assert stops == numbers
    for number in numbers:
        assert not play.is_over
        play.finish(number, reached=play.running[number].stage.start + 1)
    (reason,) = [c.reason for _, c in play.timeline.commands() if isinstance(c, EndRun)]
    assert reason == "the store is full; the same call goes on from here"


@pytest.mark.parametrize("seed", range(15))
def test_interruptions_change_no_report_under_synchronous_tuners(seed: int) -> None:
    studies = random_studies(Generator(seed), is_synchronous=True)
    truth = Truth(seed=seed, odd_share=0.1 * (seed % 2))
    straight = Play(studies, truth)
    straight.finish_all()
    play = Play(studies, truth)
    for index in range(len(studies)):
        play.start(index)
    play.join("a", 2)
    while not play.is_over:
        play.interrupt()
        for number in list(play.running):
            stage = play.running[number].stage
            for step in stage.report_steps[:1]:
                play.report(number, step)
            if number in play.running:
                play.finish(number, reached=min(stage.start + 1, stage.stop))
        play.resume()
        play.join("a", 2)

    for mine, other in zip(play.core.runs, straight.core.runs, strict=True):
        assert reports_of(mine) == reports_of(other)


# --- workers that are needed elsewhere ------------------------------------------------------------


def test_a_recalled_worker_finishes_its_step_and_is_given_back() -> None:
    play = begun(small_study(), n_slots=2)
    play.recall("a")
    play.recall("a")
    first, second = play.running

    stops = [c.path for _, c in play.timeline.commands() if isinstance(c, StopPath)]
    assert stops == [first, second]
    play.finish(first, reached=1)
    assert list(play.running) == [second]
    play.finish(second, reached=1)
    assert play.workers == {}
    play.join("b")
    assert play.running[only_path(play)].stage.start == 1


def test_an_idle_worker_is_given_back_at_once() -> None:
    play = begun(small_study(space=ONE_RATE), n_slots=1)
    play.join("b")
    play.recall("b")
    play.recall("nobody")

    returned = [c for _, c in play.timeline.commands() if isinstance(c, ReturnWorker)]
    assert returned == [ReturnWorker(worker=WorkerId("b"))]


def test_a_core_says_when_another_worker_would_be_of_use() -> None:
    play = Play([small_study(space=APART, tuner=dt.FullTraining(4))])

    def said() -> list[tuple[bool, bool]]:
        return [
            (c.wants, c.has_idle)
            for _, c in play.timeline.commands()
            if isinstance(c, ReportDemand)
        ]

    play.start(0)
    play.join("a", 2)
    assert said() == []  # three paths for two slots, as was to be expected
    play.finish(1)
    assert said() == [(False, False)]
    play.finish(2)
    assert said()[1:] == [(False, True)]


# --- the space is smaller than was wished for -----------------------------------------------------


@pytest.mark.parametrize("sampler", [dt.Grid(), dt.Random(), OneByOne()])
@pytest.mark.parametrize(
    "tuner",
    [
        dt.FullTraining(4),
        dt.SuccessiveHalving(rungs=[2, 4]),
        dt.ASHA(min_steps=2, max_steps=4, reduction_factor=2),
    ],
)
def test_more_trials_than_the_space_has_end_with_a_reason_that_says_so(
    sampler: object, tuner: object
) -> None:
    play = begun(small_study(space=APART, sampler=sampler, tuner=tuner, n_trials=9))

    play.finish_all()

    run = play.core.runs[0]
    assert run.status is StudyStatus.COMPLETED
    assert run.reason == "the space has only 3 configurations; all 3 trials are over"
    assert TrialStatus.COMPLETED in statuses(play)


# --- what cannot be -------------------------------------------------------------------------------


def test_studies_that_run_together_have_different_names() -> None:
    with pytest.raises(InvalidStudyError, match=r"\['same', 'same'\]"):
        StudyCore([small_study(name="same"), small_study(name="same")])
    with pytest.raises(InvalidStudyError, match="at least one"):
        StudyCore([])


IMPOSSIBLE: list[tuple[Event, str]] = [
    (StudyStarted(study=0), "study 0 cannot start"),
    (StudyStarted(study=1), "study 1 cannot start"),
    (StudyStarted(study=-1), "study -1 cannot start"),
    (WorkerJoined(worker=WorkerId("b"), n_slots=0), "at least one slot"),
]


@pytest.mark.parametrize(("event", "message"), IMPOSSIBLE)
def test_events_that_cannot_be_are_refused(event: Event, message: str) -> None:
    play = begun(small_study())
    with pytest.raises(BackendError, match=message):
        play.core.handle(event, play.core.now)


def test_answers_that_do_not_fit_their_stage_are_refused() -> None:
    play = begun(small_study(space=ONE_RATE, tuner=dt.FullTraining(6, report_every=2)))
    key = play.running[1].stage.key
    for event in (
        StageFinished(path=1, stage=key, reached=7, metrics=None, executed_steps=7),
        StageFinished(path=1, stage=key, reached=-1, metrics=None, executed_steps=0),
        MetricsReported(path=1, stage=key, step=3, metrics={"accuracy": 1.0}),
    ):
        with pytest.raises(BackendError, match=f"{type(event).__name__}.*is not"):
            play.core.fork().handle(event, play.core.now)


def test_time_does_not_run_backwards() -> None:
    play = begun(small_study())
    with pytest.raises(BackendError, match=r"is at 0\.5 s; it is 2\.0 s already"):
        play.core.handle(Interrupted(), 0.5)


def test_what_is_said_of_unknown_workers_paths_and_states_is_ignored() -> None:
    play = begun(small_study(space=ONE_RATE))
    unknown = Digest("0" * 64)
    for event in (
        WorkerLeft(worker=WorkerId("nobody"), died=True),
        StateLost(state=unknown),
        StageFailed(path=9, stage=unknown, error="late"),
        MetricsReported(path=9, stage=unknown, step=2, metrics={}),
        StageFinished(path=9, stage=unknown, reached=2, metrics={}, executed_steps=0),
    ):
        assert play.core.handle(event, play.core.now) == ()
    play.check()


def test_a_run_that_stands_still_says_why() -> None:
    core = StudyCore([small_study()])
    assert core.why_idle() == "no study has started"
    core.handle(StudyStarted(study=0), 0.0)
    assert core.why_idle() is not None
    assert "no worker has joined" in core.why_idle()  # type: ignore[operator]
    core.handle(WorkerJoined(worker=WorkerId("a")), 0.0)
    assert core.why_idle() is None


@pytest.mark.parametrize("seed", range(10))
def test_every_ending_has_a_reason(seed: int) -> None:
    play = rolled(seed, n_events=30, trouble=0.4)
    play.finish_all()

    ends = [c for _, c in play.timeline.commands() if isinstance(c, EndTrial)]

    assert all(end.reason for end in ends)
    assert all(run.reason for run in play.core.runs)


def test_rolling_the_same_dice_plays_the_same_world() -> None:
    plays = []
    for _ in range(2):
        rng = Generator(7)
        play = Play(random_studies(rng), Truth(seed=7))
        for _ in range(40):
            roll(play, rng)
        plays.append(list(play.timeline.lines()))

    assert plays[0] == plays[1]
