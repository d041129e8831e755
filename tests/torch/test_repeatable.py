"""Algorithms that repeat themselves on a GPU; a GPU is played by the CPU that says it is one."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dasktune.errors import StageError
from dasktune.store.codec import encode
from dasktune.torch import answers, devices, loop, trainable
from dasktune.torch.loader import Knobs, Loader
from dasktune.torch.randomness import seeded
from dasktune.torch.repeatable import prepare, repeatable
from tests.torch.engine import advance, fresh
from tests.torch.networks import HP, Augmented, Content, Convolution
from tests.torch.test_data import BATCHES

pytestmark = pytest.mark.torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def flags() -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        cudnn.deterministic,
        cudnn.benchmark,
    )


STRICT = (True, False, False, True, False)


@pytest.fixture(params=[(False, False), (True, True)])
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, ...]]:
    """As it is by itself, and as a user has set it."""
    is_on, warns = request.param
    torch.use_deterministic_algorithms(is_on, warn_only=warns)
    yield flags()
    torch.use_deterministic_algorithms(False)


def test_strict_on_a_gpu_and_as_it_was_afterwards(before: tuple[bool, ...]) -> None:
    with repeatable(GPU, strict=True):
        assert flags() == STRICT
    assert flags() == before
    with pytest.raises(ZeroDivisionError), repeatable(GPU, strict=True):
        _ = 1 / 0
    assert flags() == before


@pytest.mark.parametrize(("device", "strict"), [(CPU, True), (CPU, False), (GPU, False)])
def test_otherwise_only_convolutions_repeat(
    before: tuple[bool, ...], device: torch.device, *, strict: bool
) -> None:
    with repeatable(device, strict=strict):
        assert flags() == (*before[:3], True, False)
    assert flags() == before


def test_an_operation_that_cannot_repeat_is_named_with_the_way_out() -> None:
    with (
        pytest.raises(StageError, match=r"put_.*deterministic implementation.* to False") as caught,
        repeatable(GPU, strict=True),
    ):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError, match=r"^something else$"), repeatable(GPU, strict=True):
        raise RuntimeError("something else")


def test_a_process_that_began_without_cublas_setting_is_told_how_to_begin() -> None:
    refusal = (
        "Deterministic behavior was enabled with torch.use_deterministic_algorithms(True), but "
        "this operation is not deterministic because it uses CuBLAS; set "
        "CUBLAS_WORKSPACE_CONFIG=:4096:8"
    )
    with (
        pytest.raises(StageError, match="start the process with CUBLAS_WORKSPACE_CONFIG") as caught,
        repeatable(GPU, strict=True),
    ):
        raise RuntimeError(refusal)
    assert "to False" not in str(caught.value)


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (5, 3, 4, 2)])
def test_images_of_classes_have_the_loss_of_their_samples(shape: tuple[int, ...]) -> None:
    """The sum over images is one of those that torch has no repeatable algorithm for on GPUs."""
    outputs, targets = torch.randn(shape), torch.randint(3, (shape[0], *shape[2:]))
    flat, numbers = answers.flattened(outputs, targets)
    assert (flat.ndim, numbers.ndim) == (2, 1)
    loss = nn.functional.cross_entropy
    assert loss(flat, numbers).item() == pytest.approx(loss(outputs, targets).item(), rel=1e-5)


def test_what_is_no_image_of_classes_stays_as_it_is() -> None:
    for pair in [(torch.randn(5, 3), torch.randn(5, 3)), (torch.randn(3), torch.tensor(1)), (1, 2)]:
        found = answers.flattened(*pair)
        assert all(one is other for one, other in zip(found, pair, strict=True))


def test_cublas_repeats_on_gpus_unless_the_user_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    prepare(CPU)
    assert os.environ == {}
    prepare(GPU)
    assert os.environ == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    prepare(GPU)
    assert os.environ == {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}


class Watched(Convolution):
    """Notes the flags in all hooks that compute on batches."""

    def train_batch(self, model: nn.Module, batch: Content, hp: HP) -> Tensor:
        notes.add(flags())
        return super().train_batch(model, batch, hp)

    def gradients(self, model: nn.Module, hp: HP) -> None:
        notes.add(flags())

    def metrics(self, outputs: Content, targets: Content) -> dict[str, float]:
        notes.add(flags())
        return {}


notes: set[tuple[bool, ...]] = set()


def constant(_step: int) -> dict[str, Any]:
    return {"lr": 0.1, "batch_size": 8}


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_training_and_evaluation_are_strict_on_a_gpu_if_they_are_to_be(
    monkeypatch: pytest.MonkeyPatch, *, is_deterministic: bool
) -> None:
    """Everything runs on the CPU; only the choice of algorithms is told of a GPU."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(
        trainable, "repeatable", lambda _device, *, strict: repeatable(GPU, strict=strict)
    )
    monkeypatch.setattr(trainable, "prepare", lambda _device: prepare(GPU))
    before = flags()
    notes.clear()
    instance = Watched()
    instance.deterministic = is_deterministic
    instance = fresh(instance, constant)  # type: ignore[assignment]
    advance(instance, constant, range(2))
    instance.evaluate()

    assert notes == {STRICT if is_deterministic else (*before[:3], True, False)}
    assert "CUBLAS_WORKSPACE_CONFIG" in os.environ  # the next study here may want it
    assert flags() == before


