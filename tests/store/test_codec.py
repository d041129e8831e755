"""What is decoded is what was encoded, and bytes from anywhere do no harm."""

import base64
import contextlib
import copy
import io
import json
import pickle
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dasktune.errors import BackendError, StageError
from dasktune.store.buffers import aligned
from dasktune.store.codec import Encoding, decode, encode, encode_to
from tests.store.states import DTYPES, KEYS, STATES, bits, same, tensor_of

ROOT = Path(__file__).parent.parent.parent
HEADER = struct.Struct("<8sHHIQQ")

pytestmark = [
    pytest.mark.torch,
    # torch says so of complex32, whoever makes one.
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]


def trained() -> dict[str, Any]:
    """A state such as a torch Trainable returns."""
    torch.manual_seed(0)
    random.seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).to(
        memory_format=torch.channels_last
    )  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3])
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    optimizer.step()
    schedule.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
        "python": random.getstate(),
        "numpy": np.random.default_rng(3).bit_generator.state,
        "torch": torch.get_rng_state(),
    }


def forged(structure: object, buffers: bytes = b"", flags: int = 0) -> bytes:
    """A file with a right header around any structure."""
    text = structure if isinstance(structure, bytes) else json.dumps(structure).encode()
    start = HEADER.size + len(text)
    body = bytes(-start % 64) + buffers
    head = (b"\x93dasktn\n", 1, flags, zlib.crc32(text), len(text), start + len(body))
    return HEADER.pack(*head) + text + body


# --- what is decoded is what was encoded


@given(STATES)
@settings(max_examples=250)
def test_a_decoded_state_is_the_encoded_one_in_every_type_and_bit(state: object) -> None:
    assert same(decode(encode(state)), state)


@given(STATES)
def test_equal_states_give_equal_bytes(state: object) -> None:
    data = encode(state)

    assert encode(decode(data)) == data
    copied = copy.deepcopy(state)
    assume(same(copied, state))  # torch copies an expanded Parameter into a layout of its own
    assert encode(copied) == data


@given(st.sets(KEYS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_set_is_written_alike_in_whatever_order_it_was_filled(
    members: set[Any], shuffle: random.Random
) -> None:
    # 32 bytes in a table of 128 places meet often enough to lie in another order each time.
    many = [*members, *(bytes([number]) for number in range(32))]
    shuffled = shuffle.sample(many, len(many))

    assert encode({"nested": {(None, frozenset(many))}}) == encode(
        {"nested": {(None, frozenset(shuffled))}}
    )


@given(STATES)
def test_the_size_is_known_before_anything_is_written(state: object) -> None:
    file = io.BytesIO()

    assert Encoding(state).size_bytes == encode_to(file, state) == len(file.getvalue())


def test_the_state_of_a_torch_training_comes_back() -> None:
    state = trained()

    loaded = decode(encode(state))

    assert same(loaded, state)
    assert loaded["model"]._metadata == state["model"]._metadata
    random.setstate(loaded["python"])
    torch.set_rng_state(loaded["torch"])


def test_training_goes_on_as_if_it_had_not_been_saved() -> None:
    def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        return model, torch.optim.Adam(model.parameters(), lr=0.01)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(32, 8)).square().mean().backward()
            optimizer.step()

    straight, cut = fresh(), fresh()
    train(*straight, range(6))
    train(*cut, range(3))
    state = decode(encode({"model": cut[0].state_dict(), "optimizer": cut[1].state_dict()}))
    resumed = fresh()
    resumed[0].load_state_dict(state["model"])
    resumed[1].load_state_dict(state["optimizer"])
    train(*resumed, range(3, 6))

    assert same(resumed[0].state_dict(), straight[0].state_dict())


@pytest.mark.parametrize("dtype", [*DTYPES, "float4_e2m1fn_x2"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (3, 4)])
def test_every_dtype_of_torch_keeps_its_bits(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = tensor_of(dtype, shape)

    loaded = decode(encode(tensor))

    assert loaded.dtype == tensor.dtype
    assert loaded.shape == tensor.shape
    assert loaded.stride() == tensor.stride()
    assert bits(loaded) == bits(tensor)
    assert encode(loaded) == encode(tensor)


@pytest.mark.parametrize("dtype", [*DTYPES, "float4_e2m1fn_x2"])
def test_every_dtype_of_torch_is_kept_with_gaps(dtype: str) -> None:
    tensor = tensor_of(dtype, (6, 4))[::2, 1:3]

    loaded = decode(encode(tensor))

    assert loaded.stride() == tensor.stride()
    assert encode(loaded) == encode(tensor)
    assert bits(loaded.view(torch.uint8) if tensor.itemsize == 1 else loaded) == bits(
        tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor
    )


def test_tensors_that_share_a_storage_share_it_after_loading() -> None:
    flat = torch.arange(12.0)
    state = {
        "all": flat,
        "head": flat[:4].view(2, 2),
        "odd": flat[5::2],
        "bytes": flat[2:3].view(torch.uint8),
    }

    loaded = decode(encode(state))
    loaded["all"].mul_(-1)
    flat.mul_(-1)

    assert same(loaded, state)


def test_tensors_that_share_nothing_share_nothing_after_loading() -> None:
    loaded = decode(encode([torch.zeros(4), torch.zeros(4)]))
    loaded[0].fill_(1)

    assert not loaded[1].any()


def test_overlapping_tensors_without_one_that_covers_them_keep_all_bits() -> None:
    flat = tensor_of("int32", (40,))
    state = [flat[3:20:2], flat[10:33:3], flat[12:20].unfold(0, 4, 1), flat[5].expand(7)]

    assert same(decode(encode(state)), state)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 4)), min_size=1))
