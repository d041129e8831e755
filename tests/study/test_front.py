"""What no other dominates."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.study.front import Scores, front_of
from dasktune.study.result import Result
from tests.worlds import small_study

RATES = (0.1, 0.2, 0.3, 0.4)
STEPS = (1, 2, 3)

levels = st.integers(-2, 2).map(float)
clouds = st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[levels] * n), max_size=25))
curves = st.lists(
    st.lists(st.tuples(levels, levels), min_size=len(STEPS), max_size=len(STEPS)),
    min_size=1,
    max_size=len(RATES),
)


def dominates(one: Scores, other: Scores) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


@given(clouds)
def test_a_front_is_what_no_other_dominates(cloud: list[Scores]) -> None:
    slow = {one for one in cloud if not any(dominates(other, one) for other in cloud)}
    assert front_of(cloud) == slow


@given(clouds)
def test_whatever_is_not_in_front_is_dominated_by_something_that_is(cloud: list[Scores]) -> None:
    front = front_of(cloud)
    for one in cloud:
        assert one in front or any(dominates(other, one) for other in front)


def two_metrics(told: Sequence[Sequence[tuple[float, float]]], rank_by: str = "good") -> Result:
    """Simulate trials that report these pairs, by trial and step: more is good, less is bad."""

    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        rate = configuration.at(0)["lr"]
        assert isinstance(rate, float)
        good, bad = told[RATES.index(rate)][step - 1]
        return {"good": good, "bad": bad}

    study = small_study(
        space={"lr": dt.choice(list(RATES[: len(told)]))},
        tuner=dt.FullTraining(len(STEPS), report_every=1),
        metric=["good", "bad"],
        mode=["max", "min"],
        rank_by=rank_by,
    )
    return dt.simulate(study, dt.World(curve=curve))


@given(curves, st.sampled_from(["good", "bad"]))
def test_a_trial_is_in_front_if_one_of_its_reports_is(
    told: list[list[tuple[float, float]]], rank_by: str
) -> None:
    result = two_metrics(told, rank_by)
    signed = [[(good, -bad) for good, bad in reports] for reports in told]
    cloud = [scores for reports in signed for scores in reports]
    slow = {
        number: [one for one in reports if not any(dominates(other, one) for other in cloud)]
        for number, reports in enumerate(signed)
    }

    found = {trial.number: trial for trial in result.pareto_front}

    assert list(found) == [number for number, kept in slow.items() if kept]
    for number, trial in found.items():
        shown = (trial.metrics["good"], -trial.metrics["bad"])
        ranked = ("good", "bad").index(rank_by)
        assert shown in slow[number]
        assert shown[ranked] == max(one[ranked] for one in slow[number])
        assert told[number][trial.steps - 1] == (trial.metrics["good"], trial.metrics["bad"])


@given(curves, st.sampled_from(["good", "bad"]))
def test_the_best_trial_is_best_in_the_ranking_metric_and_in_front(
    told: list[list[tuple[float, float]]], rank_by: str
) -> None:
    result = two_metrics(told, rank_by)
    values = [pair[("good", "bad").index(rank_by)] for reports in told for pair in reports]
    assert result.best is not None
    assert result.best.metrics[rank_by] == (max if rank_by == "good" else min)(values)
    front = [(trial.number, dict(trial.metrics)) for trial in result.pareto_front]
    assert (result.best.number, dict(result.best.metrics)) in front


@pytest.mark.parametrize(("mode", "numbers"), [("max", [1, 2]), ("min", [0])])
def test_the_front_of_one_metric_are_the_trials_with_the_best_value(
    mode: str, numbers: list[int]
) -> None:
    scores = {0.1: 0.1, 0.2: 0.9, 0.3: 0.9}

    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        del step
        rate = configuration.at(0)["lr"]
        assert isinstance(rate, float)
        return {"accuracy": scores[rate]}

    space = {"lr": dt.choice(list(scores))}
    study = small_study(space=space, tuner=dt.FullTraining(2), mode=mode)
    result = dt.simulate(study, dt.World(curve=curve))

    assert [trial.number for trial in result.pareto_front] == numbers


def test_without_reports_there_is_no_front() -> None:
    def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
        del configuration, step
        return {"accuracy": float("nan")}

    assert dt.simulate(small_study(), dt.World(curve=curve)).pareto_front == ()
