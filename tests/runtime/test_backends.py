"""Serial, simulated and Dask backends are indistinguishable to the core: one contract for all."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from distributed import Client

import dasktune as dt
from dasktune.plan.history import key_of
from dasktune.runtime.dask import DaskBackend
from dasktune.runtime.payload import pack
from dasktune.runtime.serial import SerialBackend
from dasktune.runtime.stage import Workplace
from dasktune.simulator.backend import SimulatedBackend
from dasktune.simulator.world import World
from dasktune.store.store import Store
from dasktune.study.commands import Command, EndTrial, RunPath, StopPath
from dasktune.study.core import StudyCore
from dasktune.study.drive import drive
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    StageFailed,
    StageFinished,
    WorkerJoined,
)
from dasktune.study.ports import Backend
from dasktune.study.study import Study
from tests.runtime.trainables import LIMIT_S, TUNERS, Made, Walk, cluster_of, study_of, truth

TUNERS_AND_REPORTS = [
    TUNERS["full"],
    dt.FullTraining(8, report_every=3),
    TUNERS["halving"],
    dt.Hyperband(min_steps=2, max_steps=8, reduction_factor=2),
]
UNTIMELY = [
    TUNERS["asha"],
    dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2, variant="stopping"),
    dt.AsyncHyperband(min_steps=2, max_steps=8, reduction_factor=2),
    dt.MedianStopping(8, report_every=2, min_trials=2),
]
"""Tuners whose decisions depend on who is first."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Made]:
    return truth(study_of(Walk(str(folder))))


class Watched:
    """A backend between core and machines that must keep to the protocol, or the test fails."""

    def __init__(self, backend: Backend, interrupt_after: int | None = None) -> None:
        self._backend = backend
        self._interrupt_after = interrupt_after
        self._last_s = 0.0
        self._paths: dict[int, list[Any]] = {}
        self._stopped: set[int] = set()
        self._workers: set[str] = set()
        self._reported: dict[int, int] = {}
        self.finished: set[str] = set()
        self.n_steps = 0
        self.n_events = 0

    def perform(self, command: Command) -> None:
        match command:
            case RunPath():
                assert command.worker in self._workers
                assert command.path not in self._paths
                self._paths[command.path] = list(command.stages)
            case StopPath():
                self._stopped.add(command.path)
        self._backend.perform(command)

    def next_event(self) -> tuple[Event, float]:
        self.n_events += 1
        if self.n_events == self._interrupt_after:
            return Interrupted(), self._last_s
        event, at_s = self._backend.next_event()
        assert at_s >= self._last_s, "time runs backwards"
        self._last_s = at_s
        match event:
            case WorkerJoined():
                assert event.n_slots == 1
                self._workers.add(event.worker)
            case MetricsReported():
                stage = self._paths[event.path][0]
                assert event.stage == stage.key
                assert event.step in stage.report_steps
                assert event.step > self._reported.get(event.path, stage.start)
                self._reported[event.path] = event.step
            case StageFinished():
                self._finished(event)
            case StageFailed():
                raise AssertionError(event)
        return event, at_s

    def _finished(self, event: StageFinished) -> None:
        stage = self._paths[event.path].pop(0)
        assert event.stage == stage.key, "stages of a path are answered in their order"
        assert stage.start <= event.reached <= stage.stop
        assert event.executed_steps == event.reached - stage.start
        assert event.seconds >= 0
        is_through = event.reached == stage.stop
        assert (event.metrics is not None) == (is_through and stage.evaluates)
        self.n_steps += event.executed_steps
        if is_through:
            self.finished.add(stage.key)
            reported = self._reported.pop(event.path, None)
            assert reported == (stage.report_steps[-1] if stage.report_steps else None)
        else:
            assert event.path in self._stopped, "only a path that was told to stop does"
            self._paths[event.path] = []
        if not self._paths[event.path]:
            del self._paths[event.path]  # nothing more may be heard of it

    def assert_idle(self) -> None:
        assert not self._paths, "paths are not answered"