def test_any_views_of_one_storage_keep_all_bits_and_stay_views_of_one(
    cuts: list[tuple[int, int, int]],
) -> None:
    storage = tensor_of("uint8", (256,))
    views = [
        torch.empty(0, dtype=torch.int16).set_(storage.untyped_storage(), first, (n,), (stride,))
        for first, n, stride in cuts
    ]

    loaded = decode(encode(views))

    assert same(loaded, views)
    assert len({tensor.untyped_storage().data_ptr() for tensor in loaded}) == 1


def test_views_of_several_dtypes_are_aligned_for_each() -> None:
    storage = tensor_of("uint8", (64,))
    state = [storage[3:5], storage[8:24].view(torch.float64), storage[40:56].view(torch.complex64)]

    loaded = decode(encode(state))

    assert same(loaded, state)
    assert loaded[1].data_ptr() % 8 == 0


def test_what_lies_between_elements_is_not_part_of_a_state() -> None:
    left, right = tensor_of("float32", (8, 8), 1), tensor_of("float32", (8, 8), 2)
    right[::2, :3] = left[::2, :3]

    assert encode(left[::2, :3]) == encode(right[::2, :3])
    # Four elements that reach over four places, and show the first and the last of them.
    twice = [torch.tensor([1, gap, gap, 4])[::3].expand(2, 2) for gap in (2, 3)]
    assert encode(twice[0]) == encode(twice[1])


def test_of_a_large_storage_only_the_part_in_use_is_kept() -> None:
    large = torch.zeros(1_000_000)

    assert len(encode(large[500_000:500_010])) < 1_000


def test_a_parameter_comes_back_as_a_parameter_and_a_gradient_does_not_come_along() -> None:
    parameter = torch.nn.Parameter(torch.ones(3), requires_grad=True)
    parameter.sum().backward()

    loaded = decode(encode({"w": parameter, "frozen": torch.nn.Parameter(torch.ones(1), False)}))

    assert type(loaded["w"]) is torch.nn.Parameter
    assert loaded["w"].requires_grad
    assert loaded["w"].grad is None
    assert not loaded["frozen"].requires_grad


def test_a_conjugate_view_is_written_with_its_values() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()

    assert torch.equal(decode(encode(tensor)), tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu_come_back_on_the_cpu() -> None:
    for dtype in DTYPES:
        tensor = tensor_of(dtype, (6, 4))
        moved = tensor.to("cuda")

        loaded = decode(encode([moved, moved[::2, 1:]]))

        assert same(loaded, [tensor, tensor[::2, 1:]])
        assert loaded[0].device.type == "cpu"


def test_text_that_is_no_unicode_stays_apart_from_text_that_is() -> None:
    state = {"\ud83d\ude00": "\ude00\ud83d", "\U0001f600": "\ud83d\ude00"}

    assert same(decode(encode(state)), state)


def test_columns_first_stays_columns_first() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))

    loaded = decode(encode(array))

    assert loaded.flags.f_contiguous
    assert (loaded == array).all()


