"""How long simulated studies take, against bounds and the best of all schedules."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.plan.stage import Stage
from dasktune.scheduling.bounds import least_worker_seconds, makespan_bounds
from dasktune.scheduling.critical_path_first import CriticalPathFirst
from dasktune.scheduling.fifo import Fifo
from dasktune.scheduling.scheduler import Scheduler
from tests.oracles import (
    Forest,
    History,
    Row,
    best_makespan,
    bounds_of,
    forest_of,
)
from tests.scheduling.trees import branching, owed_at_start, study_of

schedulers = pytest.mark.parametrize("scheduler", [CriticalPathFirst(), Fifo()])
workers = st.integers(1, 4)
rates = st.lists(st.integers(1, 5).map(float), min_size=4, max_size=4)
"""Seconds of a step by its value."""


class Pace:
    """The seconds of a step by its value, for the world and for the oracle."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates

    def of_values(self, hp: Mapping[str, object]) -> float:
        x = hp["x"]
        assert isinstance(x, int)
        return self.rates[x]

    def of_row(self, row: Row) -> float:
        return self.of_values({"x": row[0]})

    def of_stage(self, stage: Stage) -> float:
        steps = range(stage.start, stage.stop)
        return sum(self.of_values(stage.configuration.at(step)) for step in steps)


@schedulers
@settings(max_examples=50)
@given(histories=branching(), n_workers=workers, rates=rates)
def test_a_study_takes_no_less_than_the_optimum_and_no_more_than_a_busy_crowd(
    scheduler: Scheduler, histories: list[History], n_workers: int, rates: list[float]
) -> None:
    pace = Pace(rates)
    forest = forest_of(histories, step_s=pace.of_row)
    study = study_of(histories)
    tree = owed_at_start(study)
    seconds = tree.durations(pace.of_stage)
    found = makespan_bounds(tree, seconds, n_workers)
    assert sorted(seconds) == sorted(forest.seconds)
    assert found.lower_s == pytest.approx(bounds_of(forest, n_workers).lower)

    world = dt.World(workers=n_workers, step_s=pace.of_values)
    makespan = dt.simulate(study, world, scheduler=scheduler).makespan_s
    best = best_makespan(forest, n_workers)
    assert found.lower_s - 1e-9 <= best <= makespan <= found.upper_s + 1e-9


@schedulers
@settings(max_examples=50)
@given(histories=branching(6), rates=rates.map(lambda few: few + few))
def test_one_worker_takes_all_seconds_and_a_crowd_the_longest_path(
    scheduler: Scheduler, histories: list[History], rates: list[float]
) -> None:
    pace = Pace(rates)
    forest = forest_of(histories, step_s=pace.of_row)
    alone, crowd = (
        dt.simulate(
            study_of(histories), dt.World(workers=n, step_s=pace.of_values), scheduler=scheduler
        )
        for n in (1, 7)
    )
    assert alone.makespan_s == alone.worker_seconds == crowd.worker_seconds == sum(forest.seconds)
    assert crowd.makespan_s == bounds_of(forest, 7).path


@schedulers
@settings(max_examples=50)
@given(
    histories=branching(6),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=5),
)
def test_unequal_workers_are_bounded_by_their_speeds(
    scheduler: Scheduler, histories: list[History], speeds: list[float]
) -> None:
    forest = forest_of(histories)
    makespan = dt.simulate(
        study_of(histories), dt.World(workers=speeds), scheduler=scheduler
    ).makespan_s
    work, path = sum(forest.seconds), bounds_of(forest, 1).path
    assert makespan >= max(work / sum(speeds), path / max(speeds)) - 1e-9
    assert makespan <= work / min(speeds) + 1e-9


def saved_beyond_forks(forest: Forest) -> int:
    """Stages that do not end at a fork: a world saves them too, the bound does not count them."""
    return sum(len(forest.below[i]) <= 1 for i in range(len(forest)))


@settings(max_examples=50)
@given(histories=branching(6), n_workers=workers)
def test_whole_paths_cost_the_fewest_starts_loads_and_saves(
    histories: list[History], n_workers: int
) -> None:
    study, forest = study_of(histories), forest_of(histories)
    tree = owed_at_start(study)
    least = least_worker_seconds(
        tree, tree.durations(lambda stage: stage.n_steps), startup_s=0.5, load_s=0.25, save_s=0.125
    )
    world = dt.World(workers=n_workers, startup_s=0.5, load_s=0.25, save_s=0.125)
    extra = saved_beyond_forks(forest) * 0.125
    assert dt.simulate(study, world).worker_seconds == pytest.approx(least + extra)
    single = dt.simulate(study, world, scheduler=Fifo())
    assert single.worker_seconds >= least + extra - 1e-9
