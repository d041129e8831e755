"""What is trained: each distinct step once, whatever the tuner, the sampler and the workers."""

import os
import subprocess
import sys
from hashlib import sha256
from math import nan
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.samplers.sampler import Sampler
from dasktune.scheduling.critical_path_first import CriticalPathFirst
from dasktune.scheduling.fifo import Fifo
from dasktune.scheduling.scheduler import Scheduler
from dasktune.study.commands import DrawTrial, EndTrial, RunPath
from dasktune.study.events import StageFinished
from dasktune.study.result import Result, TrialResult
from dasktune.trial import TrialStatus
from dasktune.tuners.tuner import Tuner
from tests.oracles import halved, n_distinct
from tests.scheduling.untrained import Untrained

ROOT = Path(__file__).parent.parent.parent

SPACE: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(0.1),
            dt.step_decay(0.1, factor=0.1, at=[2]),
            dt.step_decay(0.1, factor=dt.choice([0.1, 0.3]), at=[dt.randint(4, 6)]),
            dt.warmup(2, dt.exponential(0.1, 0.9)),
            dt.warmup(2, dt.cosine(0.1, 7)),
        ]
    ),
    "size": dt.choice([64, dt.piecewise({0: 64, 5: 128})]),
    "optimizer": dt.choice({"sgd": {"momentum": dt.choice([0.9, 0.95])}, "adam": {}}),
}
STEPS = 9
FULL = dt.FullTraining(STEPS, report_every=2)
HALVING = dt.SuccessiveHalving(min_steps=1, max_steps=STEPS, reduction_factor=3)
SPREAD = dt.SuccessiveHalving(rungs=[2, 5, STEPS], reduction_factor=2, ties="spread")
ASHA = dt.ASHA(min_steps=1, max_steps=STEPS, reduction_factor=3)
SPREAD_ASHA = dt.ASHA(min_steps=2, max_steps=STEPS, reduction_factor=2, ties="spread")
STOPPING_ASHA = dt.ASHA(min_steps=1, max_steps=STEPS, reduction_factor=2, variant="stopping")
HYPERBAND = dt.Hyperband(min_steps=2, max_steps=STEPS, reduction_factor=2)
ASYNC_HYPERBAND = dt.AsyncHyperband(min_steps=1, max_steps=STEPS, reduction_factor=2)
MEDIAN = dt.MedianStopping(STEPS, report_every=2, min_trials=2)

schedulers = pytest.mark.parametrize("scheduler", [CriticalPathFirst(), Fifo()])
speeds = st.sampled_from([0.3, 0.5, 0.9, 1.0, 1.7, 2.0, 3.1])


def study_of(tuner: Tuner, sampler: Sampler | None = None, *, seed: int = 0) -> dt.Study:
    return dt.Study(
        Untrained(),
        space=SPACE,
        sampler=sampler or dt.Random(),
        tuner=tuner,
        metric="a",
        mode="max",
        n_trials=24,
        seed=seed,
    )


def rows_of(configuration: dt.Configuration, stop: int) -> tuple[tuple[object, ...], ...]:
    """The values of each step, with their names: parameters may be missing."""
    return tuple(tuple(configuration.at(t).items()) for t in range(stop))


@schedulers
@pytest.mark.parametrize("sampler", [dt.Random(), dt.Grid()])
@pytest.mark.parametrize(
    "tuner",
    [FULL, HALVING, SPREAD, ASHA, SPREAD_ASHA, STOPPING_ASHA, HYPERBAND, ASYNC_HYPERBAND],
)
@pytest.mark.parametrize("n_workers", [1, 2, 3, 8, 50])
@settings(max_examples=4)
@given(data=st.data(), seed=st.integers(0, 2**20))
def test_each_distinct_step_is_trained_once(
    scheduler: Scheduler,
    sampler: Sampler,
    tuner: Tuner,
    n_workers: int,
    data: st.DataObject,
    seed: int,
) -> None:
    world = dt.World(workers=data.draw(st.lists(speeds, min_size=n_workers, max_size=n_workers)))
    result = dt.simulate(study_of(tuner, sampler, seed=seed), world, scheduler=scheduler)
    distinct = n_distinct(
        [rows_of(trial.configuration, trial.steps_requested) for trial in result.trials]
    )
    assert result.steps_recomputed == 0
    assert result.steps_executed == result.steps_unique == distinct
    assert result.steps_requested == sum(trial.steps_requested for trial in result.trials)


