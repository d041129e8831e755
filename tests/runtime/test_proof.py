"""The proof of a run stays in the store while the run does, and costs next to nothing."""

import asyncio
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from dasktune import runner
from dasktune.errors import BackendError
from dasktune.runtime.proof import AGAIN_AFTER_S, Proof
from dasktune.store.store import Store
from tests.runtime.mistaken import Right
from tests.worlds import small_study


class Written:
    """Stands for a store: counts what is written, and may refuse it."""

    def __init__(self) -> None:
        self.n = 0
        self.is_full = False

    def write_proof(self, token: str) -> None:
        assert token == "run"
        if self.is_full:
            raise BackendError("no room")
        self.n += 1


class Play:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.store = Written()
        self.proof = Proof(cast("Store", self.store), "run", lambda: self.now_s)

    def ask(self, n: int = 1) -> None:
        """Let so many workers be asked at the same time."""

        async def together() -> None:
            await asyncio.gather(*[self.proof.make_sure() for _ in range(n)])

        asyncio.run(together())


def test_a_proof_is_written_again_when_it_is_old_once_for_all_who_need_it() -> None:
    play = Play()
    play.proof.write()
    play.ask(5)
    play.now_s = AGAIN_AFTER_S - 1.0
    play.ask(5)
    assert play.store.n == 1
    play.now_s = AGAIN_AFTER_S
    play.ask(50)
    assert play.store.n == 2
    play.now_s += AGAIN_AFTER_S - 1.0
    play.ask(5)
    assert play.store.n == 2


def test_a_proof_that_was_never_written_is() -> None:
    play = Play()
    play.ask(3)
    assert play.store.n == 1


def test_a_store_that_cannot_be_written_to_now_is_tried_again_the_next_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play = Play()
    play.proof.write()
    play.now_s, play.store.is_full = AGAIN_AFTER_S, True
    with caplog.at_level(logging.WARNING):
        play.ask()
    assert "no room" in caplog.text
    play.store.is_full = False
    play.ask()
    assert play.store.n == 2


def test_a_run_whose_store_cannot_be_written_to_does_not_begin() -> None:
    play = Play()
    play.store.is_full = True
    with pytest.raises(BackendError):
        play.proof.write()


class TakenError(Exception):
    """The run has been told what it is called."""


def test_what_a_run_leaves_is_cleaned_once_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    def leaves(_client: object, *, topic: str, **_facts: object) -> None:
        Proof(store, topic).write()
        raise TakenError

    monkeypatch.setattr(runner, "local_workers", lambda *_, **__: nullcontext())
    monkeypatch.setattr(runner, "DaskBackend", leaves)
    with pytest.raises(TakenError):
        runner.run(small_study(trainable=Right()), store=store, workers=1)

    assert store.clean().n_files == 0
    assert store.clean(older_than_s=0.0).n_files == 1
    assert not list((tmp_path / "proofs").iterdir())
