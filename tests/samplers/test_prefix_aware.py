"""Prefix-aware search: what it prefers, and where it is the plain sampler."""

from math import exp, pi, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.samplers.prefix_aware import _improvement
from dasktune.samplers.sampler import SamplerContext, SamplerRun
from dasktune.space import Configuration, SearchSpace
from dasktune.trial import Report
from tests.worlds import small_study

SPACE = SearchSpace(
    {
        "lr": dt.choice([0.1, 0.2, dt.step_decay(0.1, factor=0.1, at=[6])]),
        "momentum": dt.choice([0.9, dt.piecewise({0: 0.9, 4: 0.8})]),
    }
)


def started(space: SearchSpace, n_candidates: int = 24, seed: int = 0) -> SamplerRun:
    context = SamplerContext(space=space, n_trials=50, seed=seed, max_steps=8)
    return dt.PrefixAware(dt.Random(), n_candidates).start(context)


def lived(run: SamplerRun, scores: list[float], step: int = 8) -> None:
    for number, score in enumerate(scores):
        point = run.ask(number, lambda _c, at: at)
        assert point is not None
        run.record(number, point)
        run.tell(Report(trial=number, step=step, metrics={}, score=score), rests=True)


@given(seed=st.integers(0, 100), scores=st.lists(st.floats(-5, 5), max_size=8))
def test_where_nothing_is_shared_it_draws_what_its_sampler_draws(
    seed: int, scores: list[float]
) -> None:
    space = SearchSpace({"lr": dt.uniform(0, 1), "momentum": dt.uniform(0, 1)})
    plain = dt.Random().start(SamplerContext(space=space, n_trials=50, seed=seed, max_steps=8))
    aware = started(space, seed=seed)
    lived(aware, scores)
    for number, _ in enumerate(scores):
        point = plain.ask(number, lambda _c, at: at)
        assert point is not None
        plain.record(number, point)
    n = len(scores)
    assert aware.ask(n, lambda _c, at: at) == plain.ask(n, lambda _c, at: at)


def test_of_equal_promises_the_cheapest_is_taken() -> None:
    space = SearchSpace({"lr": dt.choice([round(0.01 * i, 2) for i in range(1, 60)])})
    run = started(space)
    lived(run, [0.1, 0.2, 0.3, 0.4])

    def cost(configuration: Configuration, step: int) -> int:
        return 1 if configuration.at(0)["lr"] > 0.3 else step  # type: ignore[operator]

    point = run.ask(4, cost)
    assert point is not None
    assert space.configuration(point).at(0)["lr"] > 0.3  # type: ignore[operator]


def test_a_relative_of_the_best_is_preferred_to_one_of_the_worst() -> None:
    run = started(SPACE)
    scores = {}
    for number in range(4):
        point = run.ask(number, lambda _c, at: at)
        assert point is not None
        run.record(number, point)
        scores[number] = (
            -1.0 if SPACE.configuration(point).at(0)["lr"] == 0.2 else 1.0 - number / 10
        )
        report = Report(trial=number, step=8, metrics={}, score=scores[number])
        run.tell(report, rests=True)
    assert len(set(scores.values())) > 1
    point = run.ask(4, lambda _c, at: at)
    assert point is not None
    assert SPACE.configuration(point).at(0)["lr"] == 0.1


@given(mean=st.floats(-3, 3), spread=st.floats(0.01, 3), best=st.floats(-3, 3))
def test_the_expected_improvement_is_the_integral(mean: float, spread: float, best: float) -> None:
    n, width = 4000, 10.0
    total = 0.0
    for i in range(n):
        z = -width + 2 * width * (i + 0.5) / n
        density = exp(-z * z / 2) / sqrt(2 * pi)
        total += max(0.0, mean + spread * z - best) * density * 2 * width / n
    assert _improvement(mean, spread, best) == pytest.approx(total, abs=1e-3)


def test_a_study_runs_with_it_and_no_distinct_step_is_trained_for_nothing() -> None:
    study = small_study(sampler=dt.PrefixAware(dt.Random()), n_trials=8, tuner=dt.FullTraining(8))
    result = dt.simulate(study, dt.World(workers=2))
    assert len(result.trials) == 8
    # The forks of the space are its milestones: states are kept there, so nothing is repeated.
    assert result.steps_executed == result.steps_unique


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("Random",), "sampler is 'Random'"), ((dt.Random(), 1), "n_candidates must be at least 2")],
)
def test_what_proposes_nothing_is_refused(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(InvalidStudyError, match=words):
        dt.PrefixAware(*arguments)  # type: ignore[arg-type]
