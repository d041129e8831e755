"""Objects in a bucket, or any other place that fsspec reaches.

An object appears whole when its upload ends. Who comes first is decided by a conditional put: it
is atomic on S3, and elsewhere as good as fsspec makes it. Called by the store through the protocol
`store.medium.Medium`; the only module that imports fsspec.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import fsspec
from fsspec.spec import AbstractBufferedFile

from dasktune.errors import BackendError, DasktuneError, InvalidStudyError
from dasktune.store.buffers import aligned
from dasktune.store.medium import Content, Entry

_RANGE_BYTES = 16 * 2**20
_RANGES_AT_ONCE = 8
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")


class Objects:
    """The objects of a store below one prefix."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        # A cached listing would hide what other processes write.
        options = {"use_listings_cache": False, **options}
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise InvalidStudyError(f"store is {url!r}, which cannot be opened: {error}") from error
        self._url = url.rstrip("/")
        self._root = root.rstrip("/")

    @property
    def url(self) -> str:
        """The URL of the prefix."""
        return self._url

    def read(self, name: str) -> bytes | None:
        """Return a small object."""
        path = self._path(name)
        with self._talking("read", name):
            try:
                # As a range, because without one S3's file system asks for the size first.
                data: bytes = self._fs.cat_file(path, start=0, end=2**40)
            except FileNotFoundError:
                return None
            except OSError:  # an empty object has no range
                data = self._fs.cat_file(path)
            return data

    def read_aligned(self, name: str, size_bytes: int) -> memoryview | None:
        """Return a large object in aligned memory; None too if it has another size."""
        if self.size_bytes(name) != size_bytes:
            return None
        memory = aligned(size_bytes)
        starts = range(0, size_bytes, _RANGE_BYTES)
        with self._talking("read", name):
            for first in range(0, len(starts), _RANGES_AT_ONCE):
                some = list(starts[first : first + _RANGES_AT_ONCE])
                ends = [min(start + _RANGE_BYTES, size_bytes) for start in some]
                parts = self._ranges(name, some, ends)
                if parts is None:
                    return None
                for start, end, part in zip(some, ends, parts, strict=True):
                    memory[start:end] = part
            return memory

    def _ranges(self, name: str, starts: list[int], ends: list[int]) -> list[bytes] | None:
        """Return parts of an object; None if it is gone, or shorter than it was just now."""
        paths = [self._path(name)] * len(starts)
        try:
            # Unless told otherwise, and some versions even then, errors are returned as parts.
            parts: list[Any] = self._fs.cat_ranges(paths, starts, ends, on_error="raise")
            for part in parts:
                if isinstance(part, BaseException):
                    raise part
        except FileNotFoundError:
            return None
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        return parts if [len(part) for part in parts] == lengths else None

    def size_bytes(self, name: str) -> int | None:
        """Return the size of an object."""
        with self._talking("read", name):
            try:
                return int(self._fs.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, or replace it."""
        with self._talking("write", name):
            self._fs.pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small object unless it is there; of several who try at once, one gets True."""
        with self._talking("write", name):
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            return True

    def write(self, content: Content, name_of: Callable[[str], str]) -> str:
        """Write a large object under a name made of its SHA-256; return the SHA-256.

        Goes through the content twice: an object cannot be renamed, and a copy in memory or on a
        disk may not fit.
        """
        digest = sha256()
        for chunk in content.chunks():
            digest.update(chunk)
        name = name_of(digest.hexdigest())
        again = sha256()
        with self._talking("write", name):
            file = self._fs.open(self._path(name), "wb")
            try:
                for chunk in content.chunks():
                    again.update(chunk)
                    file.write(chunk)
                if again.digest() != digest.digest():
                    raise BackendError("a state has changed while it was written: leave it alone")
            except BaseException:
                _discard(file)
                raise
            file.close()
        return digest.hexdigest()

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with self._talking("remove", name):
            try:
                self._fs.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def listing(self, folder: str) -> dict[str, Entry]:
        """Return the objects below a prefix by name within it."""
        prefix = self._path(folder) + "/"
        now = datetime.now(UTC)
        with self._talking("list", folder):
            try:
                found: dict[str, dict[str, Any]] = self._fs.find(prefix, detail=True)
            except FileNotFoundError:
                return {}
            return {
                path.lstrip("/").removeprefix(prefix.lstrip("/")): Entry(
                    size_bytes=int(info["size"]), age_s=_age_s(info, now)
                )
                for path, info in found.items()
            }

    def was_written(self) -> bool:
        """Say that nothing is certain."""
        return False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold nothing: cleaners of an object store go by age alone."""
        yield

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Say that nothing is certain."""
        yield False

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _talking(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except DasktuneError:
            raise
        except Exception as error:  # each file system has its own
            raise BackendError(
                f"cannot {verb} '{self._url}/{name}': {type(error).__name__}: {error}"
            ) from error


def _discard(file: Any) -> None:  # noqa: ANN401 - fsspec has no types
    """Give an upload up; closing it would publish the part that was written."""
    if isinstance(file, AbstractBufferedFile):
        file.discard()
        file.closed = True
    else:  # in memory everything is published as it is written
        file.close()


def _age_s(info: Mapping[str, Any], now: datetime) -> float:
    moment = next((info[name] for name in _TIMES if info.get(name)), now)
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if isinstance(moment, int | float):
        moment = datetime.fromtimestamp(moment, UTC)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, float((now - moment).total_seconds()))
