"""What a result says of its trials, and of what sharing saved."""

from dataclasses import FrozenInstanceError
from math import inf, nan
from random import Random as Generator
from typing import Literal

import pytest

import dasktune as dt
from dasktune.study.commands import StudyStatus
from dasktune.study.core import StudyCore
from dasktune.study.result import Result, results_of
from dasktune.study.timeline import Timeline
from dasktune.study.trial_record import TrialRecord
from dasktune.trial import TrialStatus
from tests.plays import Play, Truth, rolled, way_of
from tests.worlds import random_studies, small_study

APART = {"lr": dt.choice([0.1, 0.2, 0.3])}


def scored(
    scores: dict[float, dict[int, float]], mode: Literal["max", "min"] = "max", **changes: object
) -> Result:
    """Simulate a study whose trials score as given, by rate and step."""

    def curve(configuration: dt.Configuration, step: int) -> dict[str, float]:
        rate = configuration.at(0)["lr"]
        assert isinstance(rate, float)
        return {"accuracy": scores[rate][step], "step": float(step)}

    study = small_study(
        space={"lr": dt.choice(list(scores))},
        tuner=changes.pop("tuner", dt.FullTraining(4, report_every=2)),
        mode=mode,
        **changes,
    )
    return dt.simulate(study, dt.World(curve=curve))


def test_the_best_trial_has_the_best_of_all_reports() -> None:
    scores = {0.1: {2: 0.9, 4: 0.2}, 0.2: {2: 0.5, 4: 0.8}, 0.3: {2: 0.1, 4: 0.7}}

    best = scored(scores).best

    assert best is not None
    assert (best.number, best.steps, best.metrics) == (0, 2, {"accuracy": 0.9, "step": 2.0})
    assert best.configuration.at(0) == {"lr": 0.1}


def test_less_is_better_if_the_study_says_so() -> None:
    scores = {0.1: {2: 0.9, 4: 0.2}, 0.2: {2: 0.5, 4: 0.8}, 0.3: {2: 0.1, 4: 0.7}}

    best = scored(scores, "min").best

    assert best is not None
    assert (best.number, best.steps, best.metrics["accuracy"]) == (2, 2, 0.1)


def test_of_equal_reports_the_later_step_is_best_and_then_the_lower_number() -> None:
    flat = {2: 0.5, 4: 0.5}
    best = scored({0.1: {2: 0.5, 4: 0.4}, 0.2: flat, 0.3: flat}).best
    assert best is not None
    assert (best.number, best.steps) == (1, 4)

    for mode in ("max", "min"):
        best = scored({0.1: flat, 0.2: flat}, mode).best
        assert best is not None
        assert (best.number, best.steps) == (0, 4)


def test_a_trial_counts_by_its_best_report_however_it_ended() -> None:
    scores = {0.1: {2: 0.9, 4: nan}, 0.2: {2: 0.5, 4: 0.8}}

    result = scored(scores)

    assert result.best is not None
    assert result.best.number == 0
    assert result.best.status is TrialStatus.DIVERGED
    assert [(t.steps, t.metrics["accuracy"]) for t in result.trials] == [(2, 0.9), (4, 0.8)]


def test_nobody_is_best_if_there_is_no_report() -> None:
    result = scored({0.1: {2: inf, 4: 0.5}, 0.2: {2: nan, 4: 0.5}})

    assert result.best is None
    assert [(t.steps, dict(t.metrics), t.reports) for t in result.trials] == [(0, {}, ())] * 2
    assert result.status is StudyStatus.COMPLETED


def test_a_study_that_never_started_has_an_empty_result() -> None:
    (result,) = results_of(StudyCore([small_study()]), Timeline())

    assert (result.status, result.reason, result.trials, result.best) == (None, "", (), None)
    assert (result.steps_requested, result.steps_unique, result.merge_rate) == (0, 0, 1.0)


def test_trials_that_share_nothing_have_a_merge_rate_of_one() -> None:
    result = dt.simulate(small_study(space=APART, tuner=dt.FullTraining(4)), dt.World())

    assert (result.steps_requested, result.steps_unique, result.merge_rate) == (12, 12, 1.0)


