"""Results read from a store, in another script than the one that ran the study."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import BackendError, InvalidStudyError
from dasktune.study.commands import StudyStatus
from dasktune.study.result import Result
from dasktune.study.timeline import Entry


class Summing:
    """Sums its learning rates."""

    def setup(self, hp: Mapping[str, float], seed: int) -> None:  # noqa: ARG002
        self.total = 0.0

    def step(self, hp: Mapping[str, float], t: int) -> None:  # noqa: ARG002
        self.total += hp["lr"]

    def evaluate(self) -> dict[str, float]:
        return {"total": self.total}

    def state_dict(self) -> dict[str, float]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.total = state["total"]


RATES = [dt.piecewise({0: 1.0, 4: rate}) for rate in (0.25, 0.5, 2.0)]


def summing(name: str, **changes: Any) -> dt.Study:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": {"lr": dt.choice(RATES)},
        "sampler": dt.Grid(),
        "tuner": dt.FullTraining(6, report_every=2),
        "metric": "total",
        "mode": "max",
        "name": name,
    }
    return dt.Study(Summing(), **given | changes)


def ran(study: dt.Study, store: Path) -> Result:
    return dt.run(study, store=store, workers=0)


def test_a_loaded_result_says_what_the_run_did(tmp_path: Path) -> None:
    ours = ran(summing("early"), tmp_path)
    loaded = dt.load_result("early", store=tmp_path)

    assert loaded.rows() == ours.rows()
    assert loaded.rows("reports") == ours.rows("reports")
    assert loaded.trials == ours.trials
    assert loaded.best == ours.best
    assert (loaded.status, loaded.reason) == (ours.status, ours.reason)
    assert loaded.steps_executed == ours.steps_executed
    assert list(loaded.timeline.lines()) == list(ours.timeline.lines())
    assert [trial.params for trial in loaded.to_optuna().trials] == [
        trial.params for trial in ours.to_optuna().trials
    ]


def test_its_states_are_there_and_its_code_is_not(tmp_path: Path) -> None:
    ran(summing("early"), tmp_path)
    loaded = dt.load_result("early", store=str(tmp_path))
    assert loaded.best is not None
    assert loaded.load_state(loaded.best) == {"total": 8.0}
    with pytest.raises(BackendError, match="training code of this study is not here"):
        loaded.best_model()


def test_a_state_that_cannot_be_read_is_said_to_be_so_and_stays(tmp_path: Path) -> None:
    ours = ran(summing("early"), tmp_path)
    loaded = dt.load_result("early", store=tmp_path)
    assert loaded.best is not None
    for blob in (tmp_path / "states").glob("*.state"):
        blob.write_bytes(bytes(blob.stat().st_size))
    before = {path.name for path in tmp_path.rglob("*")}

    for _ in range(2):
        with pytest.raises(BackendError, match=r"at step 6 .*cannot be read.*checksum"):
            loaded.load_state(loaded.best)
    assert {path.name for path in tmp_path.rglob("*")} == before

    assert ours.best is not None  # whoever has just run the study can make its states again
    with pytest.raises(BackendError, match=r"not stored"):
        ours.load_state(ours.best)


def test_a_later_study_learns_from_it_and_finds_its_states(tmp_path: Path) -> None:
    early = ran(summing("early", tuner=dt.FullTraining(6)), tmp_path)
    later = summing(
        "later",
        tuner=dt.FullTraining(6),
        space={"lr": dt.choice([*RATES, dt.piecewise({0: 1.0, 4: 3.0})])},
        warm_start=[dt.load_result("early", store=tmp_path)],
    )
    assert [dict(trial.point) for trial in later.warm_start] == [{"lr": 0}, {"lr": 1}, {"lr": 2}]
    assert [[r.score for r in trial.reports] for trial in later.warm_start] == [
        [r.score for r in trial.reports] for trial in early.trials
    ]

    result = ran(later, tmp_path)

    assert result.steps_unique == 4 + 4 * 2
    assert result.steps_executed == 2  # of the one trial that is new, from where it parts


def test_a_study_of_a_run_of_several_has_its_own_result(tmp_path: Path) -> None:
    results = dt.run([summing("one"), summing("two", mode="min")], store=tmp_path, workers=0)
    for ours in results:
        loaded = dt.load_result(ours.study.name, store=tmp_path)
        assert loaded.best == ours.best
        assert loaded.index == ours.index
        assert loaded.rows() == ours.rows()


def test_a_study_can_be_read_while_it_runs(tmp_path: Path) -> None:
    seen: list[Result] = []

    def look(entry: Entry) -> None:
        del entry
        seen.append(dt.load_result("early", store=tmp_path))

    ours = dt.run(summing("early"), store=tmp_path, workers=0, on_event=look)

    assert {result.status for result in seen[:-1]} == {StudyStatus.RUNNING}
    told = [sum(len(trial.reports) for trial in result.trials) for result in seen]
    assert told == sorted(told)
    assert 0 in told
    assert seen[-1].rows() == ours.rows()


def test_a_study_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    ran(summing("early"), tmp_path)
    with pytest.raises(InvalidStudyError, match=r"study is 'late'; the studies in .* are: early"):
        dt.load_result("late", store=tmp_path)


def test_a_run_of_several_is_no_study(tmp_path: Path) -> None:
    dt.run([summing("one"), summing("two")], store=tmp_path, workers=0)
    (journal,) = (path.stem for path in (tmp_path / "timelines").iterdir())
    with pytest.raises(InvalidStudyError, match="a run of several: one, two; name one of these"):
        dt.load_result(journal, store=tmp_path)
