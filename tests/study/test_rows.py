"""Rows of a result, and which trial each step and second is put down to."""

from collections import Counter

import pytest

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.study.commands import RunPath
from dasktune.study.events import StageFinished
from dasktune.study.result import Result, results_of
from dasktune.study.study_run import StudyRun
from tests.plays import Play, rolled, stage_past, way_of
from tests.worlds import small_study

SHARED = {
    "lr": dt.choice([dt.constant(0.1), dt.piecewise({0: 0.1, 4: 0.01})]),
    "depth": dt.choice({2: {"width": dt.choice([8])}, 3: {}}),
}
"""Four trials without the width of one: pairs part at step 4."""


def shared(tuner: dt.FullTraining | dt.SuccessiveHalving | None = None) -> Result:
    return dt.simulate(small_study(space=SHARED, tuner=tuner or dt.FullTraining(6)), dt.World())


def first_owner(play: Play, run: StudyRun, stage_key: str) -> int | None:
    """Find by values the first trial that was asked for the last step of a stage."""
    stage = next(
        stage
        for _, command in play.timeline.commands()
        if isinstance(command, RunPath)
        for stage in command.stages
        if stage.key == stage_key
    )
    if stage.family != run.study.family:
        return None
    end = stage_past(stage, stage.stop)
    for trial in run.trials:
        steps = play.asked.get(trial.id, [0])[-1]
        if stage.stop <= steps and way_of(run, trial)[stage.stop] == end:
            return trial.id.number
    return None


@pytest.mark.parametrize("seed", range(25))
def test_steps_are_put_down_to_the_first_trial_that_was_asked_for_them(seed: int) -> None:
    play = rolled(seed, n_events=40)
    play.finish_all()
    for run, result in zip(play.core.runs, results_of(play.core, play.timeline), strict=True):
        seen: set[str] = set()
        for record, trial in zip(run.trials, result.trials, strict=True):
            mine = way_of(run, record)[1 : trial.steps_requested + 1]
            assert trial.steps_new == len(set(mine) - seen)
            assert trial.steps_shared == trial.steps_requested - trial.steps_new
            seen.update(mine)
        assert sum(trial.steps_new for trial in result.trials) == result.steps_unique


@pytest.mark.parametrize("seed", range(25))
def test_seconds_are_put_down_to_the_first_trial_asked_for_the_end_of_a_stage(seed: int) -> None:
    play = rolled(seed, n_events=40)
    play.finish_all()
    for run, result in zip(play.core.runs, results_of(play.core, play.timeline), strict=True):
        expected: Counter[int | None] = Counter()
        for entry in play.timeline.entries:
            if isinstance(entry.event, StageFinished):
                owner = first_owner(play, run, entry.event.stage)
                expected[owner] += int(entry.event.seconds)
        assert [trial.seconds for trial in result.trials] == [
            expected[trial.number] for trial in result.trials
        ]
        assert sum(trial.seconds for trial in result.trials) <= result.worker_seconds


@pytest.mark.parametrize("seed", range(25))
def test_a_duplicate_has_the_same_values_at_every_step_as_the_first_one(seed: int) -> None:
    play = rolled(seed, n_events=20)
    play.finish_all()
    for run, result in zip(play.core.runs, results_of(play.core, play.timeline), strict=True):
        ends = [way_of(run, record)[-1] for record in run.trials]
        firsts = [ends.index(end) for end in ends]
        assert [trial.duplicate_of for trial in result.trials] == [
            first if first != number else None for number, first in enumerate(firsts)
        ]


def test_a_duplicate_in_other_words_is_free_and_marked() -> None:
    same = [dt.constant(0.1), dt.piecewise({0: 0.1, 6: 0.01}), dt.piecewise({0: 0.1, 9: 0.5})]
    result = dt.simulate(
        small_study(space={"lr": dt.choice(same)}, tuner=dt.FullTraining(6)), dt.World()
    )

    assert [row["duplicate_of"] for row in result.rows()] == [None, 0, 0]
    assert [row["steps_new"] for row in result.rows()] == [6, 0, 0]
    assert result.steps_executed == 6
    assert [trial.seconds for trial in result.trials][1:] == [0.0, 0.0]


def test_the_steps_before_a_branch_are_those_of_the_trial_that_it_left() -> None:
    tuner = dt.PopulationBasedTraining(max_steps=6, ready_steps=2)
    space = {"lr": dt.loguniform(1e-3, 1)}
    study = small_study(space=space, sampler=dt.Random(), n_trials=5, tuner=tuner)
    result = dt.simulate(study, dt.World())
    branched = [row for row in result.rows() if row["parent"] is not None]
    assert branched
    assert [row["steps_shared"] for row in branched] == [row["branch_step"] for row in branched]
    assert sum(trial.seconds for trial in result.trials) == result.worker_seconds


def test_every_row_has_all_columns_in_one_order() -> None:
    rows = shared(dt.SuccessiveHalving(rungs=[2, 6], reduction_factor=2)).rows()
    first = "trial status reason hp.depth hp.lr hp.width metric.accuracy accuracy@2 accuracy@6"
    last = "steps steps_requested steps_new steps_shared seconds duplicate_of parent branch_step"
    assert [list(row) for row in rows] == [f"{first} {last}".split()] * 4


def test_parameters_are_values_where_they_are_constant_and_texts_elsewhere() -> None:
    rows = shared().rows()
    assert {(row["hp.depth"], row["hp.width"]) for row in rows} == {(2, 8), (3, None)}
    assert {row["hp.lr"] for row in rows} == {0.1, "piecewise({0: 0.1, 4: 0.01})"}


def test_metrics_by_step_are_those_of_the_reports() -> None:
    result = shared(dt.SuccessiveHalving(rungs=[2, 6], reduction_factor=2))
    for trial, row in zip(result.trials, result.rows(), strict=True):
        told = {report.step: report.metrics["accuracy"] for report in trial.reports}
        assert {step: row[f"accuracy@{step}"] for step in (2, 6)} == {2: None, 6: None} | told
    assert sum(row["accuracy@6"] is None for row in result.rows()) == 2


def test_reports_have_a_row_each_by_trial_and_step() -> None:
    result = shared(dt.FullTraining(6, report_every=3))
    rows = result.rows("reports")
    assert [(row["trial"], row["step"]) for row in rows] == [
        (n, s) for n in range(4) for s in (3, 6)
    ]
    assert {tuple(row) for row in rows} == {("trial", "step", "metric.accuracy", "score")}
    assert [row["score"] for row in rows] == [
        report.score for trial in result.trials for report in trial.reports
    ]


def test_rows_of_something_else_are_refused() -> None:
    with pytest.raises(InvalidStudyError, match="it must be 'trials' or 'reports'"):
        shared().rows("stages")  # type: ignore[arg-type]


def test_data_frames_have_the_columns_of_the_rows_and_whole_numbers_stay_whole() -> None:
    result = shared()
    frame = result.to_dataframe()
    assert list(frame.columns) == list(result.rows()[0])
    assert str(frame["duplicate_of"].dtype) == "Int64"
    assert str(frame["metric.accuracy"].dtype) == "float64"
    assert int(frame["steps_new"].sum()) == result.steps_unique

    reports = result.to_dataframe("reports")
    assert reports.groupby("trial")["metric.accuracy"].max().tolist() == [
        trial.metrics["accuracy"] for trial in result.trials
    ]