def test_what_is_loaded_is_writable_and_aligned_as_torch_aligns() -> None:
    state = {"a": torch.ones(3), "b": b"x", "c": np.ones(5), "d": torch.ones(2)}

    loaded = decode(encode(state))

    for pointer in (loaded["a"].data_ptr(), loaded["c"].ctypes.data, loaded["d"].data_ptr()):
        assert pointer % 64 == 0
    loaded["c"][0] = 2
    loaded["a"][0] = 2


# --- without copies


def test_arrays_and_tensors_are_written_from_where_they_lie() -> None:
    tensor, array = torch.ones(1_000), np.ones((10, 100), order="F")

    starts = [
        np.frombuffer(chunk, np.uint8).ctypes.data for chunk in Encoding([tensor, array]).chunks()
    ]

    assert tensor.data_ptr() in starts
    assert array.ctypes.data in starts


def test_memory_that_is_given_up_is_used_and_other_memory_is_not() -> None:
    data = encode([torch.ones(100), np.ones(100)])
    memory = aligned(len(data))
    memory[:] = data
    start = np.frombuffer(memory, np.uint8).ctypes.data

    for in_place in (True, False):
        loaded = decode(memory, in_place=in_place)
        for pointer in (loaded[0].data_ptr(), loaded[1].ctypes.data):
            assert (start <= pointer < start + len(data)) is in_place


@pytest.mark.parametrize("length", [1, 63, 2**20 - 1, 2**20, 5_000_001])
def test_aligned_memory_has_its_length_and_can_be_written(length: int) -> None:
    memory = aligned(length)
    memory[:] = bytes(length)

    assert memory.nbytes == length
    assert np.frombuffer(memory, np.uint8).ctypes.data % 64 == 0


def test_memory_that_is_not_aligned_or_not_writable_is_copied() -> None:
    data = encode(torch.ones(100))
    shifted = aligned(len(data) + 1)[1:]
    shifted[:] = data

    for memory in (data, shifted):
        assert decode(memory, in_place=True).data_ptr() % 64 == 0


# --- what is refused


class Colour(IntEnum):
    RED = 1


@dataclass
class Point:
    x: int


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "kind", "cure"),
    [
        (object(), "object", "numpy arrays and torch tensors"),
        (Point(1), "Point", "dicts, lists"),
        (Colour.RED, "Colour", "numbers"),
        (Pair(1, 2), "Pair", "tuples"),
        (defaultdict(list), "defaultdict", "dicts"),
        (len, "builtin_function_or_method", "text"),
        (np.array([object()]), "numpy.ndarray", "make it a list"),
        (np.zeros(2, "f4,i4"), "numpy.ndarray", "dtype"),
        (np.zeros(2, np.longdouble), "numpy.ndarray", "64 bits"),
        (np.ma.masked_array([1.0]), "MaskedArray", "numpy.asarray"),
        (np.datetime64("2026-11-29").astype(object), "datetime.date", "numbers"),
        (torch.ones(2).to_sparse(), "torch.Tensor", "to_dense()"),
        (torch.empty(2, device="meta"), "torch.Tensor", "content"),
        (torch.nn.Linear(1, 1), "Linear", "torch tensors"),
        (torch.float32, "torch.dtype", "torch tensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_anything_else_is_refused_with_its_path_type_and_cure(
    value: object, kind: str, cure: str
) -> None:
    state = {"optimizer": {"state": {0: [None, {"buffer": value}]}}}

    with pytest.raises(StageError) as caught:
        encode(state)

    message = str(caught.value)
    assert message.startswith('state["optimizer"]["state"][0][1]["buffer"] is of type ')
    assert kind in message
    assert cure in message


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantised_tensor_is_refused() -> None:
    tensor = torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.qint8)

    with pytest.raises(StageError, match=r"dequantize"):
        encode({"w": tensor})


def test_a_subclass_of_tensor_is_refused() -> None:
    with pytest.raises(StageError, match=r"plain torch.Tensor"):
        encode(torch.ones(1).as_subclass(type("Mine", (torch.Tensor,), {})))


@pytest.mark.parametrize("key", [torch.ones(1), (1, torch.ones(1)), len])
def test_a_key_that_is_no_plain_value_is_refused(key: object) -> None:
    with pytest.raises(StageError, match=r'state\["a"\]\['):
        encode({"a": {key: 1}})


