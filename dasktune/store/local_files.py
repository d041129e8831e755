"""Files on a disk, written so that a crash at any moment leaves them whole or absent.

Each file is written under a temporary name, synced, renamed, and its folder synced. A process that
is killed leaves at most temporary files and files that nothing refers to; `Store.clean` finds them.
Called by the store through the protocol `store.medium.Medium`.

References:
    [1] Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014: why the file is synced
        before the rename, and the folder after it.
"""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from dasktune.errors import BackendError
from dasktune.store.buffers import aligned
from dasktune.store.medium import Content, Entry, StoreFullError

if sys.platform != "win32":
    import fcntl

TEMPORARY = ".tmp"
"""Ends the name of a file that is being written, or was when its writer died."""

_GUARD = "writers.lock"
_CHUNK_BYTES = 8 * 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def disk_errors(doing: str, path: Path | str) -> Iterator[None]:
    """Turn what the operating system says into errors of ours."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StoreFullError(
                f"cannot {doing} {str(path)!r}: {reason}; free some space, and go on"
            ) from error
        raise BackendError(f"cannot {doing} {str(path)!r}: {reason}") from error


class LocalFiles:
    """The files of a store below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._prefix = os.path.join(root, "")  # noqa: PTH118  (as text)

    @property
    def url(self) -> str:
        """The absolute path of the folder."""
        return str(self._root)

    def path(self, name: str) -> Path:
        """Return where a file lies."""
        return self._root / name

    def _place(self, name: str) -> str:
        # As text: each commit needs ten, and making paths would take as long as all else in it.
        return self._prefix + name

    def read(self, name: str) -> bytes | None:
        """Return a small file."""
        place = self._place(name)
        with disk_errors("read", place):
            try:
                with FileIO(place) as file:
                    return file.readall()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_aligned(self, name: str, size_bytes: int) -> memoryview | None:
        """Return a large file in aligned memory; None too if it has another size."""
        path = self.path(name)
        with disk_errors("read", path):
            try:
                with path.open("rb", buffering=0) as file:
                    if os.fstat(file.fileno()).st_size != size_bytes:
                        return None
                    memory = aligned(size_bytes)
                    filled = 0
                    while filled < size_bytes and (n := file.readinto(memory[filled:])):
                        filled += n
                    return memory if filled == size_bytes else None
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno == errno.EIO:  # a bad sector: the content is lost
                    return None
                raise

    def size_bytes(self, name: str) -> int | None:
        """Return the size of a file."""
        path = self.path(name)
        with disk_errors("read", path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, or replace it."""
        place = self._place(name)
        with disk_errors("write", place), _Temporary(place) as temporary:
            temporary.write(memoryview(data))
            temporary.become(place)
            sync_folder(temporary.folder)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless it is there; of several who try at once, one gets True."""
        place = self._place(name)
        with disk_errors("write", place), _Temporary(place) as temporary:
            temporary.write(memoryview(data))
            is_ours = temporary.become_first(place)
            sync_folder(temporary.folder)
            return is_ours

    def write(self, content: Content, name_of: Callable[[str], str]) -> str:
        """Write a large file under a name made of its SHA-256; return the SHA-256."""
        place = self._place(name_of(""))
        with disk_errors("write", place), _Temporary(place) as temporary:
            digest = sha256()
            for chunk in content.chunks():
                # In pieces that stay in the cache of the processor between the two who read them.
                for start in range(0, chunk.nbytes, _CHUNK_BYTES):
                    piece = chunk[start : start + _CHUNK_BYTES]
                    digest.update(piece)
                    temporary.write(piece)
            hexadecimal = digest.hexdigest()
            temporary.become(self._place(name_of(hexadecimal)))
            return hexadecimal

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = self.path(name)
        with disk_errors("remove", path):
            path.unlink(missing_ok=True)

    def listing(self, folder: str) -> dict[str, Entry]:
        """Return the files of a folder by name within it, unfinished ones included."""
        path, now = self.path(folder), time.time()
        found = {}
        with disk_errors("list", path):
            with suppress(FileNotFoundError), os.scandir(path) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # somebody has just removed it
                        if entry.is_file():
                            status = entry.stat()
                            age_s = max(0.0, now - status.st_mtime)
                            found[entry.name] = Entry(size_bytes=status.st_size, age_s=age_s)
            return found

    def was_written(self) -> bool:
        """Say whether anybody has been within `writing` or `alone`."""
        path = self.path(_GUARD)
        with disk_errors("read", path):
            return path.exists()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold this while files are written that nothing refers to yet."""
        with self._guarded(exclusive=False):
            yield

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Say whether it is certain that nobody is within `writing` as long as this is held."""
        with self._guarded(exclusive=True) as is_held:
            yield is_held

    @contextmanager
    def _guarded(self, *, exclusive: bool) -> Iterator[bool]:
        """Lock out cleaners among writers, or writers from a cleaner, where the disk can lock."""
        place = self._place(_GUARD)
        with disk_errors("open", place):
            guard = open_making_folders(place, os.O_RDWR | os.O_CREAT)
        try:
            is_held = False
            if sys.platform != "win32":
                how = fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH
                # Without locks a cleaner goes by age alone.
                with suppress(OSError):
                    fcntl.flock(guard, how)
                    is_held = True
            yield is_held
        finally:
            os.close(guard)


class _Temporary:
    """A file that is being written beside the one that it will become; removed if it doesn't."""

    def __init__(self, target: str) -> None:
        self.folder = os.path.dirname(target)  # noqa: PTH120  (as text)
        self._place = f"{self.folder}/.{os.urandom(16).hex()}{TEMPORARY}"
        self._descriptor = -1
        self._is_there = False

    def __enter__(self) -> Self:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._descriptor = open_making_folders(self._place, flags)
        self._is_there = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            os.close(self._descriptor)
        finally:
            if self._is_there:
                with suppress(FileNotFoundError):
                    os.unlink(self._place)  # noqa: PTH108  (as text)

    def write(self, data: memoryview) -> None:
        write_all(self._descriptor, data)

    def become(self, target: str) -> None:
        """Take the target's place; durable once the folder is synced."""
        os.fsync(self._descriptor)
        os.replace(self._place, target)  # noqa: PTH105  (as text)
        self._is_there = False

    def become_first(self, target: str) -> bool:
        """Take the target's place if it is free."""
        os.fsync(self._descriptor)
        try:
            os.link(self._place, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if os.path.exists(target):  # noqa: PTH110  (as text)
                return False
            os.replace(self._place, target)  # noqa: PTH105  (as text)
            self._is_there = False
        return True


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of `data`; the operating system may take it in parts."""
    written = 0
    while written < data.nbytes:
        written += os.write(descriptor, data[written:])


def open_making_folders(path: Path | str, flags: int) -> int:
    """Open a file, and make the folders above it if they are missing, durably.

    A link in place of the file is refused: it would have what lies elsewhere written to.
    """
    flags |= getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    missing = [Path(path).parent]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
    return os.open(path, flags, 0o666)


def sync_folder(folder: Path | str) -> None:
    """Make names in a folder durable, where the operating system can."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks: nothing to sync
            raise
    finally:
        os.close(descriptor)
