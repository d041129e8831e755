"""Killed, interrupted, damaged: the same call goes on, and trains nothing again that was kept."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, SpecCluster

from dasktune.errors import BackendError
from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from tests.runtime.trainables import (
    Driver,
    Made,
    Notes,
    Plan,
    assert_exact,
    cluster_of,
    driving,
    tasks_of,
    truth,
    wait_until,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Made]:
    return truth(Plan(str(folder), "").study())


@pytest.fixture
def notes(folder: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SpecCluster]:
    with cluster_of({}, {}) as cluster:
        yield cluster


def plan_of(notes: Notes, tmp_path: Path, **changes: Any) -> Plan:  # noqa: ANN401
    return Plan(str(notes.folder), str(tmp_path / "store"), **changes)


def decisions(store: str, name: str = "study") -> list[str]:
    """What was decided, without when: paths are not decisions."""
    found = [
        json.dumps(command, sort_keys=True)
        for line in Store(store).journal(name).lines()
        for command in json.loads(line).get("commands", ())
        if command["is"] in ("DrawTrial", "AskTrial", "EndTrial", "EndStudy")
    ]
    assert len(set(found)) == len(found)  # nothing is decided twice
    return sorted(found)


def killed_driver(plan: Plan, notes: Notes, n_calls: int) -> Driver:
    """Start a driver, and kill it after some calls of step()."""
    so_far = len(notes.calls)
    with notes.at_most(n_calls + 2), driving(plan) as (driver,):
        wait_until(lambda: len(notes.calls) >= so_far + n_calls or not driver.process.is_alive())
        driver.signal(signal.SIGKILL)
        driver.process.join()
    return driver


@pytest.mark.parametrize("tuner", ["full", "halving", "asha"])
def test_a_driver_killed_at_any_moment_goes_on_with_what_it_had_committed(
    notes: Notes, states: dict[str, Made], tmp_path: Path, tuner: str
) -> None:
    rng = random.Random(tuner)
    plan = plan_of(notes, tmp_path, tuner=tuner)
    pids = [killed_driver(plan, notes, rng.randint(1, 9)).pid for _ in range(4)]
    result = plan.run()
    store = Store(plan.store)
    assert_exact(result, store, states)
    assert notes.repeated <= notes.in_flight(pids, store)
    assert notes.n_distinct == result.steps_unique

    entries = result.timeline.entries
    resumed = [i for i, entry in enumerate(entries) if type(entry.event).__name__ == "Resumed"]
    assert resumed
    for i in resumed:  # time in which nobody was there does not count
        assert entries[i].at_s == entries[i - 1].at_s

    quiet = plan_of(notes, tmp_path / "quiet", tuner=tuner)
    undisturbed = quiet.run()
    assert [t.reports for t in result.trials] == [t.reports for t in undisturbed.trials]
    if tuner != "asha":  # whose promotions depend on the order of reports
        assert decisions(plan.store) == decisions(quiet.store)


def test_a_finished_study_answers_from_the_store_without_workers(
    notes: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(notes, tmp_path)
    first = plan.run()
    n_calls = len(notes.calls)
    monkeypatch.setattr("dasktune.runner.local_workers", None)
    monkeypatch.setattr("dasktune.runner.SerialBackend", None)
    again = run(plan.study(), store=plan.store)
    assert again.trials == first.trials
    assert again.timeline.entries == first.timeline.entries
    assert len(notes.calls) == n_calls


def test_a_living_driver_keeps_others_out_and_is_named(notes: Notes, tmp_path: Path) -> None:
    plan = plan_of(notes, tmp_path)
    with notes.held(2), driving(plan) as (driver,):
        notes.wait_for(1, 2)
        with pytest.raises(BackendError) as refused:
            plan.run()
    assert f"process {driver.pid} on {socket.gethostname()}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ctrl_c_stops_at_a_step_boundary_and_nothing_is_lost(
    notes: Notes, states: dict[str, Made], tmp_path: Path
) -> None:
    plan = plan_of(notes, tmp_path)
    with driving(plan) as (driver,):
        with notes.held(4):
            notes.wait_for(1, 4)
            driver.signal(signal.SIGINT)
        assert driver.end().startswith("running")
    assert notes.calls[-1].t == 4
    result = plan.run()
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, Store(plan.store), states)
    assert not notes.repeated


def test_a_second_ctrl_c_stops_at_once(notes: Notes, tmp_path: Path) -> None:
    plan = plan_of(notes, tmp_path)
    with notes.held(4), driving(plan) as (driver,):
        notes.wait_for(1, 4)
        driver.signal(signal.SIGINT)

        def is_gone() -> bool:
            driver.signal(signal.SIGINT)
            driver.process.join(1.0)
            return not driver.process.is_alive()

        wait_until(is_gone)
        assert driver.end().startswith("KeyboardInterrupt")


# --- damage ---------------------------------------------------------------------------------------


def flip(blob: Path) -> None:
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)


def truncate(blob: Path) -> None:
    blob.write_bytes(blob.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_damaged_states_are_made_again_exactly(
    notes: Notes, states: dict[str, Made], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    plan = plan_of(notes, tmp_path)
    killed_driver(plan, notes, 12)
    blobs = list(Path(plan.store).glob("states/*.state"))
    assert blobs
    for blob in blobs:
        damage(blob)
    result = plan.run()
    assert result.status is StudyStatus.COMPLETED
    # What has been reported already is not made again; what is needed to go on is.
    assert_exact(result, Store(plan.store), states, has_ends=False)
    assert notes.repeated


def test_states_of_another_study_are_used_not_made_again(
    notes: Notes, states: dict[str, Made], tmp_path: Path
) -> None:
    early = plan_of(notes, tmp_path, space="early", name="early")
    early.run()
    n_before = len(notes.calls)
    result = plan_of(notes, tmp_path).run()
    assert_exact(result, Store(early.store), states)
    # One stage is cut at step 6 now, where the other study has nothing.
    assert {t for t, *_ in notes.repeated} <= {5}
    assert len(notes.calls) - n_before == result.steps_executed < result.steps_unique


# --- on Dask --------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_a_driver_of_a_cluster_killed_and_called_again_trains_what_was_in_flight(
    cluster: SpecCluster, notes: Notes, states: dict[str, Made], tmp_path: Path
) -> None:
    plan = plan_of(notes, tmp_path, address=cluster.scheduler_address)
    store = Store(plan.store)
    rng = random.Random(1)
    lost = notes.in_flight((), store)
    for _ in range(2):
        killed_driver(plan, notes, rng.randint(3, 9))
        lost += notes.in_flight({call.pid for call in notes.calls}, store)
    wait_until(lambda: not tasks_of(cluster))
    with Client(cluster) as client:
        result = run(plan.study(), store=store, client=client)
    assert_exact(result, store, states)
    assert notes.repeated <= lost
    wait_until(lambda: not tasks_of(cluster))


@pytest.mark.cluster
def test_a_stage_whose_driver_is_gone_ends_at_its_step_boundary_with_a_commit(
    cluster: SpecCluster, notes: Notes, states: dict[str, Made], tmp_path: Path
) -> None:
    plan = plan_of(notes, tmp_path, address=cluster.scheduler_address)
    store = Store(plan.store)
    with notes.held(1), driving(plan) as (driver,):
        notes.wait_for(2, 1)
        driver.signal(signal.SIGKILL)
        wait_until(lambda: not tasks_of(cluster))
        wait_until(lambda: _given_up(cluster) == 2)  # the workers have heard of it, too
        before = {record.key for record in store.records()}
        assert not before
    wait_until(lambda: len(store.keys()) == 2)
    assert {record.step for record in store.records()} == {2}
    with Client(cluster) as client:
        result = run(plan.study(), store=store, client=client)
    assert_exact(result, store, states)
    assert not notes.repeated


@pytest.mark.cluster
def test_ctrl_c_on_a_cluster_loses_nothing(
    cluster: SpecCluster, notes: Notes, states: dict[str, Made], tmp_path: Path
) -> None:
    plan = plan_of(notes, tmp_path, address=cluster.scheduler_address)
    with driving(plan) as (driver,):
        with notes.held(4):
            notes.wait_for(2, 4)
            n_stopped = _stopping(cluster)
            driver.signal(signal.SIGINT)
            wait_until(lambda: _stopping(cluster) >= n_stopped + 2)
        assert driver.end().startswith("running")
    with Client(cluster) as client:
        result = run(plan.study(), store=plan.store, client=client)
    assert_exact(result, Store(plan.store), states)
    assert not notes.repeated


def _stopping(cluster: SpecCluster) -> int:
    """Number of paths that workers were told to stop."""
    return _counted(cluster, "len(__import__('sys').modules['dasktune.runtime.task'].STOPPED)")


def _given_up(cluster: SpecCluster) -> int:
    """Number of tasks that workers are still executing and nobody wants any more."""
    workers = "__import__('sys').modules['distributed.worker'].Worker._instances"
    return _counted(
        cluster, f"sum(t.state == 'cancelled' for w in {workers} for t in w.state.tasks.values())"
    )


def _counted(cluster: SpecCluster, text: str) -> int:
    """Sum up what workers say to a question.

    Sent as text: a function of this module would let the workers import pytest, in the middle of a
    step, and that draws from Python's global generator.
    """
    with Client(cluster) as client:
        return int(sum(client.run(eval, text).values()))


@contextmanager
def cluster_in_processes(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler in a process of its own, with a worker; yields the scheduler."""
    with ExitStack() as stack:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{cli}", *options],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for cli, options in (
                ("dask_scheduler", ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]),
                ("dask_worker", [f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-nanny",
                                 "--no-dashboard"]),
            )
        ]  # fmt: skip
        for process in started:
            stack.callback(process.wait)
            stack.callback(process.kill)
        wait_until(lambda: _listens(port), "the scheduler does not listen")
        yield started[0]


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [False, True])
def test_the_death_of_the_scheduler_loses_nothing_that_was_committed(
    notes: Notes, states: dict[str, Made], tmp_path: Path, port: int, comes_back: bool
) -> None:
    plan = plan_of(notes, tmp_path, address=f"tcp://127.0.0.1:{port}")
    plan = replace(plan, patience_s=30.0 if comes_back else 8.0)
    store = Store(plan.store)
    with ExitStack() as stack:
        scheduler = stack.enter_context(cluster_in_processes(port))
        (driver,) = stack.enter_context(driving(plan))
        with notes.held(4):
            notes.wait_for(1, 4)
            scheduler.kill()
            scheduler.wait()
            lost = notes.in_flight({call.pid for call in notes.calls}, store)
            if comes_back:
                stack.enter_context(cluster_in_processes(port))
        said = driver.end()
    if not comes_back:
        assert re.fullmatch("BackendError: the Dask scheduler is gone .* same call again", said)
        with cluster_in_processes(port):
            plan.run()
    result = run(plan.study(), store=store, workers=0)
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert notes.repeated <= lost


def test_a_lock_dies_with_its_driver(notes: Notes, tmp_path: Path) -> None:
    plan = plan_of(notes, tmp_path)
    driver = killed_driver(plan, notes, 2)
    assert not Path(f"/proc/{driver.pid}").exists() or os.name != "posix"
    assert plan.run().status is StudyStatus.COMPLETED
