"""One stage where it was sent, without any backend: looks up, restores, trains, commits."""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dasktune as dt
from dasktune.plan.history import changes, key_of, tokens_at
from dasktune.plan.keys import extended, first_link
from dasktune.plan.stage import Stage
from dasktune.runtime.generators import seed_generators
from dasktune.runtime.payload import pack, unpack
from dasktune.runtime.stage import Hooks, Order, Outcome, Workplace, evaluated, run_stage
from dasktune.space.configuration import Configuration
from dasktune.store.store import Store
from dasktune.units import Digest
from tests.runtime.trainables import Made, Notes, Walk, study_of, truth

HP = {"lr": dt.step_decay(0.1, factor=0.1, at=[3]), "momentum": 0.9}


class Bench:
    """A study of one configuration, and workplaces that share a store."""

    def __init__(self, folder: Path, trainable: object | None = None) -> None:
        walk: Any = trainable or Walk(str(folder))
        self.study = study_of(walk, space=HP)
        self.states: dict[str, Made] = truth(self.study)
        self.configuration = Configuration.of(HP)
        self.payload = pack(walk)
        self.store = Store(folder / "store")
        self.notes = Notes(folder)
        self.reports: dict[int, Mapping[str, float]] = {}

    def key(self, step: int) -> Digest:
        return key_of(self.study.family, self.configuration, step)

    def stage(self, start: int, stop: int, **changed: Any) -> Stage:  # noqa: ANN401
        family = self.study.family
        first = first_link(family, tokens_at(self.configuration, 0))
        given: dict[str, Any] = {
            "key": self.key(stop),
            "start_key": self.key(start) if start else None,
            "start_link": extended(first, changes(self.configuration, 1, start)),
            "start": start,
            "stop": stop,
            "family": family,
            "configuration": self.configuration,
            "report_steps": (),
            "evaluates": False,
        }
        return Stage(**(given | changed))

    def run(
        self,
        stage: Stage,
        workplace: Workplace | None = None,
        *,
        looks_inside: bool = False,
        **hooks: Any,  # noqa: ANN401
    ) -> Outcome:
        place = workplace or Workplace(store=self.store)
        order = Order(stage=stage, payload=self.payload, looks_inside=looks_inside)
        return run_stage(order, place, Hooks(report=self.reports.__setitem__, **hooks))

    def assert_stored(self, *steps: int) -> None:
        found = {record.step: record for record in self.store.records()}
        assert sorted(found) == sorted(steps)
        for step, record in found.items():
            made = self.states[self.key(step)]
            assert (record.key, record.sha256) == (self.key(step), made.sha256)
            assert record.metrics in (None, made.metrics)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("cuts", [[], [3], [1, 2, 3, 4, 5, 6, 7], [4, 5]])
@pytest.mark.parametrize("is_warm", [True, False])
def test_cuts_and_warmth_leave_no_trace(bench: Bench, cuts: list[int], is_warm: bool) -> None:
    place = Workplace(store=bench.store)
    for start, stop in zip([0, *cuts], [*cuts, 8], strict=True):
        outcome = bench.run(bench.stage(start, stop), place if is_warm else None)
        assert outcome.error is None
        assert (outcome.reached, outcome.executed_steps) == (stop, stop - start)
    bench.assert_stored(*cuts, 8)
    assert not bench.notes.repeated


def test_a_warm_workplace_holds_a_fork_once_only(bench: Bench) -> None:
    place = Workplace(store=bench.store)
    bench.run(bench.stage(0, 3), place)
    bench.run(bench.stage(3, 5), place)
    bench.run(bench.stage(3, 8), place)  # it holds step 5 now
    bench.assert_stored(3, 5, 8)


