"""Metrics that are reported in passing are kept: whoever asks again trains nothing for them."""

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random as Generator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from distributed import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.plan.history import key_of
from dasktune.plan.stage import Stage
from dasktune.runner import extend, run
from dasktune.runtime import serial
from dasktune.runtime.sent import answer_from_store
from dasktune.runtime.stage import Hooks, Order, Outcome, Workplace, run_stage
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.events import MetricsReported, StageFinished
from dasktune.study.result import Result
from tests.runtime.test_stage import Bench
from tests.runtime.trainables import (
    LIMIT_S,
    Made,
    Notes,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    truth,
)
from tests.worlds import any_tuner

ALL = tuple(range(1, 8))
REPORTING = dt.FullTraining(8, report_every=1)


def steps_to_train(stage: Stage, store: Store) -> int:
    """Count what must be trained, by definition, of what the records of the store say.

    A step must be if there is something to be learned at its end or later that no record knows, and
    no state in between is stored.
    """
    found = {at: store.record(key_at(stage, at)) for at in range(stage.start + 1, stage.stop + 1)}
    stored = {at: record for at, record in found.items() if record is not None}
    wanted = set()
    for at in stage.report_steps:
        has_own = at in stored and stored[at].metrics is not None
        if not has_own and not any(at in record.passed for record in stored.values()):
            wanted.add(at)
    if stage.stop not in stored:
        wanted.add(stage.stop)
    return sum(
        any(after <= at and not stored.keys() & set(range(after, at + 1)) for at in wanted)
        for after in range(stage.start + 1, stage.stop + 1)
    )


def key_at(stage: Stage, step: int) -> Any:  # noqa: ANN401
    return key_of(stage.family, stage.configuration, step)


# --- one stage ------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def assert_told(bench: Bench, *steps: int) -> None:
    """These steps were reported since the last time, in this order and as they are."""
    assert list(bench.reports.items()) == [(t, bench.states[bench.key(t)].metrics) for t in steps]
    bench.reports.clear()


def test_a_stage_whose_reports_are_known_is_answered_with_them(bench: Bench) -> None:
    bench.run(bench.stage(0, 8, report_steps=ALL, evaluates=True))
    assert_told(bench, *ALL)
    for steps in (ALL, (2, 5), ()):
        outcome = bench.run(bench.stage(0, 8, report_steps=steps, evaluates=True))
        assert (outcome.reached, outcome.executed_steps) == (8, 0)
        assert outcome.metrics == bench.states[bench.key(8)].metrics
        assert_told(bench, *steps)
    assert len(bench.notes.calls) == 8


def test_only_what_is_missing_is_trained_again(bench: Bench) -> None:
    bench.run(bench.stage(0, 8, report_steps=(2, 4)))
    assert_told(bench, 2, 4)
    assert bench.run(bench.stage(0, 8, report_steps=(2, 3, 4, 5))).executed_steps == 5
    assert_told(bench, 2, 3, 4, 5)
    assert bench.run(bench.stage(0, 8, report_steps=(2, 3, 4, 5))).executed_steps == 0
    assert_told(bench, 2, 3, 4, 5)
    bench.assert_stored(8)


def test_what_is_trained_again_lies_between_stored_states(bench: Bench) -> None:
    for start, stop in [(0, 3), (3, 6), (6, 8)]:
        bench.run(bench.stage(start, stop, report_steps=(4,) if start == 3 else ()))
    bench.reports.clear()
    # 3 is only evaluated, 4 is known, 5 costs two steps, 7 one.
    outcome = bench.run(bench.stage(0, 8, report_steps=(3, 4, 5, 7)), looks_inside=True)
    assert (outcome.reached, outcome.executed_steps) == (8, 3)
    assert_told(bench, 3, 4, 5, 7)
    assert [call.t for call in bench.notes.calls[8:]] == [3, 4, 6]
    evaluated = bench.store.record(bench.key(3))
    assert evaluated is not None
    assert evaluated.metrics == bench.states[bench.key(3)].metrics
    assert bench.run(bench.stage(0, 8, report_steps=(3, 4, 5, 7))).executed_steps == 0


