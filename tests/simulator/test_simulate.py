"""Simulated runs: times worked out by hand, faults that change no result, studies that share."""

from collections.abc import Sequence
from random import Random as Generator
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import BackendError, InvalidStudyError
from dasktune.simulator.backend import SimulatedBackend
from dasktune.simulator.world import Fault, StageRaises, StateVanishes, WorkerDies, World
from dasktune.study.commands import RunPath, StudyStatus
from dasktune.study.core import StudyCore
from dasktune.study.events import (
    MetricsReported,
    StageFailed,
    StageFinished,
    StateLost,
    StudyStarted,
    WorkerJoined,
    WorkerLeft,
)
from dasktune.study.result import Result
from dasktune.study.study import Study
from dasktune.study.timeline import Timeline, replay
from dasktune.trial import TrialStatus
from tests.plays import METRICS, Truth, past, trained_by
from tests.worlds import any_tuner, random_studies, small_study

ONE_RATE = {"lr": 0.1}
FORK_AT_3 = {"lr": dt.choice([dt.constant(0.1), dt.step_decay(0.1, factor=0.1, at=[3])])}
APART = {"lr": dt.choice([0.1, 0.2])}


def slow_world(**changes: Any) -> World:  # noqa: ANN401
    """Make a world in which everything takes its own time."""
    given: dict[str, Any] = {
        "startup_s": 100.0,
        "load_s": 20.0,
        "step_s": 1.0,
        "evaluate_s": 3.0,
        "save_s": 7.0,
    }
    return World(**(given | changes))


def times(result: Result, kind: type) -> list[float]:
    return [entry.at_s for entry in result.timeline.entries if isinstance(entry.event, kind)]


def reports(result: Result) -> dict[int, list[tuple[int, dict[str, float]]]]:
    return {
        trial.number: [(report.step, dict(report.metrics)) for report in trial.reports]
        for trial in result.trials
    }


def truth_of(studies: Sequence[Study], seed: int, odd_share: float = 0.0) -> Any:  # noqa: ANN401
    """Return a curve that depends on the values of the steps that are done, and on no more."""
    truth = Truth(seed=seed, odd_share=odd_share)
    family = studies[0].family
    return lambda configuration, step: truth.metrics(past(family, configuration, step))


def random_world(rng: Generator, **changes: Any) -> World:  # noqa: ANN401
    """Make a world without faults."""
    n = rng.choice([1, 2, 3, 5])
    given: dict[str, Any] = {
        "workers": [rng.choice([0.5, 1.0, 3.0]) for _ in range(n)],
        "step_s": rng.choice([1.0, 0.3]),
        "startup_s": rng.choice([0.0, 2.0]),
        "load_s": rng.choice([0.0, 0.7]),
        "save_s": rng.choice([0.0, 0.4]),
        "evaluate_s": rng.choice([0.0, 0.2]),
        "join_s": [rng.choice([0.0, 1.5]) for _ in range(n)],
    }
    return World(**(given | changes))


# --- times ----------------------------------------------------------------------------------------


def test_one_trial_takes_startup_steps_evaluation_and_saving() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.FullTraining(4))
    result = dt.simulate(study, slow_world())
    assert result.makespan_s == result.worker_seconds == 100 + 4 + 3 + 7
    assert dt.simulate(study, slow_world(join_s=5.0)).makespan_s == 119
    assert dt.simulate(study, slow_world(workers=[2.0])).makespan_s == 100 + 2 + 3 + 7
    assert dt.simulate(study, World()).makespan_s == 4


def test_reports_in_passing_take_an_evaluation_each_and_no_saving() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.FullTraining(4, report_every=1))
    result = dt.simulate(study, slow_world())
    assert times(result, MetricsReported) == [104, 108, 112]
    assert result.makespan_s == 112 + 1 + 3 + 7


