"""Raw memory beside the structure of an encoded state: how long, at which offset, how aligned.

Called by the codec and its parts for arrays and tensors. Buffers stand in the order in which the
structure mentions them, each at a multiple of 64 bytes: what is loaded is aligned as torch and MKL
align their own memory, so that a resumed run takes the same code paths, bit for bit, as one that
was never interrupted.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

ALIGNMENT = 64
"""Bytes; a cache line, and what torch gives its own CPU tensors."""

SHORTEST_MENTION = len('["bytes",0]')
"""Characters in a structure that name a buffer, at least; a writer names every one."""

_OWN_PAGES_BYTES = 2**20
# From 4 MiB on numpy asks for huge pages, for which the kernel may have to move others out of the
# way first: loading 100 MB then took 0.2 to 0.9 s instead of 0.2 s.


class Refusal(Exception):  # noqa: N818 - never leaves the codec, which adds the path
    """A value that cannot be encoded; says what it is and what would be right."""


class Buffers:
    """What is to be written, in order; contents are made only when their turn comes."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._contents: list[Callable[[], memoryview]] = []

    @property
    def lengths(self) -> list[int]:
        """Length of each buffer in bytes, without padding."""
        return self._lengths

    def add(self, length: int, content: Callable[[], memoryview]) -> int:
        """Take a buffer of `length` bytes; return its number."""
        self._lengths.append(length)
        self._contents.append(content)
        return len(self._lengths) - 1

    def replace(self, number: int, length: int, content: Callable[[], memoryview]) -> None:
        """Say anew what a buffer that was added holds."""
        self._lengths[number] = length
        self._contents[number] = content

    def contents(self) -> Iterator[memoryview]:
        """Make the content of each buffer, one at a time: at most one copy is alive."""
        for length, content in zip(self._lengths, self._contents, strict=True):
            memory = content()
            if memory.nbytes != length:
                raise RuntimeError(f"a buffer has {memory.nbytes} bytes instead of {length}")
            yield memory


class Memories:
    """The buffers of a state that is read, each given as often as a writer would have named it.

    What is copied for each mention would else be as large as the mentions times the buffer.
    """

    def __init__(self, memories: Sequence[memoryview]) -> None:
        self._memories = memories
        self._shared: set[int] = set()
        self._taken: set[int] = set()

    def taken(self, number: object) -> memoryview:
        """Return a buffer that is named once.

        Raises:
            ValueError: There is none of that number, or it was named before.
        """
        place = self._place(number)
        if place in self._taken or place in self._shared:
            raise ValueError(f"buffer {place} is named twice")
        self._taken.add(place)
        return self._memories[place]

    def shared(self, number: object) -> memoryview:
        """Return a buffer that tensors share as their storage.

        Raises:
            ValueError: There is none of that number, or something else has it.
        """
        place = self._place(number)
        if place in self._taken:
            raise ValueError(f"buffer {place} is named twice")
        self._shared.add(place)
        return self._memories[place]

    def _place(self, number: object) -> int:
        if type(number) is not int or not 0 <= number < len(self._memories):
            raise ValueError(f"{str(number)[:40]} is not the number of a buffer")
        return number


def padding(length: int) -> int:
    """Return how many bytes are missing to the next multiple of the alignment."""
    return -length % ALIGNMENT


def slices(lengths: Iterable[int], start: int) -> list[slice]:
    """Return where buffers of such lengths lie, the first at `start`."""
    places = []
    for length in lengths:
        places.append(slice(start, start + length))
        start += length + padding(length)
    return places


def aligned(length: int) -> memoryview:
    """Return writable memory that begins at a multiple of the alignment; contents undefined."""
    if length >= _OWN_PAGES_BYTES:
        return memoryview(mmap.mmap(-1, length))
    raw = np.empty(length + ALIGNMENT, dtype=np.uint8)
    shift = padding(raw.ctypes.data)
    return raw[shift : shift + length].data


def is_aligned(memory: memoryview) -> bool:
    """Say whether memory begins at a multiple of the alignment."""
    return np.frombuffer(memory, dtype=np.uint8).ctypes.data % ALIGNMENT == 0


def are_truths(memory: memoryview) -> bool:
    """Say whether every byte is 0 or 1: other bytes in a boolean array are undefined behaviour."""
    values = np.frombuffer(memory, dtype=np.uint8)
    return values.size == 0 or int(values.max()) <= 1


def wholes(values: object, name: str) -> Sequence[int]:
    """Return a list of integers that are at least 0.

    Raises:
        ValueError: It is anything else.
    """
    if not isinstance(values, list) or not all(type(v) is int and v >= 0 for v in values):
        raise ValueError(f"{name} must be a list of whole numbers")
    return values