def test_a_stage_that_is_stopped_keeps_what_it_has_reported(bench: Bench) -> None:
    bench.run(bench.stage(0, 8, report_steps=ALL), should_stop=lambda: len(bench.notes.calls) >= 4)
    assert_told(bench, 1, 2, 3, 4)
    outcome = bench.run(bench.stage(0, 8, report_steps=ALL), looks_inside=True)
    assert (outcome.reached, outcome.executed_steps) == (8, 4)
    assert_told(bench, *ALL)
    # As well where the state at which it was stopped has been dropped since.
    bench.store.drop(bench.key(4))
    assert bench.run(bench.stage(0, 8, report_steps=ALL)).executed_steps == 0
    assert not bench.notes.repeated


def test_a_stage_may_be_stopped_while_it_trains_again(bench: Bench) -> None:
    for start, stop in [(0, 5), (5, 8)]:
        bench.run(bench.stage(start, stop))
    stage = bench.stage(0, 8, report_steps=(2, 4, 6))
    stopped = bench.run(
        stage, looks_inside=True, should_stop=lambda: len(bench.notes.calls) >= 8 + 3
    )
    assert (stopped.reached, stopped.executed_steps) == (3, 3)
    assert_told(bench, 2)
    outcome = bench.run(stage, looks_inside=True)
    assert (outcome.reached, outcome.executed_steps) == (8, 2)
    assert_told(bench, 2, 4, 6)


def test_a_stage_that_is_stopped_at_once_tells_what_is_known_up_to_there(bench: Bench) -> None:
    bench.run(bench.stage(0, 5, report_steps=(1, 3), evaluates=True))
    bench.reports.clear()
    stage = bench.stage(0, 8, report_steps=(1, 3, 5, 7))
    stopped = bench.run(stage, looks_inside=True, should_stop=lambda: True)
    assert (stopped.reached, stopped.executed_steps, stopped.metrics) == (5, 0, None)
    assert_told(bench, 1, 3, 5)


def test_states_that_others_want_bring_what_was_reported_before(bench: Bench) -> None:
    bench.run(bench.stage(0, 8, report_steps=ALL), wanted={bench.key(4)})
    bench.reports.clear()
    outcome = bench.run(bench.stage(0, 4, report_steps=(1, 2, 3), evaluates=True))
    assert outcome.executed_steps == 0
    assert_told(bench, 1, 2, 3)


def test_metrics_that_are_no_finite_numbers_are_told_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    values = iter([float("nan"), float("inf"), -0.0, 1e-320, None, 0.1 + 0.2])
    monkeypatch.setattr(Walk, "evaluate", lambda _self: {"a": next(values)})
    told = []
    for _ in range(2):
        bench.run(bench.stage(0, 8, report_steps=(1, 2, 3, 4, 5, 6)))
        told.append(repr(bench.reports))
        bench.reports.clear()
    assert told[0] == told[1]
    assert "nan" in told[0]
    assert "-0.0" in told[0]


