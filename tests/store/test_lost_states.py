"""Whole runs whose store has lost a state, or whose driver has lost its lock."""

from collections.abc import Mapping
from math import nan
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

import dasktune as dt
from dasktune.errors import BackendError
from dasktune.store.lock import HeartbeatLock
from dasktune.store.objects import Objects
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.timeline import Entry

N_ENTRIES = 100
"""More than any run here has that comes to its end."""


class Summing:
    """Sums its learning rates; its second metric is never a number."""

    def setup(self, hp: Mapping[str, float], seed: int) -> None:  # noqa: ARG002
        self.total = 0.0

    def step(self, hp: Mapping[str, float], t: int) -> None:  # noqa: ARG002
        self.total += hp["lr"]

    def evaluate(self) -> dict[str, float]:
        return {"total": self.total, "gap": nan}

    def state_dict(self) -> dict[str, float]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.total = state["total"]


def summing(name: str, *rates: float) -> dt.Study:
    """Trials that part at step 4."""
    return dt.Study(
        Summing(),
        space={"lr": dt.choice([dt.piecewise({0: 1.0, 4: rate}) for rate in rates])},
        sampler=dt.Grid(),
        tuner=dt.FullTraining(6, report_every=2),
        metric="total",
        mode="max",
        name=name,
    )


def test_a_lost_state_is_made_again_though_a_metric_is_no_number(tmp_path: Path) -> None:
    store = Store(tmp_path)
    dt.run(summing("early", 0.25, 0.5), store=store, workers=0)
    (fork,) = (record for record in store.records() if record.step == 4)
    (tmp_path / "states" / f"{fork.key}.{fork.sha256}.state").unlink()
    seen: list[Entry] = []

    def look(entry: Entry) -> None:
        seen.append(entry)
        assert len(seen) < N_ENTRIES, "it goes round in circles"

    result = dt.run(summing("late", 0.25, 2.0, 1.5), store=store, workers=0, on_event=look)

    assert result.status is StudyStatus.COMPLETED
    assert result.best is not None
    assert result.load_state(result.best) == {"total": 8.0}
    assert store.load(fork.key) == {"total": 4.0}


def test_a_driver_whose_lock_was_taken_decides_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"memory://taken-{uuid4().hex}"
    study, store, seen = summing("early", 0.25, 0.5), Store(url), list[Entry]()

    def take_over_at_third(entry: Entry) -> None:
        seen.append(entry)
        if len(seen) == 3:
            # Unreadable, so that the next driver need not wait for its owner.
            Objects(url, {}).put("locks/early/00000002.json", b"")
            monkeypatch.setattr(HeartbeatLock, "_silent_s", lambda _: 60.0)

    with pytest.raises(BackendError, match=r"lock of study 'early' was lost"):
        dt.run(study, store=store, workers=0, on_event=take_over_at_third)
    monkeypatch.undo()

    assert len(seen) == 3
    assert len(list(store.journal("early").lines())) == 1 + 3  # and the header
    assert dt.run(study, store=store, workers=0).status is StudyStatus.COMPLETED
    fsspec.filesystem("memory").rm(url, recursive=True)