def test_the_merge_rate_counts_each_trial_once_at_its_furthest_request() -> None:
    rates = [dt.constant(0.1), dt.piecewise({0: 0.1, 3: 0.01}), dt.piecewise({0: 0.1, 6: 0.01})]
    space = {"lr": dt.choice(rates)}
    full = dt.simulate(small_study(space=space, tuner=dt.FullTraining(8)), dt.World(workers=2))
    # 3 common steps, 3 more for two of them, and three tails of 5, 2 and 2 steps
    assert (full.steps_requested, full.steps_unique) == (24, 15)
    assert full.merge_rate == 24 / 15

    halved = dt.SuccessiveHalving(rungs=[4, 8], reduction_factor=3)
    part = dt.simulate(small_study(space=space, tuner=halved), dt.World())
    assert part.steps_requested == 4 + 4 + 8
    promoted = next(t for t in part.trials if t.status is TrialStatus.COMPLETED)
    assert [t.steps_requested for t in part.trials].count(8) == 1
    assert promoted.steps_requested == 8


def counted(trial: TrialRecord, asked: int) -> int:
    """Return how far a trial counts: to what it was asked for, or the report that ended it."""
    is_ended_on_the_way = (
        trial.status is TrialStatus.STOPPED
        and "median" in trial.reason
        and max(report.step for report in trial.reports) < asked
    )
    return max(report.step for report in trial.reports) if is_ended_on_the_way else asked


@pytest.mark.parametrize("seed", range(25))
def test_a_result_agrees_with_a_slow_count_of_what_was_asked_and_reported(seed: int) -> None:
    play = rolled(seed, n_events=40, trouble=0.3)
    play.finish_all()
    for run, result in zip(play.core.runs, results_of(play.core, play.timeline), strict=True):
        furthest = {t.id: counted(t, play.asked.get(t.id, [0])[-1]) for t in run.trials}
        assert result.steps_requested == sum(furthest.values())
        distinct = {s for t in run.trials for s in way_of(run, t)[1 : furthest[t.id] + 1]}
        assert result.steps_unique == len(distinct)
        assert result.merge_rate >= 1.0
        assert result.steps_executed == play.account.executed
        assert (result.status, result.reason) == (run.status, run.reason)
        assert result.makespan_s == play.timeline.entries[-1].at_s
        sign = 1 if run.study.mode == "max" else -1
        best = max(
            (
                (sign * report.metrics[run.study.metric], report.step, -trial.number)
                for trial in result.trials
                for report in trial.reports
            ),
            default=None,
        )
        found = result.best
        assert (found is None) == (best is None)
        if found is not None and best is not None:
            assert (found.steps, -found.number) == best[1:]
            assert sign * found.metrics[run.study.metric] == best[0]
        for trial in result.trials:
            told = [report.step for report in trial.reports]
            assert told == sorted(set(told))
            assert trial.status.is_final
            assert trial.reason


def test_the_data_frame_has_a_row_a_trial_and_a_column_for_whatever_any_trial_has() -> None:
    result = scored({0.1: {2: 0.9, 4: 0.2}, 0.2: {2: nan, 4: 0.8}, 0.3: {2: 0.1, 4: 0.7}})
    names = list(dict.fromkeys(name for row in result.rows() for name in row))

    frame = result.to_dataframe()

    assert frame.shape == (3, len(names))
    assert list(frame.columns) == names
    assert {"trial", "status", "hp.lr", "metric.accuracy", "steps"} <= set(names)
    assert list(frame["trial"]) == [0, 1, 2]
    assert list(frame["metric.accuracy"].isna()) == [False, True, False]  # one gave no report


def test_the_data_frame_of_a_study_that_never_started_is_empty() -> None:
    (result,) = results_of(StudyCore([small_study()]), Timeline())
    assert len(result.to_dataframe()) == 0


def test_worker_seconds_are_what_workers_said() -> None:
    play = Play(random_studies(Generator(5)), Truth())
    play.finish_all()
    (first, *_) = results_of(play.core, play.timeline)

    assert first.worker_seconds == len(play.answered)


def test_a_result_can_not_be_changed() -> None:
    result = scored({0.1: {2: 0.5, 4: 0.5}})
    with pytest.raises(FrozenInstanceError):
        result.best = None  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        result.trials[0].steps = 9  # type: ignore[misc]
