"""A state as a tree of nodes that JSON can say, and back.

Called by `store.codec`, which writes the tree and, after it, the memory of arrays and tensors.
None, booleans, integers of 64 bits, finite floats and text are themselves; everything else is a
list that begins with its kind:

    ["list", ...]  ["tuple", ...]  ["set", ...]  ["frozenset", ...]      items
    ["dict", k, v, ...]  ["counter", k, v, ...]                          in their own order
    ["ordered", _metadata or null, k, v, ...]     OrderedDict, as torch's Module.state_dict gives it
    ["int", hex]  ["float", 8 bytes]  ["complex", 16 bytes]  ["text", UTF-8 with surrogates]
    ["bytes", buffer]  ["bytearray", buffer]  ["pickle", buffer]
    ["octets", bytes]                             bytes in a member of a set
    ["array", dtype, shape, order, buffer]  ["scalar", dtype, bytes]  ["npstr", ..]  ["npbytes", ..]
    ["tensor", dtype, buffer or null, offset, shape, strides, requires_grad, is_parameter]
    ["size", ...]                                                        torch.Size

Bytes in a node are hexadecimal. A buffer is named by one node, or by all tensors that share it as
their storage. Only these exact types are taken, no subclass: what a subclass adds
would be lost without a word. Identity of objects is not kept, except storages of tensors.
"""

import json
import pickle
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, TypeAlias

from dasktune.errors import StageError
from dasktune.store.arrays import array_node, is_array, read_array, read_scalar
from dasktune.store.buffers import Buffers, Memories, Refusal
from dasktune.store.tensors import TensorReader, Tensors

MAX_DEPTH = 100
"""Containers within containers; a state that contains itself ends here too."""

Node: TypeAlias = Any
"""None, bool, int, float, str, or a list of nodes that begins with a kind."""

Value: TypeAlias = Any
"""Whatever a state may hold."""

_INT64 = 2**63


class NodeWriter:
    """Turns one state into a tree of nodes and a row of buffers."""

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self.buffers = Buffers()
        self.has_pickle = False
        self._allow_pickle = allow_pickle
        self._tensors = Tensors(self.buffers)
        self._path: list[str] = []
        self._sets_around = 0
        self._writers: dict[type, Callable[[Any], Node]] = {
            type(None): lambda value: value,
            bool: lambda value: value,
            int: _int_node,
            float: _float_node,
            complex: lambda value: ["complex", struct.pack(">dd", value.real, value.imag).hex()],
            str: _text_node,
            bytes: self._bytes,
            bytearray: lambda value: ["bytearray", self._raw(value)],
            list: lambda value: ["list", *self._items(value)],
            tuple: lambda value: ["tuple", *self._items(value)],
            set: lambda value: ["set", *self._members(value)],
            frozenset: lambda value: ["frozenset", *self._members(value)],
            dict: lambda value: ["dict", *self._pairs(value)],
            Counter: lambda value: ["counter", *self._pairs(value)],
            OrderedDict: self._ordered,
        }

    def tree(self, state: object) -> Node:
        """Return the tree of a state; its buffers are then complete.

        Raises:
            StageError: Something in the state cannot be kept; the message says where it is.
        """
        node = self._node(state)
        self._tensors.finish()
        return node

    def _node(self, value: object) -> Node:
        try:
            if len(self._path) > MAX_DEPTH:
                raise Refusal(f"a state may be {MAX_DEPTH} deep, and must not contain itself")
            writer = self._writers.get(type(value))
            if writer is not None:
                return writer(value)
            if self._tensors.takes(value):
                return self._tensors.node(value)
            if is_array(value):
                return array_node(value, self.buffers)
            raise Refusal(
                "a state may hold dicts, lists, tuples, sets, numbers, text, bytes, None, numpy "
                "arrays and torch tensors"
            )
        except Refusal as refusal:
            if self._allow_pickle and len(self._path) <= MAX_DEPTH:
                return self._pickled(value)
            raise StageError(self._refused(value, str(refusal))) from None

    def _pickled(self, value: object) -> Node:
        try:
            raw = pickle.dumps(value, protocol=5)
        except Exception as error:  # whatever the value's own __reduce__ raises
            raise StageError(self._refused(value, f"and pickle refuses it: {error}")) from error
        self.has_pickle = True
        return ["pickle", self._raw(raw)]

    def _refused(self, value: object, reason: str) -> str:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        return f"state{''.join(self._path)} is of type {kind}, which cannot be kept: {reason}"

    def _raw(self, value: bytes | bytearray) -> int:
        return self.buffers.add(len(value), lambda: memoryview(value))

    def _bytes(self, value: bytes) -> Node:
        # Numbers of buffers would follow the order of a set in memory, which is another one in
        # every process, and so would the bytes of equal states.
        if self._sets_around:
            return ["octets", value.hex()]
        return ["bytes", self._raw(value)]

    def _items(self, values: Iterable[object]) -> list[Node]:
        nodes = []
        for index, value in enumerate(values):
            self._path.append(f"[{index}]")
            nodes.append(self._node(value))
            self._path.pop()
        return nodes

    def _pairs(self, values: Mapping[Any, object]) -> list[Node]:
        nodes = []
        for key, value in values.items():
            self._path.append(f"[{_shown(key)}]")
            nodes.append(self._hashable(key, "key"))
            nodes.append(self._node(value))
            self._path.pop()
        return nodes

    def _members(self, values: Iterable[object]) -> list[Node]:
        self._path.append("{...}")
        self._sets_around += 1
        nodes = [self._hashable(value, "member of a set") for value in values]
        self._sets_around -= 1
        self._path.pop()
        # A set has no order of its own, and equal states are to give equal bytes.
        return sorted(nodes, key=json.dumps)

    def _hashable(self, value: object, role: str) -> Node:
        node = self._node(value)
        if not _is_hashable(node):
            kind = type(value).__qualname__
            raise StageError(
                f"state{''.join(self._path)} has a {role} of type {kind}, which cannot be kept: it "
                "must be a number, text, bytes, None, or a tuple of such"
            )
        return node

    def _ordered(self, value: "OrderedDict[Any, object]") -> Node:
        attributes = vars(value)
        if attributes.keys() - {"_metadata"}:
            names = ", ".join(sorted(attributes.keys() - {"_metadata"}))
            raise Refusal(f"of an OrderedDict's attributes only _metadata is kept, not {names}")
        self._path.append("._metadata")
        metadata = self._node(attributes.get("_metadata"))
        self._path.pop()
        return ["ordered", metadata, *self._pairs(value)]


