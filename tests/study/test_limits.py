"""Stop rules: each ends the study at once, keeps every report and stops what is running."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.space import Configuration
from dasktune.study.commands import SetTimer, StopPath, StudyStatus
from dasktune.study.events import Resumed, StageFinished, TimerFired
from dasktune.study.limits import limits
from dasktune.study.result import Result
from dasktune.study.timeline import replay
from dasktune.trial import TrialStatus
from dasktune.tuners.tuner import Tuner
from tests.worlds import small_study

TUNERS: list[Tuner] = [
    dt.FullTraining(8),
    dt.FullTraining(8, report_every=1),
    dt.SuccessiveHalving(rungs=[2, 4, 8], reduction_factor=2),
    dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2),
]
tuners = pytest.mark.parametrize("tuner", TUNERS, ids=lambda tuner: type(tuner).__name__)


def rising(configuration: Configuration, step: int) -> dict[str, float]:
    """Grow with the steps, by the values of each: later is better."""
    return {"accuracy": sum(float(str(configuration.at(s)["lr"])) for s in range(step))}


def simulated(workers: int = 2, **changes: Any) -> Result:  # noqa: ANN401
    return dt.simulate(small_study(**changes), dt.World(workers=workers, curve=rising))


def check_kept(result: Result) -> None:
    """What was reported stays, and each trial says how it ended."""
    for trial in result.trials:
        assert trial.status.is_final
        assert trial.reason
        assert [r.step for r in trial.reports] == sorted({r.step for r in trial.reports})
    finished = [e.event for e in result.timeline.entries if isinstance(e.event, StageFinished)]
    assert sum(event.executed_steps for event in finished) == result.steps_executed


@tuners
@pytest.mark.parametrize("timeout", [1, 5, 6.5, "7s"])
def test_a_timeout_ends_a_study_at_the_next_step_boundary(tuner: Tuner, timeout: Any) -> None:  # noqa: ANN401
    result = simulated(tuner=tuner, timeout=timeout)
    seconds = float(str(timeout).removesuffix("s"))
    assert result.status is StudyStatus.COMPLETED
    assert "timeout" in result.reason
    assert seconds <= result.makespan_s < seconds + 1, "a step takes a second"
    stopped = [c for _, c in result.timeline.commands() if isinstance(c, StopPath)]
    assert stopped, "two paths were running"
    check_kept(result)


@tuners
def test_a_timeout_that_is_not_reached_changes_nothing(tuner: Tuner) -> None:
    plain, limited = simulated(tuner=tuner), simulated(tuner=tuner, timeout="1h")
    assert limited.reason == plain.reason
    assert limited.trials == plain.trials
    assert limited.makespan_s == plain.makespan_s


@tuners
@given(most=st.integers(1, 40))
def test_no_work_begins_after_the_limit_of_executed_steps(tuner: Tuner, most: int) -> None:
    result = simulated(tuner=tuner, max_steps_executed=most)
    unlimited = simulated(tuner=tuner)
    if unlimited.steps_executed < most:
        assert result.reason == unlimited.reason
        return
    assert result.steps_executed >= most
    assert "max_steps_executed" in result.reason or result.reason == unlimited.reason
    # Over the limit: only what was running on the two workers, and stopped at a step boundary.
    assert result.steps_executed <= most + 2 * 8
    check_kept(result)


@tuners
def test_a_target_ends_a_study_with_the_report_that_reaches_it(tuner: Tuner) -> None:
    result = simulated(tuner=tuner, target=0.3)
    assert result.reason == "the target 0.3 is reached"
    assert result.best is not None
    assert result.best.metrics["accuracy"] >= 0.3
    reports = [report for trial in result.trials for report in trial.reports]
    assert sum(report.score >= 0.3 for report in reports) == 1, "it ended with the first"
    check_kept(result)


def test_a_target_of_a_metric_to_minimise_is_reached_from_above() -> None:
    result = dt.simulate(
        small_study(mode="min", target=0.5, tuner=dt.FullTraining(8, report_every=1)),
        dt.World(workers=1, curve=lambda c, step: {"accuracy": 1 / (1 + step)}),  # noqa: ARG005
    )
    assert result.best is not None
    assert result.best.metrics["accuracy"] == 0.5
    assert result.steps_executed == 1 or result.best.steps == 1


@given(scores=st.lists(st.integers(0, 5), min_size=1, max_size=10), patience=st.integers(1, 4))
def test_patience_counts_trials_since_the_best(scores: list[int], patience: int) -> None:
    rates = [round(0.01 * (i + 1), 2) for i in range(len(scores))]
    of = dict(zip(rates, scores, strict=True))
    study = small_study(space={"lr": dt.choice(rates)}, tuner=dt.FullTraining(1), patience=patience)
    result = dt.simulate(
        study,
        dt.World(curve=lambda c, step: {"accuracy": float(of[c.at(0)["lr"]])}),  # type: ignore[index]  # noqa: ARG005
    )
    reported = [t.reports[0].score for t in result.trials if t.reports]
    best_at = reported.index(max(reported))
    if "in a row" in result.reason:
        assert len(reported) - 1 - best_at == patience
    else:
        assert len(reported) == len(scores)
        assert all(
            len(reported[:n]) - 1 - reported.index(max(reported[:n])) < patience
            for n in range(1, len(reported) + 1)
        )


@tuners
def test_a_study_that_a_limit_ended_replays(tuner: Tuner) -> None:
    for limit in ({"timeout": 6}, {"target": 0.3}, {"patience": 2}, {"max_steps_executed": 9}):
        study = small_study(tuner=tuner, **limit)
        result = dt.simulate(study, dt.World(workers=2, curve=rising))
        core, _ = replay([study], result.timeline.lines())
        assert core.is_over
        assert core.runs[0].reason == result.reason


def test_a_resumed_study_asks_for_its_timer_again() -> None:
    study = small_study(timeout=6)
    result = dt.simulate(study, dt.World(workers=2, curve=rising))
    lines = list(result.timeline.lines())
    core, _ = replay([study], lines[:2])
    from_then = core.handle(Resumed(), core.now)
    assert [c.at_s for c in from_then if isinstance(c, SetTimer)] == [6.0]
    early = core.handle(TimerFired(study=0), 5.0)
    assert not core.runs[0].has_ended, early


def test_other_studies_go_on_when_one_is_ended_by_a_limit() -> None:
    first, second = dt.simulate(
        [small_study(name="a", timeout=3), small_study(name="b", training_seed=1)],
        dt.World(workers=2, curve=rising),
    )
    assert "timeout" in first.reason
    assert second.reason == "all 10 trials are over"
    assert all(trial.status is TrialStatus.COMPLETED for trial in second.trials)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "2 hours"}, "'2h'"),
        ({"timeout": True}, "timeout is True"),
        ({"max_steps_executed": 0}, "max_steps_executed must be at least 1, got 0"),
        ({"target": float("nan")}, "target is nan"),
        ({"target": "0.9"}, "target is '0.9'"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
    ],
)
def test_a_limit_that_is_none_is_refused(limit: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidStudyError, match=words):
        small_study(**limit)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5m", 90), ("2h", 7200), (" 1 d ", 86400)]
)
def test_a_timeout_may_be_a_text(text: str, seconds: float) -> None:
    made = limits(timeout=text, max_steps_executed=None, target=None, patience=None)
    assert made.timeout_s == seconds