@schedulers
@pytest.mark.parametrize("sampler", [dt.Random(), dt.Grid()])
@pytest.mark.parametrize("n_workers", [1, 3, 8])
@settings(max_examples=4)
@given(data=st.data(), seed=st.integers(0, 2**20))
def test_where_trials_are_stopped_in_passing_fewer_steps_are_trained_and_none_twice(
    scheduler: Scheduler, sampler: Sampler, n_workers: int, data: st.DataObject, seed: int
) -> None:
    world = dt.World(workers=data.draw(st.lists(speeds, min_size=n_workers, max_size=n_workers)))
    result = dt.simulate(study_of(MEDIAN, sampler, seed=seed), world, scheduler=scheduler)
    assert result.steps_recomputed == 0
    stopped = [trial for trial in result.trials if trial.status is TrialStatus.STOPPED]
    assert result.steps_unique <= STEPS * len(result.trials)
    reached = [max(report.step for report in trial.reports) for trial in result.trials]
    rows = [rows_of(t.configuration, at) for t, at in zip(result.trials, reached, strict=True)]
    # A trial counts up to the report that ended it; the step after that may have begun.
    assert n_distinct(rows) == result.steps_unique
    assert result.steps_unique <= result.steps_executed <= result.steps_unique + len(stopped)


def alone(trial: TrialResult) -> dict[int, float]:
    """What a trial reports after each step if it is the only one of its study."""
    study = dt.Study(
        Untrained(),
        space=dict(trial.configuration.schedules),
        tuner=dt.FullTraining(STEPS, report_every=1),
        metric="a",
        mode="max",
        n_trials=1,
        name="alone",
    )
    (only,) = dt.simulate(study, dt.World()).trials
    return {report.step: report.metrics["a"] for report in only.reports}


def reports_of(result: Result) -> list[dict[int, float]]:
    return [
        {report.step: report.metrics["a"] for report in trial.reports} for trial in result.trials
    ]


@schedulers
@pytest.mark.parametrize("seed", range(3))
def test_merged_trials_report_what_they_report_alone(scheduler: Scheduler, seed: int) -> None:
    world = dt.World(workers=[1.0, 0.7, 2.0])
    result = dt.simulate(study_of(FULL, seed=seed), world, scheduler=scheduler)
    expected = [alone(trial) for trial in result.trials]
    steps = {2, 4, 6, 8, STEPS}
    assert result.merge_rate > 1.5
    assert reports_of(result) == [{step: told[step] for step in sorted(steps)} for told in expected]


@schedulers
@pytest.mark.parametrize("tuner", [HALVING, SPREAD])
@pytest.mark.parametrize("seed", range(3))
def test_merged_halving_promotes_and_reports_as_if_each_trial_trained_alone(
    scheduler: Scheduler, tuner: dt.SuccessiveHalving, seed: int
) -> None:
    world = dt.World(workers=[1.0, 0.7, 2.0])
    result = dt.simulate(study_of(tuner, seed=seed), world, scheduler=scheduler)
    told = [alone(trial) for trial in result.trials]
    histories = [rows_of(trial.configuration, STEPS) for trial in result.trials]
    scores = {
        history[:step]: told[i][step] for i, history in enumerate(histories) for step in tuner.rungs
    }
    alive = halved(
        histories,
        tuner.rungs,
        int(tuner.reduction_factor),
        lambda history: scores[history],
        is_spread=tuner.ties == "spread",
    )
    expected: list[dict[int, float]] = [{} for _ in histories]
    for rung, each in zip(tuner.rungs, alive, strict=True):
        for i in each:
            expected[i][rung] = told[i][rung]
    assert reports_of(result) == expected