class NodeReader:
    """Turns a tree of nodes and a row of memories back into a state."""

    def __init__(self, memories: Sequence[memoryview], *, allow_pickle: bool = False) -> None:
        buffers = Memories(memories)
        tensors = TensorReader(buffers)
        self._readers: dict[str, Callable[[list[Node], int], Any]] = {
            "int": lambda node, _: int(node[1], 16),
            "float": lambda node, _: struct.unpack(">d", bytes.fromhex(node[1]))[0],
            "complex": lambda node, _: complex(*struct.unpack(">dd", bytes.fromhex(node[1]))),
            "text": lambda node, _: bytes.fromhex(node[1]).decode("utf-8", "surrogatepass"),
            "bytes": lambda node, _: bytes(buffers.taken(node[1])),
            "octets": lambda node, _: bytes.fromhex(node[1]),
            "bytearray": lambda node, _: bytearray(buffers.taken(node[1])),
            "pickle": lambda node, _: pickle.loads(buffers.taken(node[1])),
            "list": self._items,
            "tuple": lambda node, depth: tuple(self._items(node, depth)),
            "set": lambda node, depth: set(self._items(node, depth)),
            "frozenset": lambda node, depth: frozenset(self._items(node, depth)),
            "dict": lambda node, depth: dict(self._pairs(node, 1, depth)),
            "counter": lambda node, depth: Counter(dict(self._pairs(node, 1, depth))),
            "ordered": self._ordered,
            "array": lambda node, _: read_array(node, buffers),
            "scalar": lambda node, _: read_scalar(node),
            "npstr": lambda node, _: read_scalar(node),
            "npbytes": lambda node, _: read_scalar(node),
            "tensor": lambda node, _: tensors.read(node),
            "size": lambda node, _: tensors.read_size(node),
        }
        if not allow_pickle:
            del self._readers["pickle"]

    def value(self, node: Node, depth: int = 0) -> Value:
        """Return what a node says.

        Raises:
            ValueError, TypeError, IndexError, struct.error, RuntimeError, OverflowError: It says
                nothing, or something that does not fit its memory.
        """
        if type(node) is not list:
            if isinstance(node, dict):
                raise ValueError("a node must not be an object")
            return node
        if depth > MAX_DEPTH:
            raise ValueError(f"nodes are nested more than {MAX_DEPTH} deep")
        read = self._readers.get(node[0]) if node and isinstance(node[0], str) else None
        if read is None:
            raise ValueError(f"{str(node[:1])[:40]} is not a kind of node")
        return read(node, depth)

    def _items(self, node: list[Node], depth: int) -> list[Any]:
        return [self.value(item, depth + 1) for item in node[1:]]

    def _pairs(self, node: list[Node], first: int, depth: int) -> Iterable[tuple[Any, Any]]:
        values = [self.value(item, depth + 1) for item in node[first:]]
        return zip(values[::2], values[1::2], strict=True)

    def _ordered(self, node: list[Node], depth: int) -> "OrderedDict[Any, Any]":
        ordered = OrderedDict(self._pairs(node, 2, depth))
        metadata = self.value(node[1], depth + 1)
        if metadata is not None:
            vars(ordered)["_metadata"] = metadata
        return ordered


_ALWAYS_HASHABLE = {
    *("int", "float", "complex", "text", "bytes", "octets", "scalar", "npstr", "npbytes")
}


def _is_hashable(node: Node) -> bool:
    if type(node) is not list:
        return True
    kind, *items = node
    return kind in _ALWAYS_HASHABLE or (
        kind in ("tuple", "frozenset", "size") and all(map(_is_hashable, items))
    )


def _int_node(value: int) -> Node:
    return value if -_INT64 <= value < _INT64 else ["int", format(value, "x")]


def _float_node(value: float) -> Node:
    return value if isfinite(value) else ["float", struct.pack(">d", value).hex()]


def _text_node(value: str) -> Node:
    try:
        value.encode()
    except UnicodeEncodeError:
        # JSON would join two lone surrogates to one character.
        return ["text", value.encode("utf-8", "surrogatepass").hex()]
    return value


def _shown(key: object) -> str:
    return json.dumps(key) if isinstance(key, str) else repr(key)[:80]
