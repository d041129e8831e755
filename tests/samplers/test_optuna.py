"""Optuna's samplers through ask and tell: what they hear, and that their draws are facts."""

import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIIISampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

import dasktune as dt
from dasktune.samplers.sampler import EarlierTrial, SamplerContext, SamplerRun
from dasktune.space import Point, SearchSpace
from dasktune.study.header import read_header, write_header
from dasktune.testing import SamplerContract
from dasktune.testing.life import draw_all, no_steps
from dasktune.trial import Report, TrialStatus
from dasktune.tuners.tuner import Tuner
from tests.scheduling.untrained import Untrained

TRIAL_STATUSES = [
    TrialStatus.COMPLETED,
    TrialStatus.STOPPED,
    TrialStatus.DIVERGED,
    TrialStatus.FAILED,
]


def quiet(kind: Callable[..., BaseSampler], seed: int, **options: Any) -> BaseSampler:  # noqa: ANN401
    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        return kind(seed=seed, **options)


def tpe(seed: int) -> BaseSampler:
    return TPESampler(seed=seed, n_startup_trials=3)


def joint_tpe(seed: int) -> BaseSampler:
    return quiet(
        TPESampler, seed, n_startup_trials=3, multivariate=True, group=True, constant_liar=True
    )


def cma_es(seed: int) -> BaseSampler:
    return CmaEsSampler(seed=seed, popsize=4, warn_independent_sampling=False)


def nsga2(seed: int) -> BaseSampler:
    return NSGAIISampler(seed=seed, population_size=3)


def nsga3(seed: int) -> BaseSampler:
    return quiet(NSGAIIISampler, seed, population_size=3)


def qmc(seed: int) -> BaseSampler:
    return quiet(QMCSampler, seed, warn_independent_sampling=False)


def scrambled(seed: int) -> BaseSampler:
    return quiet(QMCSampler, seed, scramble=True, warn_independent_sampling=False)


def gp(seed: int) -> BaseSampler:
    return quiet(GPSampler, seed, n_startup_trials=3)


QUICK = [tpe, joint_tpe, cma_es, nsga2, nsga3, qmc, scrambled]


class TestTpeIsASampler(SamplerContract):
    sampler = dt.Optuna(tpe)
    n_draws = 10


class TestNsga2IsASampler(SamplerContract):
    sampler = dt.Optuna(nsga2)
    n_draws = 10


class TestCmaEsIsASampler(SamplerContract):
    sampler = dt.Optuna(cma_es)
    n_draws = 10


class TestQmcIsASampler(SamplerContract):
    sampler = dt.Optuna(qmc)
    n_draws = 10


# --- a past

SPACE: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(dt.loguniform(1e-4, 1)),
            dt.step_decay(dt.loguniform(1e-3, 1), factor=dt.uniform(0.1, 0.5, step=0.1), at=[3]),
        ]
    ),
    "depth": dt.randint(1, 9, step=2),
    "width": dt.logint(8, 512),
    "momentum": dt.uniform(0, 0.99),
}
LINE: dict[str, object] = {"x": dt.uniform(-5, 5)}


def start(
    factory: Callable[..., object] | None,
    space: Mapping[str, object] = SPACE,
    **context: Any,  # noqa: ANN401
) -> SamplerRun:
    known: dict[str, Any] = {"n_trials": 100, "seed": 0} | context
    return dt.Optuna(factory).start(SamplerContext(space=SearchSpace(space), **known))


def report(run: SamplerRun, trial: int, step: int, *scores: float, rests: bool = True) -> None:
    metrics = {f"m{i}": score for i, score in enumerate(scores)}
    told = Report(trial=trial, step=step, metrics=metrics, score=scores[0], scores=scores)
    run.tell(told, rests=rests)


def worth(point: Mapping[str, int | float]) -> float:
    """Best in the middle of the first number that is no choice."""
    return -abs(float(point.get("momentum", point.get("x", 0.0))) - 0.3)


def lived(run: SamplerRun, n: int) -> list[Point]:
    """Draw trials, two of them running at a time, and complete them in turn."""
    points: list[Point] = []
    for number in range(n):
        point = run.ask(number, no_steps)
        assert point is not None
        points.append(point)
        feed(run, number, points)
    return points


