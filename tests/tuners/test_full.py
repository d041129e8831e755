import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.testing import TunerContract
from dasktune.trial import Report, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext


@st.composite
def full_trainings(draw: st.DrawFn) -> Tuner:
    max_steps = draw(st.integers(1, 20))
    every = draw(st.none() | st.integers(1, max_steps))
    return dt.FullTraining(max_steps, report_every=every)


class TestFullTrainingIsATuner(TunerContract):
    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return full_trainings()


def report(trial: int, step: int) -> Report:
    return Report(trial=trial, step=step, metrics={"a": 1.0}, score=1.0)


@given(n=st.integers(0, 9), max_steps=st.integers(1, 40), data=st.data())
def test_all_trials_are_asked_at_once_for_all_steps(
    n: int, max_steps: int, data: st.DataObject
) -> None:
    every = data.draw(st.none() | st.integers(1, max_steps))
    run = dt.FullTraining(max_steps, report_every=every).start(TunerContext(n_trials=n, seed=0))
    requests = run.ask()
    assert [request.trial for request in requests] == list(range(n))
    for request in requests:
        assert request.step == max_steps
        assert request.report_steps == tuple(
            step for step in range(1, max_steps) if every is not None and step % every == 0
        )
    assert list(run.ask()) == []


def test_a_trial_is_over_with_its_last_report_and_not_before() -> None:
    run = dt.FullTraining(10, report_every=4).start(TunerContext(n_trials=2, seed=0))
    run.ask()
    assert list(run.tell(report(1, 4))) == []
    assert list(run.tell(report(1, 8))) == []
    endings = run.tell(report(1, 10))
    assert [(each.trial, each.status) for each in endings] == [(1, TrialStatus.COMPLETED)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"max_steps": 2.0}, "max_steps must be an integer such as 3, got 2.0"),
        ({"max_steps": True}, "max_steps must be an integer such as 3, got True"),
        ({"max_steps": 5, "report_every": 0}, "report_every must be at least 1, got 0"),
        (
            {"max_steps": 5, "report_every": 6},
            "report_every is 6; it must not be larger than max_steps, which is 5",
        ),
    ],
)
def test_a_refusal_names_the_value_and_the_cure(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(dt.InvalidStudyError) as refusal:
        dt.FullTraining(**arguments)
    assert str(refusal.value) == message
