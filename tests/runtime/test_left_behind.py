"""What a run leaves on a cluster and in its client: nothing, however it ends."""

import ast
import asyncio
import gc
import inspect
import pickle
import signal
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from distributed import Client, SpecCluster

from dasktune.runner import run
from dasktune.runtime import proof, task
from dasktune.runtime.dask import DaskBackend
from dasktune.runtime.link import Link
from dasktune.runtime.payload import pack
from dasktune.runtime.plugins import (
    OPERATION,
    PROTOCOL,
    Sharing,
    TrainingCode,
    forget_run,
    sharing,
)
from dasktune.runtime.turns import Turns
from dasktune.runtime.workforce import Workforce
from dasktune.store.store import Store
from dasktune.study.core import StudyCore
from dasktune.units import Digest
from tests.runtime.trainables import (
    TUNERS,
    Notes,
    Plan,
    Walk,
    assert_exact,
    cluster_of,
    driving,
    leased,
    study_of,
    tasks_of,
    truth,
    wait_until,
    worker_of,
)


class Closes(Walk):
    """Notes when it is closed."""

    def close(self) -> None:
        with Path(self.folder, "closed").open("a") as notes:
            notes.write("closed\n")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SpecCluster]:
    """A worker as people start them: with several threads."""
    with cluster_of() as cluster:
        cluster.worker_spec["one"] = worker_of({}, nthreads=2)
        cluster.sync(cluster._correct_state)
        yield cluster


