from collections.abc import Mapping
from pathlib import Path

import pytest

import dasktune as dt
from dasktune.errors import BackendError


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


def summing(tuner: dt.FullTraining, mode: str = "max") -> dt.Study:
    return dt.Study(
        Summing(),
        space={"lr": dt.choice([0.5, 1.0])},
        sampler=dt.Grid(),
        tuner=tuner,
        metric="total",
        mode=mode,  # type: ignore[arg-type]
        name="summing",
    )


def test_the_state_of_the_best_report_is_given_back(tmp_path: Path) -> None:
    result = dt.run(summing(dt.FullTraining(4)), store=tmp_path, workers=0)
    assert result.best is not None
    assert result.load_state(result.best) == {"total": 4.0}
    assert result.load_state(result.trials[0]) == {"total": 2.0}
    assert result.best_model().evaluate() == {"total": 4.0}


def test_a_state_that_was_only_reported_in_passing_is_said_not_to_be_stored(tmp_path: Path) -> None:
    study = summing(dt.FullTraining(4, report_every=1), mode="min")
    result = dt.run(study, store=tmp_path, workers=0)
    with pytest.raises(BackendError, match="trial 0 at step 1 is not stored"):
        result.best_model()


def test_rows_hold_what_each_trial_was_and_gave(tmp_path: Path) -> None:
    result = dt.run(summing(dt.FullTraining(4)), store=tmp_path, workers=0)
    assert [(row["hp.lr"], row["metric.total"], row["steps"]) for row in result.rows()] == [
        (0.5, 2.0, 4),
        (1.0, 4.0, 4),
    ]
