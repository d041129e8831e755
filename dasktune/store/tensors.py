"""torch tensors as nodes of an encoded state.

Called by `store.nodes`. A tensor keeps dtype, shape, strides, `requires_grad` and whether it is a
Parameter; tensors that view one storage view one storage after loading, on the CPU. Of a storage
only the part between the first and the last element in use is kept, and bytes of it that no tensor
shows are written as zeros: equal tensors give equal bytes, whatever lies between their elements.
Not kept: gradients, hooks, and Python attributes.

torch isn't imported here. Whoever has a tensor to write has imported it; a reader imports it when
the first tensor turns up, so states without one need no torch.
"""

import importlib
import sys
from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

from dasktune.errors import BackendError
from dasktune.store.buffers import Buffers, Memories, Refusal, are_truths, wholes

Tensor: TypeAlias = Any
"""A `torch.Tensor`; its type cannot be named where torch must not be imported."""
Storage: TypeAlias = Any
"""A `torch.UntypedStorage`."""
Torch: TypeAlias = Any
"""The module."""

_DTYPES = frozenset(
    ["bool", "bfloat16", "complex32", "complex64", "complex128", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + [f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")]
    + ["float4_e2m1fn_x2"]
)
_MAX_DIMENSIONS = 64
_MAX_ELEMENTS = 2**62
# The first byte kept of a storage is a multiple of this, so every dtype's elements stay aligned.
_LARGEST_ITEM = 16

_TENSOR, _SIZE = "tensor", "size"
_OFFSET_FIELD = 3


class Tensors:
    """The tensors of one state on their way into buffers, grouped by storage."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._torch: Torch = sys.modules.get("torch")
        self._storages: dict[int, _Storage] = {}

    def takes(self, value: object) -> bool:
        """Say whether a value is for this class: a tensor, or the size of one."""
        torch = self._torch
        # While torch is being imported for the first time its module has no attributes yet.
        return hasattr(torch, "Tensor") and isinstance(value, (torch.Tensor, torch.Size))

    def node(self, value: Tensor) -> list[Any]:
        """Return the node of a tensor; `finish` completes it.

        Raises:
            Refusal: The tensor has no portable form.
        """
        torch = self._torch
        if isinstance(value, torch.Size):
            return [_SIZE, *value]
        is_parameter = type(value) is torch.nn.Parameter
        if type(value) is not torch.Tensor and not is_parameter:
            raise Refusal("it must be a plain torch.Tensor or torch.nn.Parameter")
        tensor = self._plain(value)
        name = str(tensor.dtype).removeprefix("torch.")
        if name not in _DTYPES:
            raise Refusal(f"dtype {tensor.dtype} has no portable form: dequantize or convert it")
        node = [_TENSOR, name, None, 0, list(tensor.shape), list(tensor.stride())]
        node += [value.requires_grad, is_parameter]
        if tensor.numel():
            storage = self._storage(tensor)
            node[2] = storage.number
            storage.tensors.append((tensor, node))
        return node

    def finish(self) -> None:
        """Decide which part of each storage is kept, now that all tensors are known."""
        for storage in self._storages.values():
            start, length = storage.span()
            for tensor, node in storage.tensors:
                first = tensor.storage_offset() * tensor.itemsize - start
                node[_OFFSET_FIELD] = first // tensor.itemsize
            self._buffers.replace(storage.number, length, storage.content)

    def _plain(self, value: Tensor) -> Tensor:
        torch = self._torch
        if value.is_quantized:
            raise Refusal("quantised tensors are not kept: dequantize() it")
        if value.layout != torch.strided:
            raise Refusal("sparse tensors are not kept: make it dense with to_dense()")
        if value.device.type == "meta":
            raise Refusal("a tensor on the device 'meta' has no content: give it one")
        if value.dim() > _MAX_DIMENSIONS:
            raise Refusal(f"it must have at most {_MAX_DIMENSIONS} dimensions")
        return value.detach().resolve_conj().resolve_neg()

    def _storage(self, tensor: Tensor) -> "_Storage":
        untyped = tensor.untyped_storage()
        storage = self._storages.get(untyped._cdata)
        if storage is None:
            number = self._buffers.add(0, lambda: memoryview(b""))
            storage = self._storages[untyped._cdata] = _Storage(self._torch, untyped, number)
        return storage


class _Storage:
    """One storage, alive as long as this object, with all tensors of the state that view it."""

    def __init__(self, torch: Torch, untyped: Storage, number: int) -> None:
        self._torch = torch
        self._untyped = untyped
        self.number = number
        self.tensors: list[tuple[Tensor, list[Any]]] = []

    def span(self) -> tuple[int, int]:
        """Return the first byte in use, and how many there are from it to the last."""
        reaches = [_reach(tensor) for tensor, _ in self.tensors]
        start = min(first for first, _ in reaches)
        if any((t.storage_offset() * t.itemsize - start) % t.itemsize for t, _ in self.tensors):
            start -= start % _LARGEST_ITEM
        return start, max(end for _, end in reaches) - start

    def content(self) -> memoryview:
        """Return the bytes in use; those between elements as zeros."""
        torch = self._torch
        start, length = self.span()
        if any(_fills(tensor, length) for tensor, _ in self.tensors):
            kept = torch.empty(0, dtype=torch.uint8, device=self._untyped.device)
            kept = kept.set_(self._untyped, start, (length,), (1,)).cpu()
        else:
            kept = torch.zeros(length, dtype=torch.uint8)
            for tensor, node in self.tensors:
                self._copy(tensor, kept, node[_OFFSET_FIELD])
        return memoryview(kept.numpy())

    def _copy(self, tensor: Tensor, kept: Tensor, offset: int) -> None:
        # As integers: a few dtypes can't be copied, and all that counts is the bits.
        integers = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}.get(tensor.itemsize)
        source = tensor.view(getattr(self._torch, integers)) if integers else tensor
        # A dimension of stride 0 shows one element many times; it is enough to write it once.
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0:
                source = source.narrow(dimension, 0, 1)
        target = self._torch.empty(0, dtype=source.dtype)
        target.set_(kept.untyped_storage(), offset, source.shape, source.stride())
        target.copy_(source)


def _reach(tensor: Tensor) -> tuple[int, int]:
    first = tensor.storage_offset()
    end = _end(first, tensor.shape, tensor.stride())
    return first * tensor.itemsize, end * tensor.itemsize


def _end(offset: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return where a tensor ends in its storage, in elements; it has at least one."""
    steps = ((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return offset + sum(steps) + 1


def _fills(tensor: Tensor, length: int) -> bool:
    if tensor.numel() * tensor.itemsize != length:
        return False
    expected = 1
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in dimensions if pair[1] > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class TensorReader:
    """Makes tensors of nodes; imports torch at the first."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self._storages: dict[int, Any] = {}
        self._imported: Torch = None

    @property
    def _torch(self) -> Torch:
        if self._imported is None:
            try:
                self._imported = importlib.import_module("torch")
            except ImportError as error:
                raise BackendError(
                    "the state holds tensors and torch is not installed here: install the torch "
                    "that wrote it"
                ) from error
        return self._imported

    def read_size(self, node: Sequence[Any]) -> tuple[int, ...]:
        """Return a `torch.Size`."""
        size: tuple[int, ...] = self._torch.Size(wholes(list(node[1:]), "a torch.Size"))
        return size

    def read(self, node: Sequence[Any]) -> Tensor:
        """Return a tensor that lies in the memory that its node names.

        Raises:
            ValueError, TypeError, IndexError, RuntimeError: The node is not one of a tensor.
        """
        torch = self._torch
        _, name, number, offset, shape, strides, requires_grad, is_parameter = node
        dtype = getattr(torch, name, None) if name in _DTYPES else None
        if dtype is None:
            raise ValueError(f"{name!r} is no dtype of the torch that is installed here")
        shape, strides = wholes(shape, "a tensor's shape"), wholes(strides, "a tensor's strides")
        (offset,) = wholes([offset], "a tensor's offset")
        if not len(shape) == len(strides) <= _MAX_DIMENSIONS:
            raise ValueError("a tensor must have as many strides as dimensions, at most 64")
        if prod(shape) > _MAX_ELEMENTS or max(strides, default=0) > _MAX_ELEMENTS:
            raise ValueError("a tensor must have less than 2**62 elements")
        if type(requires_grad) is not bool or type(is_parameter) is not bool:
            raise ValueError("whether a tensor requires gradients must be true or false")
        if number is None:
            if prod(shape):
                raise ValueError("a tensor without storage must be empty")
            tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
        else:
            tensor = torch.empty(0, dtype=dtype)
            memory = self._memories.shared(number)
            if not prod(shape) or _end(offset, shape, strides) * tensor.itemsize > memory.nbytes:
                raise ValueError("a tensor reaches beyond its storage")
            tensor.set_(self._storage(number, memory), offset, tuple(shape), tuple(strides))
            if dtype == torch.bool:
                self._check_truths(tensor, memory)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor

    def _check_truths(self, tensor: Tensor, memory: memoryview) -> None:
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0:
                tensor = tensor.narrow(dimension, 0, 1)
        if tensor.numel() <= memory.nbytes:
            seen = memoryview(tensor.view(self._torch.uint8).contiguous().numpy()).cast("B")
        else:  # elements overlap: looking at each view of a byte could take for ever
            first, end = _reach(tensor)
            seen = memory[first:end]
        if not are_truths(seen):
            raise ValueError("a boolean must be 0 or 1")

    def _storage(self, number: int, memory: memoryview) -> Storage:
        storage = self._storages.get(number)
        if storage is None:
            flat = self._torch.frombuffer(memory, dtype=self._torch.uint8)
            storage = self._storages[number] = flat.untyped_storage()
        return storage
