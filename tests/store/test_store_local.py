"""What only a disk can do: fill up, tear a line, lose power between two calls."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.store import local_files
from dasktune.store.journal_file import FileJournal
from dasktune.store.local_files import LocalFiles
from dasktune.store.medium import StoreFullError
from dasktune.store.store import Store
from tests.store.contracts import KEY, OTHER, number_in, state_of

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def names(store: Store, folder: str = "states") -> list[str]:
    path = Path(store.url, folder)
    return sorted(entry.name for entry in path.iterdir()) if path.exists() else []


# --- where it is


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    store = Store()

    assert store.url == str(tmp_path / "dasktune-store")
    assert Store("file://" + str(tmp_path / "x")).url == str(tmp_path / "x")
    assert not (tmp_path / "dasktune-store").exists()


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert Store("~/store").url == str(tmp_path / "store")


@pytest.mark.parametrize("url", ["", "nothing://x", "simplecache::s3://bucket", "zip::x"])
def test_a_place_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidStudyError, match=r"store"):
        Store(url)


def test_a_limit_below_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidStudyError, match=r"limit_bytes"):
        Store(tmp_path, limit_bytes=-1)


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("", encoding="ascii")
    store = Store(tmp_path / "store")

    with pytest.raises(BackendError, match=r"store.*Not a directory"):
        store.commit(KEY, 1, {})
    assert store.load(KEY) is None


# --- what is durable when a call returns


def calls_of(action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that `action` makes to the operating system, files by the kind of their name."""
    calls: list[str] = []
    kinds: dict[int, str] = {}

    def kind(path: Any) -> str:  # noqa: ANN401 - whatever os.open takes
        name = os.fspath(path)
        suffix = Path(name).suffix
        return suffix.lstrip(".") or Path(name).name

    def spied(name: str) -> Callable[..., Any]:
        function = getattr(os, name)

        def spy(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of any function
            answer = function(*arguments, **options)
            first = arguments[0]
            if name == "open":
                kinds[answer] = kind(first)
            else:
                of = kinds.get(first, "?") if isinstance(first, int) else kind(first)
                to = f" {kind(arguments[1])}" if name in ("link", "replace") else ""
                calls.append(f"{name} {of}{to}")
            return answer

        return spy

    for name in ("open", "write", "fsync", "fdatasync", "link", "replace"):
        monkeypatch.setattr(os, name, spied(name))
    try:
        action()
    finally:
        monkeypatch.undo()
    return calls


def test_a_commit_syncs_each_file_before_its_name_and_the_folder_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit(OTHER, 1, {})

    calls = calls_of(lambda: store.commit(KEY, 1, {}), monkeypatch)

    assert calls == [
        "write tmp",
        "fsync tmp",
        "replace tmp state",
        "write tmp",
        "fsync tmp",
        "link tmp json",
        "fsync states",
    ]


def test_metrics_replace_a_record_durably(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.commit(KEY, 1, {})

    calls = calls_of(lambda: store.add_metrics(KEY, {"loss": 1.0}), monkeypatch)

    assert calls == ["write tmp", "fsync tmp", "replace tmp json", "fsync states"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems sync times too")
def test_a_line_is_written_and_synced_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal("study")

    first = calls_of(lambda: journal.append("one"), monkeypatch)
    journal.close()
    second = store.journal("study")
    second.append("two")
    third = calls_of(lambda: second.append("three", "four"), monkeypatch)

    assert first[-3:] == ["fsync timelines", "write jsonl", "fdatasync jsonl"]
    assert third == ["write ?", "fdatasync ?"]  # the file was opened before
    second.close()


def test_what_is_to_be_synced_soon_is_synced_when_the_journal_is_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal("study")
    journal.append("one")

    def write_all() -> None:
        for line in ("two", "three"):
            journal.write(line)
            journal.sync_soon()
        journal.close()

    calls = calls_of(write_all, monkeypatch)

    written = [call for call in calls if call.startswith("write")]
    assert len(written) == 2
    assert calls.index("write ?") == 0  # before anything is synced
    assert calls[-1].split()[0] in ("fdatasync", "fsync")  # after all that was written
    assert list(store.journal("study").lines()) == ["one", "two", "three"]


def test_a_late_sync_that_fails_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "bad disk")

    journal = store.journal("study")
    journal.append("one")
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, fail)

    journal.sync_soon()
    with pytest.raises(BackendError, match="bad disk"):
        journal.close()

    journal.sync_soon()  # nothing is open
    journal.close()
    assert list(journal.lines()) == ["one"]


def test_new_folders_are_synced_into_those_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "a" / "b")

    calls = calls_of(lambda: store.commit(KEY, 1, {}), monkeypatch)

    assert f"fsync {tmp_path.name}" in calls
    assert "fsync a" in calls
    assert "fsync b" in calls


def test_a_disk_without_hard_links_still_has_one_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)

    first = store.commit(KEY, 1, state_of(1))

    assert store.commit(KEY, 1, state_of(2)) == first
    assert number_in(store.load(KEY)) == 1


# --- a full disk


