"""`check` finds what would make a run come out otherwise, and says where and what to do."""

import gc
import itertools
import random
import subprocess
import sys
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.runtime import check as module
from dasktune.runtime import rehearsal
from dasktune.runtime.check import CheckReport, check
from dasktune.runtime.difference import differing_attributes, first_difference, is_generator
from dasktune.runtime.rehearsal import AloneError
from tests.runtime import mistaken
from tests.runtime.mistaken import HP, Plain, Right


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process: it takes a second."""

    def alone(_rehearsal: object, _patience_s: float) -> bytes:
        raise AloneError("a test has no time for one")

    monkeypatch.setattr(module, "elsewhere", alone)


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
@pytest.mark.parametrize(
    ("names", "words"),
    [(["error", "tme"], "no 'tme',"), (["fault", "time", "los"], "no 'fault' and no 'los',")],
)
def test_each_metric_of_a_study_is_looked_for(names: list[str], words: str) -> None:
    study = dt.Study(
        mistaken.OtherMetric(),
        space={"lr": dt.choice([0.1])},
        tuner=dt.FullTraining(2),
        metric=names,
        mode=["min"] * len(names),
        n_trials=1,
    )

    about, text = only(check(study.trainable, study))

    assert about == "metrics"
    assert text == f"evaluate() gave {words} which the study tunes; it gave: error, time"


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
    "EvaluateDisturbs": (
        "evaluating",
        "evaluate() changes self.is_training, so that state['w'] (4 of 4",
        "put back",
        "training mode",
    ),
    "EvaluateDisturbsUnseen": ("evaluating", "if evaluate() was called before it", "training mode"),
    "MetricsOfTheRun": ("metrics", "'steps': '1.0'", "self.n is not", "depend on the state alone"),
    "LookingChanges": ("looking", "if state_dict() is called in between", "change nothing"),
    "KeepsAnObject": ("keeping", 'state["model"]["layers"][1] is of type object', "arrays"),
    "KeepsNothing": ("keeping", "state_dict() returned None", "return the state"),
    "NoMapping": ("metrics", "evaluate() returned 0.5", "a mapping of names to numbers"),
    "NoNumber": ("metrics", "loss: 'small'", "must be a number"),
    "Raises": ("running", "step 1 raised ValueError: no more data (mistaken.py, line "),
    "FailsToClose": ("running", "close() raised OSError: still in use (mistaken.py, line "),
    "ForgetsPosition": ("splitting", "forgets state: self.position;", "let state_dict() return it"),
    "LosesBuffer": ("metrics", "and self.norm.mean is not the same there", "depend on the state"),
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


class Noisy(Right):
    """Has attributes that are never the same twice, and that nothing depends on."""

    def setup(self, hp: mistaken.Values, seed: int) -> None:
        super().setup(hp, seed)
        self.began, self.about = another_number(), {"id": another_number(), "name": "noisy"}
        self.times = [another_number()]

    def step(self, hp: mistaken.Values, t: int) -> None:
        super().step(hp, t)
        self.times[0] = another_number()


_COUNT = itertools.count()


def another_number() -> int:
    """Return another number at each call, as a clock does."""
    return next(_COUNT)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("EvaluateDisturbs", "evaluate() changes self.is_training, so that state['w']"),
        ("EvaluateDisturbsUnseen", "if evaluate() was called before it"),
        ("Forgets", "forgets state: self.velocity; with"),
        ("OwnGenerator", "forgets state: self.rng; with"),
        ("MetricsOfTheRun", "loaded, and self.n is not the same there"),
        ("LosesBuffer", "loaded, and self.norm.mean is not the same there"),
    ],
)
def test_what_differs_between_two_equal_runs_is_not_said_to_be_the_cause(
    name: str, said: str
) -> None:
    class Found(Noisy, getattr(mistaken, name)):  # type: ignore[misc]
        pass

    _, text = only(check(Found(), HP))

    assert said in text
    assert not any(each in text for each in ("began", "about", "times"))


@pytest.mark.usefixtures("here")
def test_a_change_beside_what_differs_anyway_is_named() -> None:
    class Found(Noisy):
        def setup(self, hp: mistaken.Values, seed: int) -> None:
            super().setup(hp, seed)
            self.about = {"id": another_number(), "is_training": True}

        def step(self, hp: mistaken.Values, t: int) -> None:
            if self.about["is_training"]:
                super().step(hp, t)

        def evaluate(self) -> dict[str, Any]:
            self.about["is_training"] = False
            return super().evaluate()

    _, text = only(check(Found(), HP))

    assert "evaluate() changes self.about['is_training'], so that" in text


# --- another process


ELSEWHERE = {
    "HoldsWhatIsOnlyHere": ("sending", "cannot be unpickled (LookupError: process ", "in setup()"),
    "HoldsWhatKills": ("sending", "by SIGKILL before it had unpickled the training code"),
    "KilledElsewhere": (
        "running",
        "another process was ended by SIGKILL in step 1, perhaps for want of memory, as a worker "
        "would be: no memory for 9 numbers",
    ),
    "CrashesElsewhere": ("running", "another process was ended by SIGSEGV in step 1, as a worker"),
    "ExitsElsewhere": (
        "running",
        "another process ended with exit code 1 in step 1, as a worker would: no license",
    ),
    "LeavesElsewhere": ("running", "another process ended with exit code 0 in step 1, as a worker"),
    "RaisesElsewhere": (
        "running",
        "in another process, step 1 raised ValueError: not here (mistaken.py, line ",
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_goes_wrong_in_another_process_is_said(name: str) -> None:
    expected, *fragments = ELSEWHERE[name]

    report = check(getattr(mistaken, name)(), HP)

    about, text = only(report)
    assert about == expected
    for fragment in fragments:
        assert fragment in text
    assert "\n" not in text
    assert report.unchecked == ()


def test_what_schedules_need_must_travel_too() -> None:
    def lr(_step: int, _held: object = mistaken.DiesOfUnpickling()) -> float:
        return 0.1

    about, text = only(check(Right(), {"lr": lr}))

    assert about == "sending"
    assert "by SIGKILL before it had unpickled" in text


def test_a_crash_after_the_answer_loses_nothing() -> None:
    assert check(mistaken.CrashesWhenAllIsDone(), HP).is_clean


def test_a_run_that_does_not_end_elsewhere_is_not_taken_for_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        module, "elsewhere", lambda order, _patience_s: rehearsal.elsewhere(order, 3.0)
    )

    about, text = only(check(mistaken.HangsElsewhere(), HP))

    assert about == "repeating"
    assert text.startswith("a run in another process was given up after 3 s")
    assert "whether it gives the same states was not checked" in text


def test_another_process_has_more_time_the_longer_it_took_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []

    def alone(_rehearsal: object, patience_s: float) -> bytes:
        given.append(patience_s)
        raise AloneError("none")

    monkeypatch.setattr(module, "elsewhere", alone)
    for took_s in (0.0, 7.0, 3600.0):
        times = iter([100.0, 100.0 + took_s])
        monkeypatch.setattr(module, "perf_counter", lambda times=times: next(times))
        check(Right(), HP)

    assert given == [600.0, 600.0, 36000.0]


def test_where_no_process_can_be_started_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object, **_settings: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "run", refuse)
    report = check(Right(), HP)
    assert report.is_clean
    assert str(report).splitlines()[1:] == [
        "  not compared with another process: BlockingIOError: [Errno 11] Resource temporarily "
        "unavailable"
    ]

    monkeypatch.setattr(sys, "executable", "")
    report = check(mistaken.Forgets(), HP)
    assert [one.about for one in report.findings] == ["splitting"]
    assert str(report).splitlines()[-1].startswith("  not compared with another process: this Py")


def test_text_has_other_hashes_there_also_where_they_are_fixed_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    fixed = rehearsal._environment()["PYTHONHASHSEED"]
    monkeypatch.delenv("PYTHONHASHSEED")

    assert {"1", fixed, rehearsal._environment()["PYTHONHASHSEED"]} == {"1", "2"}
    assert fixed == "2"


def test_knobs_are_those_of_a_stage_in_both_processes() -> None:
    assert check(mistaken.TakesKnobs(), HP).is_clean


# --- few instances


@pytest.mark.parametrize("steps", [1, 4])
def test_no_more_instances_live_or_are_open_at_once_than_are_compared(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    class Counted(mistaken.Counted):
        most = 0

    class Closed(mistaken.Closed):
        now, most = 0, 0

    left: list[int] = []

    def alone(_rehearsal: object, _patience_s: float) -> bytes:
        left.append(Counted.alive())
        raise AloneError("none")

    monkeypatch.setattr(module, "elsewhere", alone)

    assert check(Counted(), HP, steps=steps).is_clean
    assert Counted.most == 3  # with the one that was given
    assert left == [1]  # the other process has the whole device
    assert check(Closed(), HP, steps=steps).is_clean
    assert (Closed.most, Closed.now) == (2, 0)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["Raises", "MetricsOfTheRun", "Forgets", "EvaluateDraws"])
def test_instances_are_closed_also_where_something_is_found(name: str) -> None:
    class Found(mistaken.Closed, getattr(mistaken, name)):  # type: ignore[misc]
        now, most = 0, 0

    only(check(Found(), HP))

    assert Found.now == 0


# --- chance


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


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("sets", [False, True], ids=["its own threads", "threads of a stage"])
def test_both_processes_have_as_many_threads(
    torch: Any,  # noqa: ANN401
    sets: bool,
) -> None:
    class Threads(Right):
        def state_dict(self) -> Any:  # noqa: ANN401
            return {**super().state_dict(), "n": torch.get_num_threads()}

    class SetsThreads(Threads):
        def apply_system(self, parameters: mistaken.Values) -> None:
            torch.set_num_threads(parameters["threads"])

    before = torch.get_num_threads()
    torch.set_num_threads(before + 3)
    try:
        report = check(SetsThreads() if sets else Threads(), HP)
        assert report.is_clean, str(report)
        assert torch.get_num_threads() == before + 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.torch
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("draws", [False, True])
def test_draws_on_a_device_are_noticed(
    torch: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    draws: bool,
) -> None:
    devices = (torch.Generator(), torch.Generator())  # as CUDA has them once it is used

    class OnDevice(Right):
        def evaluate(self) -> dict[str, Any]:
            if draws:
                torch.rand(2, generator=torch.cuda.default_generators[1])
            return super().evaluate()

    monkeypatch.setattr(torch.cuda, "default_generators", devices)
    before = [device.get_state().tolist() for device in devices]
    report = check(OnDevice(), HP)

    assert report.is_clean == (not draws)
    assert [device.get_state().tolist() for device in devices] == before
    if draws:
        about, text = only(report)
        assert about == "evaluating"
        assert "draws from the global generator of torch on cuda:1, so its metrics" in text


@pytest.mark.torch
@pytest.mark.usefixtures("here")
def test_a_devices_memory_is_given_back_before_each_instance(
    torch: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive: list[int] = []

    class Cyclic(mistaken.Counted):
        most = 0

        def setup(self, hp: mistaken.Values, seed: int) -> None:
            self.me = self
            super().setup(hp, seed)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(Cyclic.alive()))
    gc.disable()
    gc.freeze()  # what other tests have left need not be looked through each time
    try:
        assert check(Cyclic(), HP).is_clean
    finally:
        gc.unfreeze()
        gc.enable()

    assert max(alive) == 2  # the one that was given, and one to compare with
    assert Cyclic.most == 3


@pytest.mark.torch
def test_buffers_and_modes_of_modules_are_named(torch: Any) -> None:  # noqa: ANN401
    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, value: float) -> None:
            super().__init__()
            self.register_buffer("mean", torch.full((2,), value), persistent=False)

        def forward(self, x: Any) -> Any:  # noqa: ANN401
            return x - self.mean

    def made(value: float) -> Holder:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), Layer(value))
        net(torch.ones(1, 2)).sum().backward()
        optimizer = torch.optim.Adam(net.parameters())
        optimizer.step()
        return Holder(net=net, optimizer=optimizer)

    one, two = made(1), made(1)
    assert differing_attributes(one, two) == []
    assert [each.path for each in differing_attributes(one, made(2))] == ["self.net.1.mean"]

    two.net[0].eval()  # type: ignore[attr-defined]
    assert [each.path for each in differing_attributes(one, two)] == ["self.net.0.training"]

    two.net.eval()  # type: ignore[attr-defined]
    assert [each.path for each in differing_attributes(one, two)] == ["self.net.training"]


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
