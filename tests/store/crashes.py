"""Processes that commit, and die while they do: `python -m tests.store.crashes LAW FOLDER`.

A process without threads, so that it can fork: a child works on a store and kills itself at one
call to the operating system, or is killed by its parent at any moment; the parent then looks at
the store as a new process would. Prints how often a child died.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dasktune.errors import BackendError
from dasktune.store.local_files import LocalFiles
from dasktune.store.lock import HeartbeatLock
from dasktune.store.store import Store
from dasktune.units import Digest
from tests.store.contracts import KEY, OTHER, number_in, state_of

CALLS = [
    "open", "write", "fsync", "fdatasync", "link",
    "replace", "unlink", "mkdir", "ftruncate", "close",
]  # fmt: skip
"""Functions of `os` before each of which a writer may die."""

Action = Callable[[Store], object]


def forked(work: Callable[[], object]) -> int:
    """Begin `work` in a child; return its process id. The child ends with 0 if it comes through."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def died(child: int) -> bool:
    """Wait for a child; say whether it was killed, and allow no other failure."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, f"a child ended with {os.WEXITSTATUS(status)}"
    return False


def dying_at(call: int) -> None:
    """Kill this process before its `call`-th call to the operating system, or in mid-write."""
    made = 0

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def dies(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of any function
            nonlocal made
            made += 1
            if made == call:
                if function is write:
                    write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return dies

    write = os.write
    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


# --- laws


def killed_at_every_call(folder: Path) -> int:
    """Kill a writer before each call of each action; the store must be whole every time."""
    actions: dict[str, tuple[Action, Action, set[int | None]]] = {
        # what was there before, what is being done, numbers of the states that may be read after
        "first commit": (_nothing, _commits(1), {None, 1}),
        "next attempt": (_commits(1), _commits(2), {1}),
        "same again": (_commits(1), _commits(1), {1}),
        "over a damaged record": (_with_damaged_record, _commits(2), {None, 2}),
        "over a missing blob": (_with_missing_blob, _commits(2), {None, 2}),
        "metrics": (_commits(1), lambda store: store.add_metrics(KEY, {"loss": 0.5}), {1}),
        "drop": (_commits(1), lambda store: store.drop(KEY), {None, 1}),
        "evict": (_commits(1), _evict, {None, 1}),
        "clean": (_with_leftovers, lambda store: store.clean(older_than_s=0.0), {1}),
        "find damage": (_with_damaged_blob, lambda store: store.load(KEY), {None}),
    }
    n_deaths = 0
    for name, (before, action, allowed) in actions.items():
        call = 0
        while True:
            call += 1
            store = Store(folder / f"{name} {call}")
            store.commit(OTHER, 1, state_of(9))
            before(store)

            def work(store: Store = store, action: Action = action, call: int = call) -> None:
                dying_at(call)
                action(store)

            was_killed = died(forked(work))
            _check_whole(Store(store.url), allowed)
            if not was_killed:
                break
            n_deaths += 1
        assert call > 1, f"{name!r} makes no call that could be interrupted"
    return n_deaths


def _check_whole(store: Store, allowed: set[int | None]) -> None:
    """Look as a new process does; go on; clean up."""
    assert number_in(store.load(OTHER)) == 9
    record, number = store.record(KEY), number_in(store.load(KEY))
    assert number in allowed, f"{number} is not among {allowed}"
    if number is not None:
        assert record is not None
        assert number_in(store.load(KEY)) == number
    store.commit(KEY, 1, state_of(3))
    assert number_in(store.load(KEY)) == (3 if number is None else number)
    store.clean()
    names = [path.name for path in Path(store.url, "states").iterdir()]
    assert len(names) == 4, f"two states are two blobs and two records, not {sorted(names)}"


def _nothing(store: Store) -> None:
    del store


def _commits(number: int) -> Action:
    return lambda store: store.commit(KEY, 1, state_of(number))


def _with_damaged_record(store: Store) -> None:
    store.commit(KEY, 1, state_of(1))
    Path(store.url, "states", f"{KEY}.json").write_bytes(b"{")


def _blob(store: Store) -> Path:
    (path,) = Path(store.url, "states").glob(f"{KEY}.*.state")
    return path


def _with_missing_blob(store: Store) -> None:
    store.commit(KEY, 1, state_of(1))
    _blob(store).unlink()


def _with_damaged_blob(store: Store) -> None:
    store.commit(KEY, 1, state_of(1))
    _blob(store).write_bytes(b"damaged")


def _with_leftovers(store: Store) -> None:
    store.commit(KEY, 1, state_of(1))
    store.commit(KEY, 1, state_of(2))
    Path(store.url, "states", f".{1:032x}.tmp").write_bytes(b"unfinished")


def _evict(store: Store) -> None:
    store.limit_bytes = store.used_bytes() - 1
    store.evict({OTHER})


def killed_at_any_moment(folder: Path) -> int:
    """Kill a writer of large states at random moments; every record must lead to its state."""
    rng = random.Random(0)
    keys = [Digest(f"{number:064x}") for number in range(50)]
    store = Store(folder)

    def work() -> None:
        mine = Store(folder)
        for number in range(10_000):
            key = keys[number % len(keys)]
            mine.drop(key)
            mine.commit(key, 1, state_of(number, 20_000))

    n_deaths = 0
    for _ in range(100):
        child = forked(work)
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        n_deaths += died(child)
        for key in keys:
            record, state = store.record(key), store.load(key)
            assert (record is None) == (state is None), "a record leads to nothing"
            number_in(state)
    store.clean()
    assert store.used_bytes() == sum(record.size_bytes for record in store.records())
    return n_deaths


def killed_while_journaling(folder: Path) -> int:
    """Kill who appends before each call; what was acknowledged is there, and nothing else twice."""
    n_deaths = call = 0
    was_killed = True
    lines = [f"line {number} " + "x" * 50 for number in range(6)]
    while was_killed:
        call += 1
        store = Store(folder / str(call))
        store.journal("study").append("before")
        acknowledged = folder / f"{call}.acknowledged"
        acknowledged.touch()

        def work(store: Store = store, acknowledged: Path = acknowledged, call: int = call) -> None:
            journal = store.journal("study")
            dying_at(call)
            with acknowledged.open("a", buffering=1) as note:
                for first in range(0, len(lines), 2):
                    journal.append(*lines[first : first + 2])
                    note.write("xx")

        was_killed = died(forked(work))
        seen = list(store.journal("study").lines())
        assert seen == ["before", *lines][: len(seen)], f"{seen} is no beginning"
        assert len(seen) > len(acknowledged.read_text(encoding="ascii")), "a line was lost"
        store.journal("study").append("after")
        assert list(store.journal("study").lines()) == [*seen, "after"]
        n_deaths += was_killed
    return n_deaths


def together(folder: Path, what: str, me: int, n: int) -> None:
    """Wait until `n` processes have come to the same place."""
    (folder / f"{what} {me}").touch()
    end_s = time.monotonic() + 100.0
    while len(list(folder.glob(f"{what} *"))) < n:
        assert time.monotonic() < end_s, f"no other process is {what}"
        time.sleep(0.001)


def commit_at_once(folder: Path) -> int:
    """Let two processes commit the same keys while a third reads; all must agree on each."""
    keys = [Digest(f"{number:064x}") for number in range(150)]

    def write(writer: int) -> None:
        store = Store(folder)
        # Each is the first at one key, and none goes on before the other has begun.
        store.commit(keys[writer], 1, state_of(writer, 2_000))
        together(folder, "writing", writer, 2)
        standing = [store.commit(key, 1, state_of(writer, 2_000)).sha256 for key in keys]
        (folder / f"writer {writer}").write_text(json.dumps(standing), encoding="ascii")

    def read() -> None:
        store = Store(folder)
        seen: dict[Digest, int] = {}
        while len(seen) < len(keys):
            for key in keys:
                number = number_in(store.load(key))
                if number is not None:
                    assert seen.setdefault(key, number) == number, "a state has changed"
        (folder / "reader").write_text(json.dumps(list(seen.items())), encoding="ascii")

    folder.mkdir(exist_ok=True)
    children = [forked(lambda: write(1)), forked(lambda: write(2)), forked(read)]
    assert sum(died(child) for child in children) == 0
    one, two = (json.loads((folder / f"writer {n}").read_text("ascii")) for n in (1, 2))
    assert one == two, "the writers were told of different records"
    store = Store(folder)
    seen = dict(json.loads((folder / "reader").read_text("ascii")))
    assert {key: number_in(store.load(key)) for key in keys} == seen
    return len(set(seen.values()))


def clean_while_others_commit(folder: Path) -> int:
    """Clean again and again, however young things are; no commit may lose anything."""
    keys = [Digest(f"{number:064x}") for number in range(60)]
    n_waits = 3
    hears, says = os.pipe()

    def write() -> None:
        os.close(says)  # or it would wait for itself where the cleaner fails
        store = Store(folder)
        for number, key in enumerate(keys):
            if number % (len(keys) // n_waits) == 0:
                os.read(hears, 1)  # until the cleaner has come round once more
            store.commit(key, 1, state_of(1, 2_000))
            assert number_in(store.load(key)) == 1, "a cleaner took what was being written"
            assert store.add_metrics(key, {"loss": 0.5}) is not None

    store = Store(folder)
    store.write_proof("begun")  # what is no store yet cannot be cleaned
    child = forked(write)
    rounds = 0
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        store.clean()
        rounds += 1
        if rounds <= n_waits:
            os.write(says, b".")
    assert not died(child)
    assert store.keys() == set(keys)
    return rounds


class SlowFiles(LocalFiles):
    """Files that let everybody decide to write before anybody has written."""

    def create(self, name: str, data: bytes) -> bool:
        """Take one's time."""
        time.sleep(0.1)
        return super().create(name, data)

    def put(self, name: str, data: bytes) -> None:
        """Take one's time."""
        time.sleep(0.1)
        super().put(name, data)


