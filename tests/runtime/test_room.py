"""A store with a limit: a run stays below it, and what it finds out is the same."""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.plan.history import key_of
from dasktune.runtime import room
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.result import Result
from dasktune.study.timeline import Entry
from tests.runtime.trainables import (
    TUNERS,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    truth,
)
from tests.worlds import SPACE


class Heavy(Walk):
    """A walk whose state has some weight."""

    def state_dict(self) -> object:
        return {"ballast": bytes(10_000), "walk": super().state_dict()}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        super().load_state_dict(state["walk"])


class Grows(Walk):
    """A walk whose state is forty times as heavy from step 7 on."""

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:
        super().setup(hp, seed)
        self.ballast = bytes(1000)

    def happen(self, hp: Mapping[str, Any], t: int) -> None:  # noqa: ARG002
        self.ballast = bytes(1000 if t < 6 else 40_000)

    def state_dict(self) -> object:
        return {
            "ballast": self.ballast,
            "walk": super().state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        super().load_state_dict(state["walk"])
        self.ballast = state["ballast"]


STATE_BYTES = 10_700
"""More than one of its states takes."""


def best_key(result: Result) -> str:
    assert result.best is not None
    return key_of(result.study.family, result.best.configuration, result.best.steps)


def trials(result: Result) -> list[tuple[object, ...]]:
    return [(each.number, each.status, each.configuration, each.reports) for each in result.trials]


class Watched:
    """Watches the size of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.most_bytes = 0

    def __call__(self, _: Entry) -> None:
        self.most_bytes = max(self.most_bytes, self.store.used_bytes())


@pytest.mark.parametrize(
    ("tuner", "n_states", "fits"),
    [
        ("full", 2, False), ("full", 8, True),
        ("halving", 2, False), ("halving", 6, True),
        ("asha", 2, False), ("asha", 6, True),
    ],
)  # fmt: skip
def test_a_run_stays_below_the_limit_and_finds_what_it_finds_without_one(
    tmp_path: Path, tuner: str, n_states: int, fits: bool
) -> None:
    study = study_of(Heavy(str(tmp_path)), tuner=TUNERS[tuner])
    free = dt.run(study, store=tmp_path / "free", workers=0)
    limit_bytes = n_states * STATE_BYTES
    store = Store(tmp_path / "store", limit_bytes=limit_bytes)
    watched = Watched(store)
    assert Store(tmp_path / "free").used_bytes() > limit_bytes, "the limit is none"

    result = dt.run(study, store=store, workers=0, on_event=watched)

    assert result.status is StudyStatus.COMPLETED
    assert trials(result) == trials(free)
    assert store.used_bytes() <= limit_bytes
    # Where there is room for what is needed; an event is told before room is made.
    assert not fits or watched.most_bytes <= limit_bytes + STATE_BYTES
    assert result.best is not None
    assert free.best is not None
    assert result.best.number == free.best.number
    assert result.load_state(result.best) is not None
    assert_exact(result, store, truth(study), has_ends=False)


def test_a_run_ends_below_the_limit_though_its_last_states_are_larger_than_the_others(
    tmp_path: Path,
) -> None:
    study = study_of(Grows(str(tmp_path)))
    store = Store(tmp_path / "store", limit_bytes=100_000)
    watched = Watched(store)

    dt.run(study, store=store, workers=0, on_event=watched)

    assert watched.most_bytes > 100_000, "nothing had to go at the end"
    assert store.used_bytes() <= 100_000


def test_what_a_stage_may_still_begin_from_is_never_dropped(tmp_path: Path) -> None:
    study = study_of(Heavy(str(tmp_path)))
    store = Store(tmp_path / "store", limit_bytes=1)

    result = dt.run(study, store=store, workers=0)

    assert result.status is StudyStatus.COMPLETED
    assert result.steps_recomputed == 0
    assert result.steps_executed == result.steps_unique


def test_what_a_trial_may_still_be_asked_for_is_never_dropped(tmp_path: Path) -> None:
    study = study_of(Heavy(str(tmp_path)), tuner=dt.MedianStopping(max_steps=8, report_every=2))

    result = dt.run(study, store=Store(tmp_path / "store", limit_bytes=1), workers=0)

    assert result.steps_recomputed == 0


@pytest.mark.parametrize("n_events", [5, 9])
@pytest.mark.parametrize("n_states", [0, 3])
def test_an_interrupted_run_keeps_what_it_goes_on_from(
    tmp_path: Path, n_states: int, n_events: int
) -> None:
    study = study_of(Heavy(str(tmp_path)))
    store = Store(tmp_path / "store", limit_bytes=n_states * STATE_BYTES)
    heard: list[Entry] = []

    def interrupt(entry: Entry) -> None:
        heard.append(entry)
        if len(heard) == n_events:
            signal.raise_signal(signal.SIGINT)

    first = dt.run(study, store=store, workers=0, on_event=interrupt)
    assert first.status is not StudyStatus.COMPLETED
    other = study_of(Heavy(str(tmp_path)), name="other", space=SPACE | {"batch": 99})
    dt.run(other, store=store, workers=0)  # must leave it alone

    result = dt.run(study, store=store, workers=0)

    assert result.status is StudyStatus.COMPLETED
    assert result.steps_recomputed == 0
    assert not list(tmp_path.glob("store/needs/*")), "who is over needs nothing"


def test_a_run_without_a_limit_says_what_it_needs_to_those_that_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_SAY_EVERY_S", 0.0)
    study = study_of(Heavy(str(tmp_path)))
    other = Store(tmp_path / "store", limit_bytes=1)
    n_dropped = 0

    def evict(_: Entry) -> None:
        nonlocal n_dropped
        if other.pinned():  # it has said so for the first time
            n_dropped += len(other.evict(other.pinned()))

    result = dt.run(study, store=tmp_path / "store", workers=0, on_event=evict)

    assert n_dropped
    assert result.steps_recomputed == 0


def test_the_best_of_each_study_is_never_dropped(tmp_path: Path) -> None:
    first = study_of(Heavy(str(tmp_path)), name="first")
    other = study_of(Heavy(str(tmp_path)), name="other", space=SPACE | {"batch": 99})
    free = dt.run(first, store=tmp_path / "store", workers=0)
    store = Store(tmp_path / "store", limit_bytes=1)

    result = dt.run(other, store=store, workers=0)

    assert store.keys() == {best_key(free), best_key(result)}
    assert free.best is not None
    assert free.load_state(free.best) is not None
    again = dt.run(first, store=store, workers=0)
    assert trials(again) == trials(free)


@pytest.mark.cluster
def test_on_workers_too(tmp_path: Path) -> None:
    study = study_of(Heavy(str(tmp_path)))
    store = Store(tmp_path / "store", limit_bytes=8 * STATE_BYTES)
    watched = Watched(store)
    with cluster_of({}, {}) as cluster, Client(cluster) as client:
        result = dt.run(study, store=store, client=client, on_event=watched)
    assert result.status is StudyStatus.COMPLETED
    assert store.used_bytes() <= 8 * STATE_BYTES
    assert_exact(result, store, truth(study), has_ends=False)
    assert result.steps_recomputed == 0