def filling(
    monkeypatch: pytest.MonkeyPatch, call: int, code: int = errno.ENOSPC
) -> Callable[[], int]:
    """Let the `call`-th write, sync or open fail for want of room; say how many were tried."""
    made = 0

    def failing(name: str) -> Callable[..., Any]:
        function = getattr(os, name)

        def fails(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of any function
            nonlocal made
            made += 1
            if made == call:
                if name == "write":
                    function(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise OSError(code, os.strerror(code))
            return function(*arguments, **options)

        return fails

    for name in ("open", "write", "fsync", "fdatasync", "link", "replace", "mkdir"):
        monkeypatch.setattr(os, name, failing(name))
    return lambda: made


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_commit_that_finds_no_room_leaves_nothing_at_whichever_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    call = 0
    while True:
        call += 1
        store = Store(tmp_path / str(call))
        made = filling(monkeypatch, call, code)
        try:
            store.commit(KEY, 1, state_of(1))
        except StoreFullError as error:
            assert "free some space" in str(error)  # noqa: PT017 - only some calls fail
        finally:
            monkeypatch.undo()
        assert not [name for name in names(store) if name.endswith(".tmp")]
        assert number_in(store.load(KEY)) in (None, 1)
        store.commit(KEY, 1, state_of(1))
        assert number_in(store.load(KEY)) == 1
        if made() < call:
            break
    assert call > 8


def test_a_journal_that_finds_no_room_is_as_it_was_at_whichever_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in range(1, 5):
        journal = Store(tmp_path / str(call)).journal("study")
        journal.append("before")
        made = filling(monkeypatch, call)
        try:
            journal.append("lost" * 10)
        except StoreFullError:
            expected = ["before"]
        else:
            expected = ["before", "lost" * 10]
        finally:
            monkeypatch.undo()
        assert list(journal.lines()) == expected
        journal.append("after")
        assert list(journal.lines()) == [*expected, "after"]
        journal.close()
    assert made() < call


# A mount of its own namespace ends with the process, whatever happens.
_SMALL_DISK = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
_MOUNT = 'mount -t tmpfs -o size=300k none "$0" && exec "$@"'


def test_a_store_on_a_full_disk_says_so_keeps_what_it_has_and_goes_on(tmp_path: Path) -> None:
    small = [*_SMALL_DISK, _MOUNT, str(tmp_path)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*small, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no small disk can be had here")

    law = [sys.executable, "-m", "tests.store.full_disk", str(tmp_path)]
    answer = subprocess.run([*small, *law], cwd=ROOT, capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stderr[-3000:]
    assert list(tmp_path.iterdir()) == []


def test_another_trouble_with_the_disk_is_no_full_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling(monkeypatch, 2, errno.EIO)

    with pytest.raises(BackendError) as caught:
        store.commit(KEY, 1, {})

    assert not isinstance(caught.value, StoreFullError)


def test_a_disk_that_does_not_answer_is_not_taken_for_an_empty_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit(KEY, 1, {})

    def fail(*_: object) -> bytes:
        raise OSError(errno.ESTALE, "stale handle")

    monkeypatch.setattr(local_files, "FileIO", fail)

    for call in (store.record, store.load):
        with pytest.raises(BackendError, match=r"stale handle"):
            call(KEY)
    monkeypatch.undo()
    assert store.load(KEY) == {}


# --- torn lines


@pytest.mark.parametrize("torn", [b"t", b'{"at_s": 1.0, "ev', b"\0\0\0\0", b"x\0\0\ny\n", b"\xc3"])
def test_a_torn_last_line_is_not_read_and_cut_before_the_next(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "study.jsonl"
    path.write_bytes(b"one\ntwo\n" + torn)

    assert list(FileJournal(path).lines()) == ["one", "two"]
    assert path.read_bytes().endswith(torn)
    journal = FileJournal(path)
    journal.append("three")
    journal.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_every_torn_tail_leaves_a_beginning(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    lines = ["a", "", "é€", "longer line"]
    FileJournal(path).append(*lines)
    data = path.read_bytes()

    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        seen = list(FileJournal(path).lines())
        assert seen == lines[: len(seen)]
        assert len(seen) == data[:length].count(b"\n")


def test_a_line_that_is_damaged_is_told(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    path.write_bytes(b"one\n\xff\nthree\n")

    with pytest.raises(BackendError, match=r"damaged"):
        list(FileJournal(path).lines())


# --- cleaning up


def test_young_leftovers_stay_while_somebody_writes(store: Store) -> None:
    store.commit(KEY, 1, state_of(1))
    with local_files._Temporary(str(Path(store.url, "states", "of-a-killed-writer"))) as unfinished:
        leftover = Path(unfinished._place)
    leftover.write_bytes(b"x")

    with LocalFiles(Path(store.url)).writing():
        assert store.clean().n_files == 0
        os.utime(leftover, (0, 0))
        assert store.clean().n_files == 1

    leftover.write_bytes(b"xy")
    cleaned = store.clean()
    assert (cleaned.n_files, cleaned.size_bytes) == (1, 2)
    assert number_in(store.load(KEY)) == 1


def test_a_proof_is_read_in_another_process(store: Store) -> None:
    store.write_proof("token")
    program = (
        "from dasktune.store.store import Store\n"
        f"Store({store.url!r}).read_proof('token')\n"
        f"Store({store.url + '-other'!r}).read_proof('token')"
    )

    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert f"BackendError: this process does not find in '{store.url}-other'" in answer.stderr


def test_opening_a_store_loads_no_library_of_the_world() -> None:
    program = (
        "import sys; from dasktune.store.store import Store; Store('/nowhere')\n"
        "print(*{'torch', 's3fs', 'dask', 'distributed'} & sys.modules.keys())"
    )

    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip

    assert answer.stdout.strip() == ""