def feed(run: SamplerRun, number: int, points: list[Point]) -> None:
    """Tell what happened to a trial in such a life, asking for nothing."""
    run.record(number, points[number])
    report(run, number, 1, worth(points[number]), rests=False)
    if number > 0:
        report(run, number - 1, 2, worth(points[number - 1]))
        run.end(number - 1, TrialStatus.COMPLETED)


def goes_on(run: SamplerRun, points: list[Point], start: int) -> None:
    """Check that a run that was told a past goes on with the same draws."""
    for number in range(start, len(points)):
        assert run.ask(number, no_steps) == points[number]
        feed(run, number, points)


@pytest.mark.parametrize("factory", [*QUICK, RandomSampler])
def test_a_recorded_past_gives_the_draws_of_one_that_was_asked_for(
    factory: Callable[..., BaseSampler],
) -> None:
    points = lived(start(factory), 30)
    run = start(factory)
    for number in range(20):
        feed(run, number, points)
    copied = run.copy()
    goes_on(run, points, 20)
    goes_on(copied, points, 20)


@pytest.mark.slow
def test_a_recorded_past_gives_the_draws_of_a_gaussian_process() -> None:
    points = lived(start(gp, LINE), 6)
    run = start(gp, LINE)
    for number in range(5):
        feed(run, number, points)
    goes_on(run, points, 5)


def test_telling_a_past_asks_no_sampler() -> None:
    made: list[int] = []

    def counted(seed: int) -> BaseSampler:
        made.append(seed)
        return nsga2(seed)

    points = lived(start(nsga2), 20)
    run = start(counted)
    before = len(made)
    for number in range(20):
        feed(run, number, points)
    run.copy()
    assert len(made) == before


@pytest.mark.parametrize("factory", QUICK)
def test_every_draw_has_a_seed_of_its_own(factory: Callable[..., BaseSampler]) -> None:
    drawn = draw_all(start(factory), range(8))
    assert len(set(drawn)) == 8
    assert draw_all(start(factory), range(8)) == drawn
    assert draw_all(start(factory, seed=1), range(8)) != drawn
    run = start(factory)
    proposals = [run.ask(0, no_steps, attempt) for attempt in range(5)]
    assert len(set(proposals)) == 5
    assert [run.ask(0, no_steps, attempt) for attempt in range(5)] == proposals


@pytest.mark.parametrize(
    "factory", [tpe, cma_es, lambda seed: NSGAIISampler(seed=seed, population_size=10)]
)
def test_a_sampler_learns(factory: Callable[..., BaseSampler]) -> None:
    points = lived(start(factory, {name: dt.uniform(-5, 5) for name in "xyz"}), 80)
    early, late = ([worth(point) for point in part] for part in (points[:20], points[60:]))
    assert np.mean(late) > np.mean(early)


def test_a_sequence_of_low_discrepancy_stays_one_whatever_is_told() -> None:
    for factory in (qmc, scrambled):
        run = start(factory, {"x": dt.uniform(0, 1), "y": dt.uniform(0, 1)})
        points = lived(run, 33)[1:]  # the first is drawn before Optuna knows the space
        for path in ("x", "y"):
            cells = sorted(int(point[path] * 32) for point in points)
            assert cells == list(range(32))


# --- what a sampler sees


class Spy(RandomSampler):
    """Keep what an ask could see."""

    seen: list[FrozenTrial]

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        Spy.seen = [each for each in study.get_trials(deepcopy=False) if each != trial]
        super().before_trial(study, trial)


class SeesCompleted(NSGAIISampler):
    """The same for a sampler that learns from completed trials only."""

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        Spy.seen = [each for each in study.get_trials(deepcopy=False) if each != trial]
        super().before_trial(study, trial)


def seen_by(run: SamplerRun) -> list[FrozenTrial]:
    run.ask(1000, no_steps)
    return Spy.seen


def with_trials(n: int, factory: Callable[..., BaseSampler] = Spy, **context: Any) -> SamplerRun:  # noqa: ANN401
    run = start(factory, LINE, **context)
    for number in range(n):
        run.record(number, Point.of({"x": number / 8}))
    return run


