"""A real network comes to the same bits however its trials are merged, cut, spread and broken off.

One truth, each trial trained alone and by hand; every test compares with it all that is stored.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from distributed import Client, SpecCluster

import dasktune as dt
from dasktune.plan.history import key_of
from dasktune.runner import run
from dasktune.store.codec import encode
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.events import WorkerLeft
from dasktune.study.result import Result
from dasktune.tuners.tuner import Tuner
from tests.runtime.trainables import (
    Call,
    Made,
    Notes,
    assert_exact,
    tasks_of,
    truth,
    wait_until,
)
from tests.torch.noted import STEPS, killed_driver, noted_study

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """What is trained by hand has as many threads as a stage."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps")


@pytest.fixture(scope="module")
def states(folder: Path, one_thread: None) -> dict[str, Made]:  # noqa: ARG001  (comes first)
    return truth(noted_study(folder))


@pytest.fixture
def notes(folder: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(folder)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def assert_same_bits(result: Result, store: Store, states: dict[str, Made]) -> None:
    """The study is done, and what is stored and reported is the truth, read from the disk."""
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    for record in store.records():
        state = store.load(record.key)
        if state is not None:  # else it was damaged, and nobody needed it any more
            assert sha256(encode(state)).hexdigest() == states[record.key].sha256


def test_the_truth_has_as_many_states_as_there_are_different_histories(
    folder: Path, states: dict[str, Made]
) -> None:
    study = noted_study(folder)
    ends = {
        key_of(study.family, study.space.configuration(point), STEPS)
        for point in study.space.points()
    }
    assert len(ends) == 12
    assert len({states[end].sha256 for end in ends}) == 12
    assert len({made.sha256 for made in states.values()}) == len(states) < 12 * STEPS


@pytest.mark.parametrize(
    "tuner",
    [
        dt.FullTraining(STEPS),
        dt.FullTraining(STEPS, report_every=1),
        dt.SuccessiveHalving(rungs=[1, 4, STEPS], reduction_factor=2),
        dt.SuccessiveHalving(rungs=range(1, STEPS + 1), reduction_factor=1.2),
        dt.ASHA(min_steps=1, max_steps=STEPS, reduction_factor=2),
    ],
    ids=repr,
)
def test_merged_trials_cut_by_any_tuner_come_to_the_bits_of_each_alone_in_one_piece(
    notes: Notes, store: Store, states: dict[str, Made], tuner: Tuner
) -> None:
    result = run(noted_study(notes.folder, tuner), store=store, workers=0)
    assert_same_bits(result, store, states)
    assert not notes.repeated
    assert len(notes.calls) == result.steps_executed == result.steps_unique


def test_a_trial_in_a_store_of_its_own_comes_to_the_bits_that_merged_ones_came_to(
    notes: Notes, store: Store, states: dict[str, Made], tmp_path: Path
) -> None:
    together = run(noted_study(notes.folder), store=store, workers=0)
    assert_same_bits(together, store, states)
    for trial in together.trials:
        own = Store(tmp_path / f"own-{trial.number}")
        space = dict(trial.configuration.schedules)
        alone = run(noted_study(notes.folder, space=space), store=own, workers=0)
        assert_same_bits(alone, own, states)
        end = key_of(alone.study.family, trial.configuration, STEPS)
        kept, other = store.record(end), own.record(end)
        assert kept is not None
        assert other is not None
        assert (kept.sha256, kept.metrics) == (other.sha256, other.metrics)


# --- on Dask --------------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.parametrize(("asked", "n_workers"), [("one", 1), ("two", 2), (None, 4)])
def test_on_one_two_and_four_workers_that_all_train_the_bits_are_the_same(
    client: Client,
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    asked: str | None,
    n_workers: int,
) -> None:
    def release_once_all_train() -> None:
        with hold:
            wait_until(lambda: len({call.pid for call in notes.calls}) == n_workers)

    resources = None if asked is None else {asked: 1.0}
    with ThreadPoolExecutor(1) as pool, ExitStack() as hold:
        hold.enter_context(notes.held(0))
        released = pool.submit(release_once_all_train)
        result = run(noted_study(notes.folder), store=store, client=client, resources=resources)
        released.result()
    assert_same_bits(result, store, states)
    assert len({call.pid for call in notes.calls}) == n_workers
    assert os.getpid() not in {call.pid for call in notes.calls}
    assert not notes.repeated


@pytest.mark.cluster
def test_after_a_worker_was_killed_in_the_middle_of_a_path_the_bits_are_the_same(
    client: Client, notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    with notes.killing(4) as killed:  # the forks at steps 2 and 3 are behind it
        result = run(noted_study(notes.folder), store=store, client=client)
        pid = killed.result()
    assert_same_bits(result, store, states)
    assert any(
        isinstance(entry.event, WorkerLeft) and entry.event.died
        for entry in result.timeline.entries
    )
    assert notes.repeated
    assert notes.repeated <= notes.in_flight([pid], store)


# --- broken off, and called again -----------------------------------------------------------------


@dataclass(frozen=True)
class BrokenOff:
    """What a driver that trained by itself left when it was killed in the middle of a path."""

    store: Path
    calls: list[Call]
    lost: Counter[tuple[int, str, str]]
    """Steps that it had not committed."""

    def repeated(self, notes: Notes) -> Counter[tuple[int, str, str]]:
        """Of its steps those that were trained again."""
        before = {call.what for call in self.calls}
        return Counter(call.what for call in notes.calls if call.what in before)


@pytest.fixture(scope="module")
def broken_off(
    folder: Path,
    states: dict[str, Made],  # noqa: ARG001  (made before)
    tmp_path_factory: pytest.TempPathFactory,
) -> BrokenOff:
    """One driver for all: each test goes on with a copy of the store."""
    notes, path = Notes(folder), tmp_path_factory.mktemp("broken-off")
    killed_driver(notes, str(path), None, t=4)
    store = Store(path)
    assert store.keys()
    assert len({call.pid for call in notes.calls} - {os.getpid()}) == 1
    lost = notes.in_flight({call.pid for call in notes.calls}, store)
    return BrokenOff(path, notes.calls, lost)


@pytest.fixture
def copied(broken_off: BrokenOff, store: Store) -> Path:
    """The folder of `store`, as the driver has left it."""
    return Path(shutil.copytree(broken_off.store, store.url))


@pytest.mark.usefixtures("copied")
def test_after_a_driver_that_trained_was_killed_the_same_call_comes_to_the_same_bits(
    broken_off: BrokenOff, notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    result = run(noted_study(notes.folder), store=store, workers=0)
    assert_same_bits(result, store, states)
    assert broken_off.repeated(notes)
    assert broken_off.repeated(notes) <= broken_off.lost


@pytest.mark.cluster
def test_after_a_driver_of_a_cluster_was_killed_the_same_call_comes_to_the_same_bits(
    cluster: SpecCluster, client: Client, notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    killed_driver(notes, store.url, cluster.scheduler_address, t=4)
    assert store.keys()
    wait_until(lambda: not tasks_of(cluster))
    lost = notes.in_flight({call.pid for call in notes.calls}, store)
    result = run(noted_study(notes.folder), store=store, client=client)
    assert_same_bits(result, store, states)
    assert notes.repeated <= lost


def flip(blob: Path) -> None:
    """Change one bit in the middle of the tensors."""
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)


def truncate(blob: Path) -> None:
    """Lose the second half, as a disk that fails may."""
    blob.write_bytes(blob.read_bytes()[: blob.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
def test_after_blobs_were_damaged_between_two_calls_the_bits_are_the_same(
    broken_off: BrokenOff,
    copied: Path,
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    damage: Callable[[Path], None],
) -> None:
    blobs = list(copied.glob("states/*.state"))
    assert blobs
    for blob in blobs:
        damage(blob)
    result = run(noted_study(notes.folder), store=store, workers=0)
    assert_same_bits(result, store, states)
    assert not broken_off.repeated(notes) <= broken_off.lost, "what was committed was used as it is"
