"""What only an object store can do: fail half-way through an upload, be far away, be shared."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dasktune.errors import BackendError
from dasktune.store.objects import Objects
from dasktune.store.store import Store
from tests.store.contracts import KEY, OTHER, number_in, state_of


@pytest.fixture
def store() -> Iterator[Store]:
    memory = fsspec.filesystem("memory")
    yield Store("memory://objects-of-a-test")
    if memory.exists("memory://objects-of-a-test"):
        memory.rm("memory://objects-of-a-test", recursive=True)


class Changing:
    """Content that is another the second time."""

    size_bytes = 1

    def __init__(self) -> None:
        self._passes = 0

    def chunks(self) -> Iterator[memoryview]:
        self._passes += 1
        yield memoryview(bytes([self._passes]))


def test_a_state_that_changes_while_it_is_written_is_refused(store: Store) -> None:
    with pytest.raises(BackendError, match=r"changed while"):
        Objects(store.url, {}).write(Changing(), lambda digest: f"states/{digest}")


def test_a_place_that_does_not_answer_is_not_taken_for_an_empty_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit(KEY, 1, state_of(1))
    store.journal("study").append("one")

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("the network is gone")

    for name in ("cat_file", "cat_ranges", "info", "find", "pipe_file", "open", "rm_file"):
        monkeypatch.setattr(MemoryFileSystem, name, fail)

    for action in (
        lambda: store.load(KEY),
        lambda: store.record(KEY),
        store.keys,
        lambda: store.commit(OTHER, 1, {}),
        lambda: store.add_metrics(KEY, {"loss": 1.0}),
        lambda: store.drop(KEY),
        store.clean,
        lambda: store.journal("study").append("two"),
        lambda: list(store.journal("study").lines()),
        lambda: store.lock("study"),
    ):
        with pytest.raises(BackendError, match=r"memory://objects-of-a-test.*network is gone"):
            action()
    monkeypatch.undo()
    assert number_in(store.load(KEY)) == 1


def test_a_large_state_comes_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dasktune.store.objects._RANGE_BYTES", 1000)
    state = state_of(1, 10_000)
    state["weights"] = np.arange(10_000.0)
    store.commit(KEY, 1, state)

    loaded = store.load(KEY)

    assert loaded is not None
    assert (loaded["weights"] == state["weights"]).all()


def test_a_gap_in_a_journal_is_told(store: Store) -> None:
    for line in ("one", "two", "three"):
        store.journal("study").append(line)
    Objects(store.url, {}).remove("timelines/study/00000002.jsonl")

    with pytest.raises(BackendError, match=r"00000002.jsonl.*missing"):
        list(store.journal("study").lines())


def test_a_driver_that_was_taken_for_dead_cannot_write_where_its_successor_does(
    store: Store,
) -> None:
    old, new = store.journal("study"), store.journal("study")
    old.append("one")
    new.append("two")
    old.append("late")  # in its own segment: nothing of the successor's is lost

    assert list(store.journal("study").lines()) == ["one", "late", "two"]
    stranger = store.journal("study")
    stranger._number, stranger._content = 1, b"x" * 10**6  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match=r"one driver at a time"):
        stranger.append("three")


def test_an_append_that_is_tried_again_is_there_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try arrived, but its answer got lost."""
    journal = store.journal("study")
    pipe_file = MemoryFileSystem.pipe_file

    def arrives_and_fails(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
        pipe_file(*arguments, **options)
        raise ConnectionError("no answer")

    for lines in (["one"], ["two"], ["three", "four"]):
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "pipe_file", arrives_and_fails)
            with pytest.raises(BackendError):
                journal.append(lines[0])
        journal.append(*lines)

    assert list(store.journal("study").lines()) == ["one", "two", "three", "four"]


def test_a_first_append_may_be_tried_again_with_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal("study")
    pipe_file = MemoryFileSystem.pipe_file

    def arrives_and_fails(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
        pipe_file(*arguments, **options)
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", arrives_and_fails)
        with pytest.raises(BackendError):
            journal.append("one")
    journal.append("one", "two")

    assert list(store.journal("study").lines()) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("LastModified", datetime),
        ("updated", str),
        ("created", None),
        ("mtime", float),
    ],
)
def test_age_is_read_as_each_place_tells_it(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type | None,
) -> None:
    moment = datetime.now(UTC) - timedelta(hours=2)
    told: dict[type | None, object] = {
        datetime: moment,
        str: moment.isoformat(),
        float: moment.timestamp(),
        None: moment.replace(tzinfo=None),
    }
    info = {"size": 3, name: told[kind]}
    monkeypatch.setattr(
        MemoryFileSystem, "find", lambda *_, **__: {"/objects-of-a-test/states/x": info}
    )

    (entry,) = Objects(store.url, {}).listing("states").values()

    assert 7199 < entry.age_s < 7300


def test_where_no_age_is_told_things_are_young(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit(KEY, 1, state_of(1))
    store.commit(KEY, 1, state_of(2))
    monkeypatch.setattr("dasktune.store.objects._TIMES", ())

    assert store.clean().n_files == 0
    assert store.clean(older_than_s=0.0).n_files == 1