def test_an_attribute_of_an_ordered_dict_is_refused_and_metadata_kept() -> None:
    state: OrderedDict[str, Any] = OrderedDict(a=1)
    state._metadata = {"version": 1}  # type: ignore[attr-defined]
    assert vars(decode(encode(state))) == {"_metadata": {"version": 1}}

    state.mine = 1  # type: ignore[attr-defined]
    with pytest.raises(StageError, match=r"mine"):
        encode({"model": state})


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)

    with pytest.raises(StageError, match=r"contain itself"):
        encode(state)


def test_a_deep_state_is_kept_and_a_deeper_one_refused() -> None:
    def nested(depth: int) -> list[Any]:
        return [nested(depth - 1)] if depth else []

    assert same(decode(encode(nested(100))), nested(100))
    with pytest.raises(StageError, match=r"100 deep"):
        encode(nested(101))
    node: list[Any] = ["list"]
    for _ in range(101):
        node = ["list", node]
    with pytest.raises(BackendError, match=r"100 deep"):
        decode(forged({"buffers": [], "state": node}))


# --- pickle


def test_pickle_is_used_only_if_both_sides_allow_it() -> None:
    state = {"point": Point(3), "w": torch.ones(2)}
    data = encode(state, allow_pickle=True)

    assert decode(data, allow_pickle=True)["point"] == Point(3)
    with pytest.raises(BackendError, match=r"allow_pickle=True"):
        decode(data)
    with pytest.raises(StageError, match=r"point"):
        encode(state)


def test_a_state_that_needs_no_pickle_has_none_even_if_it_is_allowed() -> None:
    assert encode(trained(), allow_pickle=True) == encode(trained())


def test_what_pickle_refuses_is_refused_with_its_path() -> None:
    with pytest.raises(StageError, match=r'state\["f"\].*pickle refuses'):
        encode({"f": lambda: None}, allow_pickle=True)


@pytest.mark.parametrize("flags", [0, 1])
def test_reading_never_unpickles_unasked(tmp_path: Path, flags: int) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
            return Path.touch, (tmp_path / "exploded",)

    raw = pickle.dumps(Bomb())
    padded = raw + bytes(-len(raw) % 64)
    data = forged({"buffers": [len(raw)], "state": ["pickle", 0]}, padded, flags)

    with pytest.raises(BackendError):
        decode(data)
    assert not (tmp_path / "exploded").exists()


# --- bytes from anywhere


def test_every_truncation_is_refused() -> None:
    data = encode({"a": [1, 2.5, "x"], "w": torch.arange(20), "v": np.arange(7)})

    for length in range(len(data)):
        with pytest.raises(BackendError):
            decode(data[:length])
    with pytest.raises(BackendError):
        decode(data + b"\0")


def test_every_flipped_bit_is_noticed_or_changes_only_contents() -> None:
    state = {"a": [1, 2.5, "x"], "w": torch.arange(9), "t": torch.tensor([True]), "n": np.arange(5)}
    data = bytearray(encode(state))
    structure = HEADER.unpack_from(data)[4]

    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        try:
            decode(bytes(data))
        except BackendError:
            pass
        else:
            assert bit // 8 >= HEADER.size + structure
        data[bit // 8] ^= 1 << bit % 8


@given(st.binary(max_size=300), st.booleans())
def test_noise_is_refused(noise: bytes, has_magic: bool) -> None:
    with pytest.raises(BackendError):
        decode(b"\x93dasktn\n" + noise if has_magic else noise)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 70),
        st.sampled_from([2**31, 2**62, 2**63, 2**64, -1, 0.5]),
        st.sampled_from(
            ["C", "F", "<f8", "|b1", "<U3", "float32", "bool", "complex128", "00", "x"]
        ),
        st.sampled_from(["list", "dict", "set", "tensor", "array", "scalar", "ordered", "size"]),
    ),
    lambda nodes: st.lists(nodes, max_size=8),
    max_leaves=12,
)
KINDS = [
    "list", "tuple", "set", "frozenset", "dict", "counter", "ordered", "int", "float", "complex",
    "text", "bytes", "bytearray", "pickle", "array", "scalar", "npstr", "npbytes", "tensor", "size",
]  # fmt: skip