def take_over_at_once(folder: Path) -> int:
    """Let several processes find a dead driver's lock; exactly one may have it."""
    medium = SlowFiles(folder)
    sign = {
        "holder": {"host": "gone", "pid": 1, "since": "2026-11-29T00:00:00Z", "machine": ""},
        "token": "t", "beat": 3, "at_s": 0.0, "is_released": False,
    }  # fmt: skip
    for round_ in range(4):
        study = f"study-{round_}"
        medium.put(f"locks/{study}/00000007.json", json.dumps(sign).encode())

        def take(me: int, study: str = study) -> None:
            together(folder, f"{study} begins", me, 4)
            try:
                lock = HeartbeatLock(medium, study, every_s=0.01, patience_s=1.0)
            except BackendError as error:
                assert "is being run by" in str(error)  # noqa: PT017 - the process is no test
            else:
                (folder / f"{study} is held by {me}").touch()
            together(folder, f"{study} is decided", me, 4)
            if (folder / f"{study} is held by {me}").exists():
                lock.check()

        children = [forked(lambda me=me: take(me)) for me in range(4)]  # type: ignore[misc]
        assert sum(died(child) for child in children) == 0
        winners = list(folder.glob(f"{study} is held by *"))
        assert len(winners) == 1, f"{winners} all hold the lock"
    return 4


def main() -> None:
    """Run one law; print how much it was tried."""
    law, folder = sys.argv[1:]
    # A killed process loses nothing that the operating system has: syncing would only take time.
    # What is synced when is a law of test_store_local.py.
    os.fsync = os.fdatasync = lambda _: None  # type: ignore[assignment]
    print(globals()[law](Path(folder)))  # noqa: T201 - the answer to the test


if __name__ == "__main__":
    main()