class BackendContract(ABC):
    """What every backend owes to the core."""

    @abstractmethod
    def backend(
        self, study: Study, states: dict[str, Made], store: Store
    ) -> AbstractContextManager[Backend]:
        """Open a backend for a study."""

    @pytest.mark.parametrize("tuner", TUNERS_AND_REPORTS + UNTIMELY, ids=repr)
    def test_a_study_runs_to_its_end_by_the_protocol(
        self,
        folder: Path,
        states: dict[str, Made],
        tmp_path: Path,
        tuner: Any,  # noqa: ANN401
    ) -> None:
        study = study_of(Walk(str(folder)), tuner=tuner)
        core = StudyCore([study])
        ends: list[EndTrial] = []

        def record(_at: float, _event: Event, commands: tuple[Command, ...]) -> None:
            ends.extend(command for command in commands if isinstance(command, EndTrial))

        with self.backend(study, states, Store(tmp_path)) as backend:
            watched = Watched(backend)
            drive(core, watched, record)
        watched.assert_idle()
        assert watched.n_steps == core.plan.steps_executed
        assert core.plan.steps_recomputed == 0
        assert len(ends) == 10
        for run in core.runs[0].trials:
            for report in run.reports:
                key = key_of(study.family, run.configuration, report.step)
                assert report.metrics == states[key].metrics
        if tuner not in UNTIMELY:
            assert watched.finished == stages_of(study, states)

    @pytest.mark.parametrize("n_events", [1, 2, 3, 5, 9])
    def test_an_interrupted_run_ends_at_step_boundaries_and_can_be_resumed(
        self, folder: Path, states: dict[str, Made], tmp_path: Path, n_events: int
    ) -> None:
        study = study_of(Walk(str(folder)), tuner=TUNERS["halving"])
        core = StudyCore([study])
        n_steps = 0
        for interrupt_after in (n_events, None):
            with self.backend(study, states, Store(tmp_path)) as backend:
                watched = Watched(_Later(backend, core.now), interrupt_after)
                drive(core, watched, lambda *_: None, resumes=interrupt_after is None)
            watched.assert_idle()
            n_steps += watched.n_steps
        assert core.runs[0].has_ended
        assert n_steps == core.plan.steps_executed
        assert core.plan.steps_recomputed == 0

    def test_a_timeout_stops_stages_at_their_step_boundaries(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        study = study_of(
            Walk(str(folder), pace_s=0.05), tuner=TUNERS["full"], timeout=self.timeout_s
        )
        core = StudyCore([study])
        with self.backend(study, states, Store(tmp_path)) as backend:
            watched = Watched(backend)
            drive(core, watched, lambda *_: None)
        watched.assert_idle()
        assert core.runs[0].reason == f"the timeout of {self.timeout_s:g} s is over"
        assert watched.n_steps == core.plan.steps_executed < core.plan.steps_unique
        assert core.plan.steps_recomputed == 0

    timeout_s = 0.3
    """Less than the 38 steps of the study take."""


class _Later:
    """A backend whose clock goes on from a time."""

    def __init__(self, backend: Backend, since_s: float) -> None:
        self._backend = backend
        self._since_s = since_s

    def perform(self, command: Command) -> None:
        self._backend.perform(command)

    def next_event(self) -> tuple[Event, float]:
        event, at_s = self._backend.next_event()
        return event, at_s + self._since_s


def simulated(study: Study, states: dict[str, Made], n_workers: int) -> SimulatedBackend:
    def metrics(key: str) -> Mapping[str, float]:
        return states[key].metrics if key in states else {"accuracy": 0.5}

    world = World(
        workers=n_workers,
        curve=lambda c, step: metrics(key_of(study.family, c, step)),
    )
    return SimulatedBackend(world, (study.metric,))


def stages_of(study: Study, states: dict[str, Made]) -> set[str]:
    """The states that a study under a synchronous tuner commits, wherever it runs."""
    watched = Watched(simulated(study, states, 1))
    drive(StudyCore([study]), watched, lambda *_: None)
    return watched.finished


class TestSimulated(BackendContract):
    timeout_s = 3.0  # a step takes a second

    @contextmanager
    def backend(
        self,
        study: Study,
        states: dict[str, Made],
        store: Store,  # noqa: ARG002
    ) -> Iterator[Backend]:
        yield simulated(study, states, 3)


class TestSerial(BackendContract):
    @contextmanager
    def backend(
        self,
        study: Study,
        states: dict[str, Made],  # noqa: ARG002
        store: Store,
    ) -> Iterator[Backend]:
        payloads = {study.fingerprint.digest: pack(cast("Walk", study.trainable))}
        backend = SerialBackend(Workplace(store=store), payloads)
        yield backend
        backend.close()

    def test_time_goes_on_where_an_earlier_run_has_left_it(self, tmp_path: Path) -> None:
        workplace = Workplace(store=Store(tmp_path))
        backend = SerialBackend(workplace, {}, clock=lambda: 1000.0, since_s=5.0)
        event, at_s = backend.next_event()
        assert isinstance(event, WorkerJoined)
        assert at_s == 5.0


@pytest.fixture(scope="class")
def client() -> Iterator[Client]:
    with cluster_of({}, {}) as cluster, Client(cluster) as client:
        yield client


@pytest.mark.cluster
class TestDask(BackendContract):
    def test_time_goes_on_where_an_earlier_run_has_left_it(self, tmp_path: Path) -> None:
        backend = DaskBackend(
            self.client, topic=uuid.uuid4().hex, store=Store(tmp_path), payloads={}, since_s=1e6
        )
        event, at_s = backend.next_event()
        backend.close()
        assert isinstance(event, WorkerJoined)
        assert 1e6 <= at_s < 1e6 + LIMIT_S

    @pytest.fixture(autouse=True)
    def _take(self, client: Client) -> None:
        self.client = client

    @contextmanager
    def backend(
        self,
        study: Study,
        states: dict[str, Made],  # noqa: ARG002
        store: Store,
    ) -> Iterator[Backend]:
        payloads = {study.fingerprint.digest: pack(cast("Walk", study.trainable))}
        topic = f"test-{uuid.uuid4().hex}"
        backend = DaskBackend(self.client, topic=topic, store=store, payloads=payloads)
        yield backend
        backend.close()