@given(st.sampled_from(KINDS), st.lists(JSON, max_size=7), st.integers(0, 3))
@settings(max_examples=300)
def test_any_node_gives_a_state_or_an_error_of_ours(
    kind: str, fields: list[object], n_buffers: int
) -> None:
    data = forged({"buffers": [64] * n_buffers, "state": [kind, *fields]}, bytes(64 * n_buffers))

    with contextlib.suppress(BackendError, StageError):
        encode(decode(data))


FLOATS = ("tensor", "float32")


@pytest.mark.parametrize(
    "structure",
    [
        {"buffers": [64], "state": ["array", "<f8", [2**40], "C", 0]},
        {"buffers": [0], "state": ["array", "<f8", [2**62, 2**62, 0], "C", 0]},
        {"buffers": [0], "state": ["array", "<f8", [2**27], "C", 0]},
        {"buffers": [64], "state": ["array", "<f8", [7], "C", 0]},
        {"buffers": [64], "state": ["array", "<f8", [-8, -1], "C", 0]},
        {"buffers": [64], "state": ["array", "<f8", [8], "C", 1]},
        {"buffers": [64], "state": ["array", "|O", [8], "C", 0]},
        {"buffers": [64], "state": ["array", "<f8,<f8", [4], "C", 0]},
        {"buffers": [64], "state": ["array", "<U999999999", [1], "C", 0]},
        {"buffers": [0], "state": ["array", "<f8", [0] * 65, "C", 0]},
        {"buffers": [64], "state": ["tensor", "float32", 0, 0, [17], [1], False, False]},
        {"buffers": [64], "state": ["tensor", "float32", 0, 0, [2], [2**61], False, False]},
        {"buffers": [64], "state": ["tensor", "float32", 0, 2**61, [1], [1], False, False]},
        {"buffers": [64], "state": ["tensor", "float32", 0, -1, [1], [1], False, False]},
        {"buffers": [64], "state": ["tensor", "float32", None, 0, [2**40], [1], False, False]},
        {"buffers": [64], "state": ["tensor", "float32", 0, 0, [2**40] * 2, [0, 0], False, False]},
        {"buffers": [64], "state": ["tensor", "qint8", 0, 0, [1], [1], False, False]},
        {"buffers": [64], "state": ["tensor", "load", 0, 0, [1], [1], False, False]},
        {"buffers": [64], "state": ["tensor", "int32", 0, 0, [1], [1], True, False]},
        {"buffers": [2**50], "state": None},
        {"buffers": [-64, 128], "state": None},
        {"buffers": [64.0], "state": None},
        {"buffers": [64], "state": ["bytes", -2]},
        {"buffers": [64], "state": ["bytes", 1]},
        {"buffers": [64], "state": ["bytes", False]},
        {"buffers": [64], "state": ["bytes", 0.0]},
        {"buffers": [64], "state": ["list", *[["bytes", 0]] * 2]},
        {"buffers": [64], "state": ["list", *[["array", "<f8", [8], "C", 0]] * 2]},
        {"buffers": [64], "state": ["list", ["bytes", 0], [*FLOATS, 0, 0, [1], [1], False, False]]},
        {"buffers": [64], "state": ["list", [*FLOATS, 0, 0, [1], [1], False, False], ["bytes", 0]]},
        {"buffers": [64], "state": [*FLOATS, False, 0, [1], [1], False, False]},
        {"buffers": [64] + [0] * 100_000, "state": None},
        {"buffers": [64], "state": ["int", "0x"]},
        {"buffers": [64], "state": ["dict", 1]},
        {"buffers": [64], "state": ["dict", ["list"], 1]},
        {"buffers": [64], "state": ["set", ["list"]]},
        {"buffers": [64], "state": ["float", "00"]},
        {"buffers": [64], "state": ["__import__", "os"]},
        {"buffers": [64], "state": []},
        {"buffers": [64], "state": {"a": 1}},
        {"buffers": [64]},
        [],
        b'{"buffers": [64], "state": NaN}',
        b'{"buffers": [64], "state": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"buffers": [64], "state": ' + b'["list",' * 500 + b"1" + b"]" * 500 + b"}",
        b'{"buffers": [64], "state": ' + b"1" * 100_000 + b"}",
        b"\xff\xfe",
    ],
    ids=lambda structure: str(structure)[:60],
)  # fmt: skip
def test_hostile_structures_are_refused_in_little_memory(structure: object) -> None:
    data = forged(structure, bytes(64))
    tracemalloc.start()

    with pytest.raises(BackendError):
        decode(data)

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100 * len(data) + 1_000_000


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "pickle"])
def test_a_buffer_is_not_copied_for_each_mention(kind: str) -> None:
    raw = pickle.dumps(bytes(2**20))
    structure = {"buffers": [len(raw)], "state": ["list", *[[kind, 0]] * 500]}
    data = forged(structure, raw + bytes(-len(raw) % 64))
    tracemalloc.start()

    with pytest.raises(BackendError, match=r"named twice"):
        decode(data, allow_pickle=True)

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 5 * len(data)