def test_a_fork_is_saved_by_the_path_that_goes_through_it_and_loaded_by_the_other() -> None:
    study = small_study(space=FORK_AT_3, tuner=dt.FullTraining(6))
    first = 100 + 3 + 7 + 3 + 3 + 7
    other = 100 + 20 + 3 + 3 + 7
    assert dt.simulate(study, slow_world()).makespan_s == first + other
    assert dt.simulate(study, slow_world(workers=2)).makespan_s == 100 + 3 + 7 + other
    assert dt.simulate(study, slow_world(workers=2)).worker_seconds == first + other


def test_a_slot_that_still_holds_the_state_saves_startup_and_loading() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.SuccessiveHalving(rungs=[2, 4]))
    result = dt.simulate(study, slow_world())
    assert times(result, StageFinished) == [112, 124]
    runs = [c for _, c in result.timeline.commands() if isinstance(c, RunPath)]
    assert [run.is_warm for run in runs] == [False, True]


def test_a_worker_that_comes_back_has_forgotten_its_state() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.SuccessiveHalving(rungs=[2, 4]))
    world = slow_world(faults=[WorkerDies(worker=0, at_s=113, back_after_s=2)])
    assert times(dt.simulate(study, world), StageFinished) == [112, 115 + 100 + 20 + 2 + 3 + 7]


def test_steps_may_take_as_long_as_their_values_say() -> None:
    space = {"lr": dt.piecewise({0: 1.0, 2: 10.0})}
    study = small_study(space=space, tuner=dt.FullTraining(4, report_every=1))
    result = dt.simulate(study, World(step_s=lambda hp: float(str(hp["lr"]))))
    assert times(result, MetricsReported) == [1, 2, 12]
    assert result.makespan_s == 22
    half = dt.simulate(study, World(workers=[4.0], step_s=lambda hp: float(str(hp["lr"]))))
    assert half.makespan_s == 5.5


def test_each_worker_has_its_own_speed_and_time_to_join() -> None:
    study = small_study(space=APART, tuner=dt.FullTraining(4))
    result = dt.simulate(study, World(workers=[1.0, 0.5], join_s=[0.0, 1.0]))
    assert times(result, WorkerJoined) == [0, 1]
    assert sorted(times(result, StageFinished)) == [4, 9]


def test_an_evaluation_alone_takes_no_step_and_saves_nothing() -> None:
    early = small_study(space=FORK_AT_3, tuner=dt.FullTraining(6), name="early")
    late = small_study(space=ONE_RATE, tuner=dt.FullTraining(3), name="late")
    core = StudyCore([early, late])
    backend = SimulatedBackend(slow_world(workers=2), METRICS)
    core.handle(StudyStarted(study=0), 0.0)
    evaluations = []
    while not core.is_over:
        event, now = backend.next_event()
        commands = core.handle(event, now)
        if isinstance(event, StageFinished) and core.runs[1].status is None:
            commands += core.handle(StudyStarted(study=1), now)
        if isinstance(event, StageFinished) and not event.executed_steps:
            evaluations.append((now, event.seconds, event.metrics is not None))
        for command in commands:
            backend.perform(command)

    # The state at step 3 was saved at 110 s; the first slot is free after 110 + 3 + 3 + 7.
    assert evaluations == [(123 + 100 + 20 + 3, 100 + 20 + 3, True)]
    assert core.plan.steps_executed == 9


@pytest.mark.parametrize("seed", range(20))
def test_on_one_worker_with_no_overhead_the_makespan_is_the_distinct_steps(seed: int) -> None:
    rng = Generator(seed)
    study = small_study(tuner=any_tuner(rng), n_trials=9, seed=seed, sampler=dt.Random())
    result = dt.simulate(study, World(step_s=0.5))
    assert result.makespan_s == result.worker_seconds == 0.5 * result.steps_unique


