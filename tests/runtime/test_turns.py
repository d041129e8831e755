"""Stages of one process in several threads: one at a time, and nothing is held for nobody."""

import asyncio
import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from dasktune.plan.history import key_of, tokens_at
from dasktune.plan.keys import first_link
from dasktune.plan.stage import Stage
from dasktune.runtime import task, turns
from dasktune.runtime.payload import by_value, pack
from dasktune.runtime.pulse import PULSES, Pulse, signs_of, stacks_of
from dasktune.runtime.stage import Outcome, Workplace
from dasktune.runtime.task import Task, outcome_from, run_task
from dasktune.runtime.turns import Turns
from dasktune.store.store import Store
from tests.runtime.trainables import Made, Notes, Walk, study_of, truth, wait_until

PACE_S = 0.005


class Worker:
    """As much of a Dask worker as the body of a task needs."""

    def __init__(self) -> None:
        self.status = SimpleNamespace(name="running")
        self.nanny = None
        self.cancelled: set[str] = set()
        self.state = SimpleNamespace(tasks=self)
        self._keys = threading.local()

    def get(self, key: str) -> object:
        return SimpleNamespace(state="cancelled" if key in self.cancelled else "executing")

    def get_current_task(self) -> str:
        return str(self._keys.now)

    def log_event(self, topic: str, message: object) -> None:
        """Nobody listens."""

    def run(self, key: str, stage: Stage, given: Task) -> Outcome:
        self._keys.now = key
        return outcome_from(run_task(by_value(stage), given, None))


