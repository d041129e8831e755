"""How a run uses a cluster that it has joined: models stay warm, and nothing is cancelled."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, SpecCluster

from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import RunPath, StopPath, StudyStatus
from dasktune.study.timeline import Entry
from tests.runtime.trainables import TUNERS, Notes, Walk, cluster_of, study_of, tasks_of, wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SpecCluster]:
    """Two workers; who asks for `one` gets one of them."""
    with cluster_of({"one": 1}, {}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: SpecCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


class Tells(Walk):
    """Notes when it is set up, and when it is given a state."""

    def setup(self, hp: Any, seed: int) -> None:  # noqa: ANN401
        self.note("setup")
        super().setup(hp, seed)

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        self.note("load")
        super().load_state_dict(state)

    def note(self, what: str) -> None:
        with Path(self.folder, "given").open("a") as notes:
            notes.write(f"{os.getpid()} {what}\n")


@pytest.mark.parametrize(("asked", "tuner"), [(None, "full"), (None, "asha"), ({"one": 1}, "asha")])
def test_a_worker_sets_up_and_loads_only_where_it_does_not_hold_what_a_path_begins_with(
    client: Client, tmp_path: Path, asked: dict[str, float] | None, tuner: str
) -> None:
    paths: list[RunPath] = []

    def look(entry: Entry) -> None:
        paths.extend(command for command in entry.commands if isinstance(command, RunPath))

    study = study_of(Tells(str(tmp_path)), tuner=TUNERS[tuner])
    store = Store(tmp_path / "store")
    result = run(study, store=store, client=client, resources=asked, on_event=look)
    assert result.status is StudyStatus.COMPLETED
    assert result.steps_executed == result.steps_unique

    given = [line.split() for line in (tmp_path / "given").read_text().splitlines()]
    n_warm = 0
    for worker, pid in client.run(os.getpid).items():
        expected: list[str] = []
        held = None
        for path in [path for path in paths if path.worker == worker]:
            begin = path.stages[0].start_key
            is_warm = begin is not None and begin == held
            assert path.is_warm == is_warm
            n_warm += is_warm
            if not is_warm:
                expected += ["setup"] if begin is None else ["setup", "load"]
            held = path.stages[-1].key
        assert [what for by, what in given if int(by) == pid] == expected
    assert any(len(path.stages) > 1 for path in paths)
    assert n_warm or asked is None  # with a single worker who follows whom is always the same


def test_the_first_task_of_a_path_may_run_on_the_worker_of_its_slot_and_nowhere_else(
    cluster: SpecCluster, client: Client, tmp_path: Path
) -> None:
    # Dask's scheduler may break if it is told resources, and workers that are only a wish.
    paths: list[RunPath] = []
    pinned: dict[str, tuple[set[str], bool]] = {}

    def look(entry: Entry) -> None:
        paths.extend(command for command in entry.commands if isinstance(command, RunPath))
        for key, task in list(cluster.scheduler.tasks.items()):
            if str(key).startswith("dasktune") and task.worker_restrictions:
                pinned[key] = set(task.worker_restrictions), task.loose_restrictions

    study, store = study_of(Walk(str(tmp_path), 0.02)), Store(tmp_path / "store")
    run(study, store=store, client=client, resources={"one": 1}, on_event=look)
    (worker,) = {path.worker for path in paths}
    assert 1 < len(pinned) <= len(paths)
    assert all(found == ({worker}, False) for found in pinned.values())


def test_no_task_is_ever_cancelled_however_a_path_ends(
    cluster: SpecCluster, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dask tells a cancelled key to all clients, by its name: it can strike who has just sent it.
    cancelled: list[str] = []
    cancel = cluster.scheduler.stream_handlers["cancel-keys"]

    def hear(*, keys: list[str], **facts: Any) -> None:  # noqa: ANN401
        cancelled.extend(keys)
        cancel(keys=keys, **facts)

    monkeypatch.setitem(cluster.scheduler.stream_handlers, "cancel-keys", hear)
    notes = Notes(tmp_path)
    killed: list[int] = []
    stopped: list[StopPath] = []

    def kill(entry: Entry) -> None:
        stopped.extend(command for command in entry.commands if isinstance(command, StopPath))
        if notes.calls and not killed:
            killed.append(notes.calls[-1].pid)
            os.kill(killed[0], signal.SIGKILL)

    def press_ctrl_c() -> None:
        with notes.held(4):
            notes.wait_for(1, 4)
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: stopped)

    study, store = study_of(Walk(str(tmp_path), 0.02)), Store(tmp_path / "store")
    with ThreadPoolExecutor(1) as pool:
        pressed = pool.submit(press_ctrl_c)
        result = run(study, store=store, client=client, on_event=kill)
        pressed.result()
    assert killed
    assert result.status is StudyStatus.RUNNING
    result = run(study, store=store, client=client)
    assert result.status is StudyStatus.COMPLETED
    wait_until(lambda: not tasks_of(cluster))
    assert cancelled == []
    mine = client.submit(time.sleep, 0, key="mine")
    mine.cancel()
    wait_until(lambda: cancelled == ["mine"], "cancelling is not heard of here")


def test_messages_of_a_client_are_hurried_while_a_run_needs_it_and_no_longer(
    client: Client, tmp_path: Path
) -> None:
    before_s = client.scheduler_comm.interval
    seen_s: set[float] = set()
    run(
        study_of(Walk(str(tmp_path))),
        store=Store(tmp_path / "store"),
        client=client,
        on_event=lambda _: seen_s.add(client.scheduler_comm.interval),
    )
    # Dask lets messages wait for so long, to go together: longer than handing out a path takes.
    assert seen_s
    assert max(seen_s) <= before_s / 5
    assert client.scheduler_comm.interval == before_s
