"""One driver for a study: by the operating system, or by signs of life."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dasktune.errors import BackendError
from dasktune.store.holder import Holder, this_process
from dasktune.store.local_files import LocalFiles
from dasktune.store.lock import FileLock, HeartbeatLock
from dasktune.store.medium import Entry, StoreFullError
from dasktune.store.objects import Objects
from dasktune.store.store import Store

ROOT = Path(__file__).parent.parent.parent

FILE_LOCK = "from dasktune.store.store import Store; lock = Store(FOLDER).lock('study')"
HEARTBEAT_LOCK = """
from pathlib import Path
from dasktune.store.local_files import LocalFiles
from dasktune.store.lock import HeartbeatLock
lock = HeartbeatLock(LocalFiles(Path(FOLDER)), 'study', every_s=0.02, patience_s=60.0)
"""
# The child of a fork, such as a loader worker, lives on until its input ends.
FORK = """
import os, sys
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b'x')
    sys.stdin.read()
    os._exit(0)
os.read(reader, 1)
"""
WAIT = "import sys; print('held', flush=True); sys.stdin.read()"


@contextmanager
def holding(folder: Path, *program: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock of a study as long as the block lasts."""
    text = "\n".join([f"FOLDER = {str(folder)!r}", *program, WAIT])
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_the_loser_is_told_who_has_the_lock(tmp_path: Path) -> None:
    with holding(tmp_path, FILE_LOCK) as process, pytest.raises(BackendError) as caught:
        Store(tmp_path).lock("study")

    assert f"process {process.pid} on {socket.gethostname()}, since 20" in str(caught.value)


def test_the_lock_of_a_killed_driver_is_free_at_once(tmp_path: Path) -> None:
    with holding(tmp_path, FILE_LOCK) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()

        with Store(tmp_path).lock("study") as lock:
            lock.check()


def test_a_child_of_the_driver_does_not_keep_its_lock(tmp_path: Path) -> None:
    with holding(tmp_path, FILE_LOCK, FORK) as process:
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # the child still runs

        Store(tmp_path).lock("study").release()


