r"""Write a state of training as bytes and read it back, without pickle.

Called by the store. Takes nested dicts, OrderedDicts, lists, tuples, sets, numbers, text, bytes,
None, numpy arrays and torch tensors, and refuses anything else by its path in the state. Reading
executes nothing: bytes that are torn, damaged or made by an enemy raise an error, or give a
state that holds other values; never more memory than a small multiple of their length, since a
buffer is copied for one mention and no more buffers are taken than could be mentioned.

Format, version 1, all numbers little-endian:

    0   8  "\x93dasktn\n"           says what this is
    8   2  version                  1
    10  2  flags                    1: has pickled parts; a reader must allow them
    12  4  CRC-32 of the structure  the contents are checked by the store, with SHA-256
    16  8  length of the structure
    24  8  length of everything
    32     structure                JSON: {"buffers": [lengths], "state": tree of `store.nodes`}
           buffers                  each at a multiple of 64, zeros between

Equal states give equal bytes. Dicts keep their order: dicts with equal items in another order are
other states here, because training may depend on the order. Sets have none.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

from dasktune.errors import BackendError
from dasktune.store.buffers import SHORTEST_MENTION, aligned, is_aligned, padding, slices, wholes
from dasktune.store.nodes import NodeReader, NodeWriter

State: TypeAlias = Any
"""What a Trainable's `state_dict()` returns, and `load_state_dict()` takes back."""

_MAGIC = b"\x93dasktn\n"
_VERSION = 1
_HAS_PICKLE = 1
_HEADER = struct.Struct("<8sHHIQQ")


class Writable(Protocol):
    """A file open for writing bytes, or anything like it."""

    def write(self, data: memoryview, /) -> object:
        """Take all of `data`."""


class Encoding:
    """A state about to be written: its length is known, its arrays aren't copied yet.

    Good for several passes, as long as nobody changes the state meanwhile.
    """

    def __init__(self, state: object, *, allow_pickle: bool = False) -> None:
        """Look through a state.

        Args:
            state: What to write.
            allow_pickle: Pickle what could not be kept otherwise; who reads it must allow it too.

        Raises:
            StageError: Something in the state cannot be kept; the message says where it is.
        """
        writer = NodeWriter(allow_pickle=allow_pickle)
        tree = writer.tree(state)
        lengths = writer.buffers.lengths
        structure = json.dumps(
            {"buffers": lengths, "state": tree}, separators=(",", ":"), allow_nan=False
        ).encode("ascii")
        start = _HEADER.size + len(structure)
        self.size_bytes = start + sum(padding(n) + n for n in (start, *lengths)) - start
        """Length of all that `chunks` yields."""
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            _HAS_PICKLE if writer.has_pickle else 0,
            zlib.crc32(structure),
            len(structure),
            self.size_bytes,
        )
        self._head = header + structure + bytes(padding(start))
        self._buffers = writer.buffers

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes in order; arrays and tensors on the CPU as they lie, without a copy."""
        yield memoryview(self._head)
        for memory in self._buffers.contents():
            if memory.nbytes:
                yield memory.cast("B")
            if missing := padding(memory.nbytes):
                yield memoryview(bytes(missing))


def encode_to(file: Writable, state: object, *, allow_pickle: bool = False) -> int:
    """Write a state to a file; return the number of bytes.

    Raises:
        StageError: Something in the state cannot be kept; nothing was written.
    """
    encoding = Encoding(state, allow_pickle=allow_pickle)
    for chunk in encoding.chunks():
        file.write(chunk)
    return encoding.size_bytes


def encode(state: object, *, allow_pickle: bool = False) -> bytes:
    """Return a state as bytes.

    Raises:
        StageError: Something in the state cannot be kept.
    """
    return b"".join(Encoding(state, allow_pickle=allow_pickle).chunks())


def decode(
    data: bytes | bytearray | memoryview, *, allow_pickle: bool = False, in_place: bool = False
) -> State:
    """Return the state that was written; its arrays and tensors are writable, tensors on the CPU.

    Args:
        data: What `encode` gave.
        allow_pickle: Unpickle pickled parts, which can execute anything: only for bytes that you
            or people you trust have written.
        in_place: Let arrays and tensors lie in `data`, where it is writable and begins at a
            multiple of 64, and the caller gives it up; else they are copied.

    Raises:
        BackendError: The bytes are no state, or need what is not here or not allowed.
    """
    memory = memoryview(data).cast("B")
    try:
        structure, start = _structure(memory, allow_pickle)
        if not isinstance(structure, dict) or structure.keys() != {"buffers", "state"}:
            raise ValueError("the structure must have buffers and state")
        lengths = wholes(structure["buffers"], "lengths of buffers")
        if len(lengths) * SHORTEST_MENTION > start:
            raise ValueError(f"a structure that short cannot name {len(lengths)} buffers")
        places = slices(lengths, start)
        end = places[-1].stop + padding(places[-1].stop) if places else start
        if end != memory.nbytes:
            raise ValueError(f"buffers end at byte {end}, the data at {memory.nbytes}")
        if not in_place or memory.readonly or not is_aligned(memory):
            places = [slice(place.start - start, place.stop - start) for place in places]
            memory = _copied(memory[start:])
        memories = [memory[place] for place in places]
        return NodeReader(memories, allow_pickle=allow_pickle).value(structure["state"])
    except _UNREADABLE as error:
        raise BackendError(
            f"{len(data)} bytes are not a state of dasktune, or are damaged: {error}"
        ) from error


# RuntimeError covers torch's complaints and RecursionError; MemoryError a length that lies.
_UNREADABLE = (
    ValueError,
    TypeError,
    IndexError,
    OverflowError,
    RuntimeError,
    MemoryError,
    struct.error,
)


def _structure(memory: memoryview, allow_pickle: bool) -> tuple[Any, int]:
    """Return the structure, and where the first buffer starts."""
    if memory.nbytes < _HEADER.size:
        raise ValueError("they end within the header")
    magic, version, flags, check, length, total = _HEADER.unpack_from(memory)
    if magic != _MAGIC:
        raise ValueError("they don't begin as a state does")
    if version != _VERSION or flags & ~_HAS_PICKLE:
        raise BackendError(
            f"the state has version {version} and flags {flags}, and this dasktune reads version "
            f"{_VERSION}: use the dasktune that wrote it, or a newer one"
        )
    if total != memory.nbytes or length > total - _HEADER.size:
        raise ValueError(f"they should be {total}")
    if flags & _HAS_PICKLE and not allow_pickle:
        raise BackendError(
            "the state has pickled parts, which can execute anything when they are read: if you "
            "trust who wrote it, say allow_pickle=True"
        )
    stop = _HEADER.size + length
    text = bytes(memory[_HEADER.size : stop])
    if zlib.crc32(text) != check:
        raise ValueError("the checksum of the structure does not fit")
    return json.loads(text.decode("ascii"), parse_constant=_no_constant), stop + padding(stop)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _copied(memory: memoryview) -> memoryview:
    copy = aligned(memory.nbytes)
    copy[:] = memory
    return copy