def test_the_smallest_buffers_that_can_be_written_are_read() -> None:
    state = [b""] * 5000
    data = encode(state)
    tracemalloc.start()

    assert decode(data) == state

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100 * len(data)


@pytest.mark.parametrize("node", [["array", "|b1", [64], "C", 0], ["scalar", "|b1", "02"]])
def test_a_boolean_that_is_neither_true_nor_false_is_refused(node: list[object]) -> None:
    with pytest.raises(BackendError, match=r"0 or 1"):
        decode(forged({"buffers": [64], "state": node}, b"\2" * 64))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [([64], [1]), ([2**40], [0]), ([8, 8], [1, 1]), ([2**20, 60], [0, 1]), ([2**19] * 2, [1, 1])],
)
def test_a_boolean_tensor_is_checked_however_often_its_bytes_are_shown(
    shape: list[int], strides: list[int]
) -> None:
    structure = {
        "buffers": [2**20],
        "state": ["tensor", "bool", 0, 0, shape, strides, False, False],
    }

    decode(forged(structure, b"\1" * 2**20))
    with pytest.raises(BackendError, match=r"0 or 1"):
        decode(forged(structure, b"\2" * 2**20))


def test_a_newer_version_is_named() -> None:
    data = bytearray(encode(1))
    data[8] = 2

    with pytest.raises(BackendError, match=r"version 2.*newer"):
        decode(data)


# --- torch is optional


def run(program: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_states_without_tensors_need_no_torch() -> None:
    data = encode({"w": np.arange(3), "x": [1]})

    program = (
        "import sys; from dasktune.store.codec import decode, encode\n"
        f"state = decode({data!r}); assert encode(state) == {data!r}; print('torch' in sys.modules)"
    )

    assert run(program).split() == ["False"]


def test_a_state_with_tensors_says_that_torch_is_missing() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from dasktune.store.codec import decode\n"
        f"try: decode({encode(torch.ones(1))!r})\nexcept Exception as error: print(repr(error))"
    )

    assert "install the torch" in run(program)


# --- the format is pinned


def pinned() -> dict[Any, Any]:
    weights = torch.arange(6.0).view(2, 3)
    return {
        "weights": weights,
        "row": weights[1],
        0: [1, 2**70, -0.0, float("inf"), 1j, None, True, "é", b"raw"],
        "more": (np.arange(3, dtype=">i2"), np.float32(0.5), {3, 1}, OrderedDict(a=1)),
    }


def test_version_1_is_written_as_ever() -> None:
    assert sha256(encode(pinned())).hexdigest() == GOLDEN_DIGEST


def test_version_1_is_read_for_ever() -> None:
    assert same(decode(zlib.decompress(base64.b64decode(GOLDEN))), pinned())


GOLDEN_DIGEST = "7e3c6421f09d3d759775305ebdfbbf45f9b7ede2b08086edc040a68918a6aef4"
GOLDEN = (
    "eNqlT1FKxDAQze6nx5jvUdqmKIrogseo+ci2k7WYbSRJqYsIBY/gh7+ew/N4ECddEKwIoi9NOiTz3pv33OhwG7uDhR"
    "DibXh/ekkFY1zu/w+w7o0hH+CsKkqUeKwQQtSR+AKato6AMFC7uYkBsIJIXXCe74x1OsoCMONVFSgVVhJzhUbbQPuT"
    "pbwbfqJJJjBpTmE1sG1g35yrtksDlNkcoPAwO0q9kyL3nBgz76igdts7S/f8PBeQ39u73lqMvieE6z7L6DRNvt5F4u"
    "S54jBb52lK07NoKrT3esfiFy0nSmngCrBIxqHWVqfA56b8dJdmGirQFC6FB+cb8tTA3hz05KQexVeMl3ys+OM98n5d"
    "iV/C60H8Ewux/Dv5A5wFfRc="
)
