"""Drivers of a scheduler that may lose and regain their lines to it, without Dask and its delays.

The scheduler plugin, the backend and the core are the real ones. Workers train nothing by
themselves: a test says when a task has answered.
"""

import pickle
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future as Asked
from pathlib import Path
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

import dasktune as dt
from dasktune.plan.stage import Stage
from dasktune.runtime import dask
from dasktune.runtime.dask import DaskBackend
from dasktune.runtime.link import Link
from dasktune.runtime.payload import Payload
from dasktune.runtime.plugins import Sharing
from dasktune.store.store import Store
from dasktune.study.commands import Command, RunPath
from dasktune.study.core import StudyCore
from dasktune.study.events import Event, PathHeld, StageFinished, StudyStarted, WorkerLeft
from dasktune.trial import TrialStatus
from dasktune.units import WorkerId
from tests.runtime.trainables import Walk, study_of


class Line:
    """Stands for a `Link` to the scheduler of a test."""

    def __init__(self, world: "World", topic: str) -> None:
        self.world = world
        self.topic = topic
        self.news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.client = SimpleNamespace(
            status="running",
            submit=self._submit,
            scheduler=SimpleNamespace(identity=self._nothing),
            _run=self._nothing,
        )
        self.has_leases = self.has_code = True
        self.is_cut_off = False
        self.changes: deque[bool] = deque()
        self.futures: dict[str, SimpleNamespace] = {}
        self._outbox: list[tuple[str, dict[str, Any]]] = []
        self._hear: Callable[[Mapping[str, Any]], None] | None = None

    async def _nothing(self, *_: object, **__: object) -> None:
        pass

    def join(self, _code: object, hear: Callable[[Mapping[str, Any]], None]) -> None:
        self._hear = hear
        self.world.lines[self.topic] = self

    def leave(self) -> None:
        self.world.lines.pop(self.topic, None)

    def is_alone(self) -> bool:
        return False

    def has_changed(self) -> bool | None:
        if not self.changes:
            return None
        is_there = self.changes.popleft()
        self.is_cut_off = not is_there
        return is_there

    def publish(self, message: Mapping[str, Any]) -> None:
        hear = self._hear
        assert hear is not None
        self.news.put(lambda: hear(message))

    def send(self, verb: str, **facts: object) -> None:
        self._outbox.append((verb, facts))

    def flush(self) -> None:
        messages, self._outbox = self._outbox, []
        for verb, facts in messages:
            if self.topic in self.world.lines and not self.is_cut_off:
                self.world.sharing._hear(self.topic, verb, self.topic, **facts)

    async def last_words(self, _worker: str) -> None:
        pass

    def signal(self, *_: object) -> None:
        pass

    def let(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        coroutine.close()

    def ask(self, question: Coroutine[Any, Any, Any], hear: Callable[[Asked[Any]], None]) -> None:
        answer: Asked[Any] = Asked()
        if "last_words" in repr(question):
            answer.set_exception(OSError("nobody is there"))
        else:
            answer.set_result({} if "_prove" in repr(question) else {"workers": {}})
        question.close()
        self.news.put(lambda: hear(answer))

    def _submit(self, *_: object, key: str, **__: object) -> SimpleNamespace:
        future = SimpleNamespace(done=lambda: False, release=lambda: None, status="pending")
        self.futures[key] = future
        return future


class World:
    """A scheduler, its workers, and the lines of the drivers that it hears."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.drivers: list[Driver] = []
        self.held_back: list[tuple[str, Mapping[str, Any]]] | None = None
        """Answers to announcements that are on their way, if they are held back."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Let the scheduler be another process."""
        self.lines.clear()
        self.scheduler = SimpleNamespace(
            workers={}, stream_handlers={}, worker_plugins={}, log_event=self._publish
        )
        self.sharing = Sharing()
        self.sharing.start(cast("Any", self.scheduler))

    def add_worker(self, name: str) -> None:
        self.scheduler.workers[name] = SimpleNamespace(resources={})
        self.sharing.add_worker(cast("Any", self.scheduler), name)

    def forget(self, topic: str) -> None:
        """Let the scheduler notice that it has lost a driver."""
        self.lines.pop(topic, None)
        self.sharing.remove_client(cast("Any", self.scheduler), topic)

    def _publish(self, topic: str, message: Mapping[str, Any]) -> None:
        if message["kind"] == "announced" and self.held_back is not None:
            self.held_back.append((topic, message))
        elif topic in self.lines:
            self.lines[topic].publish(message)


class Driver:
    """A driver with its core."""

    def __init__(self, world: World, topic: str, folder: Path, **changes: Any) -> None:  # noqa: ANN401
        study = study_of(Walk(str(folder)), tuner=dt.FullTraining(8), name=topic, **changes)
        self.topic = topic
        self.core = StudyCore([study])
        self.store = Store(folder / "store")
        self.paths: dict[int, RunPath] = {}
        self.events: list[Event] = []
        digest = study.fingerprint.digest
        self.backend = DaskBackend(
            cast("Any", SimpleNamespace(topic=topic)),
            topic=topic,
            store=self.store,
            payloads={digest: Payload(b"", digest)},
            mends_allocator=False,
        )
        world.drivers.append(self)
        self.line = world.lines[topic]
        self.backend._client = cast("Any", self.line.client)
        self.take(StudyStarted(study=0), 0.0)

    def take(self, event: Event, now: float) -> None:
        self.events.append(event)
        for command in self.core.handle(event, now):
            self.perform(command)

    def perform(self, command: Command) -> None:
        if isinstance(command, RunPath):
            self.paths[command.path] = command
        self.backend.perform(command)

    def look(self) -> None:
        """Let a second pass."""
        self.backend._look()
        self.hear()

    def hear(self) -> None:
        """Take in all that there is, and do not wait for more."""
        while True:
            self.line.flush()
            if self.backend._unheard:
                self.take(*self.backend._unheard.next())
                continue
            try:
                self.line.news.get_nowait()()
            except Empty:
                return

    def finish(self, stage: Stage, number: int) -> None:
        """Let a worker commit a stage, and say so."""
        commit(self.store, stage)
        outcome = {
            "key": stage.key,
            "reached": stage.stop,
            "metrics": {"accuracy": 0.5} if stage.evaluates else None,
            "executed_steps": stage.n_steps,
        }
        news = {"kind": "outcome", "path": number, "answer": pickle.dumps(outcome)}
        self.line.publish(news)

    @property
    def waiting(self) -> list[int]:
        return [n for n, path in self.backend._paths.items() if path.waits_for is not None]

    @property
    def training(self) -> list[int]:
        return [n for n, path in self.backend._paths.items() if path.pending]


def commit(store: Store, stage: Stage) -> None:
    metrics = {"accuracy": 0.5} if stage.evaluates else None
    store.commit(stage.key, stage.stop, {"x": stage.stop}, metrics=metrics)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(dask, "Link", lambda _client, topic: Line(world, topic))
    yield world
    for driver in world.drivers:
        driver.backend.close()


def test_nothing_goes_to_a_scheduler_that_was_not_joined() -> None:
    sent: list[str] = []
    client = SimpleNamespace(
        scheduler_comm=object(),
        loop=SimpleNamespace(add_callback=lambda call, *facts: call(*facts)),
        _send_to_scheduler_safe=lambda message: sent.append(message["verb"]),
    )
    link = Link(cast("Any", client), "topic")
    link.has_leases, link._line = True, client.scheduler_comm
    link.send("one")
    link.flush()
    for other in (object(), None):  # it is back already, or still away; nobody has looked yet
        client.scheduler_comm = other
        link.send("two")
        link.flush()
    link._line = None
    link.send("three")
    link.flush()
    assert sent == ["one"]


def settle(*drivers: Driver) -> None:
    for _ in range(5):
        for driver in drivers:
            driver.hear()


def two_that_want_the_same(world: World, folder: Path) -> tuple[Driver, Driver]:
    """One trains, the other waits for it."""
    one = Driver(world, "one", folder)
    world.add_worker("a")
    settle(one)
    two = Driver(world, "two", folder)
    settle(two)
    world.add_worker("b")
    settle(one, two)
    assert one.training
    assert two.waiting
    return one, two


def test_who_waits_goes_on_when_the_scheduler_has_been_replaced(
    world: World, tmp_path: Path
) -> None:
    one, two = two_that_want_the_same(world, tmp_path)
    waited = two.waiting
    world.begin_anew()
    for driver in (one, two):
        driver.line.changes.extend([False, True])
        driver.line.client.status = "connecting"
        driver.look()  # it is away
        driver.line.client.status = "running"
    two.look()
    two.look()
    world.add_worker("c")
    settle(two)
    assert not set(waited) & set(two.waiting)
    assert two.training, "nobody trains it now, and it waits"
    # What the other trains from now on is known as ever.
    one.look()
    world.add_worker("d")
    settle(one, two)
    assert one.waiting


def test_who_waits_hears_of_an_end_that_it_missed_while_it_had_no_line(
    world: World, tmp_path: Path
) -> None:
    _, two = two_that_want_the_same(world, tmp_path)
    waited = two.waiting
    world.forget("two")
    two.line.changes.extend([False, True])
    two.look()
    world.forget("one")  # its paths have ended, and it does not come back
    two.look()
    settle(two)
    assert not set(waited) & set(two.waiting)
    assert two.training


def test_who_waits_for_one_that_still_trains_waits_again_when_its_line_is_back(
    world: World, tmp_path: Path
) -> None:
    one, two = two_that_want_the_same(world, tmp_path)
    before = set(one.training)
    world.forget("two")
    two.line.changes.extend([False, True])
    two.look()
    two.look()
    world.add_worker("c")
    settle(one, two)
    assert before <= set(one.training)
    assert two.waiting
    assert not two.training
    assert "another driver is training" in str(two.backend.why_waiting())


def test_news_of_a_line_that_is_lost_are_not_believed_later(world: World, tmp_path: Path) -> None:
    _, two = two_that_want_the_same(world, tmp_path)
    (path,) = two.waiting
    stages = [pickle.dumps(stage) for stage in two.paths[path].stages]
    # It was on its way when the line was lost; what ended it was never heard.
    two.line.publish({"kind": "running", "of": "gone", "path": 1, "worker": "x", "stages": stages})
    world.forget("two")
    world.forget("one")
    two.line.changes.extend([False, True])
    two.look()
    two.backend._look()
    settle(two)
    assert two.training
    assert not two.waiting


def test_a_line_that_only_the_driver_has_lost_leaves_no_ghost_of_its_own_paths(
    world: World, tmp_path: Path
) -> None:
    one = Driver(world, "one", tmp_path)
    world.add_worker("a")
    settle(one)
    assert one.training
    one.line.changes.extend([False, True])
    one.look()
    one.look()
    settle(one)
    assert one.training, "it waits for itself"
    assert not one.waiting
    assert {of: set(d.workers) for of, d in world.sharing._leases._drivers.items()} == {
        "one": {"a"}
    }


def test_a_line_that_is_lost_again_and_again_is_nobodys_death(world: World, tmp_path: Path) -> None:
    one = Driver(world, "one", tmp_path)
    world.add_worker("a")
    settle(one)
    for _ in range(5):
        assert one.training
        one.line.changes.extend([False, True])
        world.forget("one")
        one.look()
        one.look()
        settle(one)
    left = [event for event in one.events if isinstance(event, WorkerLeft)]
    assert len(left) == 5
    assert not any(event.died for event in left)
    assert {event.reason for event in left} == {"the Dask scheduler did not answer"}
    assert not any(run.status is TrialStatus.FAILED for run in one.core.runs[0].trials)


def one_busy_and_one_idle(world: World, folder: Path) -> tuple[Driver, RunPath]:
    """Two trials with nothing in common, one of them through."""
    one = Driver(world, "one", folder, space={"lr": 0.1, "width": dt.choice([4, 8]), "batch": 8})
    world.add_worker("a")
    world.add_worker("b")
    settle(one)
    first, second = (one.paths[number] for number in one.training)
    for stage in second.stages:
        one.finish(stage, second.path)
    settle(one)
    assert one.training == [first.path]
    return one, first


@pytest.mark.parametrize("comes_back", [True, False])
def test_no_path_goes_to_a_worker_whose_loss_the_core_is_still_to_hear_of(
    world: World, tmp_path: Path, comes_back: bool
) -> None:
    one, path = one_busy_and_one_idle(world, tmp_path)
    one.line.changes.extend([False, True] if comes_back else [False])
    one.look()
    sent_to = [each.worker for each in one.paths.values()]
    assert len(sent_to) == 3, "the core did not try the idle worker"
    assert not one.backend._paths, "nobody will answer it"
    assert not any(event.died for event in one.events if isinstance(event, WorkerLeft))
    if comes_back:
        one.look()
        settle(one)
        (again,) = one.training
        assert one.paths[again].stages == path.stages
        assert len(one.backend._paths) == 1


def test_a_worker_that_dies_before_a_path_was_sent_to_it_has_broken_nothing_off(
    world: World, tmp_path: Path
) -> None:
    one, path = one_busy_and_one_idle(world, tmp_path)
    (idle,) = {"a", "b"} - {path.worker}
    one.backend._worker_left(path.worker)
    one.backend._worker_left(WorkerId(idle))
    settle(one)
    assert len(one.paths) == 3, "the core did not try the idle worker"
    assert not one.backend._paths
    left = [event for event in one.events if isinstance(event, WorkerLeft)]
    assert [event.died for event in left] == [True, False]


@pytest.mark.parametrize("ends_in_order", [True, False])
def test_a_scheduler_that_ends_in_order_is_no_death_of_its_workers_and_a_lost_worker_is(
    world: World, tmp_path: Path, ends_in_order: bool
) -> None:
    one = Driver(world, "one", tmp_path)
    world.add_worker("a")
    settle(one)
    assert one.training
    if ends_in_order:
        one.line.changes.append(False)
    one.line.publish({"kind": "gone", "worker": "a"})
    settle(one)
    (left,) = [event for event in one.events if isinstance(event, WorkerLeft)]
    assert left.died is not ends_in_order


@pytest.mark.parametrize("n_stored", [0, 1, 2])
def test_a_path_that_is_stopped_while_it_is_announced_is_answered(
    world: World, tmp_path: Path, n_stored: int
) -> None:
    world.sharing._hear("rival", "join", "rival", resources=None)  # somebody else is there
    world.sharing._hear("rival", "demand", "rival", wants=False, has_idle=False)
    world.held_back = []
    one = Driver(world, "one", tmp_path)
    settle(one)
    world.add_worker("a")
    world.add_worker("b")
    settle(one)
    assert world.held_back
    assert one.core.n_running
    path = max(one.paths.values(), key=lambda path: len(path.stages))
    assert len(path.stages) >= 2
    for stage in path.stages[:n_stored]:
        commit(one.store, stage)
    one.backend.interrupt()
    settle(one)
    assert one.core.is_over, "it waits for an answer that nobody owes"
    answered = [each for each in one.events if isinstance(each, StageFinished)]
    assert max(each.reached for each in answered) == (path.stages[0].stop if n_stored else 0)
    held = [each.path for each in one.events if isinstance(each, PathHeld)]
    assert path.path in held


def test_a_path_that_is_stopped_between_two_stages_does_not_wait_for_another_driver(
    world: World, tmp_path: Path
) -> None:
    one = Driver(world, "one", tmp_path)
    world.add_worker("a")
    settle(one)
    (number,) = one.training
    first, second = one.paths[number].stages[:2]
    path = one.backend._paths[number]
    # As where another driver covered the second stage when the path was sent.
    while len(path.pending) > 1:
        stage, _ = path.pending.pop()
        path.unsent.appendleft(stage)
    assert path.unsent[0] == second
    world.sharing._hear("rival", "join", "rival", resources=None)
    world.sharing._hear(
        "rival",
        "running",
        "rival",
        path=1,
        running={"worker": "x", "stages": [pickle.dumps(second)]},
        asks=False,
    )
    settle(one)
    one.backend.interrupt()
    settle(one)
    assert one.core.n_running  # the first stage is at its step
    one.finish(first, number)
    settle(one)
    assert one.core.is_over
