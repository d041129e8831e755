"""The real core against oracles of a few lines, on search spaces of known merge rates.

Three spaces have the size and shape of published ones: two for image classifiers tuned by
successive halving, one for a language model tuned by a grid; a fourth is a published grid of
constant batch sizes and decaying learning rates; the last are 36 trials on Fashion-MNIST.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import pytest

import dasktune as dt
from dasktune.simulator.world import Curve
from dasktune.space import Schedule
from dasktune.tuners.rungs import Ties
from tests.oracles import (
    Drops,
    Falls,
    HalfWaves,
    History,
    InverseTime,
    Jumps,
    Ramp,
    Rule,
    Rules,
    Shrinks,
    forest_of,
    grid_merge_rate,
    grid_of,
    halved,
    list_makespan,
    n_distinct,
    path_makespan,
    score_of,
    values_at,
)
from tests.scheduling.untrained import Untrained

RESNET: Rules = {
    "lr": [
        Jumps(0.1, ((60, 0.01), (90, 0.001))),
        Jumps(0.1, ((90, 0.01), (110, 0.001))),
        Jumps(0.1, ((40, 0.01), (80, 0.001))),
        Shrinks(0.1, 0.95),
        Ramp(5, Jumps(0.1, ((60, 0.01), (90, 0.001)))),
        Ramp(5, Shrinks(0.1, 0.95)),
        HalfWaves(0.1, 20, repeats=True),
    ],
    "batch": [
        Jumps(128),
        Jumps(128, ((70, 256),)),
        Jumps(128, ((40, 256),)),
        Jumps(128, ((40, 256), (80, 512))),
    ],
    "momentum": [
        Jumps(0.9),
        Jumps(0.9, ((60, 0.8),)),
        Jumps(0.7, ((40, 0.8), (80, 0.9))),
        Jumps(0.7, ((60, 0.9),)),
    ],
    "cutout": [Jumps(16), Jumps(16, ((80, 18),)), Jumps(16, ((80, 20),)), Jumps(16, ((100, 20),))],
}
MOBILENET: Rules = {
    "lr": [
        Jumps(0.1, ((60, 0.01), (90, 0.001))),
        Jumps(0.1, ((80, 0.01), (100, 0.001))),
        Jumps(0.1, ((90, 0.01),)),
        Jumps(0.1, ((100, 0.01),)),
        Ramp(5, Jumps(0.1, ((60, 0.01), (90, 0.001)))),
        Ramp(5, Jumps(0.1, ((80, 0.01),))),
        Ramp(5, HalfWaves(0.1, 115)),
        Ramp(5, Shrinks(0.1, 0.95)),
        Shrinks(0.1, 0.95),
        HalfWaves(0.1, 20, repeats=True),
    ],
    "batch": [Jumps(128), Jumps(128, ((60, 256),)), Jumps(128, ((90, 256),))],
    "cutout": [Jumps(16), Jumps(16, ((60, 20),)), Jumps(16, ((80, 18),)), Jumps(16, ((80, 20),))],
    "weight_decay": [Jumps(4e-5), Jumps(4e-5, ((80, 1e-5),))],
}
BERT: Rules = {
    "lr": [
        rule
        for v in (3e-5, 5e-5)
        for rule in (
            Ramp(3, Falls(v, 27)),
            Ramp(3, HalfWaves(v, 27)),
            Ramp(3, Jumps(v, ((15, v / 10),))),
            Ramp(3, Jumps(v, ((9, v / 2), (18, v / 4)))),
            Falls(v, 30),
        )
    ],
    "length": [
        Jumps(384),
        Jumps(128, ((27, 384),)),
        Jumps(128, ((24, 384),)),
        Jumps(128, ((20, 384),)),
    ],
}
LENET: Rules = {
    "batch": [Jumps(size) for size in (32, 64, 512, 1024)],
    "lr": [InverseTime(lr, decay) for lr in (0.001, 0.01, 0.1) for decay in (0.002, 0.02, 0.2)],
}
SPACES: Mapping[str, tuple[Rules, int]] = {
    "resnet": (RESNET, 120),
    "mobilenet": (MOBILENET, 120),
    "bert": (BERT, 30),
    "lenet": (LENET, 5),
}
RUNGS = (15, 60, 120)

RATES: Sequence[Rule] = [
    Jumps(0.1),
    *(
        Drops(0.1, factor, at)
        for factor in (0.1, 0.3)
        for at in ((6,), (9,), (12,), (6, 12), (9, 15))
    ),
    Shrinks(0.1, 0.9),
    Shrinks(0.1, 0.8),
    HalfWaves(0.1, 18),
    Ramp(3, Jumps(0.1), is_early=False),
    Ramp(3, Drops(0.1, 0.1, (6,)), is_early=False),
    Ramp(3, Drops(0.1, 0.1, (9,)), is_early=False),
    Ramp(3, Shrinks(0.1, 0.9), is_early=False),
]
FASHION: Mapping[str, Rules] = {
    "late": {"lr": RATES, "batch": [Jumps(64), Jumps(64, ((9, 128),))]},
    "early": {
        "lr": RATES[::2],
        "batch": [Jumps(64), Jumps(128)],
        "momentum": [Jumps(0.9), Jumps(0.5)],
    },
    "never": {"lr": [Jumps(round(0.01 * 1.07**i, 6)) for i in range(36)]},
}


def schedule_of(rule: Rule) -> Schedule:
    """The public schedule that means what a rule means."""
    match rule:
        case Jumps(v, later):
            schedule = dt.piecewise({0: v, **dict(later)})
        case Drops(v, factor, at):
            schedule = dt.step_decay(v, factor=factor, at=at)
        case Shrinks(v, rate):
            schedule = dt.exponential(v, rate)
        case HalfWaves(v, period, repeats):
            schedule = dt.cosine_restarts(v, period) if repeats else dt.cosine(v, period)
        case Falls(v, n):
            schedule = dt.linear(v, 0.0, n)
        case Ramp(n, then, is_early):
            schedule = warmup_of(n, then) if is_early else dt.warmup(n, schedule_of(then))
        case InverseTime():
            schedule = dt.join([rule.value], at=[])
    return schedule


def warmup_of(n: int, then: Rule) -> Schedule:
    """A line that meets its goal at its last step, where `dt.warmup` does one step later."""
    goal = then.value(0)
    return dt.join([dt.linear(goal / n, goal, n - 1), schedule_of(then)], at=[n])


def space_of(rules: Rules) -> dict[str, object]:
    return {name: dt.choice([schedule_of(rule) for rule in each]) for name, each in rules.items()}


def study_of(rules: Rules, tuner: dt.FullTraining | dt.SuccessiveHalving) -> dt.Study:
    return dt.Study(
        Untrained(), space=space_of(rules), sampler=dt.Grid(), tuner=tuner, metric="a", mode="max"
    )


def curve_of(score: Callable[[History], float]) -> Curve:
    """What a world with this score for each history answers."""

    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        rows = (configuration.at(t) for t in range(step))
        return {"a": score(tuple(tuple(row[name] for name in sorted(row)) for row in rows))}

    return curve


@cache
def histories(name: str) -> list[History]:
    return grid_of(*SPACES[name])


@pytest.mark.parametrize(
    ("rules", "stop"), [*SPACES.values(), *((each, 18) for each in FASHION.values())]
)
def test_schedules_give_the_values_of_their_formulas(rules: Rules, stop: int) -> None:
    for rule in (rule for each in rules.values() for rule in each):
        schedule = schedule_of(rule)
        assert [schedule.at(t) for t in range(stop)] == [values_at(rule, t) for t in range(stop)]


@pytest.mark.parametrize(
    ("name", "n_trials", "published"),
    [("resnet", 448, 2.96), ("mobilenet", 240, 3.00), ("bert", 40, 1.76), ("lenet", 36, 1.15)],
)
def test_the_merge_rate_of_a_grid_is_the_closed_form(
    name: str, n_trials: int, published: float
) -> None:
    rules, stop = SPACES[name]
    result = dt.simulate(study_of(rules, dt.FullTraining(stop)), dt.World(workers=8))
    assert len(result.trials) == n_trials
    assert result.steps_requested == n_trials * stop
    assert result.steps_unique == result.steps_executed == n_distinct(histories(name))
    assert result.merge_rate == grid_merge_rate(rules, stop)
    assert result.merge_rate == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize(
    ("name", "n_workers", "makespan"),
    [
        ("resnet", 8, 2280),
        ("resnet", 40, 500),
        ("mobilenet", 8, 1220),
        ("mobilenet", 40, 300),
        ("bert", 8, 88),
        ("bert", 40, 30),
        ("lenet", 8, 21),
        ("lenet", 40, 5),
    ],
)
def test_a_grid_takes_as_long_as_whole_paths_by_their_length(
    name: str, n_workers: int, makespan: float
) -> None:
    rules, stop = SPACES[name]
    result = dt.simulate(study_of(rules, dt.FullTraining(stop)), dt.World(workers=n_workers))
    oracle = path_makespan(forest_of(histories(name)), n_workers)
    assert oracle == makespan
    assert result.makespan_s == pytest.approx(oracle, rel=0.01)


@pytest.mark.parametrize("ties", ["number", "spread"])
@pytest.mark.parametrize("n_workers", [8, 40])
@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_halving_promotes_shares_and_lasts_as_the_oracle_says(
    name: str, n_workers: int, ties: Ties
) -> None:
    tuner = dt.SuccessiveHalving(min_steps=15, max_steps=120, reduction_factor=4, ties=ties)
    world = dt.World(workers=n_workers, curve=curve_of(score_of))
    result = dt.simulate(study_of(SPACES[name][0], tuner), world)

    trials = histories(name)
    alive = halved(trials, RUNGS, 4, score_of, is_spread=ties == "spread")
    furthest = {i: rung for rung, each in zip(RUNGS, alive, strict=True) for i in each}
    assert tuner.rungs == RUNGS
    assert {trial.number: trial.steps_requested for trial in result.trials} == furthest

    requested = sum(furthest.values())
    unique = n_distinct([trials[i][:rung] for i, rung in furthest.items()])
    assert result.steps_executed == unique
    assert result.steps_requested / result.steps_executed == requested / unique

    shared = alone = 0.0
    for start, stop, each in zip((0, *RUNGS), RUNGS, alive, strict=False):
        shared += path_makespan(forest_of([trials[i][:stop] for i in each], start), n_workers)
        alone += list_makespan([stop - start] * len(each), n_workers)
    assert result.makespan_s == shared
    assert alone / result.makespan_s > 1.9


@pytest.mark.parametrize(
    ("name", "stop", "unique"),
    [
        ("late", 2, 7),
        ("late", 6, 29),
        ("late", 18, 323),
        ("early", 2, 20),
        ("early", 6, 68),
        ("early", 18, 428),
        ("never", 2, 72),
        ("never", 6, 216),
        ("never", 18, 648),
    ],
)
def test_36_trials_share_all_that_is_equal(name: str, stop: int, unique: int) -> None:
    result = dt.simulate(study_of(FASHION[name], dt.FullTraining(stop)), dt.World(workers=3))
    assert result.steps_requested == 36 * stop
    assert result.steps_unique == result.steps_executed == unique
    assert n_distinct(grid_of(FASHION[name], stop)) == unique
