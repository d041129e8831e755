"""Several metrics in one study: what is refused, what diverges, who is ahead of whom."""

from collections.abc import Callable, Mapping
from math import inf, isfinite, nan
from random import Random as Generator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.samplers import BaseSampler, NSGAIISampler

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.study.commands import StudyStatus
from dasktune.study.result import Result
from dasktune.trial import TrialStatus
from dasktune.tuners.tuner import Tuner
from tests.worlds import small_study

TWO: dict[str, Any] = {"metric": ["accuracy", "cost"], "mode": ["max", "min"]}
COMPARING: list[Tuner] = [
    dt.SuccessiveHalving(rungs=[2, 8], reduction_factor=2),
    dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2),
    dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2, variant="stopping"),
    dt.Hyperband(min_steps=2, max_steps=8, reduction_factor=2),
    dt.AsyncHyperband(min_steps=2, max_steps=8, reduction_factor=2),
    dt.MedianStopping(8, min_trials=1),
    dt.PopulationBasedTraining(max_steps=8, ready_steps=4),
]
comparing = pytest.mark.parametrize("tuner", COMPARING, ids=lambda tuner: type(tuner).__name__)

Mode = Literal["max", "min"]
Curve = Callable[[dt.Configuration, int], Mapping[str, float]]


def simulated(curve: Curve, **changes: Any) -> Result:  # noqa: ANN401
    return dt.simulate(small_study(**(TWO | changes)), dt.World(workers=2, curve=curve))


def drawn(configuration: dt.Configuration, step: int, name: str) -> float:
    """A number in [0, 1) for each history, one for each name."""
    past = [sorted(configuration.at(t).items()) for t in range(step)]
    return Generator(f"{name}{past}").random()


