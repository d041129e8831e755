"""A real Dask cluster, as somebody else starts it: what is trained there is exact, and once."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, SpecCluster

import dasktune as dt
from dasktune.runner import run
from dasktune.runtime.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.trial import TrialStatus
from tests.runtime.trainables import (
    TUNERS,
    Kills,
    Made,
    Notes,
    Raises,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    tasks_of,
    truth,
    wait_until,
)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SpecCluster]:
    """Four workers; who asks for `one` gets one of them, for `two` two."""
    with cluster_of({"one": 1, "two": 1}, {"two": 1}, {}, {}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: SpecCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Made]:
    return truth(study_of(Walk(str(folder))))


@pytest.fixture
def notes(folder: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(folder)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize(
    ("asked", "n_workers", "tuner"), [("one", 1, "full"), ("two", 2, "halving"), (None, 4, "asha")]
)
def test_on_any_number_of_workers_states_and_reports_are_those_of_training_by_hand(
    cluster: SpecCluster,
    client: Client,
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    asked: str | None,
    n_workers: int,
    tuner: str,
) -> None:
    resources = None if asked is None else {asked: 1}
    study = study_of(Walk(str(notes.folder)), tuner=TUNERS[tuner])
    result = run(study, store=store, client=client, resources=resources)
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert not notes.repeated
    assert len(notes.calls) == result.steps_executed == result.steps_unique
    assert len({call.pid for call in notes.calls}) <= n_workers
    assert result.steps_recomputed == 0
    wait_until(lambda: not tasks_of(cluster))
    assert client.status == "running"


def test_a_killed_worker_costs_what_it_had_not_committed(
    client: Client, notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    killed: list[int] = []

    def kill(_: object) -> None:
        held = [call for call in notes.calls if call.t == 4]
        if held and not killed:
            killed.append(held[-1].pid)
            os.kill(killed[0], signal.SIGKILL)

    result = run(study_of(Walk(str(notes.folder))), store=store, client=client, on_event=kill)
    assert killed
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert notes.repeated <= notes.in_flight(killed, store)