def test_reports_and_evaluation_are_those_of_the_states_and_disturb_nothing(bench: Bench) -> None:
    outcome = bench.run(bench.stage(0, 8, report_steps=(2, 3, 7), evaluates=True))
    assert outcome.metrics == bench.states[bench.key(8)].metrics
    assert bench.reports == {t: bench.states[bench.key(t)].metrics for t in (2, 3, 7)}
    bench.assert_stored(8)


def test_what_is_stored_is_not_trained_again(bench: Bench) -> None:
    bench.run(bench.stage(0, 5))
    assert bench.run(bench.stage(0, 5)).executed_steps == 0
    assert bench.run(bench.stage(0, 8), looks_inside=True).executed_steps == 3
    assert not bench.notes.repeated
    bench.assert_stored(5, 8)


def test_a_state_without_metrics_is_only_evaluated(bench: Bench) -> None:
    bench.run(bench.stage(0, 5))
    for stage in (bench.stage(0, 5, evaluates=True), bench.stage(5, 5, evaluates=True)):
        outcome = bench.run(stage, looks_inside=True)
        assert outcome.metrics == bench.states[bench.key(5)].metrics
        assert (outcome.reached, outcome.executed_steps) == (5, 0)
    assert len(bench.notes.calls) == 5


@pytest.mark.parametrize("n_steps", [0, 1, 4])
def test_a_stage_that_is_stopped_commits_where_it_is(bench: Bench, n_steps: int) -> None:
    bench.run(bench.stage(0, 2))

    def should_stop() -> bool:
        return len(bench.notes.calls) >= 2 + n_steps

    outcome = bench.run(bench.stage(2, 8, evaluates=True), should_stop=should_stop)
    assert (outcome.reached, outcome.executed_steps) == (2 + n_steps, n_steps)
    assert outcome.metrics is None
    bench.assert_stored(*{2, 2 + n_steps})
    assert bench.run(bench.stage(2, 8), looks_inside=True).reached == 8
    assert not bench.notes.repeated


def test_states_that_others_want_are_committed_in_passing_with_metrics(bench: Bench) -> None:
    bench.run(bench.stage(0, 8), wanted={bench.key(3), bench.key(6), Digest("0" * 64)})
    bench.assert_stored(3, 6, 8)
    for step in (3, 6):
        record = bench.store.record(bench.key(step))
        assert record is not None
        assert record.metrics == bench.states[bench.key(step)].metrics


def test_a_start_that_cannot_be_read_is_told_and_not_trained_around(bench: Bench) -> None:
    bench.run(bench.stage(0, 3))
    next(Path(bench.store.url).glob("states/*.state")).write_bytes(b"damaged")
    outcome = bench.run(bench.stage(3, 8))
    assert (outcome.lost, outcome.reached, outcome.error) == (bench.key(3), 3, None)
    assert len(bench.notes.calls) == 3
    bench.assert_stored()


def test_a_damaged_state_inside_a_stage_is_passed_over_the_next_time(bench: Bench) -> None:
    bench.run(bench.stage(0, 3))
    next(Path(bench.store.url).glob("states/*.state")).write_bytes(b"damaged")
    first = bench.run(bench.stage(0, 8), looks_inside=True)
    assert first.lost == bench.key(3)
    assert first.reached == 0
    assert bench.run(bench.stage(0, 8), looks_inside=True).executed_steps == 8
    bench.assert_stored(8)


class Evicts(Walk):
    """While it is evaluated, another driver makes room."""

    def evaluate(self) -> Mapping[str, Any]:
        store = Store(Path(self.folder, "store"))
        for record in store.records():
            store.drop(record.key)
        return super().evaluate()


