"""The workers of a driver, as its messages and events go: granted, proven, about to go, gone."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future as Asked
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.runtime import workforce as of_workforce
from dasktune.runtime.proof import Proof
from dasktune.runtime.workforce import Workforce
from dasktune.store.store import Store
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
            cast("Link", self.link), Store("nowhere"), None, self.told.append, self.lost.append
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
    play.link.answer(BackendError("another folder"))
    with pytest.raises(BackendError, match="another folder"):
        play.roll(a="running")
    play.prove(A)
    play.workforce.granted(B)
    play.link.answer(BackendError("another folder"))
    assert play.workforce.known() == [A]


def test_a_worker_that_cannot_be_used_is_no_error_while_others_may_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play = Play()
    play.workforce.granted(A)
    play.workforce.granted(B)
    with caplog.at_level(logging.WARNING):
        play.link.answer(BackendError("another folder"))  # it is the first to answer
    assert "worker a is left out: another folder" in caplog.text
    assert play.link.sent == [("refused", A)]
    play.link.answer({})
    assert play.told == [WorkerJoined(worker=B)]
    # One that was ready has shown that the study is right, also when all have gone.
    play.workforce.left(B)
    play.workforce.granted(A)
    play.link.answer(BackendError("another folder"))
    play.roll(a="running")
    assert play.workforce.why_none() == "1 worker is left out (a: another folder)"


def test_workers_that_cannot_be_used_are_an_error_once_all_there_are_were_asked() -> None:
    play = Play()
    play.roll(a="running", b="running")
    play.workforce.granted(A)
    play.link.answer(BackendError("another folder"))
    assert play.workforce.why_none() == (
        "the cluster's 1 worker that could be used is with other drivers, and 1 worker is left out "
        "(a: another folder)"
    )
    play.workforce.granted(B)
    play.link.answer(BackendError("no store at all"))
    with pytest.raises(BackendError, match="no store at all"):
        play.roll(a="running", b="running")


def test_a_worker_that_nobody_has_asked_yet_keeps_a_run_from_giving_up() -> None:
    play = Play()
    play.workforce.granted(A)
    play.link.answer(BackendError("another folder"))  # before anybody has said who is there
    play.roll(a="running", b="running")  # another driver has it
    play.prove(B)
    assert play.told == [WorkerJoined(worker=B)]


def test_a_worker_that_came_after_the_last_roll_call_keeps_a_run_from_giving_up() -> None:
    play = Play()
    play.roll(a="running")
    play.workforce.granted(A)
    play.link.answer(BackendError("another folder"))  # meanwhile another one has come
    play.roll(a="running", b="running")
    play.roll(a="running", b="paused")
    with pytest.raises(BackendError, match="another folder"):
        play.roll(a="running")


def test_workers_that_cannot_be_used_are_an_error_when_the_others_have_gone() -> None:
    play = Play()
    play.roll(a="running", b="running")
    play.workforce.granted(A)
    play.link.answer(BackendError("another folder"))
    play.roll()
    assert play.workforce.why_none() == "the cluster has no workers"
    with pytest.raises(BackendError, match="another folder"):
        play.roll(a="running")


def test_where_nobody_tells_a_worker_that_comes_back_is_asked_again() -> None:
    play = Play(has_leases=False)
    play.roll(a="running", b="running")
    play.link.answer(BackendError("another folder"))
    play.link.answer({})
    play.roll(a="running", b="running")
    assert play.link.asked == []
    play.roll(b="running")
    play.roll(a="running", b="running")
    play.link.answer({})
    assert play.told == [WorkerJoined(worker=B), WorkerJoined(worker=A)]


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ImportError("no module named dasktune"), "install the same versions"),
        (InvalidStudyError("s3fs is not installed"), "s3fs is not installed"),
        (AttributeError("Store has no read_proof"), "it raised AttributeError: Store has no"),
        (BackendError("another folder"), "another folder"),
    ],
)
def test_whatever_a_worker_raises_when_it_is_asked_is_about_that_worker(
    raised: Exception, said: str
) -> None:
    play = Play()
    with pytest.raises(BackendError, match=said):
        prove(play, raised)


def test_a_worker_that_does_not_answer_is_asked_again_and_one_that_may_not_be_asked_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(of_workforce, "_AGAIN_AFTER_S", 0.0)
    assert prove(Play(), OSError("silent"), TimeoutError(), None) == {"GPU": 1.0}
    assert prove(Play(), ValueError("blocked")) == {"GPU": 1.0}


def prove(play: Play, *answers: Exception | None) -> object:
    """Let a worker that is there answer so, one question after the other."""
    left = list(answers)

    async def identity() -> object:
        return {"workers": {A: {"resources": {"GPU": 1.0}}}}

    async def ask(*_: object, **__: object) -> None:
        answer = left.pop(0)
        if answer is not None:
            raise answer

    async def nothing() -> None:
        pass

    play.link.client = SimpleNamespace(scheduler=SimpleNamespace(identity=identity), _run=ask)
    play.workforce._proof = cast("Any", SimpleNamespace(make_sure=nothing))
    answer = asyncio.run(play.workforce._prove(A))
    assert not left
    return answer


def test_a_proof_that_a_cleaner_has_taken_is_there_again_when_a_worker_is_asked(
    tmp_path: Path,
) -> None:
    play, store, now_s = Play(), Store(tmp_path), [0.0]
    run = f"dasktune-{1:032x}"
    play.workforce._proof = Proof(store, run, lambda: now_s[0])
    play.workforce.join()
    store.read_proof(run)
    asked = []

    async def identity() -> object:
        return {"workers": {A: {}}}

    async def ask(*_: object, **__: object) -> None:
        asked.append(A)
        store.read_proof(run)

    play.link.client = SimpleNamespace(scheduler=SimpleNamespace(identity=identity), _run=ask)
    for _ in range(3):
        now_s[0] += 4000.0
        store.clean(older_than_s=0.0)
        with pytest.raises(BackendError):
            store.read_proof(run)
        assert asyncio.run(play.workforce._prove(A)) == {}
    assert len(asked) == 3


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
    play.workforce.leave_out(A, "it hung")
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
