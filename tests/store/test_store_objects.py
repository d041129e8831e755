"""What only an object store can do: fail half-way through an upload, be far away, be shared."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import BackendError
from dasktune.store.journal_file import SEGMENT_BYTES
from dasktune.store.lock import StudyLock
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


@pytest.fixture
def ranges(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Commit a state of several ranges; the function lets one of them be something else."""
    monkeypatch.setattr("dasktune.store.objects._RANGE_BYTES", 500)
    store.commit(KEY, 1, state_of(1))

    def set_first(part: object) -> None:
        whole = MemoryFileSystem.cat_ranges

        def cat_ranges(*arguments: Any, **options: Any) -> list[Any]:  # noqa: ANN401
            return [part, *whole(*arguments, **options)[1:]]

        monkeypatch.setattr(MemoryFileSystem, "cat_ranges", cat_ranges)

    return set_first


@pytest.mark.parametrize("part", [FileNotFoundError("gone"), b"short"])
def test_a_blob_that_goes_while_it_is_read_is_lost(
    store: Store, ranges: Callable[[object], None], part: object
) -> None:
    ranges(part)

    assert store.load(KEY) is None
    assert store.record(KEY) is None


def test_a_place_that_stops_answering_while_a_blob_is_read_loses_nothing(
    store: Store, ranges: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a file system returns errors whatever it was told, as older ones do."""
    ranges(ConnectionError("the network is gone"))

    with pytest.raises(BackendError, match=r"network is gone"):
        store.load(KEY)
    monkeypatch.undo()
    assert number_in(store.load(KEY)) == 1


@pytest.mark.parametrize(
    ("error", "is_gone"), [(FileNotFoundError("gone"), True), (ConnectionError("away"), False)]
)
def test_errors_of_ranges_are_raised_by_every_kind_of_file_system(
    error: Exception, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As s3fs does it: several ranges at once, in a loop of its own."""

    class Far(AsyncFileSystem):  # type: ignore[misc]
        async def _cat_file(self, *_: object, **__: object) -> bytes:
            await asyncio.sleep(0)
            raise error

        async def _info(self, path: str, **_: object) -> dict[str, object]:
            return {"name": path, "size": 40, "type": "file"}

    objects = Objects("memory://far", {})
    monkeypatch.setattr(objects, "_fs", Far())

    if is_gone:
        assert objects.read_aligned("states/x", 40) is None
    else:
        with pytest.raises(BackendError, match=r"cannot read.*away"):
            objects.read_aligned("states/x", 40)


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

    assert list(store.journal("study").lines()) == ["one", "two"]
    stranger = store.journal("study")
    stranger._number, stranger._content = 1, b"x" * 10**6  # type: ignore[attr-defined]
    stranger._end = 1, 10**6  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match=r"one driver at a time"):
        stranger.append("three")


class Unaware(StudyLock):
    """A lock whose owner learns only by asking that another has taken it."""

    def __init__(self, owners: list["Unaware"]) -> None:
        self.owners = owners
        owners.append(self)

    def check(self) -> None:
        """Know of nothing: the owner was stopped between this and what it does next."""

    def ask(self) -> None:
        """Look who has it."""
        if self.owners[-1] is not self:
            raise BackendError("the lock was lost")

    def release(self) -> None:
        """Nobody waits for it."""


