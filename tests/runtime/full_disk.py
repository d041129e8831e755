"""Whole runs on a disk that gets full: `python -m tests.runtime.full_disk FOLDER DISK`.

Run with a small file system at DISK that belongs to this process and its children alone.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event
from typing import Any

from distributed import Client

from dasktune.errors import BackendError
from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.events import StageFinished
from dasktune.study.timeline import Entry
from tests.runtime.trainables import (
    LIMIT_S,
    Notes,
    Walk,
    assert_exact,
    cluster_of,
    study_of,
    truth,
)


def main() -> None:
    """Let a run fill the disk, in this process and on workers; make room, and call it again."""
    folder, disk = map(Path, sys.argv[1:])
    states = truth(study_of(Walk(str(folder))))
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_of({}, {}))
        client = stack.enter_context(Client(cluster))
        places: list[dict[str, Any]] = [{"workers": 0}, {"client": client}]
        for place in places:
            study = study_of(Walk(str(folder)))
            store, notes = Store(disk / f"store-{len(place)}-{'client' in place}"), Notes(folder)
            filler, is_full = disk / "filler", Event()

            def fill(entry: Entry, filler: Path = filler, is_full: Event = is_full) -> None:
                if isinstance(entry.event, StageFinished) and not is_full.is_set():
                    _fill(filler)
                    is_full.set()

            said = ""
            with ThreadPoolExecutor(1) as meanwhile, ExitStack() as hold:
                hold.enter_context(notes.held(4))  # the disk is full before all is trained
                meanwhile.submit(_release, hold, is_full)
                try:
                    run(study, store=store, on_event=fill, **place)
                except BackendError as error:
                    said = str(error)
            assert "No space left" in said, said
            assert "\n" not in said
            kept = store.keys()
            assert kept

            filler.unlink()
            result = run(study, store=store, **place)
            assert result.status is StudyStatus.COMPLETED
            assert_exact(result, store, states)
            assert kept <= store.keys()
            assert notes.repeated
            assert notes.n_distinct == result.steps_unique


def _release(hold: ExitStack, is_full: Event) -> None:
    with hold:
        is_full.wait(LIMIT_S)


def _fill(path: Path) -> None:
    """Take all the room there is."""
    with suppress(OSError), path.open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


if __name__ == "__main__":
    main()
