"""Workers that see another folder where the store is: they are left out, early and late ones."""

import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, SpecCluster

from dasktune.errors import BackendError
from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from tests.runtime.trainables import (
    Notes,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    truth,
    wait_until,
    worker_of,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a path that each process reads anew"),
]

HERE = Path("/proc/self/cwd")
"""The same path in all processes, and in each the folder that it works in: as with a disk that is
mounted on some machines only."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> dict[str, Any]:
    """A worker that works in another folder."""
    other = tmp_path / "other"
    other.mkdir()
    moves = tmp_path / "moves.py"
    moves.write_text(f"import os\nos.chdir({str(other)!r})\n")
    worker = worker_of({"elsewhere": 1})
    worker["options"]["preload"] = [str(moves)]
    return worker


@pytest.fixture
def cluster(
    tmp_path: Path, elsewhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[SpecCluster]:
    """A worker in the folder of the driver, and one elsewhere."""
    monkeypatch.chdir(tmp_path)
    with cluster_of({}) as cluster:
        add(cluster, "early", elsewhere)
        yield cluster


def add(cluster: SpecCluster, name: str, worker: dict[str, Any]) -> None:
    cluster.worker_spec[name] = worker
    cluster.sync(cluster._correct_state)


def test_workers_that_do_not_see_the_store_are_left_out_by_name_and_no_step_is_lost(
    cluster: SpecCluster,
    elsewhere: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    study = study_of(Walk(str(tmp_path)))
    states = truth(study)
    notes = Notes(tmp_path)

    def left_out() -> set[str]:
        said = [record.getMessage() for record in caplog.records]
        return {
            worker.name
            for worker in list(cluster.scheduler.workers.values())
            if any(
                f"worker {worker.address} is left out: this process does not find in" in text
                for text in said
            )
        }

    def add_late() -> None:
        with notes.held(4):
            notes.wait_for(1, 4)
            add(cluster, "late", elsewhere)
            wait_until(lambda: left_out() == {"early", "late"} or is_trained_on(late()))

    def late() -> int:
        return int(cluster.workers["late"].pid)

    def is_trained_on(pid: int) -> bool:
        return any(call.pid == pid for call in notes.calls)

    with Client(cluster) as client, ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        added = pool.submit(add_late)
        result = run(study, store=Store(HERE / "store"), client=client)
        added.result()
        at_store = set(client.run(os.getpid, workers=[cluster.workers[0].worker_address]).values())
    assert left_out() == {"early", "late"}
    assert {call.pid for call in notes.calls} == at_store
    assert list((tmp_path / "other").iterdir()) == []
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, Store(tmp_path / "store"), states)
    assert len(notes.calls) == result.steps_executed == result.steps_unique
    assert result.steps_recomputed == 0
    assert not notes.repeated


def test_a_run_whose_workers_all_see_another_folder_is_refused_in_a_sentence(
    cluster: SpecCluster, tmp_path: Path
) -> None:
    with Client(cluster) as client, pytest.raises(BackendError, match="every worker reaches"):
        run(
            study_of(Walk(str(tmp_path))),
            store=Store(HERE / "store"),
            client=client,
            resources={"elsewhere": 1},
        )
    assert Notes(tmp_path)._lines() == []
