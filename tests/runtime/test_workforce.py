"""The workers of a driver, as its messages and events go: granted, proven, about to go, gone."""

from collections.abc import Callable, Coroutine
from concurrent.futures import Future as Asked
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dasktune.errors import BackendError
from dasktune.runtime.workforce import Workforce
from dasktune.study.events import Event, WorkerJoined, WorkerRecalled
from dasktune.units import WorkerId

if TYPE_CHECKING:
    from dasktune.runtime.link import Link

A, B = WorkerId("a"), WorkerId("b")


class FakeLink:
    """A line to nowhere: questions are answered by the test."""

    def __init__(self, *, has_leases: bool = True) -> None:
        self.has_leases = has_leases
        self.has_code = True
        self.is_cut_off = False
        self.topic = "topic"
        self.client = SimpleNamespace(scheduler=SimpleNamespace(identity=self._nothing))
        self.sent: list[tuple[str, object]] = []
        self.asked: list[Callable[[Asked[Any]], None]] = []

    async def _nothing(self) -> None:
        pass

    def send(self, verb: str, **facts: object) -> None:
        self.sent.append((verb, facts.get("worker")))

    def ask(self, question: Coroutine[Any, Any, Any], hear: Callable[[Asked[Any]], None]) -> None:
        question.close()
        self.asked.append(hear)

    def answer(self, answer: object) -> None:
        """Answer the question that was asked first."""
        future: Asked[Any] = Asked()
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        self.asked.pop(0)(future)


class Play:
    """A workforce, and what comes of it."""

    def __init__(self, *, has_leases: bool = True) -> None:
        self.link = FakeLink(has_leases=has_leases)
        self.told: list[Event] = []
        self.lost: list[WorkerId] = []
        self.workforce = Workforce(
            cast("Link", self.link), b"", None, self.told.append, self.lost.append
        )

    def prove(self, worker: WorkerId, resources: dict[str, float] | None = None) -> None:
        self.workforce.granted(worker)
        self.link.answer(resources or {})

    def roll(self, **statuses: str) -> None:
        """Let a second pass in which these workers are there."""
        self.workforce.look()
        workers = {worker: {"status": status} for worker, status in statuses.items()}
        self.link.answer({"workers": workers})


def test_a_worker_joins_once_it_has_proven_that_it_is_ready() -> None:
    play = Play()
    play.workforce.granted(A)
    assert play.told == []
    play.link.answer({"GPU": 2.0})
    assert play.told == [WorkerJoined(worker=A)]
    assert play.workforce.takes(A) == {"GPU": 1.0}


def test_a_worker_that_is_gone_before_it_has_proven_anything_does_not_join() -> None:
    play = Play()
    play.workforce.granted(A)
    assert play.workforce.left(A) is None
    play.link.answer({})
    play.workforce.granted(B)
    play.link.answer(None)
    assert play.told == []
    assert play.workforce.known() == []


def test_a_worker_with_another_store_is_left_out_and_is_an_error_if_there_is_no_other() -> None:
    play = Play()
    play.workforce.granted(A)
    with pytest.raises(BackendError, match="another folder"):
        play.link.answer(BackendError("another folder"))
    play.prove(A)
    play.workforce.granted(B)
    play.link.answer(BackendError("another folder"))
    assert play.workforce.known() == [A]


def test_a_worker_that_is_about_to_go_is_recalled_and_its_end_is_no_death() -> None:
    play = Play()
    play.prove(A)
    play.prove(B)
    play.workforce.leaving(A)
    assert play.told[-1] == WorkerRecalled(worker=A)
    assert play.workforce.left(A) is False
    assert play.workforce.left(B) is True


def test_a_worker_that_is_about_to_go_and_was_not_in_use_is_returned_at_once() -> None:
    play = Play()
    play.workforce.granted(A)
    play.workforce.leaving(A)
    assert play.link.sent == [("returned", A)]
    play.link.answer({})
    assert play.told == []


def test_an_idle_worker_is_returned_first_and_none_that_nobody_could_use() -> None:
    play = Play()
    play.prove(A)
    play.prove(B)
    play.workforce.recalled([A, B], [A], only_idle=False)
    assert play.told[-1] == WorkerRecalled(worker=B)
    play.workforce.recalled([A], [A], only_idle=True)
    assert play.link.sent == [("returned", None)]
    play.workforce.recalled([A], [A], only_idle=False)
    assert play.told[-1] == WorkerRecalled(worker=A)


def test_where_nobody_tells_those_who_are_there_are_compared_with_those_who_were() -> None:
    play = Play(has_leases=False)
    play.roll(a="running", b="paused")
    play.link.answer({})
    assert play.told == [WorkerJoined(worker=A)]
    play.roll(a="closing", b="running")
    play.link.answer({})
    assert play.told[1:] == [WorkerRecalled(worker=A), WorkerJoined(worker=B)]
    play.roll(a="closing", b="running")
    assert len(play.told) == 3
    play.roll(b="running")
    assert play.lost == [A]


def test_where_nobody_tells_a_worker_that_was_left_out_is_not_tried_again() -> None:
    play = Play(has_leases=False)
    play.workforce.leave_out(A)
    play.roll(a="running")
    assert play.link.asked == []


def test_where_leases_are_the_scheduler_is_asked_only_while_there_is_no_worker() -> None:
    play = Play()
    play.roll()
    assert play.workforce.why_none() == "the cluster has no workers"
    play.prove(A)
    play.workforce.look()
    assert play.link.asked == []
    assert play.workforce.why_none() is None


def test_a_scheduler_that_is_away_for_a_while_tells_nothing() -> None:
    play = Play(has_leases=False)
    play.prove(A)
    play.workforce.look()
    play.workforce.look()
    assert len(play.link.asked) == 1
    play.link.answer(OSError("away"))
    assert play.lost == []
    play.workforce.left(A)
    play.link.is_cut_off = True
    assert play.workforce.why_none() == "the Dask scheduler does not answer"