# --- without faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_no_step_is_trained_twice_and_every_trial_scores_as_if_it_were_alone(seed: int) -> None:
    rng = Generator(seed)
    studies = [
        small_study(
            tuner=any_tuner(rng),
            sampler=rng.choice([dt.Random(), dt.Grid()]),
            n_trials=rng.choice([3, 7, 10]),
            seed=seed,
            mode=rng.choice(["max", "min"]),
            name=f"study-{index}",
        )
        for index in range(rng.choice([1, 2, 3]))
    ]
    curve = truth_of(studies, seed, odd_share=0.1 * (seed % 2))

    results = dt.simulate(studies, random_world(rng, curve=curve))

    assert results[0].steps_recomputed == 0
    asked = {
        past(result.study.family, trial.configuration, step)
        for result in results
        for trial in result.trials
        for step in range(1, trial.steps_requested + 1)
    }
    has_odd = any(t.status is TrialStatus.DIVERGED for r in results for t in r.trials)
    if not has_odd:  # who diverged may have asked for steps that nobody trained
        assert results[0].steps_executed == len(asked)
    for result in results:
        assert result.status is StudyStatus.COMPLETED
        for trial in result.trials:
            for report in trial.reports:
                assert report.metrics == curve(trial.configuration, report.step)


def test_without_a_curve_states_score_by_what_they_are() -> None:
    study = small_study(tuner=dt.FullTraining(8, report_every=1))
    result = dt.simulate(study, World(workers=3))
    told: dict[str, float] = {}
    for trial in result.trials:
        for report in trial.reports:
            state = past(study.family, trial.configuration, report.step)
            score = report.metrics["accuracy"]
            assert 0 <= score < 1
            assert told.setdefault(state, score) == score
    assert len(set(told.values())) == len(told)


# --- repeatable -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_the_same_seed_and_world_give_the_same_lines(seed: int) -> None:
    def lines() -> list[str]:
        rng = Generator(seed)
        studies = random_studies(rng)
        faults = [StageRaises(fraction=0.2, seed=seed), StateVanishes(at_s=4.0)]
        results = dt.simulate(studies, random_world(rng, faults=faults))
        return list(results[0].timeline.lines())

    assert lines() == lines()


def test_another_seed_draws_otherwise_and_another_fault_seed_fails_otherwise() -> None:
    def lines(seed: int, fault_seed: int) -> str:
        study = small_study(sampler=dt.Random(), n_trials=4, seed=seed, retries=9)
        world = World(faults=[StageRaises(fraction=0.5, seed=fault_seed)])
        return "\n".join(dt.simulate(study, world).timeline.lines())

    told = {(s, f): lines(s, f) for s in range(3) for f in range(3)}

    assert len(set(told.values())) == 9


@pytest.mark.parametrize("seed", range(8))
def test_the_timeline_of_a_simulation_can_be_replayed(seed: int) -> None:
    rng = Generator(seed)
    studies = random_studies(rng)
    world = random_world(rng, faults=[StageRaises(fraction=0.1)])
    results = dt.simulate(studies, world)

    core, _ = replay(studies, results[0].timeline.lines())

    assert core.is_over
    assert [run.reason for run in core.runs] == [result.reason for result in results]


# --- faults ---------------------------------------------------------------------------------------


def random_faults(rng: Generator, n_workers: int) -> list[Fault]:
    """Draw faults that a study survives: fewer deaths than one stage may have."""
    faults: list[Fault] = [StageRaises(fraction=rng.choice([0.0, 0.25]), seed=rng.randrange(9))]
    for _ in range(rng.choice([0, 1, 2])):
        worker, at_s = rng.randrange(n_workers), rng.uniform(0.0, 20.0)
        faults.append(WorkerDies(worker=worker, at_s=at_s, back_after_s=rng.choice([0.0, 2.5])))
    faults += [StateVanishes(at_s=rng.uniform(1.0, 20.0)) for _ in range(rng.choice([0, 1, 4]))]
    return faults