def test_running_trials_are_visible_with_what_was_drawn() -> None:
    run = with_trials(2)
    report(run, 0, 3, 0.5, rests=False)
    first, second = seen_by(run)
    assert (first.state, first.params, first.intermediate_values) == (
        TrialState.RUNNING,
        {"x": 0.0},
        {3: 0.5},
    )
    assert (second.state, second.params, second.intermediate_values) == (
        TrialState.RUNNING,
        {"x": 0.125},
        {},
    )


def test_a_trial_that_rests_is_pruned_until_it_reports_again() -> None:
    run = with_trials(1)
    for step, rests, state in [
        (1, True, TrialState.PRUNED),
        (2, False, TrialState.RUNNING),
        (3, True, TrialState.PRUNED),
    ]:
        report(run, 0, step, step / 10, rests=rests)
        (trial,) = seen_by(run)
        assert trial.state is state
        assert trial.intermediate_values == {at: at / 10 for at in range(1, step + 1)}
    run.end(0, TrialStatus.COMPLETED)
    (trial,) = seen_by(run)
    assert (trial.state, trial.value) == (TrialState.COMPLETE, 0.3)
    assert trial.intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3}


def test_every_ending_has_its_state() -> None:
    run = with_trials(4)
    for number in range(3):
        report(run, number, 1, number / 10)
    run.end(0, TrialStatus.COMPLETED)
    run.end(1, TrialStatus.STOPPED)
    run.end(2, TrialStatus.FAILED)
    run.end(3, TrialStatus.STOPPED)  # never reported: nothing is known of it
    assert [(trial.state, trial.value) for trial in seen_by(run)] == [
        (TrialState.COMPLETE, 0.0),
        (TrialState.PRUNED, 0.1),
        (TrialState.FAIL, None),
        (TrialState.FAIL, None),
    ]


def test_where_trials_diverged_samplers_keep_away() -> None:
    for factory, expected in [
        (Spy, (TrialState.PRUNED, None)),
        (SeesCompleted, (TrialState.COMPLETE, -0.7)),
    ]:
        run = with_trials(2, factory)
        report(run, 0, 1, -0.7)
        report(run, 1, 1, 0.9)
        run.end(1, TrialStatus.DIVERGED)
        diverged = seen_by(run)[1]
        assert (diverged.state, diverged.value) == expected
        assert diverged.intermediate_values == {}


def test_tpe_leaves_a_region_where_trials_diverge() -> None:
    run = start(lambda seed: TPESampler(seed=seed, n_startup_trials=10), LINE)
    xs = []
    for number in range(60):
        point = run.ask(number, no_steps)
        assert point is not None
        run.record(number, point)
        xs.append(point["x"])
        if xs[-1] > 0:
            run.end(number, TrialStatus.DIVERGED)
        else:
            report(run, number, 1, number * 7 % 5)  # no place is better than another
            run.end(number, TrialStatus.STOPPED)
    assert sum(x > 0 for x in xs[40:]) <= 4


def test_constraints_can_use_the_last_metrics() -> None:
    found: dict[int, object] = {}

    def constraint(trial: FrozenTrial) -> tuple[float]:
        found[trial.number] = trial.user_attrs["m0"]
        return (1.0 if trial.params["x"] > 0 else -1.0,)

    def constrained(seed: int) -> BaseSampler:
        return quiet(TPESampler, seed, n_startup_trials=5, constraints_func=constraint)

    points, free = lived(start(constrained, LINE), 40), lived(start(tpe, LINE), 40)
    # The last ask came before the reports of the last two trials.
    assert found == {number: worth(points[number]) for number in range(38)}
    above, above_free = (sum(p["x"] > 0 for p in part[20:]) for part in (points, free))
    assert above < above_free


def test_liars_see_what_is_running() -> None:
    def honest(seed: int) -> BaseSampler:
        return TPESampler(seed=seed, n_startup_trials=3)

    def liar(seed: int) -> BaseSampler:
        return quiet(TPESampler, seed, n_startup_trials=3, constant_liar=True)

    def spread(factory: Callable[..., BaseSampler]) -> float:
        run = start(factory, LINE)
        lived(run, 12)
        points = [point for point in draw_all(run, range(12, 32)) if point is not None]
        return float(np.std([point["x"] for point in points]))

    assert spread(liar) > spread(honest)