def test_a_holder_that_has_not_written_its_name_yet_is_another_process(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    with (tmp_path / "locks" / "study.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        with pytest.raises(BackendError, match=r"another process"):
            Store(tmp_path).lock("study")


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_disk_without_locks_has_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)

    with Store(tmp_path).lock("study") as lock:
        assert isinstance(lock, HeartbeatLock)
        with pytest.raises(BackendError, match=r"is being run by"):
            Store(tmp_path).lock("study")
    Store(tmp_path).lock("study").release()


def test_another_trouble_with_a_lock_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(BackendError, match=r"broken"):
        Store(tmp_path).lock("study")


@pytest.mark.parametrize("call", ["ftruncate", "pwrite"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_lock_that_finds_no_room_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreFullError, match=r"free some space") as caught:  # noqa: F841
            Store(tmp_path).lock("study")

    # While the error, and with it the frame of the constructor, is still held, as in a notebook.
    Store(tmp_path).lock("study").release()


@pytest.mark.parametrize("name", ["locks/study.lock", "timelines/study.jsonl"])
def test_a_link_to_somebody_elses_file_is_not_written_through(tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    other.write_text("mine\n", encoding="ascii")
    link = tmp_path / "store" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(other)
    store = Store(tmp_path / "store")

    with pytest.raises(BackendError, match=name):
        store.lock("study") if "lock" in name else store.journal("study").append("line")

    assert other.read_text(encoding="ascii") == "mine\n"


@pytest.mark.parametrize(
    "change",
    [{"host": 1}, {"host": "\x1b[2J"}, {"since": "x" * 2000}, {"pid": "1"}, {"pid": 10**400}],
    ids=lambda change: str(change)[:20],
)
def test_a_holder_that_names_itself_oddly_is_another_process(
    tmp_path: Path, change: dict[str, object]
) -> None:
    with Store(tmp_path).lock("study"):
        text = json.dumps(asdict(this_process()) | change)
        (tmp_path / "locks" / "study.lock").write_text(text, encoding="ascii")
        with pytest.raises(BackendError, match=r"run by another process"):
            Store(tmp_path).lock("study")

        (tmp_path / "locks" / "study.lock").write_text("[" * 100_000, encoding="ascii")
        with pytest.raises(BackendError, match=r"run by another process"):
            Store(tmp_path).lock("study")


# --- signs of life


def silent(folder: Path, holder: Holder, at_s: float = 0.0) -> LocalFiles:
    """A place where somebody took the lock and then gave no sign of life."""
    medium = LocalFiles(folder)
    sign = {"holder": asdict(holder), "token": "t", "beat": 1, "at_s": at_s, "is_released": False}
    medium.put("locks/study/00000003.json", json.dumps(sign).encode())
    return medium


ELSEWHERE = Holder(host="elsewhere", pid=1, since="2026-11-29T00:00:00Z", machine="")


def test_the_lock_of_a_silent_driver_is_taken_over_and_the_driver_notices(tmp_path: Path) -> None:
    medium = LocalFiles(tmp_path)
    first = HeartbeatLock(medium, "study", every_s=1e9, patience_s=0.05)
    # As if it had been stopped: its signs are old, and it was not on this machine.
    name = "locks/study/00000001.json"
    data = medium.read(name)
    assert data is not None
    sign = json.loads(data)
    medium.put(name, json.dumps({**sign, "at_s": 0.0, "holder": asdict(ELSEWHERE)}).encode())

    with HeartbeatLock(medium, "study", every_s=1e9, patience_s=0.05) as second:
        second.check()
        first._beat_once()
        with pytest.raises(BackendError, match=r"was lost"):
            first.check()
        first.release()
        second._beat_once()
        second.check()


@pytest.mark.parametrize("at_s", [0.0, 1e12])
def test_a_silent_drivers_clock_says_nothing(tmp_path: Path, at_s: float) -> None:
    medium = silent(tmp_path, ELSEWHERE, at_s)

    HeartbeatLock(medium, "study", patience_s=0.05).release()


def test_a_driver_that_gives_signs_of_life_keeps_its_lock_whatever_its_clock_says(
    tmp_path: Path,
) -> None:
    for at_s in (0.0, 1e12):
        medium = silent(tmp_path / str(at_s), ELSEWHERE, at_s)
        ended = threading.Event()

        def beat(medium: LocalFiles = medium, ended: threading.Event = ended) -> None:
            beats = 1
            while not ended.wait(0.005):
                beats += 1
                data = medium.read("locks/study/00000003.json")
                assert data is not None
                sign = json.loads(data)
                medium.put("locks/study/00000003.json", json.dumps(sign | {"beat": beats}).encode())

        beating = threading.Thread(target=beat)
        beating.start()
        try:
            with pytest.raises(BackendError, match=r"process 1 on elsewhere"):
                HeartbeatLock(medium, "study", patience_s=10.0)
        finally:
            ended.set()
            beating.join()


def test_a_dead_process_of_this_machine_need_not_be_waited_for(tmp_path: Path) -> None:
    with holding(tmp_path, HEARTBEAT_LOCK) as process:
        with pytest.raises(BackendError, match=rf"process {process.pid} on "):
            HeartbeatLock(LocalFiles(tmp_path), "study", patience_s=1e9)
        process.send_signal(signal.SIGKILL)
        process.wait()

        HeartbeatLock(LocalFiles(tmp_path), "study", patience_s=1e9).release()


def test_a_process_of_another_namespace_with_a_dead_number_is_not_taken_for_dead(
    tmp_path: Path,
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    holder = replace(this_process(), pid=dead.pid)
    silent(tmp_path / "same", holder)
    medium = silent(tmp_path / "other", replace(holder, machine="another"), at_s=1e15)

    HeartbeatLock(LocalFiles(tmp_path / "same"), "study", patience_s=1e9).release()
    with pytest.raises(BackendError, match=rf"process {dead.pid} on "):
        HeartbeatLock(medium, "study", patience_s=1e16)


def odd(**change: object) -> bytes:
    """A sign of somebody who seems alive, with something in it that is none."""
    sign = {
        "holder": asdict(ELSEWHERE),
        "token": "t",
        "beat": 1,
        "at_s": 1e18,
        "is_released": False,
    }
    return json.dumps(sign | change).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"holder": 1}',
        b"[" * 100_000,
        odd(at_s="1"),
        odd(at_s=10**400),
        odd(at_s=None),
        odd(is_released="no"),
        odd(holder=asdict(this_process()) | {"pid": "1"}),
        odd(holder=asdict(this_process()) | {"pid": 2**80}),
        odd(holder=asdict(ELSEWHERE) | {"host": "\x1b[2J"}),
    ],
    ids=lambda data: str(data[-30:]),
)
def test_a_sign_that_cannot_be_read_is_taken_over(tmp_path: Path, data: bytes) -> None:
    medium = LocalFiles(tmp_path)
    medium.put("locks/study/00000001.json", data)

    HeartbeatLock(medium, "study", patience_s=1e9).release()


@pytest.mark.parametrize("name", ["5.json", "\u0661.json", "00000000.json", "x.json"])
def test_what_is_no_sign_is_not_waited_for(tmp_path: Path, name: str) -> None:
    medium = LocalFiles(tmp_path)
    medium.put(f"locks/study/{name}", b"{}")

    HeartbeatLock(medium, "study", patience_s=1e9).release()


class Counted(LocalFiles):
    """Files that count how often they are looked at or written."""

    n_calls = 0

    def listing(self, folder: str) -> dict[str, Entry]:
        self.n_calls += 1
        return super().listing(folder)

    def put(self, name: str, data: bytes) -> None:
        self.n_calls += 1
        super().put(name, data)


@pytest.mark.parametrize("clock", ["monotonic", "time"])
def test_a_driver_that_slept_looks_before_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    """Whichever clock went on while its machine was stopped."""
    medium = Counted(tmp_path)
    with HeartbeatLock(medium, "study", every_s=1e9, patience_s=30.0) as lock:
        n_calls = medium.n_calls
        lock.confirm()
        lock.check()
        assert medium.n_calls == n_calls  # nothing is asked in vain

        now_s = getattr(time, clock)
        monkeypatch.setattr(time, clock, lambda: now_s() + 31.0)
        lock.check()
        assert medium.n_calls == n_calls
        lock.confirm()  # nobody came
        assert medium.n_calls > n_calls
        n_calls = medium.n_calls
        lock.confirm()
        assert medium.n_calls == n_calls

        monkeypatch.setattr(time, clock, lambda: now_s() + 62.0)
        medium.put("locks/study/00000002.json", b"")
        for _ in range(2):
            with pytest.raises(BackendError, match=r"was lost"):
                lock.confirm()


def test_a_driver_that_slept_and_finds_no_network_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, away = tmp_path / "locks" / "study", tmp_path / "away"
    with HeartbeatLock(LocalFiles(tmp_path), "study", every_s=1e9, patience_s=30.0) as lock:
        now_s = lock._signed_s[0] + 47.0
        monkeypatch.setattr(time, "monotonic", lambda: now_s)
        folder.rename(away)
        folder.touch()
        with pytest.raises(BackendError, match=r"may be lost.*no sign of life.*for 47 s"):
            lock.confirm()
        folder.unlink()
        away.rename(folder)
        lock.confirm()


@pytest.mark.parametrize("url", ["folder", "memory://journals-of-a-lost-lock"])
def test_a_driver_that_lost_its_lock_writes_nothing(tmp_path: Path, url: str) -> None:
    store = Store(url if "//" in url else tmp_path)
    with store.lock("study") as lock:
        journal = store.journal("study", lock)
        journal.append("one")
    with pytest.raises(BackendError, match=r"released"):
        journal.append("late")
    with pytest.raises(BackendError, match=r"released"):
        journal.write("later")

    assert list(store.journal("study").lines()) == ["one"]
    journal.close()


def test_a_lock_that_is_given_back_and_taken_leaves_one_object() -> None:
    medium = Objects("memory://locks-of-a-test", {})
    for _ in range(3):
        HeartbeatLock(medium, "study").release()

    assert list(medium.listing("locks/study")) == ["00000003.json"]
    medium.remove("locks/study/00000003.json")


def test_a_network_that_fails_for_a_moment_costs_no_lock(tmp_path: Path) -> None:
    medium = LocalFiles(tmp_path)
    with HeartbeatLock(medium, "study", every_s=1e9) as lock:
        (tmp_path / "locks" / "study").rename(tmp_path / "away")
        (tmp_path / "locks" / "study").touch()
        lock._beat_once()
        lock.check()
        (tmp_path / "locks" / "study").unlink()
        (tmp_path / "away").rename(tmp_path / "locks" / "study")
        lock._beat_once()
        lock.check()


def test_a_lock_held_by_a_file_and_a_thread_are_the_same_thing_to_a_driver(tmp_path: Path) -> None:
    with FileLock(tmp_path / "a.lock", "study") as one:
        one.check()
    with HeartbeatLock(LocalFiles(tmp_path), "study") as other:
        other.check()
    for lock in (one, other):
        lock.release()
        with pytest.raises(BackendError, match=r"released"):
            lock.check()
