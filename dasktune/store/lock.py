"""One driver for a study: who has the lock may decide, everybody else is told who has it.

On a disk the operating system keeps the lock and drops it when its owner dies. In an object store,
or on a disk that cannot lock, the owner writes a sign of life every few seconds into an object of
its own number; who finds it silent long enough creates the next number, which only one can. Clocks
of two machines are never compared to take a lock away, only to answer early that it is held. An
owner that was silent that long, because its machine slept or the network was gone, looks before it
writes anything else.
"""

import contextlib
import errno
import json
import logging
import os
import sys
import threading
import time
import uuid
import weakref
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dasktune.errors import BackendError
from dasktune.store.holder import UNREADABLE, Holder, holder_of, is_dead, read_holder, this_process
from dasktune.store.local_files import LocalFiles, disk_errors, open_making_folders
from dasktune.store.medium import Medium
from dasktune.store.names import LOCKS, number_name, numbered
from dasktune.units import Seconds

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

_CANNOT_LOCK = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""What a disk says that has no locks."""


class StudyLock:
    """A lock that is held; release it, or use it in a `with`."""

    def check(self) -> None:
        """Make sure that the lock is still held, as far as is known here: nothing is asked.

        Raises:
            BackendError: It was lost: somebody else may be deciding.
        """
        raise NotImplementedError

    def confirm(self) -> None:
        """Make sure that the lock is still held; ask only if it may have been lost meanwhile.

        Raises:
            BackendError: It was lost, or the store, which was asked, does not answer.
        """
        self.check()

    def ask(self) -> None:
        """Make sure that the lock is still held, by what the store says now.

        Raises:
            BackendError: It was lost, or the store does not answer.
        """
        self.check()

    def release(self) -> None:
        """Give the lock back; again is harmless."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class FileLock(StudyLock):
    """A lock of the operating system on a file."""

    def __init__(self, path: Path, study: str) -> None:
        """Take the lock.

        Raises:
            BackendError: Somebody else has it.
            OSError: The disk has no locks (one of `_CANNOT_LOCK`).
        """
        self._study = study
        with disk_errors("open", path):
            self._descriptor = open_making_folders(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            try:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                raise _held(study, read_holder(path.read_bytes())) from None
            finally:
                self.release()
        holder = json.dumps(asdict(this_process())).encode()
        try:
            with disk_errors("write", path):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, holder, 0)
        except BaseException:
            self.release()  # nobody else will: the caller never sees this object
            raise
        _HELD.add(self)

    def check(self) -> None:
        """Make sure that the lock was not released.

        The operating system takes none away, except on a network disk that has lost touch with
        its server for longer than the server waits (90 s with NFSv4): that is not noticed here.
        """
        if self._descriptor < 0:
            raise BackendError(f"the lock of study {self._study!r} was released: take it again")

    def release(self) -> None:
        """Give the lock back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# A forked child, such as a loader worker, inherits the descriptor and with it the lock, and would
# keep it when its parent has died.
_HELD: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _let_go_after_fork() -> None:
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)


class HeartbeatLock(StudyLock):
    """A lock that lasts as long as its owner gives signs of life."""

    def __init__(
        self,
        medium: Medium,
        study: str,
        *,
        every_s: Seconds = 5.0,
        patience_s: Seconds = 30.0,
    ) -> None:
        """Take the lock; this can take `patience_s` where its owner seems dead.

        Args:
            medium: Where it is kept.
            study: Name of the study.
            every_s: How often the owner gives a sign of life.
            patience_s: How long it may be silent before others take the lock.

        Raises:
            BackendError: Somebody else has it.
        """
        self._medium = medium
        self._study = study
        self._folder = f"{LOCKS}/{study}"
        self._patience_s = patience_s
        self._sign = _Sign(holder=this_process(), token=uuid.uuid4().hex)
        self._lost: str | None = None
        self._released = threading.Event()
        self._signing = threading.Lock()
        self._signed_s = _clocks_s()
        self._number = self._take()
        # A daemon: a driver that ends without releasing must end all the same.
        self._beating = threading.Thread(
            target=self._beat, args=(every_s,), name=f"lock of {study}", daemon=True
        )
        self._beating.start()

    def check(self) -> None:
        """Make sure that nobody has taken the lock, as far as the last sign of life knows."""
        if self._lost is not None:
            raise BackendError(self._lost)
        if self._released.is_set():
            raise BackendError(f"the lock of study {self._study!r} was released: take it again")

    def confirm(self) -> None:
        """Make sure that nobody has taken the lock; look if this process was silent too long."""
        self.check()
        if self._silent_s() > self._patience_s:
            self.ask()

    def ask(self) -> None:
        """Make sure that nobody has taken the lock: look in the store, and give a sign of life."""
        self.check()
        self._beat_once()
        self.check()
        if self._silent_s() > self._patience_s:
            raise BackendError(
                f"the lock of study {self._study!r} may be lost: the store at {self._medium.url!r} "
                f"has had no sign of life from this process for {self._silent_s():.0f} s"
            )

    def release(self) -> None:
        """Give the lock back: the next driver need not wait."""
        if self._released.is_set():
            return
        self._released.set()
        self._beating.join()
        if self._lost is None:
            self._write(replace(self._sign, is_released=True))

    def _take(self) -> int:
        while True:
            numbers = self._numbers()
            last = max(numbers, default=0)
            if numbers and not self._is_free(last):
                continue
            self._signed_s = _clocks_s()
            self._sign = replace(self._sign, at_s=time.time())
            name, data = self._name(last + 1), self._sign.to_bytes()
            if self._medium.create(name, data) or self._medium.read(name) == data:
                for number in numbers:
                    self._medium.remove(self._name(number))
                return last + 1

    def _is_free(self, number: int) -> bool:
        """Say whether the lock of that number is to be had; False: look again.

        Raises:
            BackendError: Its owner is alive.
        """
        data = self._medium.read(self._name(number))
        if data is None:  # whoever removed it has a greater number
            return False
        sign = _Sign.from_bytes(data)
        if sign is None or sign.is_released or is_dead(sign.holder):
            return True
        if abs(time.time() - sign.at_s) < self._patience_s:
            raise _held(self._study, sign.holder)
        if self._stays_silent(number, data):
            logger.warning("study %r is taken over from %s", self._study, sign.holder)
            return True
        raise _held(self._study, sign.holder)

    def _stays_silent(self, number: int, data: bytes) -> bool:
        until_s = time.monotonic() + self._patience_s
        while time.monotonic() < until_s:
            time.sleep(self._patience_s / 20)
            if self._medium.read(self._name(number)) != data:
                return False
        return True

    def _beat(self, every_s: Seconds) -> None:
        while self._lost is None and not self._released.wait(every_s):
            self._beat_once()

    def _beat_once(self) -> None:
        """Give a sign of life, unless the lock is lost."""
        with self._signing:
            self._sign_now()

    def _sign_now(self) -> None:
        since_s = _clocks_s()
        try:
            if max(self._numbers(), default=0) != self._number:
                self._lost = (
                    f"the lock of study {self._study!r} was lost: this process was silent for more "
                    f"than {self._patience_s} s, and another has taken over"
                )
                return
            self._write(replace(self._sign, beat=self._sign.beat + 1, at_s=time.time()))
            self._signed_s = since_s
        except BackendError as error:  # the network may come back before others lose patience
            logger.warning("no sign of life for study %r: %s", self._study, error)

    def _write(self, sign: "_Sign") -> None:
        self._sign = sign
        self._medium.put(self._name(self._number), sign.to_bytes())

    def _silent_s(self) -> Seconds:
        """Return for how long others may have seen no sign of life, by the clock that says most."""
        return max(now - then for now, then in zip(_clocks_s(), self._signed_s, strict=True))

    def _numbers(self) -> list[int]:
        names = self._medium.listing(self._folder)
        return [number for name in names if (number := numbered(name, ".json"))]

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number_name(number, '.json')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """A sign of life."""

    holder: Holder
    token: str
    """Tells two owners in one process apart."""
    beat: int = 0
    at_s: float = 0.0
    """When it was written, by the owner's clock."""
    is_released: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "_Sign | None":
        """Return the sign, or None if it cannot be read."""
        with contextlib.suppress(*UNREADABLE):
            plain: dict[str, Any] = json.loads(data)
            sign = cls(**{**plain, "holder": holder_of(plain["holder"])})
            if isfinite(sign.at_s) and type(sign.is_released) is bool:
                return sign
        return None


def study_lock(medium: Medium, study: str) -> StudyLock:
    """Take the lock of a study, of the kind that its place has.

    Raises:
        BackendError: Somebody else has it, or it cannot be taken.
    """
    if isinstance(medium, LocalFiles) and sys.platform != "win32":
        try:
            return FileLock(medium.path(f"{LOCKS}/{study}.lock"), study)
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise BackendError(f"cannot lock study {study!r}: {error}") from error
    return HeartbeatLock(medium, study)


def _held(study: str, holder: Holder | None) -> BackendError:
    return BackendError(
        f"study {study!r} is being run by {holder or 'another process'}: wait until it has ended, "
        "stop it, or give this study another name"
    )


def _clocks_s() -> tuple[Seconds, Seconds]:
    """Return the time by a clock that sleeps and wakes with the machine, and by that of the world.

    A machine that was suspended may have stopped the first, and somebody may set the second.
    """
    return time.monotonic(), time.time()
