"""A store on a disk that is full: `python -m tests.store.full_disk FOLDER`.

Run on a file system of 300 kB that belongs to this process alone.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dasktune.store.medium import StoreFullError
from dasktune.store.store import Store
from tests.store.contracts import KEY, OTHER, number_in, state_of


def main() -> None:
    """Fill the disk, try everything, make room, go on."""
    disk = Path(sys.argv[1])
    store = Store(disk / "store")
    store.commit(KEY, 1, state_of(1))
    journal = store.journal("study")
    journal.append("one")

    assert_no_room(lambda: store.commit(OTHER, 1, state_of(2, 100_000)))
    fill(disk / "filler")
    assert_no_room(lambda: store.commit(OTHER, 1, state_of(2)))
    assert_no_room(lambda: store.add_metrics(KEY, {"loss": 0.5}))
    assert_no_room(lambda: journal.append("two " + "x" * 5000))
    assert_no_room(lambda: store.write_proof("token"))

    assert number_in(store.load(KEY)) == 1
    assert store.load(OTHER) is None
    assert list(journal.lines()) == ["one"]
    names = sorted(path.name for path in (disk / "store" / "states").iterdir())
    assert len(names) == 2, f"{names} are more than a blob and a record"

    (disk / "filler").unlink()
    store.commit(OTHER, 1, state_of(2))
    journal.append("two")
    assert number_in(store.load(OTHER)) == 2
    assert list(journal.lines()) == ["one", "two"]


def fill(path: Path) -> None:
    """Take all the room there is."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def assert_no_room(action: Callable[[], object]) -> None:
    """Make sure that an action says that the disk is full, and what to do."""
    try:
        action()
    except StoreFullError as error:
        assert "No space left" in str(error)  # noqa: PT017 - this process is no test
        assert "free some space" in str(error)  # noqa: PT017
    else:
        raise AssertionError("it found room")


if __name__ == "__main__":
    main()
