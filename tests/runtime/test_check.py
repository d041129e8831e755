"""`check` finds what would make a run come out otherwise, and says where and what to do."""

import random
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.runtime import check as module
from dasktune.runtime.check import CheckReport, check
from dasktune.runtime.difference import differing_attributes, first_difference, is_generator
from tests.runtime import mistaken
from tests.runtime.mistaken import HP, Plain, Right


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process: it takes a second."""
    monkeypatch.setattr(module, "elsewhere", lambda _rehearsal: None)


def only(report: CheckReport) -> tuple[str, str]:
    assert len(report.findings) == 1, str(report)
    return report.findings[0].about, report.findings[0].text


# --- nothing to find


@pytest.mark.parametrize("trainable", [Right(), Plain()], ids=["numpy", "plain"])
def test_what_is_right_is_clean_in_two_processes(trainable: object) -> None:
    report = check(trainable, HP)

    assert report.is_clean, str(report)
    name = type(trainable).__name__
    assert str(report) == (
        f"{name}, 3 steps: training split at any step gives the same bits, and evaluate() leaves "
        "the state as it is"
    )


@pytest.mark.usefixtures("here")
def test_check_leaves_the_generators_of_the_process() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = random.Random(1).random(), np.random.RandomState(1).normal()

    check(Right(), HP)

    assert (random.random(), np.random.normal()) == expected


@pytest.mark.usefixtures("here")
def test_a_study_gives_configuration_seed_and_metric() -> None:
    study = dt.Study(
        mistaken.OtherMetric(),
        space={"lr": dt.choice([0.1])},
        tuner=dt.FullTraining(2),
        metric="loss",
        mode="min",
        n_trials=1,
    )

    about, text = only(check(study.trainable, study))

    assert about == "metrics"
    assert text == "evaluate() gave no 'loss', which the study tunes; it gave: error, time"


@pytest.mark.usefixtures("here")
def test_a_study_that_draws_on_demand_is_checked_too() -> None:
    study = dt.Study(
        Right(),
        space={"lr": dt.loguniform(0.01, 0.1)},
        tuner=dt.ASHA(min_steps=1, max_steps=4),
        metric="loss",
        mode="min",
        n_trials=2,
    )

    assert check(study.trainable, study).is_clean


def test_steps_must_be_a_number_of_steps() -> None:
    with pytest.raises(InvalidStudyError, match="steps"):
        check(Right(), HP, steps=0)


# --- mistakes

MISTAKES = {
    "Forgets": ("splitting", "forgets state: self.velocity;", "let state_dict() return it"),
    "DoesNotTakeBack": ("splitting", "state['velocity'] (4 of 4", "take back all"),
    "OwnGenerator": ("splitting", "forgets state: self.rng;", "draw from the global generators"),
    "UnseededGenerator": ("repeating", "self.rng (a generator", "differs between two runs after s"),
    "Clock": ("repeating", "state['w'] (4 of 4", "neither on time"),
    "Address": ("repeating", "differs between two runs after step 0", "nor on id()"),
    "EvaluateChangesState": ("evaluating", "evaluate() changes state['w'] (1 of 4", "copy"),
    "EvaluateDraws": ("evaluating", "the global generator of Python", "depend on chance"),
    "EvaluateDisturbs": ("evaluating", "if evaluate() was called before it", "training mode"),
    "MetricsOfTheRun": ("metrics", "'steps': '1.0'", "depend on the state alone"),
    "LookingChanges": ("looking", "if state_dict() is called in between", "change nothing"),
    "KeepsAnObject": ("keeping", 'state["model"]["layers"][1] is of type object', "arrays"),
    "KeepsNothing": ("keeping", "state_dict() returned None", "return the state"),
    "NoMapping": ("metrics", "evaluate() returned 0.5", "a mapping of names to numbers"),
    "NoNumber": ("metrics", "loss: 'small'", "must be a number"),
    "Raises": ("running", "step 1 raised ValueError: no more data", "line "),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_with_their_cure(name: str) -> None:
    expected, *fragments = MISTAKES[name]

    about, text = only(check(getattr(mistaken, name)(), HP))

    assert about == expected
    for fragment in fragments:
        assert fragment in text
    assert "\n" not in text


def test_order_of_a_set_shows_in_another_process() -> None:
    about, text = only(check(mistaken.SetOrder(), HP))

    assert about == "repeating"
    assert "differs between two runs in two processes" in text
    assert "the order of a set" in text


def test_what_cannot_travel_is_a_finding() -> None:
    trainable = Right()
    trainable.data = np.zeros(2_000_000)  # type: ignore[attr-defined]

    about, text = only(check(trainable, HP))

    assert about == "sending"
    assert "trainable.data has 15.3 MB" in text


@pytest.mark.usefixtures("here")
def test_one_step_does_not_show_what_needs_two() -> None:
    assert check(mistaken.Forgets(), HP, steps=1).is_clean
    assert not check(mistaken.Forgets(), HP, steps=2).is_clean


# --- torch


@pytest.fixture
def torch() -> ModuleType:
    return cast("ModuleType", pytest.importorskip("torch"))


@pytest.mark.torch
@pytest.mark.usefixtures("here")
def test_optimizer_that_is_forgotten_is_named(torch: Any) -> None:  # noqa: ANN401
    class Net:
        def setup(self, hp: mistaken.Values, _seed: int) -> None:
            self.module = torch.nn.Linear(2, 1)
            parameters = self.module.parameters()
            self.optimizer = torch.optim.SGD(parameters, lr=hp["lr"], momentum=0.9)

        def step(self, _hp: mistaken.Values, _t: int) -> None:
            self.optimizer.zero_grad()
            self.module(torch.randn(4, 2)).square().mean().backward()
            self.optimizer.step()

        def evaluate(self) -> dict[str, Any]:
            with torch.no_grad():
                return {"loss": self.module(torch.ones(1, 2)).square().mean()}

        def state_dict(self) -> Any:  # noqa: ANN401
            return {"module": self.module.state_dict()}

        def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
            self.module.load_state_dict(state["module"])

    class Whole(Net):
        def state_dict(self) -> Any:  # noqa: ANN401
            return {**super().state_dict(), "optimizer": self.optimizer.state_dict()}

        def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
            super().load_state_dict(state)
            self.optimizer.load_state_dict(state["optimizer"])

    about, text = only(check(Net(), HP))
    assert about == "splitting"
    assert "forgets state: self.optimizer" in text
    assert "state['module']['weight'] (2 of 2 elements" in text
    assert check(Whole(), HP).is_clean


# --- differences

DIFFERENT = {
    "type": (1, 1.0, "state (a int in one, a float in the other)"),
    "number": (1, 2, "state (1 in one, 2 in the other)"),
    "zero": ({"a": 0.0}, {"a": -0.0}, "state['a'] (0.0 in one, -0.0 in the other)"),
    "key": ({"a": 1}, {}, "state['a'] (missing in one)"),
    "other key": ({}, {"a": 1}, "state['a'] (missing in one)"),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "state (the same keys in another order)"),
    "length": ([1], [1, 2], "state (1 items in one, 2 in the other)"),
    "deep": ({"a": [0, (1, 2)]}, {"a": [0, (1, 3)]}, "state['a'][1][1] (2 in one, 3 in the other)"),
    "array": (
        np.array([1.0, 2, 3]),
        np.array([1.0, 2, 3.5]),
        "state (1 of 3 elements, by up to 0.5)",
    ),
    "dtype": (
        np.zeros(2, "f4"),
        np.zeros(2),
        "state (float32 of shape (2,) in one, float64 of shape (2,) in the other)",
    ),
    "none": (None, 1, "state (nothing in one, a int in the other)"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_differences_are_named_by_path(case: str) -> None:
    a, b, words = DIFFERENT[case]

    assert str(first_difference(a, b, "state")) == words
    assert first_difference(a, a, "state") is None
    assert first_difference(b, b, "state") is None


def test_nan_equals_itself_bit_for_bit() -> None:
    assert first_difference([float("nan")], [float("nan")], "state") is None


class Holder:
    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


def test_generators_inside_objects_are_found_first() -> None:
    def made(seed: int) -> Holder:
        return Holder(
            a=seed, inner=Holder(rng=random.Random(seed)), rng=np.random.default_rng(seed)
        )

    found = differing_attributes(made(1), made(2))

    assert [one.path for one in found] == ["self.inner.rng", "self.rng", "self.a"]
    assert [is_generator(one) for one in found] == [True, True, False]
    assert differing_attributes(made(1), made(1)) == []


def test_objects_that_contain_themselves_end() -> None:
    a, b = Holder(x=1), Holder(x=1)
    a.me, b.me = a, b  # type: ignore[attr-defined]

    assert differing_attributes(a, b) == []