@pytest.fixture
def client(cluster: SpecCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        client.wait_for_workers(1)
        yield client


def kept(client: Client) -> set[object]:
    """What worker processes keep of runs: training code, runs, models."""
    module = "__import__('sys').modules.get('dasktune.runtime.task')"
    said = client.run(
        eval, f"(lambda t: t and (len(t.PAYLOADS), len(t.TOPICS), t.TURNS._held and 1))({module})"
    )
    return set(said.values())


NOTHING = (0, 0, None)


def code_of(cluster: SpecCluster) -> list[str]:
    """The runs whose training code new workers would be given."""
    return [name for name in cluster.scheduler.worker_plugins if name.startswith("dasktune")]


def whole_plans() -> list[object]:
    """All that this process holds of runs, of other tests too."""
    gc.collect()
    kinds = (StudyCore, DaskBackend)  # not isinstance: it asks modules that answer with warnings
    return [each for each in gc.get_objects() if type(each) in kinds]


@pytest.mark.cluster
def test_after_runs_workers_keep_neither_code_nor_models_and_the_client_no_plan(
    cluster: SpecCluster, client: Client, tmp_path: Path
) -> None:
    interval_s = client.scheduler_comm.interval
    before = whole_plans()
    for name in ("one", "two"):
        study = study_of(Closes(str(tmp_path)), name=name, tuner=TUNERS["asha"])
        run(study, store=Store(tmp_path / name), client=client)
    wait_until(lambda: kept(client) == {NOTHING})
    assert (tmp_path / "closed").exists()
    assert client.scheduler_comm.interval == interval_s
    assert not code_of(cluster)
    wait_until(lambda: not tasks_of(cluster) and not leased(cluster))
    assert not [each for each in whole_plans() if not any(each is old for old in before)]


@pytest.mark.cluster
def test_a_driver_that_is_killed_leaves_nothing_and_its_last_step_meets_no_other(
    cluster: SpecCluster, client: Client, tmp_path: Path
) -> None:
    one = Plan(str(tmp_path), str(tmp_path / "store"), cluster.scheduler_address, name="one")
    states = truth(one.study())
    (tmp_path / "steps").unlink()
    notes = Notes(tmp_path)
    with driving(one) as (driver,), notes.held(4):
        notes.wait_for(1, 4)
        driver.signal(signal.SIGKILL)
        assert driver.end() == "killed"
        wait_until(lambda: not leased(cluster))
        wait_until(lambda: not code_of(cluster))
        wait_until(lambda: kept(client) == {(0, 0, 1)}, "the model of a step that runs is not kept")
        two = Plan(**{**vars(one), "name": "two"})
        with driving(two) as (other,):
            wait_until(lambda: is_waiting(client))
            (tmp_path / "hold-4").unlink()
            assert other.end().startswith("completed")
    wait_until(lambda: kept(client) == {NOTHING})
    result = run(two.study(), store=two.store, workers=0)
    assert_exact(result, Store(two.store), states)


def is_waiting(client: Client) -> bool:
    pulses = "__import__('sys').modules['dasktune.runtime.pulse'].PULSES.values()"
    text = f"sum(p.behind is not None for p in list({pulses}))"
    return bool(sum(client.run(eval, text).values()))


_REGISTER: Any = Link._register


def registers_then_stops(self: Link, plugin: object) -> None:
    """As if Ctrl-C came when the workers have the code, and the driver has not heard it."""
    assert _REGISTER(self, plugin)
    raise KeyboardInterrupt


def registers_code_only(self: Link, plugin: object) -> bool:
    """As if Ctrl-C came while the second plugin is registered."""
    if isinstance(plugin, Sharing):
        raise KeyboardInterrupt
    return bool(_REGISTER(self, plugin))


def cannot_write(_: object) -> None:
    raise OSError("no room")


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("place", "name", "instead", "error"),
    [
        (Link, "_register", registers_then_stops, KeyboardInterrupt),
        (Link, "_register", registers_code_only, KeyboardInterrupt),
        (proof.Proof, "write", cannot_write, OSError),
    ],
    ids=["while code is sent", "while leases are asked for", "while the store is written to"],
)
def test_a_run_that_is_broken_off_while_it_joins_leaves_nothing(  # noqa: PLR0913, PLR0917
    cluster: SpecCluster,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: type,
    name: str,
    instead: Callable[..., object],
    error: type[BaseException],
) -> None:
    interval_s = client.scheduler_comm.interval
    walk = Walk(str(tmp_path))
    by_reference = len(cloudpickle.dumps(walk))
    monkeypatch.setattr(place, name, instead)
    with pytest.raises(error):
        run(study_of(walk), store=Store(tmp_path / "store"), client=client)
    assert client.scheduler_comm.interval == interval_s
    assert not code_of(cluster)
    wait_until(lambda: kept(client) == {NOTHING})
    assert len(cloudpickle.dumps(walk)) == by_reference
    wait_until(lambda: not leased(cluster))
    for topic in [t for t in client._event_handlers if t.startswith("dasktune")]:
        wait_until(partial(has_left, cluster, client, topic))


def has_left(cluster: SpecCluster, client: Client, topic: str) -> bool:
    return client.id not in cluster.scheduler._broker._topics[topic].subscribers


# --- without a cluster ----------------------------------------------------------------------------


@pytest.mark.parametrize(("mends", "found"), [(False, False), (True, True), (None, True)])
def test_whether_allocators_are_mended_is_kept_when_the_scheduler_is_back(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mends: bool | None,
    found: bool,
) -> None:
    joined: list[bool] = []

    def join(_: Link, code: TrainingCode, _hear: object) -> None:
        joined.append(code._mends)

    monkeypatch.setattr(Link, "join", join)
    monkeypatch.setattr(Link, "leave", lambda _: None)
    monkeypatch.setattr(Link, "is_alone", lambda _: True)
    monkeypatch.setattr(Link, "has_changed", lambda _: True)
    monkeypatch.setattr(Workforce, "join", lambda _: None)
    study = study_of(Walk(""))
    payload = pack(study.trainable)  # type: ignore[arg-type]
    client: Any = SimpleNamespace(status="running")
    one = DaskBackend(
        client,
        topic="run",
        store=Store(tmp_path),
        payloads={study.fingerprint.digest: payload},
        mends_allocator=mends,
    )
    one._look_after_scheduler()
    one.close()
    assert joined == [found, found]


