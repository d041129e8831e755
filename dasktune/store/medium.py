"""What a store asks of the place where it keeps its files: local files, or an object store.

A protocol with two implementations, `store.local_files` and `store.objects`; names are paths
relative to the store, with `/` between. Whatever is written is whole or not there, and durable
when the call returns. A place that does not answer raises; None says that something is certainly
not there.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from dasktune.errors import BackendError
from dasktune.units import Seconds


class StoreFullError(BackendError):
    """No room is left; nothing was half-written, and the same call may succeed later."""


class Content(Protocol):
    """Bytes that can be gone through more than once."""

    @property
    def size_bytes(self) -> int:
        """How many they are."""

    def chunks(self) -> Iterator[memoryview]:
        """Yield them in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file in a listing."""

    size_bytes: int
    age_s: Seconds
    """Since it was last written; 0 where the place does not tell."""


class Medium(Protocol):
    """Where a store keeps its files."""

    @property
    def url(self) -> str:
        """Where it is, so that other processes find it; a local path is absolute."""

    def read(self, name: str) -> bytes | None:
        """Return a small file."""

    def read_aligned(self, name: str, size_bytes: int) -> memoryview | None:
        """Return a large file in aligned memory; None too if it has another size."""

    def size_bytes(self, name: str) -> int | None:
        """Return the size of a file."""

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, or replace it."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless it is there; of several who try at once, one gets True."""

    def write(self, content: Content, name_of: Callable[[str], str]) -> str:
        """Write a large file under a name made of its SHA-256; return the SHA-256.

        Durable after the next `put` or `create` in the same folder.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def listing(self, folder: str) -> dict[str, Entry]:
        """Return the files of a folder by name within it, unfinished ones included."""

    def was_written(self) -> bool:
        """Say whether it is certain, without looking through it, that a store was written here."""

    def writing(self) -> AbstractContextManager[None]:
        """Hold this while files are written that nothing refers to yet."""

    def alone(self) -> AbstractContextManager[bool]:
        """Say whether it is certain that nobody is within `writing` as long as this is held."""