@pytest.mark.parametrize("factory", [*QUICK, Spy])
def test_trials_of_earlier_studies_are_known_from_the_start(
    factory: Callable[..., BaseSampler],
) -> None:
    earlier = [
        EarlierTrial(
            point=Point.of({"x": x}),
            reports=(Report(trial=9, step=4, metrics={"m0": -x}, score=-x, scores=(-x,)),),
            status=status,
        )
        for x, status in zip((0.25, 0.5, 0.75, 1.0), TRIAL_STATUSES[:2] * 2, strict=True)
    ]
    run = start(factory, LINE, earlier=tuple(earlier))
    if factory is Spy:
        assert [(trial.params["x"], trial.state.name) for trial in seen_by(run)] == [
            (0.25, "COMPLETE"),
            (0.5, "PRUNED"),
            (0.75, "COMPLETE"),
            (1.0, "PRUNED"),
        ]
    points = lived(run, 12)
    again = start(factory, LINE, earlier=tuple(earlier))
    for number in range(6):
        feed(again, number, points)
    goes_on(again, points, 6)


# --- several metrics


@pytest.mark.parametrize("factory", [nsga2, nsga3, tpe])
def test_several_metrics_are_weighed(factory: Callable[..., BaseSampler]) -> None:
    space: dict[str, object] = {name: dt.uniform(-2, 2) for name in "xyz"}
    run, again = start(factory, space, n_scores=2), start(factory, space, n_scores=2)
    far = []
    for number in range(80):
        point = run.ask(number, no_steps)
        assert point is not None
        off = point["y"] ** 2 + point["z"] ** 2
        far.append(off)
        for each in (run, again) if number < 70 else (run,):
            each.record(number, point)
            scores = (-(point["x"] ** 2) - off, -((point["x"] - 1) ** 2) - off)
            report(each, number, 1, *scores)
            each.end(number, TRIAL_STATUSES[number % 7 % 4 if number % 7 < 4 else 0])
        if number == 70:
            assert again.ask(70, no_steps) == point
    assert np.mean(far[40:]) < np.mean(far[:20])


def test_one_metric_is_what_some_samplers_take() -> None:
    with pytest.raises(dt.InvalidStudyError, match="CmaEsSampler, which refuses 2 metrics"):
        start(cma_es, LINE, n_scores=2)


# --- domains


def matches(domain: BaseDistribution, value: object) -> bool:
    if isinstance(domain, CategoricalDistribution):
        return value in domain.choices
    return domain._contains(domain.to_internal_repr(value))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**40))
def test_what_optuna_is_told_is_what_was_drawn(seed: int) -> None:
    run = start(Spy, SPACE | {"big": dt.randint(0, 2**60), "one": dt.uniform(1, 1)}, seed=seed)
    points = draw_all(run, range(6))
    for trial, point in zip(seen_by(run), points, strict=True):
        assert point is not None
        assert trial.params.keys() == set(point)
        for path, distribution in trial.distributions.items():
            value = trial.params[path]
            assert matches(distribution, value)
            if isinstance(distribution, CategoricalDistribution):
                value = distribution.choices.index(value)
            assert value == point[path]


def test_parameters_of_an_option_are_known_only_with_it() -> None:
    run = start(
        Spy, {"lr": dt.choice([0.1, dt.step_decay(0.1, factor=dt.uniform(0.1, 1), at=[3])])}
    )
    run.record(0, Point.of({"lr": 0}))
    run.record(1, Point.of({"lr": 1, "lr[1].factor": 0.5}))
    plain, decays = seen_by(run)
    assert plain.params.keys() == {"lr"}
    assert decays.params.keys() == {"lr", "lr[1].factor"}


# --- studies


def study(sampler: dt.Optuna, tuner: Tuner, **changes: Any) -> dt.Study:  # noqa: ANN401
    described: dict[str, Any] = {
        "space": SPACE,
        "sampler": sampler,
        "tuner": tuner,
        "metric": "a",
        "mode": "max",
        "n_trials": 27,
        "seed": 5,
    }
    return dt.Study(Untrained(), **described | changes)