@pytest.mark.parametrize("looks_inside", [True, False])
def test_a_damaged_record_means_that_nothing_is_known(
    bench: Bench, looks_inside: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage = bench.stage(0, 8, report_steps=ALL)
    bench.run(stage)
    (path,) = Path(bench.store.url).glob("states/*.json")
    damaged = path.read_text().replace('"passed":{"1"', '"passed":{"2"', 1)
    assert damaged != path.read_text()
    path.write_text(damaged)
    bench.reports.clear()
    with caplog.at_level(logging.WARNING):
        assert bench.run(stage, looks_inside=looks_inside).executed_steps == 8
    assert "unreadable" in caplog.text
    assert_told(bench, *ALL)
    assert bench.run(stage).executed_steps == 0


def test_a_damaged_state_is_passed_over_and_what_was_reported_before_it_is_lost(
    bench: Bench,
) -> None:
    bench.run(bench.stage(0, 3, report_steps=(1, 2)))
    (path,) = Path(bench.store.url).glob("states/*.state")
    path.write_bytes(b"damaged")
    stage = bench.stage(0, 8, report_steps=ALL)
    first = bench.run(stage, looks_inside=True)
    assert (first.lost, first.reached, first.executed_steps) == (bench.key(3), 0, 0)
    bench.reports.clear()
    assert bench.run(stage, looks_inside=True).executed_steps == 8
    assert_told(bench, *ALL)


def test_a_state_that_is_lost_after_some_steps_is_told_with_them(bench: Bench) -> None:
    for start, stop in [(0, 4), (4, 8)]:
        bench.run(bench.stage(start, stop))
    for record in bench.store.records():
        if record.step == 4:
            name = f"states/{record.key}.{record.sha256}.state"
            (Path(bench.store.url) / name).write_bytes(b"damaged")
    stage = bench.stage(0, 8, report_steps=(2, 6))
    first = bench.run(stage, looks_inside=True)
    assert (first.lost, first.reached, first.executed_steps) == (bench.key(4), 0, 2)
    assert bench.run(stage, looks_inside=True).reached == 8
    assert_told(bench, 2, 6)


stages = st.tuples(
    st.integers(0, 7), st.integers(1, 8), st.sets(st.integers(1, 7)), st.booleans()
).filter(lambda drawn: drawn[0] < drawn[1])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(stages, st.none() | st.integers(0, 5)), min_size=2, max_size=7))
def test_whatever_was_run_before_only_what_no_record_knows_is_trained(
    asked: list[tuple[tuple[int, int, set[int], bool], int | None]],
) -> None:
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        stored = {0}
        for (start, stop, steps, evaluates), stop_after in asked:
            begin = max(at for at in stored if at <= start)
            reports = tuple(sorted(t for t in steps if begin < t < stop))
            stage = bench.stage(begin, stop, report_steps=reports, evaluates=evaluates)
            expected = steps_to_train(stage, bench.store)
            n_before, is_stopped = len(bench.notes.calls), False

            def should_stop(n: int = n_before, after: int | None = stop_after) -> bool:
                return after is not None and len(bench.notes.calls) - n >= after

            outcome = bench.run(stage, looks_inside=True, should_stop=should_stop)
            is_stopped = outcome.reached < stop
            assert outcome.error is None
            assert outcome.executed_steps == len(bench.notes.calls) - n_before
            if is_stopped:
                assert outcome.executed_steps == stop_after
                told = tuple(t for t in reports if t <= outcome.reached)
            else:
                assert outcome.executed_steps == expected
                told = reports
                assert (outcome.metrics is not None) == evaluates
            stored.add(outcome.reached)
            assert_told(bench, *told)
            again = bench.stage(begin, outcome.reached, report_steps=told) if told else None
            if again is not None and told[-1] < outcome.reached:
                assert bench.run(again, looks_inside=True).executed_steps == 0
                assert_told(bench, *told)
        for record in bench.store.records():
            made = bench.states[record.key]
            assert record.sha256 == made.sha256
            assert record.metrics in (None, made.metrics)
            for step, metrics in record.passed.items():
                assert step < record.step
                assert metrics == bench.states[bench.key(step)].metrics


# --- studies --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Made]:
    return truth(study_of(Walk(str(folder))))


@pytest.fixture
def notes(folder: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(folder)


def reports_of(result: Result) -> list[list[tuple[int, Mapping[str, float]]]]:
    return [[(report.step, report.metrics) for report in trial.reports] for trial in result.trials]


@contextmanager
def only_needed_steps() -> Iterator[None]:
    """Let each stage of the serial backend train what it must, and nothing else."""

    def watched(order: Order, workplace: Workplace, hooks: Hooks) -> Outcome:
        expected = steps_to_train(order.stage, workplace.store)
        outcome = run_stage(order, workplace, hooks)
        assert outcome.error is None
        is_stopped = outcome.reached < order.stage.stop
        assert outcome.executed_steps == expected or (
            is_stopped and outcome.executed_steps < expected
        )
        return outcome

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serial, "run_stage", watched)
        yield


