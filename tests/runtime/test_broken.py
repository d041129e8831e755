"""A process that has lost its GPU for good: it is told from others, and replaced."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

from dasktune.runner import run
from dasktune.runtime.broken import breaks_process
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.trial import TrialStatus
from tests.runtime.trainables import (
    Made,
    Notes,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    truth,
    wait_until,
)

ASSERTED = "CUDA error: device-side assert triggered"


def raised(error: Exception, then: Exception | None = None, *, is_said: bool = True) -> Exception:
    """Return the last error that comes of one, as `except` gives it."""
    try:
        try:
            raise error
        except Exception as first:
            if then is None:
                raise
            if is_said:
                raise then from first
            raise then  # noqa: B904  (as users do)
    except Exception as last:
        return last


@pytest.mark.parametrize(
    ("error", "is_broken"),
    [
        (RuntimeError(ASSERTED), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (raised(RuntimeError(ASSERTED), ValueError("no luck")), True),
        (raised(RuntimeError(ASSERTED), KeyError("no luck"), is_said=False), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), False),
        (RuntimeError("the CUDA error: none"), False),
        (ValueError(ASSERTED), False),
        (ArithmeticError("no luck"), False),
        (None, False),
    ],
)
def test_errors_of_a_broken_context_are_known_by_their_text(
    error: Exception | None, is_broken: bool
) -> None:
    assert breaks_process(error) is is_broken


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory",
        "CUDA error: invalid device ordinal",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: no kernel image is available for execution on the device",
    ],
)
def test_what_passes_ends_no_process(words: str) -> None:
    assert not breaks_process(RuntimeError(words))
    assert breaks_process(raised(RuntimeError(ASSERTED), RuntimeError(words)))


def test_errors_that_come_of_one_another_in_a_circle_are_looked_through() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert not breaks_process(one)


# --- real processes -------------------------------------------------------------------------------


class _Breaks(Walk):
    """Loses its GPU at its fifth step, once; from then on its process would fail at every step."""

    is_broken = False

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        if t == 4:
            with suppress(FileExistsError):
                Path(self.folder, "broken").touch(exist_ok=False)
                _Breaks.is_broken = True
        if _Breaks.is_broken:
            Path(self.folder, f"failed-{t}-{hp['lr']}").touch()
            raise RuntimeError(ASSERTED)


class _AlwaysBreaks(Walk):
    """Loses its GPU at the first step of the schedules that decay at step 3."""

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        if t == 3 and hp["lr"] < 0.05:
            raise RuntimeError(ASSERTED)


@pytest.fixture
def states(tmp_path: Path) -> dict[str, Made]:
    return truth(study_of(Walk(str(tmp_path))))


@pytest.fixture
def notes(tmp_path: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def assert_replaced(notes: Notes, result: Any, folder: Path) -> None:  # noqa: ANN401
    """One stage failed once, in a process that trained nothing more; another one went on."""
    assert result.status is StudyStatus.COMPLETED
    assert all(trial.status is TrialStatus.COMPLETED for trial in result.trials)
    assert len(list(folder.glob("failed-*"))) == 1, "something was begun in the broken process"
    assert len({call.pid for call in notes.calls}) == 2
    pids = [call.pid for call in notes.calls]
    assert pids == sorted(pids, key=pids.index), "the first process was used again"


@pytest.mark.cluster
def test_a_local_worker_that_has_lost_its_gpu_is_replaced_and_the_study_goes_on(
    notes: Notes, store: Store, tmp_path: Path
) -> None:
    result = run(study_of(_Breaks(str(tmp_path)), retries=1), store=store, workers=1)
    assert_replaced(notes, result, tmp_path)
    facts = {record.facts["pid"] for record in store.records()}
    assert len(facts) == 2


@contextmanager
def refusing(*handlers: str) -> Iterator[None]:
    with dask.config.set({"distributed.scheduler.blocked-handlers": list(handlers)}):
        yield


@pytest.mark.cluster
@pytest.mark.parametrize(
    "handlers",
    [
        [],
        ["register_scheduler_plugin", "register_worker_plugin", "run_function"],
    ],
    ids=["plugins", "no plugins"],
)
def test_a_joined_worker_that_has_lost_its_gpu_is_replaced(
    store: Store, tmp_path: Path, handlers: list[str]
) -> None:
    with refusing(*handlers), cluster_of({}, {}) as cluster, Client(cluster) as client:
        mine = client.scatter([1, 2, 3])
        study = study_of(_Breaks(str(tmp_path)), retries=1)
        result = run(study, store=store, client=client)
        if not handlers:
            assert client.gather(mine) == [1, 2, 3], "what others keep there is lost"
        wait_until(lambda: len(cluster.scheduler.workers) == 2)
    assert result.status is StudyStatus.COMPLETED
    assert all(trial.status is TrialStatus.COMPLETED for trial in result.trials)
    assert len(list(tmp_path.glob("failed-*"))) == 1
    assert_exact(result, store, truth(study))  # it breaks only once


@pytest.mark.cluster
def test_what_always_breaks_fails_alone_with_its_traceback(
    notes: Notes, store: Store, tmp_path: Path, states: dict[str, Made]
) -> None:
    study = study_of(_AlwaysBreaks(str(tmp_path)), retries=1, max_failures=99)
    result = run(study, store=store, workers=1)
    assert result.status is StudyStatus.COMPLETED
    failed = [trial for trial in result.trials if trial.status is TrialStatus.FAILED]
    assert {str(trial.configuration.at(3)["lr"]) for trial in failed} == {"0.01"}
    for trial in failed:
        assert ASSERTED in trial.reason
        assert "in happen" in trial.reason
    assert notes.calls
    assert len(states) > len(list(store.records())) > 0


def test_in_this_process_nothing_is_ended(notes: Notes, store: Store, tmp_path: Path) -> None:
    study = study_of(_AlwaysBreaks(str(tmp_path)), retries=1, max_failures=99)
    result = run(study, store=store, workers=0)
    assert result.status is StudyStatus.COMPLETED
    assert notes.calls
