"""A real Dask cluster, as somebody else starts it: what is trained there is exact, and once."""

import importlib
import os
import random
import re
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from distributed import Client, SpecCluster

import dasktune as dt
from dasktune.runner import run
from dasktune.runtime.sent import task_key
from dasktune.store.store import Store
from dasktune.study.commands import RunPath, StudyStatus
from dasktune.study.events import StageFinished, StudyStarted
from dasktune.study.timeline import Entry
from dasktune.trial import TrialStatus
from tests.runtime.trainables import (
    TUNERS,
    Kills,
    Made,
    Notes,
    Raises,
    Walk,
    assert_exact,
    leased,
    study_of,
    tasks_of,
    truth,
    wait_until,
    worker_of,
)
from tests.torch.networks import Convolution

if TYPE_CHECKING:
    from dasktune.plan.stage import Stage

pytestmark = pytest.mark.cluster


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
def test_on_any_number_of_workers_states_and_reports_are_those_of_training_by_hand(  # noqa: PLR0913, PLR0917  (fixtures)
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


def test_steps_of_several_studies_are_shared(
    client: Client, notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    walk = Walk(str(notes.folder))
    studies = [
        study_of(walk, name="one", tuner=TUNERS["halving"]),
        study_of(walk, name="two", seed=5, sampler=dt.Random(), n_trials=7),
    ]
    results = run(studies, store=store, client=client)
    for result in results:
        assert_exact(result, store, states)
    assert not notes.repeated
    assert len(notes.calls) == results[0].steps_executed


def test_tasks_are_few_named_by_content_and_run_where_they_were_meant_to(
    cluster: SpecCluster, client: Client, notes: Notes, store: Store
) -> None:
    mine = client.submit(pow, 2, 10, key="mine")
    seen: list[str] = []
    stages: dict[tuple[int, str], Stage] = {}
    finished: set[str] = set()

    def look(entry: Entry) -> None:
        seen.extend(tasks_of(cluster))
        paths = [each for each in entry.commands if isinstance(each, RunPath)]
        stages.update({(path.path, stage.key): stage for path in paths for stage in path.stages})
        if isinstance(entry.event, StageFinished):
            (topic,) = leased(cluster)
            path, key = entry.event.path, entry.event.stage
            finished.add(task_key(topic, path, stages[path, key]))
        for worker in list(cluster.scheduler.workers.values()):
            keys = {str(task.key) for task in list(worker.processing)}
            # The driver may hear before the scheduler does that a stage is done.
            running = {key for key in keys if key.startswith("dasktune")} - finished
            assert len(running) <= 1, "something is queued behind a running stage"

    walk = Walk(str(notes.folder), pace_s=0.1)
    run(study_of(walk), store=store, client=client, on_event=look)
    assert seen
    assert all(re.fullmatch("dasktune_(train|eval)-[0-9a-f]{64}", key) for key in seen)
    # The names of prefixes are never forgotten by Dask's scheduler: ours are two.
    prefixes = {name for name in cluster.scheduler.task_prefixes if name.startswith("dasktune")}
    assert prefixes <= {"dasktune_train", "dasktune_eval"}
    wait_until(lambda: not tasks_of(cluster))
    assert mine.result() == 1024
    assert "mine" in cluster.scheduler.tasks


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


class _Dies(Walk):
    """Ends its process after it has told its metrics for the first time."""

    def evaluate(self) -> Mapping[str, float]:
        answer = super().evaluate()
        with suppress(FileExistsError):
            Path(self.folder, "died").touch(exist_ok=False)
            threading.Timer(0.02, os._exit, [1]).start()
        return answer


def test_an_answer_whose_worker_dies_before_it_is_fetched_does_not_hang(
    client: Client, notes: Notes, store: Store
) -> None:
    pids = set(client.run(os.getpid).values())
    result = run(study_of(_Dies(str(notes.folder))), store=store, client=client)
    assert Path(notes.folder, "died").exists()
    wait_until(
        lambda: pids - set(client.run(os.getpid, on_error="ignore").values()), "no worker has died"
    )
    assert result.status is StudyStatus.COMPLETED


def test_a_stage_that_raises_is_retried_and_then_its_trials_fail_alone(
    client: Client, notes: Notes, store: Store
) -> None:
    result = run(
        study_of(Raises(str(notes.folder)), retries=1, max_failures=99), store=store, client=client
    )
    assert result.status is StudyStatus.COMPLETED
    failed = [trial for trial in result.trials if trial.status is TrialStatus.FAILED]
    assert {str(trial.configuration.at(4)["lr"]) for trial in failed} == {"0.01"}
    assert len(failed) == 4
    for trial in failed:
        assert "ArithmeticError: no luck with 0.01" in trial.reason
        assert "in happen" in trial.reason  # the traceback
    assert all(t.status is TrialStatus.COMPLETED for t in result.trials if t not in failed)
    assert sum(call.t == 4 and "lr=0.01," in call.values for call in notes.calls) == 2


def test_a_stage_that_kills_three_workers_is_given_up_and_innocents_are_not(
    client: Client, notes: Notes, store: Store
) -> None:
    # Joined clusters have Dask's own limit of deaths, which is as low, and counts whatever waited.
    study = study_of(Kills(str(notes.folder)), max_failures=99)
    result = run(study, store=store, client=client)
    assert result.status is StudyStatus.COMPLETED
    failed = {t.number for t in result.trials if t.status is TrialStatus.FAILED}
    assert failed == {t.number for t in result.trials if t.configuration.at(3)["lr"] == 0.01}
    assert all("killed 3 workers" in result.trials[number].reason for number in failed)
    kills = [call for call in notes.calls if call.t == 3 and "lr=0.01," in call.values]
    assert len({call.pid for call in kills}) == len(kills) == 3
    assert all(t.status is TrialStatus.COMPLETED for t in result.trials if t.number not in failed)


def test_modules_that_only_the_driver_has_travel_by_value(
    client: Client, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here_helper.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "only_here.py").write_text(
        "import only_here_helper\n"
        "from only_here_helper import half\n"
        "class Mine:\n"
        "    def setup(self, hp, seed): self.x = 1.0\n"
        "    def step(self, hp, t): self.x = half(self.x) + only_here_helper.half(hp['lr'])\n"
        "    def evaluate(self): return {'accuracy': self.x}\n"
        "    def state_dict(self): return {'x': self.x}\n"
        "    def load_state_dict(self, state): self.x = state['x']\n"
        "def decay(step):\n"
        "    return half(1.0) / (step + 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("only_here")
    study = study_of(module.Mine(), space={"lr": dt.choice([module.decay, 0.5])})
    result = run(study, store=store, client=client)
    assert result.status is StudyStatus.COMPLETED
    with pytest.raises(ModuleNotFoundError):
        client.submit(importlib.import_module, "only_here").result()


class _HasLock(Walk):
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.lock = threading.Lock()


def test_what_cannot_travel_is_refused_before_anything_is_sent(
    cluster: SpecCluster, client: Client, notes: Notes, store: Store
) -> None:
    with pytest.raises(dt.InvalidStudyError) as refused:
        run(study_of(_HasLock(str(notes.folder))), store=store, client=client)
    assert "lock" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not Path(store.url).exists()
    assert not tasks_of(cluster)
    assert not notes.calls


def test_a_worker_that_joins_late_is_used_and_its_gpus_are_asked_for(
    cluster: SpecCluster, client: Client, notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    asked: list[dict[str, float] | None] = []

    def look(entry: Entry) -> None:
        if isinstance(entry.event, StudyStarted):
            cluster.worker_spec["late"] = worker_of({"GPU": 2}, nthreads=2)
            cluster.sync(cluster._correct_state)
        tasks = [cluster.scheduler.tasks.get(key) for key in tasks_of(cluster)]
        asked.extend(task.resource_restrictions for task in tasks if task is not None)

    study = study_of(Walk(str(notes.folder)), tuner=TUNERS["halving"])
    result = run(study, store=store, client=client, resources={"GPU": 0.5}, on_event=look)
    assert_exact(result, store, states)
    assert len({call.pid for call in notes.calls}) == 1  # one slot a process
    assert {"GPU": 0.5} in asked
    assert all(each == {"GPU": 0.5} for each in asked)


def test_by_default_a_gpu_is_asked_for_where_there_are_any(
    cluster: SpecCluster, client: Client, notes: Notes, store: Store
) -> None:
    asked: dict[str, object] = {}

    def have_all_trained() -> bool:
        for key in tasks_of(cluster):
            task = cluster.scheduler.tasks.get(key)
            worker = None if task is None else task.processing_on
            if worker is not None:
                asked[worker.name] = task.resource_restrictions
        return len(asked) == len(cluster.scheduler.workers)

    def look() -> None:
        with hold:
            wait_until(have_all_trained)

    with ThreadPoolExecutor(1) as meanwhile, ExitStack() as hold:
        hold.enter_context(notes.held(6))
        looked = meanwhile.submit(look)
        run(study_of(Walk(str(notes.folder))), store=store, client=client)
        looked.result()
    assert asked.pop("late") == {"GPU": 1}
    assert all(not restrictions for restrictions in asked.values())


def test_no_other_thread_of_dask_draws_from_the_generators_that_training_uses(
    client: Client, notes: Notes, store: Store
) -> None:
    run(study_of(Walk(str(notes.folder)), tuner=dt.FullTraining(1)), store=store, client=client)
    # What a worker does at each heartbeat, in the middle of somebody's step.
    drawn = client.run(
        eval,
        "[(r.seed(1), [s.sizeof([0] * 99) for _ in range(9)], r.random())[-1] "
        "for r, s in [(__import__('random'), __import__('dask.sizeof').sizeof)]][0]",
    )
    assert set(drawn.values()) == {random.Random(1).random()}


def test_the_allocator_is_left_alone_where_others_work_and_that_is_recorded(
    cluster: SpecCluster, client: Client, notes: Notes, tmp_path: Path
) -> None:
    # Mended processes stay so: a worker that has not been is needed.
    cluster.worker_spec["fresh"] = worker_of({"fresh": 1})
    cluster.sync(cluster._correct_state)
    found = []
    with Client(cluster):
        for mends in (None, True):
            store = Store(tmp_path / str(mends))
            run(
                study_of(Walk(str(notes.folder)), tuner=dt.FullTraining(1)),
                store=store,
                client=client,
                resources={"fresh": 1},
                mends_allocator=mends,
            )
            facts = {str(record.facts["allocator_mended"]) for record in store.records()}
            found.append(facts)
            # As Dask starts its workers: each step of training gives its memory back.
            assert {record.facts["trim_threshold"] for record in store.records()} == {"65536"}
    assert found == [{"False"}, {"True"}]


@pytest.mark.torch
def test_torch_trains_to_the_same_bits_in_this_process_and_on_workers(
    client: Client, tmp_path: Path
) -> None:
    found: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = [{"workers": 0}, {"client": client}]
    for place in places:
        study = study_of(
            Convolution("adam", batches_per_step=2),
            space={
                "lr": dt.choice([0.01, dt.step_decay(0.01, factor=0.1, at=[2])]),
                "batch_size": dt.choice([4, dt.piecewise({0: 4, 1: 8})]),
            },
            tuner=dt.SuccessiveHalving(rungs=[1, 3], reduction_factor=2),
        )
        store = Store(tmp_path / str(len(found)))
        result = run(study, store=store, **place)
        assert result.status is StudyStatus.COMPLETED
        found.append({r.key: (r.step, r.sha256, r.metrics) for r in store.records()})
    assert found[0] == found[1]
