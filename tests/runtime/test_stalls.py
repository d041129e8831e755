"""What is said of a run in which nothing runs, when, and how often."""

from typing import Any

import pytest

import dasktune as dt
from dasktune.runtime.stalls import STALLED_AFTER_S, Stalls
from dasktune.study.core import StudyCore
from dasktune.study.events import StudyStarted, WorkerJoined, WorkerLeft
from dasktune.units import WorkerId
from tests.worlds import small_study


class Watched:
    """A core, and what is shown of it."""

    def __init__(self, waiting: str | None = None) -> None:
        self.core = StudyCore([small_study(tuner=dt.FullTraining(8))])
        self.core.handle(StudyStarted(study=0), 0.0)
        self.now = 0.0
        self.waiting = waiting
        self.shown: list[str] = []
        self.stalls = Stalls(self.core, lambda: self.waiting, self.shown.append, lambda: self.now)

    def look(self, after_s: float) -> None:
        self.now += after_s
        self.stalls.look()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:  # noqa: ANN401
    return lambda: [
        record.getMessage() for record in caplog.records if record.name.startswith("dasktune")
    ]


def test_it_is_said_once_that_nothing_runs_and_why_and_not_at_once(logged: Any) -> None:  # noqa: ANN401
    watched = Watched("the cluster has no workers")
    watched.look(0.0)
    watched.look(STALLED_AFTER_S / 2)
    assert watched.shown == []
    for _ in range(3):
        watched.look(STALLED_AFTER_S)
    why = "2 stages are ready and no worker has joined: the cluster has no workers"
    assert watched.shown == [why]
    assert logged() == [f"nothing runs: {why}"]


def test_what_changes_is_said_anew_and_taken_back_when_something_runs(logged: Any) -> None:  # noqa: ANN401
    watched = Watched("a has not answered yet")
    watched.look(0.0)
    watched.look(STALLED_AFTER_S)
    watched.waiting = None
    watched.look(1.0)
    watched.core.handle(WorkerJoined(worker=WorkerId("a")), 1.0)
    watched.look(1.0)
    assert [text.endswith("answered yet") for text in watched.shown] == [True, False, False]
    assert watched.shown[-1] == ""
    assert len(logged()) == 2


def test_two_short_stalls_are_no_long_one_where_nobody_looked_between_them(logged: Any) -> None:  # noqa: ANN401
    watched = Watched("a has not answered yet")
    watched.look(0.0)
    watched.core.handle(WorkerJoined(worker=WorkerId("a")), 1.0)
    watched.core.handle(WorkerLeft(worker=WorkerId("a"), died=True), 99.0)
    watched.look(99.0)
    watched.look(STALLED_AFTER_S / 2)
    assert watched.shown == []
    watched.look(STALLED_AFTER_S / 2)
    assert len(watched.shown) == len(logged()) == 1


def test_waiting_for_others_is_shown_and_is_no_warning(logged: Any) -> None:  # noqa: ANN401
    watched = Watched()
    watched.core.handle(WorkerJoined(worker=WorkerId("a")), 1.0)
    watched.waiting = "1 paths wait for steps that another driver is training"
    watched.look(0.0)
    watched.look(STALLED_AFTER_S)
    assert watched.shown == [watched.waiting]
    assert logged() == []