def at_odds(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
    """Two metrics that order trials differently."""
    return {name: drawn(configuration, step, name) for name in ("accuracy", "cost")}


# --- what is refused ------------------------------------------------------------------------------


@comparing
def test_a_tuner_that_compares_trials_must_be_told_by_which_metric(tuner: Tuner) -> None:
    with pytest.raises(InvalidStudyError) as refused:
        small_study(tuner=tuner, n_trials=4, **TWO)
    assert str(refused.value) == (
        f"rank_by is None; {type(tuner).__name__} compares trials by one metric, and there are 2: "
        "name one of accuracy, cost"
    )
    assert small_study(tuner=tuner, n_trials=4, rank_by="cost", **TWO).metric == "cost"


def test_a_tuner_that_compares_nobody_need_not_be_told() -> None:
    study = small_study(tuner=dt.FullTraining(8), **TWO)
    assert (study.metric, study.mode) == ("accuracy", "max")
    assert study.metrics == ("accuracy", "cost")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": ["max"]}, "mode is ['max']; it must have one mode for each of 2 metrics"),
        ({"mode": ["max"] * 3}, "it must have one mode for each of 2 metrics"),
        ({"mode": "max"}, "with several metrics it must be a list of 'max' and 'min'"),
        ({"mode": ["max", "less"]}, "mode is 'less'; it must be 'max' or 'min'"),
        ({"metric": [], "mode": []}, "a list of metrics must have at least one, each once"),
        ({"metric": ["cost", "cost"]}, "a list of metrics must have at least one, each once"),
        ({"metric": ["cost", ""]}, "metric is ''; it must be the name of a result of evaluate()"),
        ({"metric": "cost"}, "mode is ['max', 'min']; it must be 'max' or 'min'"),
        ({"rank_by": "loss"}, "rank_by is 'loss'; it must be one of the metrics: accuracy, cost"),
        ({"rank_by": ["cost"]}, "rank_by is ['cost']; it must be one of the metrics"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidStudyError) as refused:
        small_study(**(TWO | change))
    assert message in str(refused.value)


def test_one_metric_may_be_a_list_too() -> None:
    listed = small_study(metric=["cost"], mode=["min"])
    plain = small_study(metric="cost", mode="min")
    assert (listed.metrics, listed.modes, listed.metric, listed.mode) == (
        plain.metrics,
        plain.modes,
        plain.metric,
        plain.mode,
    )


# --- what diverges --------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [nan, inf, -inf, None])
@pytest.mark.parametrize("name", ["accuracy", "cost"])
@pytest.mark.parametrize("rank_by", ["accuracy", "cost"])
def test_a_trial_diverges_where_any_tuned_metric_is_no_finite_number(
    name: str,
    odd: Any,  # noqa: ANN401
    rank_by: str,
) -> None:
    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        told = dict(at_odds(configuration, step))
        if step == 6 and configuration.at(3)["lr"] == 0.01:
            told[name] = odd
        return told

    result = simulated(curve, rank_by=rank_by, tuner=dt.FullTraining(8, report_every=2))
    for trial in result.trials:
        if trial.configuration.at(3)["lr"] == 0.01:
            assert trial.status is TrialStatus.DIVERGED
            assert trial.reason == f"{name} is {odd} at step 6"
            assert [report.step for report in trial.reports] == [2, 4], "finite reports stay"
        else:
            assert trial.status is TrialStatus.COMPLETED
    assert {trial.status for trial in result.trials} == {
        TrialStatus.DIVERGED,
        TrialStatus.COMPLETED,
    }


def test_a_metric_that_is_not_tuned_may_be_anything() -> None:
    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        return {**at_odds(configuration, step), "other": nan}

    result = simulated(curve)
    assert {trial.status for trial in result.trials} == {TrialStatus.COMPLETED}


@pytest.mark.parametrize("missing", ["accuracy", "cost"])
def test_a_metric_that_evaluate_does_not_give_ends_the_study_at_the_first_report(
    missing: str,
) -> None:
    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        told = at_odds(configuration, step)
        return {("loss" if name == missing else name): value for name, value in told.items()}

    result = simulated(curve)
    given_names = sorted({"accuracy", "cost", "loss"} - {missing})
    assert result.status is StudyStatus.FAILED
    assert result.reason == f"evaluate() gave no {missing!r}; it gave: {', '.join(given_names)}"
    assert not any(trial.reports for trial in result.trials)


# --- who is ahead ---------------------------------------------------------------------------------


@comparing
@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("rank_by", ["accuracy", "cost"])
def test_trials_are_compared_by_the_ranking_metric_alone(
    tuner: Tuner, rank_by: str, mode: Mode
) -> None:
    other: Mode = "min" if mode == "max" else "max"
    modes = [mode if name == rank_by else other for name in ("accuracy", "cost")]
    apart = {"lr": dt.choice([0.1 * (n + 1) for n in range(8)])}  # no two trials tie
    both = simulated(at_odds, tuner=tuner, space=apart, rank_by=rank_by, mode=modes)
    alone = simulated(at_odds, tuner=tuner, space=apart, metric=rank_by, mode=mode)
    turned = simulated(at_odds, tuner=tuner, space=apart, metric=rank_by, mode=other)
    assert list(both.timeline.commands()) == list(alone.timeline.commands())
    assert list(both.timeline.commands()) != list(turned.timeline.commands())


@given(seed=st.integers(0, 200), mode=st.sampled_from(["max", "min"]))
def test_halving_lets_the_best_by_the_ranking_metric_go_on(seed: int, mode: Mode) -> None:
    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        return {name: drawn(configuration, step, f"{seed}{name}") for name in ("accuracy", "cost")}

    result = simulated(
        curve,
        tuner=dt.SuccessiveHalving(rungs=[7, 8], reduction_factor=2),
        mode=["max", mode],
        rank_by="cost",
    )
    at_rung = {trial.number: trial.reports[0].metrics["cost"] for trial in result.trials}
    better = sorted(at_rung, key=lambda number: at_rung[number], reverse=mode == "max")
    went_on = [t.number for t in result.trials if t.status is TrialStatus.COMPLETED]
    assert sorted(went_on) == sorted(better[: len(at_rung) // 2])


@pytest.mark.parametrize("rank_by", ["accuracy", "cost"])
def test_target_and_patience_look_at_the_ranking_metric(rank_by: str) -> None:
    def curve(_: dt.Configuration, step: int) -> Mapping[str, float]:
        return {"accuracy": step / 8, "cost": 1 - step / 8}

    tuner = dt.FullTraining(8, report_every=1)
    target = 0.5 if rank_by == "accuracy" else 0.25
    result = simulated(curve, tuner=tuner, rank_by=rank_by, target=target)
    assert result.reason == f"the target {target} is reached"
    assert result.best is not None
    assert result.best.metrics[rank_by] == target

    flat = dict.fromkeys(("accuracy", "cost"), 1.0)
    ended = simulated(lambda *_: flat, tuner=dt.FullTraining(2), rank_by=rank_by, patience=3)
    assert ended.reason == "3 trials in a row reported nothing better than the best"


# --- who learns -----------------------------------------------------------------------------------


def nsga2(seed: int) -> BaseSampler:
    return NSGAIISampler(seed=seed, population_size=4)


def test_a_sampler_of_optuna_learns_from_every_metric() -> None:
    def draws(sign: float) -> list[Any]:
        def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
            told = at_odds(configuration, step)
            return {"accuracy": told["accuracy"], "cost": sign * told["cost"]}

        result = simulated(
            curve,
            space={"lr": dt.loguniform(1e-4, 1.0), "decay": dt.uniform(0.0, 1.0)},
            sampler=dt.Optuna(nsga2),
            tuner=dt.FullTraining(2),
            n_trials=20,
        )
        for trial in result.trials:
            for report in trial.reports:
                cost = report.metrics["cost"]
                assert isfinite(cost)
                assert report.scores == (report.metrics["accuracy"], -cost)
        return [trial.point for trial in result.trials]

    here, there = draws(1.0), draws(-1.0)
    assert here[:4] == there[:4], "the first generation has heard nothing"
    assert here != there, "the second metric alone makes the difference"
    assert draws(1.0) == here