def drawn(result: Any) -> list[dict[str, str]]:  # noqa: ANN401
    return [dict(trial.configuration.text) for trial in result.trials]


@pytest.mark.parametrize("factory", [tpe, cma_es, qmc])
@pytest.mark.parametrize(
    "tuner",
    [
        dt.SuccessiveHalving(min_steps=1, max_steps=9),
        dt.Hyperband(min_steps=1, max_steps=9),
    ],
)
def test_a_synchronous_study_draws_the_same_for_any_number_of_workers(
    factory: Callable[..., BaseSampler], tuner: Tuner
) -> None:
    one, two, eight = (
        drawn(dt.simulate(study(dt.Optuna(factory), tuner), dt.World(workers=n))) for n in (1, 2, 8)
    )
    assert len(one) == 27
    assert one == two == eight


@pytest.mark.parametrize(
    "tuner",
    [dt.ASHA(min_steps=1, max_steps=9), dt.FullTraining(4, report_every=1)],
)
@pytest.mark.parametrize("factory", [tpe, joint_tpe, nsga2, qmc])
def test_any_tuner_takes_it(factory: Callable[..., BaseSampler], tuner: Tuner) -> None:
    result = dt.simulate(study(dt.Optuna(factory), tuner), dt.World(workers=4))
    assert len({tuple(text.items()) for text in drawn(result)}) == 27


def test_draws_are_made_ahead_where_no_report_counts() -> None:
    assert dt.Optuna(qmc).draws_ahead
    assert dt.Optuna(RandomSampler).draws_ahead
    assert not dt.Optuna(tpe).draws_ahead
    assert not dt.Optuna(Spy).draws_ahead


# --- descriptions


def test_a_description_reads_the_same_in_every_process() -> None:
    assert repr(dt.Optuna()) == "Optuna(TPESampler)"
    assert repr(dt.Optuna(TPESampler)) == "Optuna(TPESampler)"
    assert repr(dt.Optuna(tpe)) == "Optuna(tpe)"
    assert repr(dt.Optuna(partial(TPESampler, n_startup_trials=3))) == (
        "Optuna(partial(TPESampler, n_startup_trials=3))"
    )
    assert "<lambda>" in repr(dt.Optuna(lambda seed: TPESampler(seed=seed)))
    assert " at 0x" not in repr(dt.Optuna(lambda seed: TPESampler(seed=seed)))


def test_a_journal_that_names_it_is_read_without_it() -> None:
    header = write_header(
        [study(dt.Optuna(lambda seed: TPESampler(seed=seed)), dt.FullTraining(3))]
    )
    (read,) = read_header(header)
    assert "<lambda>" in repr(read.sampler)
    assert write_header([read]) == header


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (TPESampler(), "must be a function from a seed to a sampler of Optuna"),
        (3, "factory is 3; it must be a function"),
        (lambda seed: seed, "sampler is 0; the factory must make one of Optuna's"),
        (dict, "the factory must make one of Optuna's"),
        (lambda: None, "makes no sampler for a seed"),
        (optuna.samplers.PartialFixedSampler, "makes no sampler for a seed"),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_what_makes_no_sampler_is_refused(factory: Any, message: str) -> None:  # noqa: ANN401
    with pytest.raises(dt.InvalidStudyError, match=message):
        dt.Optuna(factory)


def test_a_library_that_a_sampler_needs_is_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dasktune.samplers.optuna_run.find_spec", lambda name: name != "cmaes")
    with pytest.raises(dt.InvalidStudyError, match=r"CmaEsSampler needs cmaes.*pip install cmaes"):
        dt.Optuna(cma_es)


def test_without_optuna_the_extra_is_named() -> None:
    program = """
import sys
sys.modules["optuna"] = None
import dasktune
from dasktune import *
try:
    dasktune.Optuna()
except dasktune.InvalidStudyError as error:
    print(error)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'dasktune[optuna]'" in answer.stdout


def test_nothing_is_logged_and_no_level_is_changed(capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.INFO)
    try:
        lived(start(tpe), 5)
        assert optuna.logging.get_verbosity() == logging.INFO
    finally:
        optuna.logging.set_verbosity(before)
    assert capfd.readouterr() == ("", "")