class Shop:
    """A process with some threads, as a Dask worker has them; and what is to be trained there."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.worker = Worker()
        monkeypatch.setattr(task, "get_worker", lambda: self.worker)
        monkeypatch.setattr(task, "TURNS", Turns(task._opened, task.TOPICS))
        self.study = study_of(Walk(str(folder), PACE_S))
        self.payload = pack(self.study.trainable)  # type: ignore[arg-type]
        self.states: dict[str, Made] = truth(self.study)
        self.notes = Notes(folder)
        space = self.study.space
        self.configurations = [space.configuration(point) for point in space.points()]

    def store(self, name: str = "store") -> Store:
        return Store(self.folder / name)

    def stage(self, i: int, stop: int = 8) -> Stage:
        family, configuration = self.study.family, self.configurations[i]
        return Stage(
            key=key_of(family, configuration, stop),
            start_key=None,
            start_link=first_link(family, tokens_at(configuration, 0)),
            start=0,
            stop=stop,
            family=family,
            configuration=configuration,
            report_steps=(),
            evaluates=True,
        )

    def run(self, i: int, topic: str = "mine", store: str = "store") -> Outcome:
        given = Task(
            topic=topic,
            path=i,
            store=pickle.dumps(self.store(store)),
            payload=self.payload.digest,
            code=self.payload,
            looks_inside=False,
        )
        return self.worker.run(f"{topic}-{i}", self.stage(i), given)

    def assert_exact(self, store: Store) -> None:
        for record in store.records():
            made = self.states[record.key]
            assert (record.step, record.sha256) == (made.step, made.sha256)
            assert record.metrics in (None, made.metrics)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    yield Shop(tmp_path, monkeypatch)
    task.TOPICS.clear()


# --- what is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize("stores", [("store",), ("one", "two")], ids=["one store", "two stores"])
def test_stages_in_several_threads_are_as_exact_as_one_after_the_other(
    shop: Shop, stores: tuple[str, ...]
) -> None:
    with ThreadPoolExecutor(3) as threads:
        runs = [
            threads.submit(shop.run, i, f"driver {i % 2}", stores[i % len(stores)])
            for i in range(6)
        ]
        outcomes = [run.result() for run in runs]
    assert [outcome.reached for outcome in outcomes] == [8] * 6
    assert len({call.pid for call in shop.notes.calls}) == 1
    for name in stores:
        assert len(list(shop.store(name).records())) == 6 // len(stores)
        shop.assert_exact(shop.store(name))


def test_a_stage_whose_driver_is_gone_and_the_next_one_do_not_meet(shop: Shop) -> None:
    with ThreadPoolExecutor(2) as threads:
        with shop.notes.held(4):
            old = threads.submit(shop.run, 0, "old")
            shop.notes.wait_for(1, 4)
            new = threads.submit(shop.run, 1, "new")
            wait_until(lambda: ("new", 1) in PULSES and PULSES["new", 1].behind is not None)
            shop.worker.cancelled.add("old-0")
            n_before = len(shop.notes.calls)
            time.sleep(0.1)  # the second has the time to begin too early
            assert len(shop.notes.calls) == n_before
        assert (old.result().reached, new.result().reached) == (5, 8)
    shop.assert_exact(shop.store())


def test_a_stage_that_is_given_up_while_it_waits_trains_nothing(shop: Shop) -> None:
    with ThreadPoolExecutor(2) as threads:
        with shop.notes.held(4):
            first = threads.submit(shop.run, 0)
            shop.notes.wait_for(1, 4)
            second = threads.submit(shop.run, 1)
            wait_until(lambda: ("mine", 1) in PULSES)
            shop.worker.cancelled.add("mine-1")
            assert second.result(10) == Outcome(key=shop.stage(1).key, reached=0)
            assert not first.done()
        assert first.result().reached == 8
    assert len(shop.notes.calls) == 8


def test_a_stage_that_was_given_up_when_its_turn_comes_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_LOOK_EVERY_S", 30.0)  # it looks when its turn comes, not before
    room = Turns(lambda _: Workplace(store=None), {"run"})  # type: ignore[arg-type]
    is_given_up = threading.Event()
    got: list[Workplace | None] = []

    def wait() -> None:
        with room.taken("run", b"", pulse, is_given_up.is_set) as workplace:
            got.append(workplace)

    with room.taken("run", b"", Pulse(), lambda: True) as workplace:
        assert workplace is not None, "who need not wait is asked at its first step"
        pulse = Pulse()
        waits = threading.Thread(target=wait)
        waits.start()
        wait_until(lambda: pulse.behind is not None)
        is_given_up.set()
    waits.join(10)
    assert got == [None]


def test_no_stage_begins_in_a_process_that_ends(shop: Shop) -> None:
    with ThreadPoolExecutor(2) as threads, shop.notes.held(4):
        first = threads.submit(shop.run, 0)
        shop.notes.wait_for(1, 4)
        second = threads.submit(shop.run, 1)
        wait_until(lambda: ("mine", 1) in PULSES)
        task.TURNS.are_over = True
        assert second.result(10).reached == 0
        assert shop.run(2).reached == 0
        assert not first.done()


# --- what others see ------------------------------------------------------------------------------


def test_who_waits_shows_the_signs_of_the_stage_before_it(shop: Shop) -> None:
    with ThreadPoolExecutor(2) as threads:
        with shop.notes.held(4):
            first = threads.submit(shop.run, 0, "old")
            shop.notes.wait_for(1, 4)
            second = threads.submit(shop.run, 1, "new")
            wait_until(lambda: signs_of("new").get(1, (None, None))[0] is not None)
            time.sleep(0.2)
            in_step_s, longest_s = signs_of("new")[1]
            assert in_step_s is not None
            assert longest_s is not None
            assert in_step_s >= 0.2, "a step that hangs is not seen from behind it"
            assert longest_s >= PACE_S
            assert "happen" in stacks_of("new") or "in step" in stacks_of("new")
        first.result()
        second.result()
    assert not signs_of("old")
    assert not signs_of("new")


def test_a_stage_that_has_its_turn_shows_its_own_signs(shop: Shop) -> None:
    with ThreadPoolExecutor(2) as threads:
        with ExitStack() as later:
            with shop.notes.held(7):
                first = threads.submit(shop.run, 0, "old")
                shop.notes.wait_for(1, 7)
                second = threads.submit(shop.run, 1, "new")
                wait_until(lambda: signs_of("new").get(1, (None, None))[0] is not None)
                later.enter_context(shop.notes.held(6))
                PULSES["old", 0]._longest_s = 1e6
            first.result()
            shop.notes.wait_for(2, 6)
            in_step_s, longest_s = signs_of("new")[1]
            assert in_step_s is not None
            assert longest_s is not None
            assert longest_s < 1e6, "the step before it counts as its own"
        second.result()


# --- what is held ---------------------------------------------------------------------------------


class Model:
    """A trainable that only notes when it is closed."""

    def __init__(self, closed: list[str], name: str, *, fails: bool = False) -> None:
        self._closed = closed
        self._name = name
        self._fails = fails

    def close(self) -> None:
        self._closed.append(self._name)
        if self._fails:
            raise OSError("it does not close")


class Process:
    """A process that holds models."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.closed: list[str] = []
        self.turns = Turns(lambda _: Workplace(store=None), self.topics)  # type: ignore[arg-type]

    def train(self, topic: str, store: str, *, fails: bool = False) -> None:
        with self.turns.taken(topic, store.encode(), Pulse(), lambda: False) as workplace:
            assert workplace is not None
            if workplace.trainable is None:
                model = Model(self.closed, store, fails=fails)
                workplace.trainable = model  # type: ignore[assignment]

    def wait(self, topic: str, pulse: Pulse, store: str = "a") -> bool:
        """Take the turn when it comes; return whether it has."""
        self.topics.add(topic)
        with self.turns.taken(topic, store.encode(), pulse, lambda: False) as workplace:
            return workplace is not None

    def leave(self, topic: str) -> None:
        self.topics.discard(topic)
        self.turns.let_go()


