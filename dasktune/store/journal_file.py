"""The timeline of a study as lines in the store: what was appended is there, in order.

Called by whoever drives a study, under the study's lock, and by readers at any time. A reader sees
the lines up to some moment: always a beginning, never a gap. On a disk a journal is one file, whose
last line may be torn if its writer died; in an object store it is a row of numbered segments, the
last of which is replaced by a longer one as it grows.

A driver that slept may lose its lock, wake, and write before it notices. So a journal makes sure of
the lock before each write, and in an object store each segment begins with a mark that says how
much of which segment counts before it: what a predecessor has written since is never read.

    {"follows":7,"bytes":1234}      1234 bytes of segment 7, marks included; 0: of nothing

Segments without a mark are of earlier versions and follow all of the one before.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.store.local_files import (
    disk_errors,
    open_making_folders,
    sync_folder,
    write_all,
)
from dasktune.store.lock import StudyLock
from dasktune.store.medium import Medium
from dasktune.store.names import number_name, numbered

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 * 2**10
"""From this size on a segment is not replaced any more: each append writes it anew."""

_MARK = re.compile(rb'\{"follows":([0-9]{1,18}),"bytes":([0-9]{1,18})\}\n')


class Journal(Protocol):
    """Lines that are kept in the order in which they were appended."""

    def append(self, *lines: str) -> None:
        """Append lines, all with one sync; they are durable when it returns.

        Where it raises, the journal is as it was, with one exception: an object store may have
        taken the lines though its answer was lost, or take them a while later. Readers may see them
        then, until this writer appends the next lines, which say that those before don't count. If
        it never does, a successor that reads them goes on from them: they are of one call, whole,
        and in their place, as if the writer had died right after.

        Raises:
            InvalidStudyError: A line has a line break or a null character in it.
            BackendError: They could not be written, or the study's lock is lost.
        """

    def write(self, *lines: str) -> None:
        """Append lines; the writer's death can't take them back, a power failure before a sync can.

        Raises:
            InvalidStudyError: A line has a line break or a null character in it.
            BackendError: They could not be written, or the study's lock is lost; the journal is
                as `append` says.
        """

    def sync_soon(self) -> None:
        """Let what was written become durable while the caller goes on; `close` waits for it.

        Raises:
            BackendError: What was written earlier could not be made durable.
        """

    def lines(self) -> Iterator[str]:
        """Yield the lines without their ends; nothing if there is no journal."""

    def close(self) -> None:
        """Let go of what the journal holds; the next append takes it again."""


class FileJournal:
    """A journal in a file of its own."""

    def __init__(self, path: Path, lock: StudyLock | None = None) -> None:
        self._path = path
        self._lock = lock
        self._descriptor: int | None = None
        self._size = 0
        self._syncer: _Syncer | None = None

    def append(self, *lines: str) -> None:
        """Append lines, all with one sync; they are durable when it returns."""
        self._append(lines, is_durable=True)

    def write(self, *lines: str) -> None:
        """Append lines; the writer's death cannot take them back, a power failure can."""
        self._append(lines, is_durable=False)

    def sync_soon(self) -> None:
        """Let what was written become durable while the caller goes on; `close` waits for it."""
        if self._descriptor is not None:
            self._syncer = self._syncer or _Syncer(self._descriptor)
            with disk_errors("append to", self._path):
                self._syncer.ask()

    def _append(self, lines: tuple[str, ...], *, is_durable: bool) -> None:
        data = _joined(lines)
        if self._lock is not None:
            self._lock.confirm()
        with disk_errors("append to", self._path):
            descriptor = self._opened()
            try:
                write_all(descriptor, memoryview(data))
                if is_durable:
                    _sync(descriptor)
            except OSError:
                # What went out is cut off again, else the next line would continue a torn one.
                os.ftruncate(descriptor, self._size)
                self.close()
                raise
            self._size += len(data)

    def lines(self) -> Iterator[str]:
        """Yield the lines without their ends; nothing if there is no journal."""
        with disk_errors("read", self._path):
            try:
                data = self._path.read_bytes()
            except FileNotFoundError:
                return
        yield from _whole_lines(data[: _whole_bytes(data)], str(self._path))

    def close(self) -> None:
        """Let go of the file, once what was to be synced is."""
        syncer, self._syncer = self._syncer, None
        descriptor, self._descriptor = self._descriptor, None
        try:
            if syncer is not None:
                with disk_errors("append to", self._path):
                    syncer.end()
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is not None:
            return self._descriptor
        descriptor = open_making_folders(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        sync_folder(self._path.parent)
        data = self._path.read_bytes()
        whole = _whole_bytes(data)
        if whole < len(data):
            logger.warning(
                "the journal %s ends with %d bytes of a line that was never finished; they are cut",
                self._path,
                len(data) - whole,
            )
            os.ftruncate(descriptor, whole)
        self._descriptor, self._size = descriptor, whole
        return descriptor


class _Syncer:
    """Syncs a file in a thread of its own; what is asked for during a sync takes one more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._goes_on: SimpleQueue[bool] = SimpleQueue()
        self._failure: OSError | None = None
        self._thread = Thread(target=self._run, name="dasktune-journal", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask for a sync; raise what an earlier one has failed with."""
        if self._failure is not None:
            raise self._failure
        self._goes_on.put(True)

    def end(self) -> None:
        """Wait for what was asked for; raise what it has failed with."""
        self._goes_on.put(False)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        goes_on = True
        while goes_on and self._failure is None:
            goes_on = self._goes_on.get()
            while goes_on and not self._goes_on.empty():
                goes_on = self._goes_on.get()
            try:
                _sync(self._descriptor)
            except OSError as error:
                self._failure = error


class SegmentJournal:
    """A journal in numbered objects."""

    def __init__(self, medium: Medium, folder: str, lock: StudyLock | None = None) -> None:
        self._medium = medium
        self._folder = folder
        self._lock = lock
        self._number: int | None = None
        self._content = b""
        self._end: tuple[int, int] | None = None
        """Number and bytes of the last segment that counts: where what is appended goes on."""
        self._begun: tuple[int, bytes] | None = None

    def append(self, *lines: str) -> None:
        """Append lines, all with one put; they are durable when it returns."""
        data = _joined(lines)
        if self._lock is not None:
            self._lock.confirm()
        if self._number is not None and len(self._content) < SEGMENT_BYTES:
            self._grow(self._number, data)
        else:
            self._begin(data)

    def _grow(self, number: int, data: bytes) -> None:
        try:
            self._medium.put(self._name(number), self._content + data)
        except BaseException:
            # It may have arrived, or still arrive: what follows says that it does not count.
            self._end, self._number = (number, len(self._content)), None
            raise
        self._content += data
        self._end = number, len(self._content)

    def _begin(self, data: bytes) -> None:
        """Begin a segment after what was read, or was written last."""
        if self._end is None:
            self._parts()
        last, n_bytes = self._end or (0, 0)
        data = f'{{"follows":{last},"bytes":{n_bytes}}}\n'.encode() + data
        if self._begun is None:
            self._begun = last + 1, data
        number, tried = self._begun
        self._begun = number, data
        while not self._medium.create(self._name(number), data):
            # A first try may have arrived though its answer did not.
            if self._medium.read(self._name(number)) in (tried, data):
                self._medium.put(self._name(number), data)
                break
            self._refuse_rival(number)
            number, tried = number + 1, data
            self._begun = number, data
        self._number, self._content, self._begun = number, data, None
        self._end = number, len(data)

    def _refuse_rival(self, number: int) -> None:
        """Make sure that a segment that was in the way is none of our successor's.

        Raises:
            BackendError: It is, or nobody can tell.
        """
        if self._lock is None:
            raise BackendError(
                f"somebody else has written {self._name(number)!r} in {self._medium.url!r}: a "
                "study may have one driver at a time, the one that holds its lock"
            )
        self._lock.ask()  # who has the lock leaves out what a predecessor wrote too late

    def write(self, *lines: str) -> None:
        """Append lines: what an object store has taken is durable."""
        self.append(*lines)

    def sync_soon(self) -> None:
        """Do nothing: what was written is durable."""

    def lines(self) -> Iterator[str]:
        """Yield the lines without their ends; nothing if there is no journal.

        What is appended next goes on from these, whatever others have written since.
        """
        for name, data in self._parts():
            yield from _whole_lines(data, name)

    def close(self) -> None:
        """Begin a new segment with the next append, after what is there then."""
        self._number = self._end = self._begun = None

    def _parts(self) -> list[tuple[str, bytes]]:
        """Return what counts of each segment, with its name, and note where it ends."""
        names = self._medium.listing(self._folder)
        number = max((n for name in names if (n := numbered(name, ".jsonl"))), default=0)
        n_bytes: int | None = None
        found: list[tuple[str, bytes]] = []
        if self._number is None:
            self._end, self._begun = (0, 0), None
        while number:
            name = self._name(number)
            data = self._medium.read(name)
            if data is None:
                raise BackendError(
                    f"{name!r} is missing in {self._medium.url!r}: a journal must have all its "
                    "segments"
                )
            end = data.rfind(b"\n") + 1 if n_bytes is None else n_bytes
            if self._number is None and not found:
                self._end = number, end
            mark = _MARK.match(data)
            begin = mark.end() if mark else 0
            before, before_bytes = (int(mark[1]), int(mark[2])) if mark else (number - 1, None)
            if before >= number or not begin <= end <= len(data):
                raise BackendError(f"the journal {name!r} is damaged: its segments do not fit")
            found.append((name, data[begin:end]))
            number, n_bytes = before, before_bytes
        return found[::-1]

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number_name(number, '.jsonl')}"


def _joined(lines: tuple[str, ...]) -> bytes:
    for line in lines:
        if "\n" in line or "\r" in line or "\0" in line:
            raise InvalidStudyError(
                f"the line {line[:80]!r} cannot be appended: it must have no line break and no null"
            )
    return "".join(f"{line}\n" for line in lines).encode()


def _whole_bytes(data: bytes) -> int:
    """Return how much of a journal is finished lines: up to the last line break before any null.

    After a power failure some file systems show zeros where data had not arrived.
    """
    null = data.find(b"\0")
    return data.rfind(b"\n", 0, null if null >= 0 else len(data)) + 1


def _whole_lines(data: bytes, where: str) -> Iterator[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BackendError(f"the journal {where!r} is damaged: {error}") from error
    yield from text.split("\n")[:-1]


def _sync(descriptor: int) -> None:
    # The length of a file counts as data here; its times do not.
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)