@pytest.mark.parametrize("seed", range(60))
def test_faults_change_no_report_and_repeat_only_what_was_not_committed(seed: int) -> None:
    rng = Generator(seed)
    studies = [
        small_study(
            tuner=study.tuner,
            metric=study.metric,
            mode=study.mode,
            n_trials=study.n_trials,
            seed=seed,
            sampler=dt.Random(),
            retries=60,
            name=study.name,
        )
        for study in random_studies(rng, is_synchronous=True)
    ]
    curve = truth_of(studies, seed, odd_share=0.1 * (seed % 2))
    calm = random_world(rng, curve=curve)
    faults = random_faults(rng, len(calm.speeds))
    rough = World(
        workers=calm.workers,
        step_s=calm.step_s,
        startup_s=calm.startup_s,
        load_s=calm.load_s,
        save_s=calm.save_s,
        evaluate_s=calm.evaluate_s,
        join_s=calm.join_s,
        curve=curve,
        faults=faults,
    )

    expected = dt.simulate(studies, calm)
    results = dt.simulate(studies, rough)

    for result, other in zip(results, expected, strict=True):
        assert repr(reports(result)) == repr(reports(other))
        assert [t.status for t in result.trials] == [t.status for t in other.trials]
    check_repeated_steps(results[0])


def check_repeated_steps(result: Result) -> None:
    """Compare what was repeated with what was lost, by following the timeline."""
    ran = {
        (command.path, stage.key): stage
        for _, command in result.timeline.commands()
        if isinstance(command, RunPath)
        for stage in command.stages
    }
    events = [entry.event for entry in result.timeline.entries]
    covered: set[str] = set()
    repeated = 0
    for event in events:
        if isinstance(event, StageFinished):
            stage = ran[event.path, event.stage]
            steps = trained_by(stage)[: event.reached - stage.start]
            repeated += len(covered.intersection(steps))
            covered.update(steps)
    wasted = sum(event.executed_steps for event in events if isinstance(event, StageFailed))
    n_lost = sum(isinstance(event, StateLost) for event in events)
    assert result.steps_executed == len(covered) + repeated + wasted
    assert result.steps_recomputed == repeated + wasted
    assert repeated <= 8 * n_lost


def test_a_death_costs_what_was_not_committed() -> None:
    study = small_study(space=FORK_AT_3, tuner=dt.FullTraining(6))
    world = World(faults=[WorkerDies(worker=0, at_s=4.5, back_after_s=1.0)])
    result = dt.simulate(study, world)
    # 3 steps were committed at 3 s; 1.5 of the next stage are lost, and 1 second of absence.
    assert result.makespan_s == 9 + 1.5 + 1.0
    assert (result.steps_executed, result.steps_recomputed) == (9, 0)


def test_a_worker_that_is_away_cannot_die() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.FullTraining(4))
    world = World(join_s=2.0, faults=[WorkerDies(worker=0, at_s=1.0)])
    result = dt.simulate(study, world)
    assert times(result, WorkerLeft) == []
    assert result.makespan_s == 6


def test_other_workers_take_over_from_one_that_died_for_good() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.FullTraining(4))
    world = World(workers=2, faults=[WorkerDies(worker=0, at_s=3.0)])
    assert dt.simulate(study, world).makespan_s == 3 + 4


def test_a_stage_that_raises_has_done_half_its_steps_in_vain() -> None:
    study = small_study(space=ONE_RATE, tuner=dt.FullTraining(4), retries=2)
    result = dt.simulate(study, World(faults=[StageRaises(fraction=1.0)]))
    assert times(result, StageFailed) == [2, 4, 6]
    assert (result.steps_executed, result.steps_recomputed) == (6, 6)
    assert result.status is StudyStatus.FAILED
    assert result.trials[0].reason == "RuntimeError: simulated error"


def test_no_attempt_raises_if_the_share_is_zero() -> None:
    result = dt.simulate(small_study(), World(faults=[StageRaises(fraction=0.0)]))
    assert result.status is StudyStatus.COMPLETED
    assert times(result, StageFailed) == []


