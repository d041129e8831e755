"""Hypothesis strategies for states of training, and what it means that two are the same."""

from collections import Counter, OrderedDict
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

FLOATS = ["float64", "float32", "float16", "bfloat16"]
FLOATS_8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
COMPLEX = ["complex32", "complex64", "complex128"]
DTYPES = ["bool", *FLOATS, *FLOATS_8, *INTEGERS, *COMPLEX]


def tensor_of(dtype: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor of random bits, contiguous."""
    kind = getattr(torch, dtype)
    count = int(np.prod(shape, dtype=int))
    size = torch.empty(0, dtype=kind).element_size()
    high = 2 if dtype == "bool" else 256
    raw = np.random.default_rng(seed).integers(0, high, count * size, dtype=np.uint8)
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(raw).view(kind).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of every dtype and of many layouts."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    tensor = tensor_of(draw(st.sampled_from(DTYPES)), shape, draw(st.integers(0, 9)))
    if tensor.dim() and draw(st.booleans()):
        tensor = tensor.transpose(0, -1)
    if tensor.dim() and draw(st.booleans()):
        tensor = tensor[..., 1:]
    if tensor.dim() and draw(st.booleans()):
        tensor = tensor[::2]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    if tensor.dtype.is_floating_point and tensor.itemsize > 1 and draw(st.booleans()):
        tensor = tensor.detach().requires_grad_()
        if draw(st.booleans()):
            tensor = torch.nn.Parameter(tensor.detach(), requires_grad=draw(st.booleans()))
    return tensor


def arrays() -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Arrays of every plain dtype and of many layouts."""
    dtypes = st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(),
        hnp.unsigned_integer_dtypes(),
        hnp.floating_dtypes(sizes=(16, 32, 64)),
        hnp.complex_number_dtypes(sizes=(64, 128)),
        hnp.byte_string_dtypes(min_len=1),
        hnp.unicode_string_dtypes(min_len=1),
        hnp.datetime64_dtypes(),
        hnp.timedelta64_dtypes(),
    )
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    layouts = st.sampled_from(
        [
            lambda array: array,
            np.asfortranarray,
            lambda array: array[..., ::-1] if array.ndim else array,
            lambda array: array.T,
        ]
    )
    drawn = hnp.arrays(dtypes, shapes)
    return st.builds(lambda array, layout: layout(array), drawn, layouts)


TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
NUMBERS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**62, max_value=2**70),
    st.floats(),
    st.complex_numbers(),
)
SCALARS = st.one_of(
    hnp.arrays(st.sampled_from(["f4", "f8", ">i2", "u8", "?", "M8[ns]"]), ()).map(lambda a: a[()]),
    TEXTS.filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)).map(np.str_),
    st.binary(max_size=8).map(np.bytes_),
)
KEYS = st.recursive(
    st.one_of(st.none(), NUMBERS, TEXTS, st.binary(max_size=8)),
    lambda keys: st.one_of(st.lists(keys, max_size=3).map(tuple), st.frozensets(keys, max_size=3)),
    max_leaves=4,
)
LEAVES = st.one_of(
    st.none(),
    NUMBERS,
    TEXTS,
    st.binary(max_size=200),
    st.binary(max_size=8).map(bytearray),
    SCALARS,
    arrays(),
    tensors(),
    st.sampled_from([torch.Size([]), torch.Size([2, 3])]),
)


def _containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.lists(st.tuples(KEYS, values), max_size=3)
    return st.one_of(
        st.lists(values, max_size=3),
        st.lists(values, max_size=3).map(tuple),
        pairs.map(dict),
        pairs.map(OrderedDict),
        pairs.map(lambda items: Counter(dict(items))),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
    )


STATES = st.recursive(LEAVES, _containers, max_leaves=8)


def bits(tensor: torch.Tensor) -> bytes:
    """All elements of a tensor, bit for bit."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    # A single element may have any stride, and then cannot be looked at as bytes.
    plain = plain.clone(memory_format=torch.contiguous_format)
    return bytes(plain.view(torch.uint8).numpy().tobytes())


def same(left: object, right: object) -> bool:
    """Whether two states are equal in every type and bit."""
    return _form(left) == _form(right)


def _form(value: object) -> object:
    """A value that equals another's if and only if both are the same."""
    return type(value).__name__, _content(value)


@singledispatch
def _content(value: object) -> object:
    return value


@_content.register(float)
@_content.register(complex)
def _(value: complex) -> object:
    return np.array(value).tobytes()


@_content.register(torch.Tensor)
def _(value: torch.Tensor) -> object:
    facts = (value.dtype, value.shape, value.stride(), value.requires_grad, bits(value))
    return tuple(map(str, facts))


@_content.register(np.ndarray)
@_content.register(np.generic)
def _(value: np.ndarray[Any, Any] | np.generic) -> object:
    return value.dtype.str, value.shape, value.tobytes()


@_content.register(dict)
def _(value: dict[Any, Any]) -> object:
    return [(_form(key), _form(item)) for key, item in value.items()]


@_content.register(list)
@_content.register(tuple)
def _(value: list[Any] | tuple[Any, ...]) -> object:
    return [_form(item) for item in value]


@_content.register(set)
@_content.register(frozenset)
def _(value: set[Any] | frozenset[Any]) -> object:
    return sorted((_form(item) for item in value), key=repr)