@pytest.mark.parametrize(
    ("stored", "changed"),
    [
        (5, {"start": 5, "stop": 5, "evaluates": True}),
        (5, {"start": 0, "stop": 5, "evaluates": True}),
        (3, {"start": 0, "stop": 8, "report_steps": (3, 5)}),
    ],
    ids=["start", "end", "inside"],
)
def test_a_state_that_is_evicted_while_it_is_evaluated_is_lost_and_no_failure(
    tmp_path: Path, stored: int, changed: Mapping[str, Any]
) -> None:
    bench = Bench(tmp_path, Evicts(str(tmp_path)))
    bench.run(bench.stage(0, stored))
    stage = bench.stage(**changed)
    outcome = bench.run(stage, looks_inside=True)
    assert (outcome.lost, outcome.error) == (bench.key(stored), None)
    assert (outcome.reached, outcome.metrics, outcome.executed_steps) == (stage.start, None, 0)
    bench.assert_stored()


def test_keys_that_do_not_fit_the_values_are_refused(bench: Bench) -> None:
    # A function of the step that gives other values on the worker than in the driver.
    outcome = bench.run(bench.stage(0, 5, key=bench.key(6)))
    assert outcome.error is not None
    assert "a schedule must depend on the step alone" in outcome.error
    assert not bench.notes.calls


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: [0.1], "evaluate() returned [0.1]; it must return a mapping"),
        (lambda: {"accuracy": "good"}, "evaluate() gave accuracy: 'good'"),
        (lambda: {"accuracy": 1j}, "evaluate() gave accuracy: 1j"),
    ],
)
def test_answers_that_are_no_metrics_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], object], said: str
) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr(Walk, "evaluate", lambda _self: answer())
    outcome = bench.run(bench.stage(0, 2, evaluates=True))
    assert said in (outcome.error or "")
    assert "in evaluated" in outcome.traceback
    assert not bench.store.keys()


def test_numbers_of_libraries_are_metrics_and_none_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr(
        Walk, "evaluate", lambda _self: {"a": np.float32(0.5), "b": None, "c": True, 4: np.array(2)}
    )
    metrics = bench.run(bench.stage(0, 2, evaluates=True)).metrics
    assert metrics is not None
    assert {name: str(value) for name, value in metrics.items()} == {
        "a": "0.5", "b": "nan", "c": "1.0", "4": "2.0",
    }  # fmt: skip
    assert all(type(value) is float for value in metrics.values())


def test_taking_metrics_moves_no_generator(bench: Bench) -> None:
    trainable = unpack(bench.payload)
    trainable.setup(bench.configuration.at(0), 0)
    seed_generators(0, 1)
    expected = random.random(), np.random.random()
    seed_generators(0, 1)
    evaluated(trainable)
    assert (random.random(), np.random.random()) == expected


class Closes(Walk):
    """Notes what is asked of it besides training."""

    def apply_system(self, parameters: Mapping[str, object]) -> None:
        assert not hasattr(self, "weights")
        self.parameters = parameters

    def close(self) -> None:
        with Path(self.folder, "closed").open("a") as file:
            file.write(f"{dict(self.parameters)}\n")


def test_one_trainable_lives_at_a_time_with_one_thread_and_is_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Closes(str(tmp_path)))
    place = Workplace(store=bench.store)
    bench.run(bench.stage(0, 3), place)
    bench.run(bench.stage(3, 5), place)
    assert not (tmp_path / "closed").exists()
    bench.run(bench.stage(3, 6), place)
    place.drop()
    assert (tmp_path / "closed").read_text() == "{'threads': 1}\n" * 2


def test_after_an_error_nothing_is_kept_and_nothing_is_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Workplace(store=bench.store)
    bench.run(bench.stage(0, 3), place)

    def fail(_self: Walk, _hp: object, t: int) -> None:
        if t == 5:
            raise LookupError("not today")

    with monkeypatch.context() as patched:
        patched.setattr(Walk, "happen", fail)
        outcome = bench.run(bench.stage(3, 8), place)
    assert outcome.error == "LookupError: not today"
    assert "in fail" in outcome.traceback
    assert outcome.reached == 3
    bench.assert_stored(3)
    assert place.trainable is None
    assert bench.run(bench.stage(3, 8), place).executed_steps == 5
    bench.assert_stored(3, 8)