def test_a_process_forgets_of_a_run_that_leaves_what_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task, "TURNS", Turns(task._opened, task.TOPICS))

    async def play() -> None:
        for topic in ("one", "two"):
            task.TOPICS.add(topic)
            await task.stop_path(topic, 1)
        await task.want_state(Digest("a" * 64))
        await forget_run("one")
        assert list(task.STOPPED) == [("two", 1)]
        assert task.WANTED
        await forget_run("two")

    asyncio.run(play())
    assert not task.TOPICS
    assert not task.STOPPED
    assert not task.WANTED


# --- versions -------------------------------------------------------------------------------------

SPOKEN = {
    3: (
        {"join", "leave", "demand", "returned", "refused", "running", "ended"},
        {
            *("others", "announced", "granted", "recall", "leaving", "gone", "running", "ended"),
            *("report", "outcome"),  # by workers
        },
    )
}
"""What drivers say, and what they are told, by version."""


def test_who_speaks_otherwise_has_another_version() -> None:
    assert (cases_of(Sharing._hear), cases_of(DaskBackend._hear)) == SPOKEN[PROTOCOL]


def cases_of(function: Callable[..., object]) -> set[object]:
    """Return the constants that the cases of a function compare with."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.MatchValue)]
    return {value.value for value in values if isinstance(value, ast.Constant)}


def test_each_version_has_a_plugin_and_a_line_of_its_own() -> None:
    assert Sharing.name.endswith(f"-{PROTOCOL}")
    assert OPERATION.endswith(f"-{PROTOCOL}")


def test_a_scheduler_that_runs_another_version_works_without_leases(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has imported its own before, and would make that one of what it is sent."""
    made = pickle.loads(cloudpickle.dumps(Sharing()))
    assert isinstance(made, Sharing)
    monkeypatch.setattr(Sharing, "__reduce__", lambda _: (sharing, (PROTOCOL + 1,)))
    with cluster_of() as cluster, Client(cluster) as client:
        link = Link(client, "run")
        link.join(TrainingCode("run", {}, mends=False), lambda _: None)
        try:
            assert not link.has_leases
            assert not [each for each in cluster.scheduler.plugins if "sharing" in each]
        finally:
            link.leave()
    assert f"speaks version {PROTOCOL} and the driver {PROTOCOL + 1}" in caplog.text


def test_what_another_version_makes_of_this_one_does_not_start() -> None:
    old = Sharing.__new__(Sharing)  # as classes are unpickled that say nothing of it
    with pytest.raises(AttributeError):
        old.start(Scheduler(a="running"))


class Scheduler:
    """As much of a scheduler as its plugin needs."""

    def __init__(self, **workers: str) -> None:
        self.stream_handlers: dict[str, Any] = {}
        self.worker_plugins: dict[str, bytes] = {}
        self.workers = {
            name: SimpleNamespace(status=SimpleNamespace(name=status), resources={})
            for name, status in workers.items()
        }
        self.said: list[tuple[str, Mapping[str, Any]]] = []

    def log_event(self, topic: str, message: Mapping[str, Any]) -> None:
        self.said.append((topic, message))


def test_only_workers_that_run_are_leased_and_others_once_they_do() -> None:
    scheduler = Scheduler(a="running", b="paused", c="closing_gracefully", d="init")
    plugin = Sharing()
    plugin.start(scheduler)
    hear = scheduler.stream_handlers[OPERATION]
    hear(client="me", verb="join", topic="run", resources={})
    assert granted(scheduler) == ["a"]
    scheduler.workers["b"].status.name = "running"
    plugin.log_event("b", {"action": "worker-status-change"})
    assert granted(scheduler) == ["a", "b"]


def granted(scheduler: Scheduler) -> list[str]:
    return [message["worker"] for _, message in scheduler.said if message["kind"] == "granted"]