def test_a_switch_that_is_none_is_refused() -> None:
    instance = Convolution()
    instance.deterministic = "no"  # type: ignore[assignment]
    with pytest.raises(StageError, match="deterministic is 'no'; it must be True or False"):
        fresh(instance, constant)


# Which GPU


class Gpus:
    """Stands for CUDA: how many GPUs it sees, and which one became the current one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_seen: int) -> None:
        self.current: list[torch.device] = []
        generators = tuple(torch.Generator() for _ in range(n_seen))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n_seen > 0)
        monkeypatch.setattr(
            torch.cuda, "init", lambda: setattr(torch.cuda, "default_generators", generators)
        )
        monkeypatch.setattr(torch.cuda, "default_generators", ())
        monkeypatch.setattr(torch.cuda, "set_device", self.current.append)
        # By the environment, which CUDA may have read long before.
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


@pytest.mark.parametrize(
    ("n_seen", "environment", "expected"),
    [
        (0, {"DASKTUNE_GPU": "1"}, CPU),
        (4, {}, GPU),
        (4, {"CUDA_VISIBLE_DEVICES": "2"}, GPU),
        (1, {"DASKTUNE_GPU": "2", "CUDA_VISIBLE_DEVICES": "2"}, GPU),
        (4, {"DASKTUNE_GPU": "2", "CUDA_VISIBLE_DEVICES": "2"}, torch.device("cuda:2")),
        (2, {"DASKTUNE_GPU": "1", "CUDA_VISIBLE_DEVICES": "GPU-8a"}, torch.device("cuda:1")),
        (2, {"DASKTUNE_GPU": "3", "CUDA_VISIBLE_DEVICES": "3"}, torch.device("cuda:1")),
    ],
)
def test_a_worker_trains_on_its_own_gpu_also_if_it_sees_all(
    monkeypatch: pytest.MonkeyPatch,
    n_seen: int,
    environment: dict[str, str],
    expected: torch.device,
) -> None:
    gpus = Gpus(monkeypatch, n_seen)
    monkeypatch.setattr(os, "environ", environment)

    assert devices.chosen_device() == expected
    assert gpus.current == ([expected] if ":" in str(expected) else [])


def test_a_trainable_trains_where_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainable, "chosen_device", lambda: torch.device("meta"))
    instance = fresh(Convolution(), constant)

    running = instance.__dict__["_loop"]
    assert isinstance(running, loop.Loop)
    assert running.device.type == "meta"
    assert {parameter.device.type for parameter in instance.module.parameters()} == {"meta"}


# Generators of GPUs


def test_all_generators_of_gpus_are_seeded_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = tuple(torch.Generator().manual_seed(i) for i in range(2))
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    before = [generator.get_state() for generator in generators]
    with seeded(3):
        expected = torch.rand(2).tolist()
        for generator in generators:
            assert torch.rand(2, generator=generator).tolist() == expected
    assert encode([generator.get_state() for generator in generators]) == encode(before)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_making_batches_does_not_touch_generators_of_gpus(
    monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    """To set one makes cuDNN's recurrent layers draw anew, with no loader workers only."""
    monkeypatch.setattr(torch.cuda, "default_generators", (object(),))
    knobs = Knobs(num_workers=num_workers)
    loader = Loader(Augmented(9), None, knobs=knobs, device=CPU)

    assert len(list(loader.batches(BATCHES))) == len(BATCHES)
