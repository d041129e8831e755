"""The serial backend: whole studies in this process, merged and alone, right and wrong ones."""

import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.plan.history import key_of
from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.trial import TrialStatus
from tests.runtime.trainables import (
    TUNERS,
    Answers,
    Made,
    Notes,
    Raises,
    Walk,
    assert_exact,
    study_of,
    truth,
)


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


@pytest.mark.parametrize("tuner", [*TUNERS.values(), dt.FullTraining(8, report_every=1)], ids=repr)
def test_merged_trials_give_the_bits_of_training_by_hand(
    notes: Notes,
    store: Store,
    states: dict[str, Made],
    tuner: Any,  # noqa: ANN401
) -> None:
    result = run(study_of(Walk(str(notes.folder)), tuner=tuner), store=store, workers=0)
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert not notes.repeated
    assert len(notes.calls) == result.steps_executed == result.steps_unique


def test_each_trial_alone_gives_what_all_give_together(
    notes: Notes, store: Store, states: dict[str, Made], tmp_path: Path
) -> None:
    together = run(study_of(Walk(str(notes.folder))), store=store, workers=0)
    for trial in together.trials:
        own = Store(tmp_path / f"own-{trial.number}")
        space = dict(trial.configuration.schedules)
        alone = run(study_of(Walk(str(notes.folder)), space=space), store=own, workers=0)
        assert_exact(alone, own, states)
        assert alone.trials[0].reports[0].metrics == trial.reports[0].metrics
        end = key_of(alone.study.family, trial.configuration, 8)
        kept, other = store.record(end), own.record(end)
        assert kept is not None
        assert other is not None
        assert kept.sha256 == other.sha256


def test_two_studies_with_other_seeds_share_what_they_have_in_common(
    notes: Notes, store: Store, states: dict[str, Made]
) -> None:
    for seed in (0, 1):
        study = study_of(
            Walk(str(notes.folder)), sampler=dt.Random(), n_trials=5, seed=seed, name=f"s{seed}"
        )
        assert_exact(run(study, store=store, workers=0), store, states)
    # A stage of the second may run over a fork that only the first has.
    assert {t for t, *_ in notes.repeated} <= {3, 4, 5}


def test_a_stage_that_raises_is_retried_and_its_trials_fail_alone(
    notes: Notes, store: Store
) -> None:
    study = study_of(Raises(str(notes.folder)), retries=2, max_failures=99)
    result = run(study, store=store, workers=0)
    failed = [trial for trial in result.trials if trial.status is TrialStatus.FAILED]
    assert len(failed) == 4
    assert all("ArithmeticError: no luck with 0.01" in trial.reason for trial in failed)
    assert all("trainables.py" in trial.reason for trial in failed)  # where the user looks for it
    others = [trial.status for trial in result.trials if trial not in failed]
    assert set(others) == {TrialStatus.COMPLETED}
    assert sum(call.t == 4 and "lr=0.01," in call.values for call in notes.calls) == 3


def test_a_study_gives_up_when_its_first_trials_all_fail(
    notes: Notes, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: Walk, _hp: object, t: int) -> None:
        raise LookupError(t)

    monkeypatch.setattr(Walk, "happen", fail)
    result = run(study_of(Walk(str(notes.folder)), retries=0), store=store, workers=0)
    assert result.status is StudyStatus.FAILED
    assert "trials all failed: LookupError: 0" in result.reason


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("text", StudyStatus.FAILED, "it must return a mapping of names to numbers"),
        ("word", StudyStatus.FAILED, "a metric must be a number"),
        ("unnamed", StudyStatus.FAILED, "evaluate() gave no 'accuracy'; it gave: loss"),
    ],
)
def test_answers_that_no_study_can_use_end_it_with_a_reason(
    notes: Notes, store: Store, answer: str, status: StudyStatus, said: str
) -> None:
    study = study_of(Answers(str(notes.folder), answer), retries=0)
    result = run(study, store=store, workers=0)
    assert result.status is status
    assert said in result.reason


@pytest.mark.parametrize("answer", ["nan", "none"])
def test_trials_whose_metric_is_no_number_have_diverged(
    notes: Notes, store: Store, answer: str
) -> None:
    study = study_of(Answers(str(notes.folder), answer), tuner=TUNERS["halving"])
    result = run(study, store=store, workers=0)
    assert {trial.status for trial in result.trials} == {TrialStatus.DIVERGED}
    assert result.best is None
    again = run(study, store=store, workers=0)
    assert [trial.reason for trial in again.trials] == [trial.reason for trial in result.trials]
    assert not any(math.isfinite(v) for r in store.records() for v in (r.metrics or {}).values()
                   if v is not None)  # fmt: skip


def test_timelines_are_told_as_they_happen(notes: Notes, store: Store) -> None:
    told: list[object] = []
    result = run(study_of(Walk(str(notes.folder))), store=store, workers=0, on_event=told.append)
    assert told == result.timeline.entries
    assert list(store.journal("study").lines())[1:] == list(result.timeline.lines())


class Interrupts(Walk):
    """Presses Ctrl-C in a step."""

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        marker = Path(self.folder, "pressed")
        if t == 4 and hp["lr"] == 0.1 and not marker.exists():
            marker.touch()
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_ends_at_the_step_boundary_and_the_same_call_goes_on(
    tmp_path: Path, store: Store
) -> None:
    study = study_of(Interrupts(str(tmp_path)))
    notes = Notes(tmp_path)
    stopped = run(study, store=store, workers=0)
    assert stopped.status is StudyStatus.RUNNING
    assert notes.calls[-1].t == 4
    assert {record.step for record in store.records()} >= {5}
    finished = run(study, store=store, workers=0)
    assert finished.status is StudyStatus.COMPLETED
    assert not notes.repeated
    assert finished.steps_executed == finished.steps_unique == len(notes.calls)
