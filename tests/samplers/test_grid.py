from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.samplers.sampler import Sampler, SamplerContext, SamplerRun
from dasktune.space import SearchSpace
from dasktune.testing import SamplerContract
from dasktune.testing.life import draw_all
from dasktune.tuners.tuner import Tuner
from tests.scheduling.untrained import Untrained
from tests.space.strategies import finite_spaces


class TestGridIsASampler(SamplerContract):
    sampler = dt.Grid()
    spaces = finite_spaces
    takes_continuous = False


def test_the_last_name_changes_fastest() -> None:
    space = {"a": dt.choice([1, 2, 3]), "c": dt.randint(4, 7), "b": dt.uniform(0, 1, step=0.5)}
    run = dt.Grid().start(SamplerContext(space=SearchSpace(space), n_trials=36, seed=0))
    drawn = [dict(point or {}) for point in draw_all(run, range(36))]
    assert drawn == [
        {"a": a, "b": b, "c": c} for a, b, c in product(range(3), (0.0, 0.5, 1.0), range(4, 8))
    ]


def test_parameters_of_an_option_are_gone_through_with_it() -> None:
    space = {"optimizer": dt.choice({"sgd": {"momentum": dt.choice([0.9, 0.95])}, "adam": {}})}
    run = dt.Grid().start(SamplerContext(space=SearchSpace(space), n_trials=3, seed=0))
    assert [dict(point or {}) for point in draw_all(run, range(4))] == [
        {"optimizer": 0, "optimizer=sgd.momentum": 0},
        {"optimizer": 0, "optimizer=sgd.momentum": 1},
        {"optimizer": 1},
        {},
    ]


@given(space=finite_spaces, seeds=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_no_seed_and_no_number_of_trials_changes_the_order(
    space: SearchSpace, seeds: tuple[int, int]
) -> None:
    runs = [
        dt.Grid().start(SamplerContext(space=space, n_trials=n, seed=seed))
        for n, seed in zip((10, 20), seeds, strict=True)
    ]
    assert draw_all(runs[0], range(10)) == draw_all(runs[1], range(10))


def test_a_continuous_domain_is_refused_with_its_path() -> None:
    space = SearchSpace({"lr": dt.step_decay(dt.loguniform(1e-3, 1), factor=0.1, at=[3])})
    with pytest.raises(dt.InvalidStudyError, match=r"lr\.v is drawn from loguniform.*choice"):
        dt.Grid().start(SamplerContext(space=space, n_trials=3, seed=0))


def test_a_study_takes_the_whole_grid_by_default() -> None:
    study = dt.Study(
        Untrained(),
        space={"lr": dt.choice([0.1, 0.2, 0.3]), "wd": dt.choice([0.0, 0.1])},
        sampler=dt.Grid(),
        tuner=dt.FullTraining(2),
        metric="a",
        mode="max",
    )
    result = dt.simulate(study, dt.World())
    assert len({tuple(trial.configuration.at(0).items()) for trial in result.trials}) == 6


class Lazy(Sampler):
    """A grid that is drawn trial by trial, as if draws depended on reports."""

    draws_ahead = False

    def start(self, context: SamplerContext) -> SamplerRun:
        return dt.Grid().start(context)


@pytest.mark.parametrize("n_trials", [6, 36])
@pytest.mark.parametrize(
    "tuner",
    [
        dt.FullTraining(9),
        dt.SuccessiveHalving(min_steps=1, max_steps=9),
        dt.ASHA(min_steps=1, max_steps=9),
    ],
)
def test_trials_beyond_the_end_of_a_space_let_nobody_be_promoted(
    tuner: Tuner, n_trials: int
) -> None:
    ahead, late = (
        dt.simulate(
            dt.Study(
                Untrained(),
                space={"lr": dt.choice([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])},
                sampler=sampler,
                tuner=tuner,
                metric="a",
                mode="max",
                n_trials=n_trials,
            ),
            dt.World(workers=2),
        )
        for sampler in (dt.Grid(), Lazy())
    )
    furthest = [trial.steps_requested for trial in ahead.trials]
    assert len(furthest) == 6
    assert [trial.steps_requested for trial in late.trials] == furthest
