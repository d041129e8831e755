"""numpy arrays and scalars as nodes of an encoded state.

Called by `store.nodes`. An array keeps dtype, byte order, shape and, where it is contiguous,
whether rows or columns come first; other layouts are written in row order. Two arrays that share
memory are two arrays after loading: numpy has no storage to name, unlike torch.
"""

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from dasktune.store.buffers import Buffers, Memories, Refusal, are_truths, wholes

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_DIMENSIONS = 64
_DTYPE = re.compile(r"[<>|][biufcSUmM][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")
# A long double has 80 bits on one machine and 128 on the next, in as many bytes.
_PORTABLE_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}


def is_array(value: object) -> bool:
    """Say whether this module is asked: arrays, their subclasses, and scalars of numpy."""
    return isinstance(value, np.ndarray | np.generic)


def array_node(value: object, buffers: Buffers) -> list[Any]:
    """Return the node of an array or scalar, and take its memory into `buffers`.

    Raises:
        Refusal: It has no portable form.
    """
    if isinstance(value, np.str_):
        return ["npstr", value.encode("utf-8", "surrogatepass").hex()]
    if isinstance(value, np.bytes_):
        return ["npbytes", value.hex()]
    if isinstance(value, np.generic):
        return ["scalar", _dtype_name(value.dtype), value.tobytes().hex()]
    if type(value) is not np.ndarray:
        raise Refusal("it must be a plain numpy.ndarray: numpy.asarray(it) makes one")
    name = _dtype_name(value.dtype)
    columns_first = value.flags.f_contiguous and not value.flags.c_contiguous
    rows = value.T if columns_first else value

    def content() -> memoryview:
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data

    number = buffers.add(value.nbytes, content)
    return ["array", name, list(value.shape), "F" if columns_first else "C", number]


def read_array(node: Sequence[Any], memories: Memories) -> Array:
    """Return an array that lies in the memory that its node names.

    Raises:
        ValueError, TypeError, IndexError: The node is not one of an array.
    """
    _, name, shape, order, number = node
    dtype, shape = _dtype(name), wholes(shape, "the shape of an array")
    if order not in ("C", "F") or len(shape) > _MAX_DIMENSIONS:
        raise ValueError("an array must have order C or F and at most 64 dimensions")
    memory = memories.taken(number)
    if prod(shape) * dtype.itemsize != memory.nbytes:
        raise ValueError(f"an array of shape {shape} does not fit {memory.nbytes} bytes")
    _check_values(memory, dtype)
    if not memory.nbytes:
        return np.empty(tuple(shape), dtype=dtype, order=order)
    return np.ndarray(tuple(shape), dtype=dtype, buffer=memory, order=order)


def read_scalar(node: Sequence[Any]) -> np.generic:
    """Return a scalar of numpy.

    Raises:
        ValueError, TypeError: The node is not one of a scalar.
    """
    kind, *arguments = node
    raw = bytes.fromhex(arguments[-1])
    if kind == "npstr":
        return np.str_(raw.decode("utf-8", "surrogatepass"))
    if kind == "npbytes":
        return np.bytes_(raw)
    dtype = _dtype(arguments[0])
    if len(raw) != dtype.itemsize or dtype.kind in "SU":
        raise ValueError(f"a scalar of {dtype} must have {dtype.itemsize} bytes")
    _check_values(memoryview(raw), dtype)
    scalar: np.generic = np.frombuffer(raw, dtype=dtype)[0]
    return scalar


def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject:
        raise Refusal("arrays of objects have no portable form: make it a list")
    if not _is_portable(dtype):
        raise Refusal(
            f"dtype {dtype} has no portable form: use booleans, integers, floats of 16 to 64 bits, "
            "complex numbers, times, or strings of fixed length"
        )
    return dtype.str


def _is_portable(dtype: np.dtype[Any]) -> bool:
    sizes = _PORTABLE_SIZES.get(dtype.kind)
    if sizes is not None:
        # The name of a dtype of somebody else may look like one of numpy's.
        return dtype.itemsize in sizes and dtype.isbuiltin < 2  # noqa: PLR2004 - registered by users
    return dtype.kind in "mM" or (dtype.kind in "SU" and dtype.itemsize > 0)


def _dtype(name: object) -> np.dtype[Any]:
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a dtype")
    dtype = np.dtype(name)
    if not _is_portable(dtype):
        raise ValueError(f"{name!r} is not the name of a portable dtype")
    return dtype


def _check_values(memory: memoryview, dtype: np.dtype[Any]) -> None:
    if dtype.kind == "b" and not are_truths(memory):
        raise ValueError("a boolean must be 0 or 1")
    if dtype.kind == "U":
        points = np.frombuffer(memory, dtype=np.dtype("u4").newbyteorder(dtype.byteorder))
        if points.size and int(points.max()) > 0x10FFFF:  # noqa: PLR2004 - the last code point
            raise ValueError("a text must consist of code points of Unicode")
