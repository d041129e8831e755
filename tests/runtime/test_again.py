"""A study that has failed tries again when it is run again, with the trials that it had."""

import logging
from pathlib import Path

import pytest

import dasktune as dt
from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.study import Study
from dasktune.trial import TrialStatus
from tests.runtime.trainables import Made, Notes, Walk, assert_exact, study_of, truth


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def states(tmp_path: Path) -> dict[str, Made]:
    return truth(study_of(Walk(str(tmp_path))))


@pytest.fixture
def notes(tmp_path: Path, states: dict[str, Made]) -> Notes:  # noqa: ARG001  (taken afterwards)
    return Notes(tmp_path)


class NoData(Walk):
    """Needs a file to train beyond step 3."""

    def happen(self, hp: object, t: int) -> None:  # noqa: ARG002
        if t == 3:
            Path(self.folder, "data").read_bytes()


def of(notes: Notes, trainable: type[Walk] = NoData) -> Study:
    return study_of(trainable(str(notes.folder)), sampler=dt.Random(), n_trials=6, retries=0)


def test_what_failed_for_want_of_data_goes_on_when_it_is_there(
    notes: Notes, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    before = run(of(notes), store=store, workers=0)
    assert before.status is StudyStatus.FAILED
    assert "FileNotFoundError" in before.reason

    Path(notes.folder, "data").touch()
    with caplog.at_level(logging.WARNING, "dasktune"):
        after = run(of(notes), store=store, workers=0)

    assert after.status is StudyStatus.COMPLETED
    assert [t.configuration for t in after.trials[: len(before.trials)]] == [
        t.configuration for t in before.trials
    ]
    [said] = [record.getMessage() for record in caplog.records if "tries again" in record.message]
    assert before.reason in said
    assert len(after.trials) == 6
    assert {t.status for t in after.trials} == {TrialStatus.COMPLETED}
    # Nothing that the first run committed is trained again, and it is the answer from now on.
    n_calls = len(notes.calls)
    assert run(of(notes), store=store, workers=0).status is StudyStatus.COMPLETED
    assert len(notes.calls) == n_calls


def test_it_fails_again_while_nothing_has_changed(notes: Notes, store: Store) -> None:
    for _ in range(3):
        result = run(of(notes), store=store, workers=0)
        assert result.status is StudyStatus.FAILED


def test_mended_code_begins_anew_under_the_same_name(
    notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    assert run(of(notes), store=store, workers=0).status is StudyStatus.FAILED

    after = run(of(notes, Walk), store=store, workers=0)

    assert after.status is StudyStatus.COMPLETED
    assert_exact(after, store, states)


def test_steps_of_a_stage_that_failed_are_counted(notes: Notes, store: Store) -> None:
    result = run(of(notes), store=store, workers=0)

    trained = [call for call in notes.calls if call.t < 3]
    assert result.steps_executed == len(trained)
    assert result.steps_recomputed > 0
    assert result.worker_seconds > 0


def test_what_failed_beside_a_study_that_completed_is_left_as_it_is(
    notes: Notes, store: Store
) -> None:
    studies = [of(notes), study_of(Walk(str(notes.folder)), name="whole")]
    before = run(studies, store=store, workers=0)
    assert [result.status for result in before] == [StudyStatus.FAILED, StudyStatus.COMPLETED]
    n_calls = len(notes.calls)

    Path(notes.folder, "data").touch()
    again = run(studies, store=store, workers=0)

    assert [result.status for result in again] == [StudyStatus.FAILED, StudyStatus.COMPLETED]
    assert len(notes.calls) == n_calls
