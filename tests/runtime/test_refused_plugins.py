"""A cluster that refuses plugins, and one that has no fitting worker: the best of it, and why."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from distributed import Client, SpecCluster

from dasktune.errors import BackendError
from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from tests.runtime.faults import PLUGINS, refusing
from tests.runtime.test_left_behind import NOTHING, Closes, kept
from tests.runtime.trainables import (
    TUNERS,
    Made,
    Notes,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    tasks_of,
    truth,
    wait_until,
    worker_of,
)

pytestmark = pytest.mark.cluster

PACE_S = 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Made]:
    return truth(study_of(Walk(str(folder), PACE_S)))


@pytest.fixture
def notes(folder: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(folder)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize(
    "handlers",
    [
        ["register_scheduler_plugin"],
        PLUGINS,
    ],
    ids=["leases", "everything"],
)
def test_without_plugins_studies_are_exact_on_all_workers_and_a_death_is_noticed(
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    handlers: Sequence[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def kill_one(cluster: SpecCluster) -> int:
        with at_4:
            with at_1:
                notes.wait_for(2, 1)  # both train
            pid = notes.wait_for(1, 4)[-1].pid
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: pid not in {nanny.pid for nanny in cluster.workers.values()})
        return pid

    with (
        refusing(*handlers) as cluster,
        Client(cluster) as client,
        ThreadPoolExecutor(1) as pool,
        ExitStack() as at_1,
        ExitStack() as at_4,
    ):
        at_1.enter_context(notes.held(1))
        at_4.enter_context(notes.held(4))
        killed = pool.submit(kill_one, cluster)
        study = study_of(Walk(str(notes.folder), PACE_S), tuner=TUNERS["halving"])
        result = run(study, store=store, client=client)
        assert result.status is StudyStatus.COMPLETED
        assert_exact(result, store, states)
        assert notes.repeated <= notes.in_flight([killed.result()], store)
        assert len({call.pid for call in notes.calls}) >= 2
        wait_until(lambda: not tasks_of(cluster))
    warnings = [r for r in caplog.records if r.name.startswith("dasktune") and "refuses" in r.msg]
    assert len(warnings) == 1
    assert "other drivers" in warnings[0].msg


def test_without_plugins_a_worker_that_joins_late_is_used(
    notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    def add_one(cluster: SpecCluster) -> None:
        with notes.held(1):
            notes.wait_for(1, 1)
            cluster.worker_spec["late"] = worker_of({})
            cluster.sync(cluster._correct_state)
            notes.wait_for(2, 1)

    with (
        refusing("register_scheduler_plugin", n_workers=1) as cluster,
        Client(cluster) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        added = pool.submit(add_one, cluster)
        result = run(study_of(Walk(str(notes.folder), PACE_S)), store=store, client=client)
        added.result()
    assert_exact(result, store, states)
    assert not notes.repeated
    assert len({call.pid for call in notes.calls}) == 2


def test_without_plugins_workers_keep_no_run_that_has_left(store: Store, tmp_path: Path) -> None:
    with (
        refusing("register_scheduler_plugin", "register_worker_plugin", n_workers=1) as cluster,
        Client(cluster) as client,
    ):
        run(study_of(Closes(str(tmp_path))), store=store, client=client)
        wait_until(lambda: kept(client) == {NOTHING})
        assert (tmp_path / "closed").exists()


# --- nothing that could train ---------------------------------------------------------------------


def test_a_study_that_no_worker_can_take_says_so_and_goes_on_when_one_comes(
    notes: Notes, store: Store, states: dict[str, Made], caplog: pytest.LogCaptureFixture
) -> None:
    def add_one(cluster: SpecCluster) -> None:
        wait_until(lambda: "nothing runs" in caplog.text, "nobody says why nothing runs")
        cluster.worker_spec["late"] = worker_of({"GPU": 1})
        cluster.sync(cluster._correct_state)

    with cluster_of({}, {}) as cluster, Client(cluster) as client, ThreadPoolExecutor(1) as pool:
        added = pool.submit(add_one, cluster)
        study = study_of(Walk(str(notes.folder), PACE_S))
        result = run(study, store=store, client=client, resources={"GPU": 1})
        added.result()
    assert_exact(result, store, states)
    said = [record.getMessage() for record in caplog.records if record.msg.startswith("nothing")]
    # The one that comes may not have answered yet a second later, which is said too.
    assert [text for text in said[1:] if not text.endswith("has not answered yet")] == []
    assert "stages are ready and no worker has joined" in said[0]
    assert "takes GPU: 1" in said[0]
    assert "of the cluster's 2 workers none offers more than GPU: 0" in said[0]


def test_a_scheduler_that_has_no_dasktune_is_refused_in_a_sentence(
    notes: Notes, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "hides.py").write_text(
        "import sys\n"
        "class Hides:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'dasktune':\n"
        "            raise ModuleNotFoundError(name)\n"
        "def dask_setup(scheduler):\n"
        "    sys.meta_path.insert(0, Hides())\n"
    )
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
    command += ["--port", "0", "--no-dashboard", "--preload", str(tmp_path / "hides.py")]
    command += ["--scheduler-file", str(tmp_path / "where")]
    scheduler = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "where").exists)
        with (
            Client(scheduler_file=str(tmp_path / "where")) as client,
            pytest.raises(BackendError, match=r"cannot import .*dasktune.* install") as said,
        ):
            run(study_of(Walk(str(notes.folder), PACE_S)), store=store, client=client)
    finally:
        scheduler.terminate()
        scheduler.wait()
    assert "\n" not in str(said.value)