def test_a_model_is_held_until_the_last_run_that_used_it_has_left() -> None:
    process = Process()
    process.topics.update(["one", "two", "idle"])
    process.train("one", "store")
    process.train("two", "store")
    process.leave("one")
    assert not process.closed
    process.leave("two")
    assert process.closed == ["store"]
    process.leave("idle")
    assert process.closed == ["store"]


def test_one_model_is_held_at_a_time() -> None:
    process = Process()
    process.topics.update(["one", "two"])
    process.train("one", "a")
    process.train("two", "b")
    assert process.closed == ["a"]
    process.train("one", "a")
    assert process.closed == ["a", "b"]


def test_a_run_that_leaves_while_its_last_stage_trains_leaves_nothing() -> None:
    process = Process()
    process.topics.add("one")
    with process.turns.taken("one", b"a", Pulse(), lambda: False) as workplace:
        assert workplace is not None
        workplace.trainable = Model(process.closed, "a")  # type: ignore[assignment]
        process.leave("one")
        assert not process.closed, "it is in use"
    assert process.closed == ["a"]
    assert not process.turns.holds_for_nobody()


def test_a_model_that_cannot_be_closed_harms_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process()
    process.topics.update(["one", "two"])
    process.train("one", "a", fails=True)
    process.train("two", "b", fails=True)
    process.leave("two")
    assert process.closed == ["a", "b"]
    assert [record.getMessage() for record in caplog.records] == [
        "a trainable that is not needed any more could not be closed"
    ] * 2
    assert "it does not close" in caplog.text


# --- what does not close --------------------------------------------------------------------------


class Stuck:
    """A trainable whose `close()` ends when it is let."""

    def __init__(self) -> None:
        self.is_closing, self.may_end = threading.Event(), threading.Event()

    def close(self) -> None:
        self.is_closing.set()
        assert self.may_end.wait(30)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    monkeypatch.setattr(turns, "_CLOSE_WITHIN_S", 0.05)
    one = Stuck()
    yield one
    one.may_end.set()


def holding(process: Process, topic: str, model: Stuck) -> None:
    process.topics.add(topic)
    with process.turns.taken(topic, b"a", Pulse(), lambda: False) as workplace:
        assert workplace is not None
        workplace.trainable = model  # type: ignore[assignment]


def shows_a_close(pulse: Pulse) -> bool:
    closing_s, longest_s = pulse.signs()
    return closing_s is not None and longest_s == 0.0 and "in close" in pulse.stack()


def test_a_run_that_waits_for_a_close_that_hangs_shows_it_and_goes_on_after_it(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    process, pulse = Process(), Pulse()
    holding(process, "old", stuck)
    process.leave("old")  # comes back though it hangs
    assert "stages that come to this process wait for it" in caplog.text
    assert process.turns.holds_for_nobody()
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(process.wait, "new", pulse)
        wait_until(lambda: shows_a_close(pulse))
        before_s = pulse.signs()[0]
        wait_until(lambda: (pulse.signs()[0] or 0.0) > (before_s or 0.0))
        assert not later.done(), "a close runs beside a stage"
        stuck.may_end.set()
        assert later.result(10)
    assert pulse.signs() == (None, None)


def test_a_stage_that_needs_the_place_of_a_model_that_does_not_close_shows_it(
    stuck: Stuck,
) -> None:
    process, pulse = Process(), Pulse()
    holding(process, "old", stuck)
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(process.wait, "new", pulse, "another store")
        wait_until(lambda: shows_a_close(pulse))
        behind = Pulse()
        third = threads.submit(process.wait, "third", behind)
        wait_until(lambda: shows_a_close(behind))
        stuck.may_end.set()
        assert other.result(10)
        assert third.result(10)
    assert pulse.signs() == behind.signs() == (None, None)


def test_a_stage_of_a_run_that_has_left_answers_though_its_model_does_not_close(
    stuck: Stuck,
) -> None:
    process = Process()
    process.topics.add("old")
    with process.turns.taken("old", b"a", Pulse(), lambda: False) as workplace:
        assert workplace is not None
        workplace.trainable = stuck  # type: ignore[assignment]
        process.leave("old")
    assert stuck.is_closing.wait(10)
    assert not stuck.may_end.is_set()


def test_who_leaves_does_not_wait_for_a_close_for_ever(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process()
    holding(process, "old", stuck)
    process.topics.discard("old")
    asyncio.run(process.turns.left())
    assert "stages that come to this process wait for it" in caplog.text
    stuck.may_end.set()
    wait_until(lambda: not process.turns.holds_for_nobody())
