"""Two drivers in processes of their own on one cluster and one store: steps are trained once."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from distributed import Client, Nanny, SpecCluster

from dasktune.runner import run
from dasktune.store.store import Store
from tests.runtime.test_resume import cluster_in_processes
from tests.runtime.trainables import (
    Made,
    Notes,
    Plan,
    assert_exact,
    cluster_of,
    driving,
    leased,
    tasks_of,
    truth,
    wait_until,
)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SpecCluster]:
    with cluster_of({"mine": 1}, {"yours": 1}, {}, {}) as cluster:
        yield cluster


@pytest.fixture
def plan(tmp_path: Path, cluster: SpecCluster) -> Plan:
    return Plan(str(tmp_path), str(tmp_path / "store"), cluster.scheduler_address, name="one")


def states_of(*plans: Plan) -> dict[str, Made]:
    """All states on the way of any plan, trained by hand."""
    states: dict[str, Made] = {}
    for plan in plans:
        states |= truth(plan.study())
    Path(plans[0].folder, "steps").unlink()
    return states


def assert_all_exact(states: dict[str, Made], *plans: Plan) -> None:
    """The studies have finished, and each answers from the store with what it must."""
    for plan in plans:
        result = run(plan.study(), store=plan.store, workers=0)
        assert result.reason.endswith("trials are over")
        assert_exact(result, Store(plan.store), states)


@pytest.mark.parametrize(
    ("spaces", "tuner", "n_before"),
    [
        (("all", "all"), "full", 0),
        (("early", "late"), "full", 9),
        (("all", "all"), "full", 20),
        (("all", "all"), "asha", 5),
        (("all", "early"), "halving", 5),
        (("all", "late"), "asha", 0),
    ],
)
def test_a_step_that_both_want_is_trained_once(
    cluster: SpecCluster, plan: Plan, spaces: tuple[str, str], tuner: str, n_before: int
) -> None:
    one = replace(plan, space=spaces[0], tuner=tuner, pace_s=0.01)
    two = replace(one, space=spaces[1], name="two")
    states = states_of(one, two)
    notes = Notes(Path(plan.folder))
    with driving(one) as first:
        notes.wait_for(n_before)
        with driving(two) as second:
            for driver in (*first, *second):
                assert driver.end().startswith("completed")
    # Schedules part at step 6 in one space only: the other's stage may have passed it already when
    # it was asked to commit there.
    allowed = {5} if spaces[0] != spaces[1] else set()
    assert {t for t, *_ in notes.repeated} <= allowed
    if tuner == "full":
        assert notes.n_distinct == len(states)
    wait_until(lambda: not tasks_of(cluster) and not leased(cluster))
    assert_all_exact(states, one, two)


def test_what_a_silent_driver_runs_is_known(cluster: SpecCluster, plan: Plan) -> None:
    one = replace(plan, space="early", resources={"mine": 1})
    two = replace(one, name="two", resources=None)
    states = states_of(one)
    notes = Notes(Path(plan.folder))
    with driving(one) as first, ExitStack() as stack:
        with notes.held(1):
            notes.wait_for(1, 1)
            first[0].signal(signal.SIGSTOP)
            n_wanted = n_wanted_states(cluster)
            second = stack.enter_context(driving(two))
            wait_until(lambda: n_wanted_states(cluster) > n_wanted or len(notes.calls) > 2)
            first[0].signal(signal.SIGCONT)
        for driver in (*first, *second):
            assert driver.end().startswith("completed")
    assert not notes.repeated
    assert_all_exact(states, one, two)


def test_a_later_stage_of_a_path_may_be_what_another_runs(cluster: SpecCluster, plan: Plan) -> None:
    one = replace(plan, space="early", resources={"mine": 1}, pace_s=0.03)
    two = replace(one, name="two", space="late", resources=None)
    states = states_of(one, two)
    notes = Notes(Path(plan.folder))
    with ExitStack() as stack:
        with ExitStack() as hold:
            with notes.held(7):
                first = stack.enter_context(driving(one))
                notes.wait_for(1, 7)
                hold.enter_context(notes.held(4))
            notes.wait_for(2, 4)  # it is through once, and on the other branch from step 3
            n_wanted, n_calls = n_wanted_states(cluster), len(notes.calls)
            second = stack.enter_context(driving(two))
            wait_until(lambda: n_wanted_states(cluster) > n_wanted or _at(notes, 3) > n_calls)
        for driver in (*first, *second):
            assert driver.end().startswith("completed")
    assert {t for t, *_ in notes.repeated} <= {5}
    assert_all_exact(states, one, two)


def test_a_driver_whose_steps_another_trains_does_something_else_meanwhile(plan: Plan) -> None:
    one = replace(plan, resources={"mine": 1})
    two = replace(one, name="two", resources={"yours": 1})
    states = states_of(one)
    notes = Notes(Path(plan.folder))
    with driving(one) as first, ExitStack() as stack:
        with notes.held(1):
            notes.wait_for(1, 1)
            second = stack.enter_context(driving(two))
            calls = notes.wait_for(2, 1)
            assert len({call.pid for call in calls}) == len({call.values for call in calls}) == 2
        for driver in (*first, *second):
            assert driver.end().startswith("completed")
    assert not notes.repeated
    assert_all_exact(states, one, two)


def _at(notes: Notes, t: int) -> int:
    """The number of the last call of a step."""
    return max(i for i, call in enumerate(notes.calls, start=1) if call.t == t)


def test_the_death_of_a_worker_of_another_ends_the_waiting_for_it(
    cluster: SpecCluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_restart = threading.Event()
    start = Nanny.instantiate

    async def instantiate(nanny: Nanny) -> object:
        while not may_restart.is_set():
            await asyncio.sleep(0.01)
        return await start(nanny)

    monkeypatch.setattr(Nanny, "instantiate", instantiate)
    one = replace(plan, space="early", resources={"mine": 1})
    two = replace(one, name="two", resources=None)
    states = states_of(one)
    notes, store = Notes(Path(plan.folder)), Store(plan.store)
    with driving(one) as first, ExitStack() as stack:
        stack.callback(may_restart.set)
        with notes.held(1):
            (call,) = notes.wait_for(1, 1)
            n_wanted = n_wanted_states(cluster)
            second = stack.enter_context(driving(two))
            wait_until(lambda: n_wanted_states(cluster) > n_wanted)
            with Client(cluster) as client:
                pids = set(client.run(os.getpid).values())
            os.kill(call.pid, signal.SIGKILL)
            # The other goes on at once, while this one waits for its worker to come back.
            assert notes.wait_for(2, 1)[1].pid in pids
            may_restart.set()
        for driver in (*first, *second):
            assert driver.end().startswith("completed")
    assert notes.repeated <= notes.in_flight([call.pid], store)
    assert_all_exact(states, one, two)


def unwanted(cluster: SpecCluster) -> set[str]:
    """Tasks that workers go on with though the scheduler has forgotten them."""
    workers = "__import__('sys').modules['distributed.worker'].Worker._instances"
    text = f"[t.key for w in {workers} for t in w.state.tasks.values() if t.state == 'executing']"
    with Client(cluster) as client:
        executing = {str(key) for keys in client.run(eval, text).values() for key in keys}
    return {key for key in executing if key.startswith("dasktune")} - set(tasks_of(cluster))


def n_wanted_states(cluster: SpecCluster | str) -> int:
    """Number of states that workers were asked to commit in passing."""
    text = "len(__import__('dasktune.runtime.task', fromlist=['task']).WANTED)"
    with Client(cluster) as client:
        return int(sum(client.run(eval, text).values()))


def test_workers_are_divided_equally_while_both_want_more(cluster: SpecCluster, plan: Plan) -> None:
    one = replace(plan, pace_s=0.1, tuner="long")
    two = replace(one, name="two", changes={"training_seed": 1})
    with driving(one):
        wait_until(lambda: [len(of) for of in leased(cluster).values()] == [4])
        with driving(two) as second:
            wait_until(lambda: [len(of) for of in leased(cluster).values()] == [2, 2])
            assert not set.intersection(*leased(cluster).values())
            second[0].signal(signal.SIGKILL)
            wait_until(lambda: [len(of) for of in leased(cluster).values()] == [4])


@pytest.mark.parametrize("n_before", [0, 12])
def test_the_death_of_a_driver_harms_nobody(
    cluster: SpecCluster, plan: Plan, n_before: int
) -> None:
    one = replace(plan, pace_s=0.01)
    two = replace(one, name="two")
    states = states_of(one)
    notes, store = Notes(Path(plan.folder)), Store(plan.store)
    with Client(cluster) as bystander:
        mine = bystander.submit(pow, 2, 10, key="mine")
        scattered = bystander.scatter([1, 2, 3])
        mine.result()
        with ExitStack() as stack:
            with notes.held(4, 5):
                (first,) = stack.enter_context(driving(one))
                notes.wait_for(n_before)
                (second,) = stack.enter_context(driving(two))
                notes.wait_for(1, 4)
                wait_until(lambda: len(leased(cluster)) == 2)
                first.signal(signal.SIGKILL)
                assert first.end() == "killed"
                wait_until(lambda: len(leased(cluster)) == 1)
                wait_until(lambda: not unwanted(cluster))  # the workers have heard of it, too
                lost = notes.in_flight({call.pid for call in notes.calls}, store)
            assert second.end().startswith("completed")
        assert notes.repeated <= lost
        with driving(one) as again:
            assert again[0].end().startswith("completed")
        assert notes.repeated <= lost
        assert mine.result() == 1024
        assert bystander.gather(scattered) == [1, 2, 3]
        wait_until(lambda: not tasks_of(cluster) and not leased(cluster))
    assert_all_exact(states, one, two)


@contextmanager
def two_workers_in_processes(port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A scheduler in a process of its own, with two workers; yields the scheduler."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}"]
    command += ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
    with cluster_in_processes(port) as scheduler, ExitStack() as stack:
        worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(worker.wait)
        stack.callback(worker.kill)
        yield scheduler


@pytest.mark.slow
def test_when_the_scheduler_has_been_replaced_nobody_waits_for_what_was_before(
    tmp_path: Path, port: int
) -> None:
    address = f"tcp://127.0.0.1:{port}"
    one = Plan(str(tmp_path), str(tmp_path / "store"), address, name="one", space="early")
    two = replace(one, name="two")
    states = states_of(one)
    notes, store = Notes(tmp_path), Store(one.store)
    with ExitStack() as stack:
        scheduler = stack.enter_context(two_workers_in_processes(port))
        (first,) = stack.enter_context(driving(one))
        with notes.held(1):
            notes.wait_for(1, 1)
            (second,) = stack.enter_context(driving(two))
            wait_until(lambda: n_wanted_states(address))  # it waits for the first one
            scheduler.kill()
            scheduler.wait()
            lost = notes.in_flight({call.pid for call in notes.calls}, store)
            stack.enter_context(two_workers_in_processes(port))
        for driver in (first, second):
            assert driver.end().startswith("completed")
    assert notes.repeated <= lost
    assert_all_exact(states, one, two)