@pytest.mark.parametrize(
    "tuner",
    [
        REPORTING,
        dt.FullTraining(8, report_every=3),
        dt.MedianStopping(8, report_every=1, min_trials=1),
    ],
    ids=repr,
)
def test_an_equal_study_under_another_name_trains_nothing_and_reports_the_same(
    notes: Notes,
    tmp_path: Path,
    states: dict[str, Made],
    tuner: Any,  # noqa: ANN401
) -> None:
    walk, store = Walk(str(notes.folder)), Store(tmp_path)
    first = run(study_of(walk, tuner=tuner, name="first"), store=store, workers=0)
    assert len(notes.calls) == first.steps_executed > 0
    second = run(study_of(walk, tuner=tuner, name="second"), store=store, workers=0)
    assert second.steps_executed == 0
    assert len(notes.calls) == first.steps_executed
    assert reports_of(second) == reports_of(first)
    assert [t.status for t in second.trials] == [t.status for t in first.trials]
    assert_exact(second, store, states, has_ends=False)


@pytest.mark.parametrize("report_every", [1, 3])
def test_an_extended_study_trains_as_if_nothing_had_been_reported_in_passing(
    notes: Notes, tmp_path: Path, states: dict[str, Made], report_every: int
) -> None:
    walk = Walk(str(notes.folder))
    n_new = []
    for every in (None, report_every):
        store = Store(tmp_path / f"every-{every}")
        given: dict[str, Any] = {"sampler": dt.Random(), "tuner": dt.FullTraining(8, every)}
        before = run(study_of(walk, n_trials=4, **given), store=store, workers=0)
        n_before = len(notes.calls)
        result = extend(study_of(walk, n_trials=7, **given), store=store, workers=0)
        n_new.append([call.what for call in notes.calls[n_before:]])
        assert reports_of(result)[:4] == reports_of(before)
        assert_exact(result, store, states)
    assert n_new[0]
    assert n_new[0] == n_new[1]


@pytest.mark.parametrize(("early", "late"), [(2, 1), (None, 1), (3, 2), (1, 3)])
def test_a_study_with_other_report_steps_trains_what_is_missing(
    notes: Notes, tmp_path: Path, states: dict[str, Made], early: int | None, late: int
) -> None:
    walk, store = Walk(str(notes.folder)), Store(tmp_path)
    run(study_of(walk, tuner=dt.FullTraining(8, early), name="early"), store=store, workers=0)
    with only_needed_steps():
        result = run(
            study_of(walk, tuner=dt.FullTraining(8, late), name="late"), store=store, workers=0
        )
        again = run(
            study_of(walk, tuner=dt.FullTraining(8, late), name="again"), store=store, workers=0
        )
    alone = Store(tmp_path / "alone")
    expected = run(study_of(walk, tuner=dt.FullTraining(8, late)), store=alone, workers=0)
    assert reports_of(result) == reports_of(again) == reports_of(expected)
    assert_exact(result, store, states)
    assert result.steps_executed < expected.steps_executed
    assert again.steps_executed == 0
    if early == 1:  # every report is known, and so is every state that was asked for
        assert result.steps_executed == 0


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_after_any_study_another_trains_only_what_no_record_knows(
    folder: Path, states: dict[str, Made], seed: int
) -> None:
    rng = Generator(seed)
    drawn = [(any_tuner(rng), rng.choice([dt.Grid(), dt.Random()])) for _ in range(2)]
    n_trials = [rng.choice([3, 6, 10]) for _ in range(2)]

    def ran(which: int, name: str, store: Store) -> Result:
        tuner, sampler = drawn[which]
        study = study_of(
            Walk(str(folder)), tuner=tuner, sampler=sampler, n_trials=n_trials[which], name=name
        )
        return run(study, store=store, workers=0)

    with TemporaryDirectory() as place, only_needed_steps():
        store, own = Store(place), Store(Path(place, "own"))
        first = ran(0, "first", store)
        second = ran(1, "second", store)
        alone = ran(1, "second", own)
        assert second.steps_executed <= alone.steps_executed
        assert reports_of(second) == reports_of(alone)
        for which, name, before in ((0, "third", first), (1, "fourth", second)):
            again = ran(which, name, store)
            assert again.steps_executed == 0
            assert reports_of(again) == reports_of(before)
            assert_exact(again, store, states, has_ends=False)


