"""Whole runs whose store is on S3: finished, answered again, killed and continued."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.result import Result
from tests.runtime.trainables import Made, Notes, Plan, assert_exact, truth, wait_until
from tests.s3 import BUCKET, environment_of, options_of, s3_server

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def in_environment(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process, and all that it starts, find S3 as a user's would."""
    for name, value in environment_of(address).items():
        monkeypatch.setenv(name, value)
    yield
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture
def url() -> str:
    return f"s3://{BUCKET}/{uuid4().hex}/a store"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def states(folder: Path) -> dict[str, Made]:
    return truth(Plan(str(folder), "").study())


@pytest.fixture
def notes(folder: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(folder)


def assert_answers_again(
    first: Result, store: str | Store, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call gives the same, and neither starts workers nor trains."""
    n_calls = len(notes.calls)
    monkeypatch.setattr("dasktune.runner.local_workers", None)
    again = run(first.study, store=store, workers=2)
    assert again.trials == first.trials
    assert again.timeline.entries == first.timeline.entries
    assert len(notes.calls) == n_calls


@pytest.mark.usefixtures("in_environment")
def test_a_study_ends_on_s3_and_the_same_call_answers_from_there(
    url: str, notes: Notes, states: dict[str, Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(Plan(str(notes.folder), url).study(), store=url, workers=2)

    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, Store(url), states)
    assert not notes.repeated
    assert notes.n_distinct == result.steps_executed == result.steps_unique
    assert {call.pid for call in notes.calls}.isdisjoint({os.getpid()})
    assert_answers_again(result, url, notes, monkeypatch)


def test_what_the_store_was_told_reaches_workers_whose_environment_says_nothing(
    address: str,
    url: str,
    notes: Notes,
    states: dict[str, Made],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in environment_of(address):
        monkeypatch.delenv(name, raising=False)
    store = Store(url, storage_options=options_of(address))

    result = run(Plan(str(notes.folder), url).study(), store=store, workers=2)

    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)


SCRIPT = """
from dasktune.runner import run
from tests.runtime.trainables import Plan

if __name__ == "__main__":
    run(Plan({folder!r}, {url!r}).study(), store={url!r}, workers=2)
"""


@contextmanager
def script(text: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script in a process of its own; it does not outlive the test."""
    file = folder / f"driver_{uuid4().hex}.py"
    file.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    """Whether a process still does something; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.usefixtures("in_environment")
def test_a_killed_driver_is_followed_by_one_that_trains_no_committed_step_again(
    url: str,
    tmp_path: Path,
    notes: Notes,
    states: dict[str, Made],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study, store = Plan(str(notes.folder), url).study(), Store(url)
    text = SCRIPT.format(folder=str(notes.folder), url=url)
    with notes.held(4), script(text, tmp_path) as driver:
        notes.wait_for(2, 4)  # both workers have committed where trials part, and gone on
        driver.kill()
        driver.wait()
        trained_by = {call.pid for call in notes.calls}
        wait_until(lambda: not any(is_alive(pid) for pid in trained_by))
    n_kept = len(store.keys())
    lost = notes.in_flight(trained_by, store)
    assert n_kept > 0
    assert lost

    result = run(study, store=url, workers=2)

    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert notes.repeated <= lost
    assert notes.n_distinct == result.steps_unique
    assert_answers_again(result, url, notes, monkeypatch)