def test_a_state_that_vanishes_is_made_again_by_whoever_needs_it() -> None:
    study = small_study(space=FORK_AT_3, tuner=dt.FullTraining(6))
    result = dt.simulate(study, World(faults=[StateVanishes(at_s=4.0)]))
    assert (result.steps_executed, result.steps_recomputed) == (12, 3)
    assert result.makespan_s == 12
    unneeded = dt.simulate(study, World(faults=[StateVanishes(at_s=7.0)]))
    assert (unneeded.steps_executed, unneeded.steps_recomputed) == (9, 0)


def test_nothing_vanishes_before_anything_is_stored() -> None:
    result = dt.simulate(small_study(), World(faults=[StateVanishes(at_s=0.0)]))
    assert times(result, StateLost) == []


def test_a_world_without_a_worker_left_says_so() -> None:
    world = World(workers=2, faults=[WorkerDies(worker=w, at_s=1.5) for w in range(2)])
    with pytest.raises(BackendError, match=r"nothing is left to happen.*at least one worker live"):
        dt.simulate(small_study(), world)


# --- several studies ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_studies_that_share_a_plan_give_what_each_gives_alone_for_fewer_steps(seed: int) -> None:
    rng = Generator(seed)
    studies = [
        small_study(
            tuner=study.tuner,
            metric=study.metric,
            mode=study.mode,
            n_trials=study.n_trials,
            sampler=rng.choice([dt.Random(), dt.Grid()]),  # not one that looks at the shared plan
            seed=study.seed,
            name=study.name,
        )
        for study in random_studies(rng, n=rng.choice([2, 3]), is_synchronous=True)
    ]
    world = random_world(rng, curve=truth_of(studies, seed, odd_share=0.1 * (seed % 2)))

    together = dt.simulate(studies, world)
    alone = [dt.simulate(study, world) for study in studies]

    for mine, other in zip(together, alone, strict=True):
        assert repr(reports(mine)) == repr(reports(other))
        assert [t.status for t in mine.trials] == [t.status for t in other.trials]
        assert (mine.best and mine.best.number) == (other.best and other.best.number)
        assert mine.merge_rate == other.merge_rate
    union = {
        past(result.study.family, trial.configuration, step)
        for result in alone
        for trial in result.trials
        for step in range(1, max([r.step for r in trial.reports], default=0) + 1)
    }
    assert together[0].steps_executed >= len(union)
    assert together[0].steps_executed <= sum(result.steps_executed for result in alone)
    if not any(t.status is TrialStatus.DIVERGED for r in alone for t in r.trials):
        assert together[0].steps_executed == len(union)


def test_a_study_that_runs_beside_its_copy_costs_nothing_more() -> None:
    first, copy = small_study(name="first"), small_study(name="copy", metric="loss")
    alone = dt.simulate(first, World(workers=2))
    results = dt.simulate([first, copy], World(workers=2))

    assert [r.steps_executed for r in results] == [alone.steps_executed] * 2
    assert results[1].makespan_s == alone.makespan_s
    requested = sum(result.steps_requested for result in results)
    assert requested / results[0].steps_executed == 2 * alone.merge_rate  # the 2-wise merge rate


def test_studies_with_other_training_seeds_share_nothing() -> None:
    studies = [small_study(name=f"study-{n}", training_seed=n) for n in range(3)]
    alone = dt.simulate(studies[0], World())
    assert dt.simulate(studies, World())[0].steps_executed == 3 * alone.steps_executed


def test_one_study_gives_one_result_and_a_sequence_gives_a_list() -> None:
    study = small_study(space=ONE_RATE)
    assert isinstance(dt.simulate(study, World()), Result)
    results = dt.simulate((study,), World())
    assert isinstance(results, list)
    assert len(results) == 1
    with pytest.raises(InvalidStudyError, match="at least one"):
        dt.simulate([], World())


def test_the_timeline_holds_all_that_happened() -> None:
    result = dt.simulate(small_study(), World(workers=2))
    assert isinstance(result.timeline, Timeline)
    at = [entry.at_s for entry in result.timeline.entries]
    assert at == sorted(at)
    assert at[-1] == result.makespan_s
    assert sum(times(result, StudyStarted)) == 0
