"""Workers that are stopped, hang or are told to end: the study goes on, and loses little."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, SpecCluster

import dasktune as dt
from dasktune.runner import run
from dasktune.runtime import dask, link, watchdog
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from tests.runtime.trainables import (
    LIMIT_S,
    TUNERS,
    Made,
    Notes,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    truth,
    wait_until,
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


@pytest.fixture
def stopped() -> Iterator[Callable[[int], None]]:
    """Stop processes; they go on at the end of the test, if they are still there."""
    pids: list[int] = []

    def stop(pid: int) -> None:
        pids.append(pid)
        os.kill(pid, signal.SIGSTOP)

    yield stop
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take workers for hung soon, and a pause of this machine soon for what it is."""
    monkeypatch.setattr(watchdog, "HANG_AFTER_S", 1.0)
    monkeypatch.setattr(watchdog, "_SLEPT_S", 1.5)  # it looks every second


def pids_of(client: Client) -> set[int]:
    return set(client.run(os.getpid).values())


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_is_stopped_in_mid_stage_is_replaced(
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    stopped: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pids: list[int] = []

    def stop(_: object) -> None:
        held = [call for call in notes.calls if call.t == 4]
        if held and not pids:
            pids.append(held[-1].pid)
            stopped(pids[0])

    with cluster_of({}, {}) as cluster, Client(cluster) as client:
        study = study_of(Walk(str(notes.folder), PACE_S))
        result = run(study, store=store, client=client, on_event=stop)
        assert pids
        assert result.status is StudyStatus.COMPLETED
        assert_exact(result, store, states)
        assert "its process has not answered for" in caplog.text
        wait_until(lambda: not psutil.pid_exists(pids[0]), "the stopped worker is not killed")
        wait_until(lambda: len(cluster.scheduler.workers) == 2, "it is not replaced")
        # Where the machine pauses, the other may have been replaced as well.
        gone = {call.pid for call in notes.calls if not psutil.pid_exists(call.pid)}
        assert notes.repeated <= notes.in_flight(gone, store)


def test_a_worker_that_is_stopped_when_a_driver_comes_is_used_once_it_wakes_up(
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    stopped: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "REGISTER_WITHIN_S", 0.2)
    with cluster_of({}, {}) as cluster, Client(cluster) as client:
        sleeper = min(pids_of(client))
        stopped(sleeper)

        def wake() -> None:
            with notes.held(6):
                notes.wait_for(4)
                os.kill(sleeper, signal.SIGCONT)
                wait_until(lambda: sleeper in {call.pid for call in notes.calls})

        with ThreadPoolExecutor(1) as meanwhile:
            woken = meanwhile.submit(wake)
            study = study_of(Walk(str(notes.folder), PACE_S))
            result = run(study, store=store, client=client)
            woken.result()
        assert_exact(result, store, states)
        assert not notes.repeated
        assert sleeper not in {call.pid for call in notes.calls[:4]}


class _Hangs(Walk):
    """Never comes back from its fifth step, once."""

    def happen(self, hp: Mapping[str, Any], t: int) -> None:  # noqa: ARG002
        with suppress(FileExistsError):
            if t == 4:
                Path(self.folder, "hung").touch(exist_ok=False)
                self.wait_for_what_never_comes()

    def wait_for_what_never_comes(self) -> None:
        while True:
            time.sleep(0.01)


@pytest.mark.usefixtures("impatient")
def test_a_step_that_does_not_end_is_shown_in_the_log_and_its_worker_is_replaced(
    notes: Notes,
    store: Store,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with cluster_of({}, {}) as cluster, Client(cluster) as client:
        result = run(study_of(_Hangs(str(notes.folder))), store=store, client=client)
        assert result.status is StudyStatus.COMPLETED
        assert len(notes.repeated) <= 5
        assert "a step has taken" in caplog.text
        assert "wait_for_what_never_comes" in caplog.text
        wait_until(lambda: len(cluster.scheduler.workers) == 2)


class _StartsSlowly(Walk):
    """Takes its time for what has no measure: setup, first steps, evaluation."""

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:
        super().setup(hp, seed)
        self.n_steps = 0
        time.sleep(1.6)

    def happen(self, hp: Mapping[str, Any], t: int) -> None:  # noqa: ARG002
        self.n_steps += 1
        time.sleep(1.6 if self.n_steps == 1 else 0)

    def evaluate(self) -> Mapping[str, Any]:
        time.sleep(1.6)
        return super().evaluate()


@pytest.mark.usefixtures("impatient")
def test_what_is_only_slow_is_not_taken_for_a_hang(
    notes: Notes, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster_of({}, {}) as cluster, Client(cluster) as client:
        study = study_of(
            _StartsSlowly(str(notes.folder)),
            space={"lr": dt.choice([0.1, 0.2]), "momentum": dt.choice([0.9])},
            tuner=dt.FullTraining(4, report_every=2),
        )
        result = run(study, store=store, client=client)
    assert result.status is StudyStatus.COMPLETED
    assert not notes.repeated
    assert "hangs" not in caplog.text


# --- workers that are told to end -----------------------------------------------------------------


@contextmanager
def workers_by_command_line(address: str, n: int, *options: str) -> Iterator[list[int]]:
    """Start workers as pods do; yield the pids that a pod's end is signalled to."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
    command += ["--memory-limit", "0", "--no-dashboard", *options]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    processes = [
        subprocess.Popen(command, env=environment, cwd=root, stderr=None) for _ in range(n)
    ]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            children = []
            with suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


@pytest.mark.parametrize("option", ["--nanny", "--no-nanny"])
def test_a_worker_that_is_told_to_end_commits_at_the_next_step_and_another_goes_on_there(
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
) -> None:
    monkeypatch.setattr(dask, "_LOOK_EVERY_S", 0.1)

    def tell_one(cluster: SpecCluster, pids: list[int]) -> None:
        with notes.held(1):
            pid = notes.wait_for(1, 1)[0].pid
            parents = {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
            (told,) = parents.intersection(pids)
            os.kill(told, signal.SIGTERM)
            wait_until(lambda: len(cluster.scheduler.running) == 2)
            time.sleep(0.5)  # the third, which is idle, has the time to begin too early

    with (
        cluster_of() as cluster,
        workers_by_command_line(cluster.scheduler_address, 3, option) as pids,
        Client(cluster) as client,
        ThreadPoolExecutor(1) as meanwhile,
    ):
        client.wait_for_workers(3, timeout=LIMIT_S)
        told = meanwhile.submit(tell_one, cluster, pids)
        study = study_of(Walk(str(notes.folder), PACE_S), tuner=TUNERS["full"])
        result = run(study, store=store, client=client)
        told.result()
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert not notes.repeated
    # It has committed inside a stage: stages end at steps 3, 5, 6 and 8.
    assert {record.step for record in store.records()} - {3, 5, 6, 8}


def test_a_worker_that_is_drained_ends_its_stage_at_a_step_and_is_given_nothing_more(
    notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    def drain_one(cluster: SpecCluster, client: Client) -> str:
        with notes.held(1):
            pid = notes.wait_for(1, 1)[0].pid
            (nanny,) = [each for each in cluster.workers.values() if each.pid == pid]
            address = str(nanny.worker_address)
            client.sync(
                client.scheduler.retire_workers,
                workers=[address],
                close_workers=False,
                remove=False,
            )
            workers = "__import__('sys').modules['distributed.worker'].Worker._instances"
            status = f"[worker.status.name for worker in {workers}][0]"
            wait_until(
                lambda: (
                    client.run(eval, status, workers=[address]) == {address: "closing_gracefully"}
                ),
                "the worker does not hear of it",
            )
        n_before = sum(call.pid == pid for call in notes.calls)
        wait_until(lambda: len(notes.calls) > n_before + 10)
        assert sum(call.pid == pid for call in notes.calls) == n_before
        wait_until(lambda: not cluster.scheduler.workers[address].processing)
        return address

    with (
        cluster_of({}, {}) as cluster,
        Client(cluster) as client,
        ThreadPoolExecutor(1) as meanwhile,
    ):
        drained = meanwhile.submit(drain_one, cluster, client)
        result = run(study_of(Walk(str(notes.folder), PACE_S)), store=store, client=client)
        assert drained.result() in cluster.scheduler.workers
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert not notes.repeated