@schedulers
@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_trials_that_pass_a_bad_state_diverge(scheduler: Scheduler, seed: int) -> None:
    bad = {2: 0.09, 6: 0.01}  # the learning rate before a report, by the report's step

    def curve(configuration: dt.Configuration, step: int) -> dict[str, float]:
        is_bad = configuration.at(step - 1)["lr"] == bad.get(step)
        return {"a": nan if is_bad else float(step)}

    world = dt.World(workers=[1.0, 0.7, 2.0], curve=curve)
    result = dt.simulate(study_of(FULL, seed=seed), world, scheduler=scheduler)
    ends = set()
    for trial in result.trials:
        rates = [trial.configuration.at(t)["lr"] for t in range(STEPS)]
        end = next((step for step in (2, 4, 6, 8) if rates[step - 1] == bad.get(step)), None)
        assert (trial.status is TrialStatus.DIVERGED) == (end is not None)
        assert [r.step for r in trial.reports] == [
            step for step in (2, 4, 6, 8, STEPS) if end is None or step < end
        ]
        ends.add(end)
    assert {6, None} <= ends


@pytest.mark.parametrize("tuner", [dt.FullTraining(3, report_every=1), ASHA])
def test_trials_that_share_a_state_hear_of_it_in_their_order(tuner: Tuner) -> None:
    result = dt.simulate(study_of(tuner), dt.World(workers=3, curve=lambda *_: {"a": nan}))
    for entry in result.timeline.entries:
        ended = [c.trial.number for c in entry.commands if isinstance(c, EndTrial)]
        assert ended == sorted(ended)
    result = dt.simulate(study_of(tuner), dt.World(workers=3))
    for entry in result.timeline.entries:
        completed = [
            c.trial.number
            for c in entry.commands
            if isinstance(c, EndTrial) and c.status is TrialStatus.COMPLETED
        ]
        assert completed == sorted(completed)


def draws_and_stages(result: Result) -> tuple[list[object], set[str]]:
    draws: list[object] = []
    stages: set[str] = set()
    for _, command in result.timeline.commands():
        if isinstance(command, DrawTrial):
            draws.append((command.trial, command.point))
        elif isinstance(command, RunPath):
            stages |= {stage.key for stage in command.stages}
    finished = [
        entry.event.stage
        for entry in result.timeline.entries
        if isinstance(entry.event, StageFinished)
    ]
    assert sorted(finished) == sorted(stages), "each stage is run once"
    return draws, stages


@pytest.mark.parametrize("tuner", [FULL, HALVING, SPREAD, HYPERBAND])
@pytest.mark.parametrize("seed", range(4))
def test_workers_and_scheduler_change_no_draw_and_no_stage(tuner: Tuner, seed: int) -> None:
    found = [
        draws_and_stages(
            dt.simulate(study_of(tuner, seed=seed), dt.World(workers=workers), scheduler=scheduler)
        )
        for workers in (1, 2, 8, [0.5, 2.0, 1.3])
        for scheduler in (CriticalPathFirst(), Fifo())
    ]
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    "tuner", [FULL, HALVING, ASHA, SPREAD_ASHA, STOPPING_ASHA, HYPERBAND, ASYNC_HYPERBAND, MEDIAN]
)
@pytest.mark.parametrize("workers", [1, 2, [0.5, 2.0, 1.3, 1.0, 0.9]])
def test_the_same_seed_and_world_give_the_same_timeline(
    tuner: Tuner, workers: int | list[float]
) -> None:
    world = dt.World(workers=workers, load_s=0.5, save_s=0.1, evaluate_s=0.2, join_s=1.0)
    first, second = (list(dt.simulate(study_of(tuner), world).timeline.lines()) for _ in range(2))
    assert first == second
    assert first != list(dt.simulate(study_of(tuner, seed=1), world).timeline.lines())


def digest_of_timelines() -> str:
    """A digest of what several tuners decide in an uneven world."""
    world = dt.World(workers=[0.5, 2.0, 1.3, 1.0, 0.9], load_s=0.5, save_s=0.1)
    digest = sha256()
    for tuner in (FULL, HALVING, SPREAD_ASHA, STOPPING_ASHA, HYPERBAND, ASYNC_HYPERBAND, MEDIAN):
        for line in dt.simulate(study_of(tuner), world).timeline.lines():
            digest.update(line.encode())
    return digest.hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_decides_the_same(hash_seed: str) -> None:
    program = (
        "from tests.scheduling.test_execution import digest_of_timelines\n"
        "print(digest_of_timelines())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == digest_of_timelines()