def killed_after(n_events: int, folder: str, store: str) -> None:
    """Run a study that reports at every step, in a process that ends in the middle of it."""
    seen: list[object] = []

    def look(entry: object) -> None:
        seen.append(entry)
        if len(seen) == n_events:
            os.kill(os.getpid(), signal.SIGKILL)

    run(study_of(Walk(folder), tuner=REPORTING), store=store, workers=0, on_event=look)


@pytest.mark.parametrize("n_events", [4, 12, 30])
def test_a_killed_driver_knows_again_what_was_reported(
    notes: Notes, tmp_path: Path, states: dict[str, Made], n_events: int
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dasktune.runner", "tests.runtime.trainables"])
    given = (n_events, str(notes.folder), str(tmp_path))
    process = context.Process(target=killed_after, args=given)
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == -signal.SIGKILL
    assert notes.calls
    result = run(study_of(Walk(str(notes.folder)), tuner=REPORTING), store=tmp_path, workers=0)
    assert result.status is StudyStatus.COMPLETED
    assert [len(trial.reports) for trial in result.trials] == [8] * 10
    assert_exact(result, Store(tmp_path), states)
    assert not notes.repeated


@pytest.mark.cluster
def test_workers_tell_what_is_known_and_train_nothing(
    notes: Notes, tmp_path: Path, states: dict[str, Made]
) -> None:
    walk, store = Walk(str(notes.folder)), Store(tmp_path)
    with cluster_of({}, {}) as cluster, Client(cluster) as client:
        first = run(study_of(walk, tuner=REPORTING, name="first"), store=store, client=client)
        assert not notes.repeated
        n_first = len(notes.calls)
        second = run(study_of(walk, tuner=REPORTING, name="second"), store=store, client=client)
    assert second.steps_executed == 0
    assert len(notes.calls) == n_first
    assert reports_of(second) == reports_of(first)
    assert_exact(second, store, states)


# --- what a driver tells of what another has trained ----------------------------------------------


@pytest.mark.parametrize(
    ("run_before", "told", "reached"),
    [
        (lambda bench: bench.run(bench.stage(0, 8, report_steps=ALL, evaluates=True)), ALL, 8),
        (lambda bench: bench.run(bench.stage(0, 8, report_steps=ALL)), ALL, 0),
        (lambda bench: bench.run(bench.stage(0, 5, report_steps=(1, 2, 3, 4))), (1, 2, 3, 4), 5),
        (lambda bench: bench.run(bench.stage(0, 8, evaluates=True)), (), 0),
        (lambda bench: [bench.run(bench.stage(0, 1)), bench.run(bench.stage(1, 8))], (), 1),
        (lambda _bench: None, (), 0),
    ],
)
def test_a_driver_tells_up_to_where_no_report_is_missing(
    bench: Bench, run_before: Callable[[Bench], object], told: tuple[int, ...], reached: int
) -> None:
    run_before(bench)
    stage = bench.stage(0, 8, report_steps=ALL, evaluates=True)
    *reports, finished = answer_from_store(3, stage, bench.store)
    metrics = {t: bench.states[bench.key(t)].metrics for t in (*ALL, 8)}
    assert reports == [
        MetricsReported(path=3, stage=stage.key, step=t, metrics=metrics[t]) for t in told
    ]
    assert finished == StageFinished(
        path=3,
        stage=stage.key,
        reached=reached,
        metrics=metrics[8] if reached == 8 else None,
        executed_steps=0,
    )
