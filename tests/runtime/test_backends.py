"""Serial, simulated and Dask backends are indistinguishable to the core: one contract for all."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from distributed import Client

from dasktune.runtime.dask import DaskBackend
from dasktune.runtime.payload import pack
from dasktune.runtime.serial import SerialBackend
from dasktune.runtime.stage import Workplace
from dasktune.simulator.world import Fault, StateVanishes
from dasktune.store.store import Store
from dasktune.study.core import StudyCore
from dasktune.study.events import StateLost, WorkerJoined
from dasktune.study.ports import Backend
from dasktune.study.study import Study
from tests.runtime.contracts import BackendContract, ClusterContract, TrainingContract, simulated
from tests.runtime.faults import PLUGINS, refusing
from tests.runtime.trainables import LIMIT_S, Made, Walk, cluster_of, study_of, truth


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Made]:
    return truth(study_of(Walk(str(folder))))


class TestSimulated(BackendContract):
    has_states = False
    timeout_s = 3.0  # a step takes a second

    @contextmanager
    def backend(
        self,
        study: Study,
        states: dict[str, Made],
        store: Store,  # noqa: ARG002
        faults: Sequence[Fault] = (),
    ) -> Iterator[Backend]:
        yield simulated(study, states, 3, faults)

    def test_a_state_that_vanishes_is_trained_again(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        core, store = StudyCore([study_of(Walk(str(folder)))]), Store(tmp_path)
        # The fork at step 5 of one path is stored by then, and its second child waits.
        watched = self.play(core, states, store, faults=[StateVanishes(at_s=5.5)])
        assert len(watched.heard(StateLost)) == 1
        self.assert_truth(core, states, store)
        assert core.plan.steps_recomputed > 0


class TestSerial(TrainingContract):
    @contextmanager
    def backend(
        self,
        study: Study,
        states: dict[str, Made],  # noqa: ARG002
        store: Store,
        faults: Sequence[Fault] = (),  # noqa: ARG002
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


@pytest.fixture(scope="class")
def client_refused() -> Iterator[Client]:
    with refusing(*PLUGINS) as cluster, Client(cluster) as client:
        yield client


class DaskContract(ClusterContract):
    client: Client

    @contextmanager
    def backend(
        self,
        study: Study,
        states: dict[str, Made],  # noqa: ARG002
        store: Store,
        faults: Sequence[Fault] = (),  # noqa: ARG002
    ) -> Iterator[Backend]:
        payloads = {study.fingerprint.digest: pack(cast("Walk", study.trainable))}
        topic = f"test-{uuid.uuid4().hex}"
        backend = DaskBackend(self.client, topic=topic, store=store, payloads=payloads)
        yield backend
        backend.close()

    def test_time_goes_on_where_an_earlier_run_has_left_it(self, tmp_path: Path) -> None:
        backend = DaskBackend(
            self.client, topic=uuid.uuid4().hex, store=Store(tmp_path), payloads={}, since_s=1e6
        )
        event, at_s = backend.next_event()
        backend.close()
        assert isinstance(event, WorkerJoined)
        assert 1e6 <= at_s < 1e6 + LIMIT_S


@pytest.mark.cluster
class TestDask(DaskContract):
    @pytest.fixture(autouse=True)
    def _take(self, client: Client) -> None:
        self.client = client


@pytest.mark.cluster
class TestDaskWithoutPlugins(DaskContract):
    """On a cluster to which nothing may be added."""

    @pytest.fixture(autouse=True)
    def _take(self, client_refused: Client) -> None:
        self.client = client_refused