@given(
    st.lists(
        st.one_of(
            st.just("another takes over"),
            # How many takeovers ago the writer took the lock, and bytes: two fill a segment.
            st.tuples(
                st.sampled_from([0, 0, 1, 2]), st.sampled_from([20, 20, SEGMENT_BYTES // 2 + 1])
            ),
        ),
        max_size=20,
    )
)
def test_what_a_driver_writes_after_another_has_taken_over_does_not_count(
    steps: list[str | tuple[int, int]],
) -> None:
    """The timeline is what the last driver found when it took over, and what it then wrote.

    It is so from its first line on, which says that it has taken over. Before, nobody can know of
    it, and two drivers before it may still write without knowing of each other.
    """
    store, owners = Store(f"memory://late-{uuid4().hex}"), list[Unaware]()
    journals = [store.journal("study", Unaware(owners))]
    counts, has_written = list(journals[0].lines()), False
    for number, step in enumerate(steps):
        if isinstance(step, str):
            journals.append(store.journal("study", Unaware(owners)))
            counts, has_written = list(journals[-1].lines()), False
            continue
        ago, size = step
        line = f"{number}, {ago} ago".ljust(size)
        if ago == 0:
            journals[-1].append(line)
            counts, has_written = [*counts, line], True
        elif ago < len(journals):
            with suppress(BackendError):  # whoever meets a successor's segment must stop
                journals[-1 - ago].append(line)
        if has_written:
            assert list(store.journal("study").lines()) == counts


def test_a_driver_that_lost_its_lock_stops_at_its_successors_segment(store: Store) -> None:
    owners: list[Unaware] = []
    old = store.journal("study", Unaware(owners))
    assert list(old.lines()) == []
    new = store.journal("study", Unaware(owners))
    assert list(new.lines()) == []
    new.append("two")

    with pytest.raises(BackendError, match=r"lock was lost"):
        old.append("late")
    assert list(store.journal("study").lines()) == ["two"]


def test_a_journal_of_an_earlier_version_is_read_and_goes_on(store: Store) -> None:
    objects = Objects(store.url, {})
    for number, content in enumerate([b"one\ntwo\n", b"three\n", b"four\n"], start=1):
        objects.put(f"timelines/study/{number:08d}.jsonl", content)
    journal = store.journal("study")
    assert list(journal.lines()) == ["one", "two", "three", "four"]

    journal.append("five")
    objects.put("timelines/study/00000003.jsonl", b"four\nlate\n")

    assert list(store.journal("study").lines()) == ["one", "two", "three", "four", "five"]


def test_a_mark_says_what_counts_before_it(store: Store) -> None:
    for line in ("one", "two"):
        store.journal("study").append(line)

    objects = Objects(store.url, {})
    assert objects.read("timelines/study/00000001.jsonl") == b'{"follows":0,"bytes":0}\none\n'
    assert objects.read("timelines/study/00000002.jsonl") == b'{"follows":1,"bytes":28}\ntwo\n'


@pytest.mark.parametrize(
    "mark",
    [
        b'{"follows":2,"bytes":4}',
        b'{"follows":3,"bytes":4}',
        b'{"follows":1,"bytes":5}',
        b'{"follows":1,"bytes":999999999999999999}',
    ],
)
def test_a_mark_that_cannot_be_right_is_told(store: Store, mark: bytes) -> None:
    objects = Objects(store.url, {})
    objects.put("timelines/study/00000001.jsonl", b"one\n")
    objects.put("timelines/study/00000002.jsonl", mark + b"\ntwo\n")

    with pytest.raises(BackendError, match=r"damaged"):
        list(store.journal("study").lines())


@pytest.mark.parametrize("name", ["7.jsonl", "\u0661.jsonl", "0000000x.jsonl", "00000000.jsonl"])
def test_what_is_no_segment_is_no_part_of_a_journal(store: Store, name: str) -> None:
    store.journal("study").append("one")
    Objects(store.url, {}).put(f"timelines/study/{name}", b"stranger\n")

    store.journal("study").append("two")

    assert list(store.journal("study").lines()) == ["one", "two"]


def test_an_append_that_failed_does_not_count_though_it_arrives_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal("study")
    journal.append("one")

    def fails(*_: object, **__: object) -> None:
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", fails)
        with pytest.raises(BackendError):
            journal.append("failed")
    journal.append("two")
    objects = Objects(store.url, {})
    first = objects.read("timelines/study/00000001.jsonl") or b""
    objects.put("timelines/study/00000001.jsonl", first + b"failed\n")
    journal.append("three")

    assert list(store.journal("study").lines()) == ["one", "two", "three"]


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


@contextmanager
def answers_lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what is put arrive, and its writer hear nothing of that."""
    pipe_file = MemoryFileSystem.pipe_file

    def arrives_and_fails(*arguments: Any, **options: Any) -> None:  # noqa: ANN401
        pipe_file(*arguments, **options)
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", arrives_and_fails)
        yield


@pytest.mark.parametrize("before", [[], ["one"]], ids=["a new segment", "a segment that grows"])
def test_lines_whose_answer_was_lost_count_for_readers_and_for_a_successor_that_read_them(
    store: Store, monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    journal = store.journal("study")
    for line in before:
        journal.append(line)

    with answers_lost(monkeypatch), pytest.raises(BackendError):
        journal.append("two", "three")

    arrived = [*before, "two", "three"]
    assert list(store.journal("study").lines()) == arrived
    successor = store.journal("study")
    assert list(successor.lines()) == arrived
    successor.append("four")
    assert list(store.journal("study").lines()) == [*arrived, "four"]


def test_a_first_append_may_be_tried_again_with_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal("study")

    with answers_lost(monkeypatch), pytest.raises(BackendError):
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
