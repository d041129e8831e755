"""Where training is cut, who looks at it and who loads the data leaves no trace in the state."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from dasktune.runtime.generators import SETUP, seed_generators
from dasktune.runtime.stage import evaluated
from dasktune.store.codec import decode, encode
from dasktune.torch import TorchTrainable
from dasktune.torch.batches import Position, training_batches
from tests.torch.engine import advance, difference, fresh, restored, trained
from tests.torch.networks import HP, Convolution, Counting, Noisy, Sampling

pytestmark = pytest.mark.torch

STEPS = 5
EVERY_CUT = 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A worker has one thread, unless it is told otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def values(step: int) -> Mapping[str, Any]:
    """Everything changes: rates, momentum, betas and the size of batches."""
    return {
        "lr": [0.1, 0.05, 0.05, 0.02, 0.01][step],
        "momentum": [0.9, 0.9, 0.5, 0.0, 0.95][step],
        "betas": [(0.9, 0.99), (0.8, 0.99), (0.9, 0.9), (0.9, 0.99), (0.5, 0.9)][step],
        "weight_decay": [0.0, 0.01, 0.0, 0.1, 0.01][step],
        "nesterov": False,
        "batch_size": [4, 4, 7, 5, 9][step],
    }


def plain(_step: int) -> Mapping[str, Any]:
    return {"lr": 0.1, "momentum": 0.9, "batch_size": 4}


def cuts(trainable: TorchTrainable) -> list[tuple[int, ...]]:
    """Every way to cut five steps; for most trainables each cut alone, and all of them."""
    inner = range(1, STEPS)
    if trainable.batches_per_step == EVERY_CUT:
        return [chosen for n in inner for chosen in combinations(inner, n)]
    return [*((cut,) for cut in inner), tuple(inner)]


@pytest.mark.parametrize(
    "trainable",
    [
        Convolution("sgd"),
        Convolution("sgd", batches_per_step=1),
        Convolution("sgd", batches_per_step=4),
        Convolution("sgd", batches_per_step=4, drop_last=True),
        Convolution("sgd", batches_per_step=13),
        Convolution("adam", batches_per_step=3),
        Convolution("adamw"),
        Convolution("rprop"),
        Convolution("sgd", amp=True),
        Convolution("adamw", batches_per_step=3, amp="float16"),
        Counting("sgd", batches_per_step=3),
        Noisy(),
        Noisy(batches_per_step=5),
    ],
    ids=lambda trainable: "-".join(map(str, [type(trainable).__name__, *vars(trainable).values()])),
)
def test_training_cut_anywhere_is_training_in_one_piece(trainable: TorchTrainable) -> None:
    whole = trained(trainable, values, STEPS)

    for chosen in cuts(trainable):
        assert difference(trained(trainable, values, STEPS, cuts=chosen), whole) == "", chosen


@pytest.mark.parametrize("trainable", [Convolution("adamw", batches_per_step=3), Counting()])
def test_an_instance_that_goes_on_is_one_that_was_restored(trainable: TorchTrainable) -> None:
    warm = fresh(trainable, values)
    for step in range(STEPS):
        state = encode(warm.state_dict())
        cold = restored(trainable, values, state)
        for instance in (warm, cold):
            evaluated(instance)
            advance(instance, values, [step])
        assert difference(encode(warm.state_dict()), encode(cold.state_dict())) == "", step


@pytest.mark.parametrize("trainable", [Convolution("sgd"), Counting("adam"), Noisy()])
def test_looking_at_training_changes_nothing(trainable: TorchTrainable) -> None:
    unseen = trained(trainable, values, STEPS)

    assert difference(trained(trainable, values, STEPS, looks=range(STEPS)), unseen) == ""


@pytest.mark.parametrize("trainable", [Convolution("sgd"), Counting("sgd"), Noisy()])
def test_evaluating_leaves_modes_buffers_and_generators(trainable: TorchTrainable) -> None:
    instance = fresh(trainable, values)
    advance(instance, values, range(2))
    modules = list(instance.module.modules())
    modules[-1].eval()
    before = encode(instance.state_dict()), torch.get_rng_state()
    buffers = dict(instance.module.named_buffers())

    instance.evaluate()

    assert difference(encode(instance.state_dict()), before[0]) == ""
    assert torch.equal(torch.get_rng_state(), before[1])
    assert [module.training for module in modules] == [True] * (len(modules) - 1) + [False]
    assert all(buffer is buffers[name] for name, buffer in instance.module.named_buffers())
    assert all(parameter.requires_grad for parameter in instance.module.parameters())


@pytest.mark.parametrize("trainable", [Convolution(), Counting(), Noisy(), Sampling()])
def test_metrics_are_a_function_of_the_state(trainable: TorchTrainable) -> None:
    instance = fresh(trainable, values)
    advance(instance, values, range(3))
    metrics = evaluated(instance)

    torch.rand(5)  # somebody moves the generators
    assert evaluated(instance) == metrics
    assert evaluated(restored(trainable, values, encode(instance.state_dict()))) == metrics


class Head(Convolution):
    """Trains its last layer alone, with the gradients of all parameters clipped together."""

    def optimizer(self, model: nn.Module, hp: HP) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[5].parameters(), lr=0.1)  # type: ignore[index]

    def gradients(self, model: nn.Module, hp: HP) -> None:
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))


norms: list[float] = []


@pytest.mark.parametrize("amp", [False, "float16"])
def test_gradients_that_the_optimizer_does_not_use_leave_no_trace(amp: bool | str) -> None:
    trainable = Head(amp=amp)
    whole = trained(trainable, values, STEPS)

    for chosen in cuts(trainable):
        assert difference(trained(trainable, values, STEPS, cuts=chosen), whole) == "", chosen


def test_gradients_are_those_of_one_batch_without_the_scale() -> None:
    """Three batches in a step or one, float16 or not: nothing is left of the batch before."""
    found = []
    for amp, n_batches in ((False, 1), (False, 3), ("float16", 3)):
        norms.clear()
        trainable = Head(amp=amp, batches_per_step=n_batches)
        instance = fresh(trainable, plain)
        for part in instance.module.modules():
            part.p = 0.0  # type: ignore[assignment]  # no dropout: it is drawn for each step
        if instance._running().scaler is not None:
            state = instance.state_dict()
            state["scaler"]["scale"] = 2.0**10  # type: ignore[index]
            instance.load_state_dict(state)
        advance(instance, plain, range(6 // n_batches))
        found.append(list(norms))

    assert found[0] == found[1]
    assert found[2] == pytest.approx(found[0], rel=0.05)


def test_a_state_that_was_loaded_stays_what_it_was() -> None:
    trainable = Counting("adamw")
    instance = fresh(trainable, values)
    advance(instance, values, [0])
    content = encode(instance.state_dict())
    state = decode(content)

    instance = fresh(trainable, values)
    instance.load_state_dict(state)
    advance(instance, values, [1, 2])

    assert difference(encode(state), content) == ""


def test_the_training_seed_decides_and_other_seeds_give_other_states() -> None:
    again = trained(Convolution(), values, 1, seed=3)

    assert trained(Convolution(), values, 1, seed=3) == again
    assert trained(Convolution(), values, 1, seed=4) != again


@pytest.mark.parametrize("batches_per_step", [None, 3])
def test_loader_workers_leave_no_trace(batches_per_step: int | None) -> None:
    trainable = Noisy(batches_per_step)
    alone = trained(trainable, values, 3)
    knobs = {"num_workers": 2, "prefetch_factor": 3, "pin_memory": True, "allocator": "as it is"}

    assert difference(trained(trainable, values, 3, knobs=knobs, looks=[1, 2]), alone) == ""


@pytest.mark.parametrize("amp", [False, True])
def test_metrics_do_not_depend_on_loader_workers(amp: bool) -> None:
    trainable = Noisy()
    trainable.amp = amp
    instance = fresh(trainable, plain)
    alone = instance.evaluate()

    instance.apply_system({"num_workers": 1})

    assert instance.evaluate() == alone
    instance.close()


def test_every_state_is_what_the_codec_takes_and_no_more_than_that() -> None:
    instance = fresh(Convolution("adam", amp="float16"), values)
    advance(instance, values, range(2))

    state = decode(encode(instance.state_dict()))

    assert state.keys() == {"model", "buffers", "optimizer", "position", "scaler"}
    assert state["position"] == {"epoch": 2, "sample": 0}
    assert state["model"]["1.num_batches_tracked"] == 6 + 6


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_training_is_what_a_loop_by_hand_does(kind: str) -> None:
    """The obvious loop, with torch's own batches and settings put in by hand."""
    trainable = Convolution(kind)
    seed_generators(0, SETUP)
    model = trainable.model({})
    hp = values(0)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=hp["lr"], momentum=hp["momentum"])
        if kind == "sgd"
        else torch.optim.AdamW(model.parameters(), lr=hp["lr"])
    )
    position = Position(epoch=0, sample=0)
    for step in range(3):
        hp = values(step)
        seed_generators(0, step)
        chosen, position = training_batches(
            23,
            position,
            training_seed=0,
            batch_size=hp["batch_size"],
            n_batches=None,
            drop_last=False,
        )
        names = ("lr", "weight_decay", *(("momentum",) if kind == "sgd" else ("betas",)))
        for name in names:
            optimizer.param_groups[0][name] = hp[name]
        sampler = [list(batch.samples) for batch in chosen]
        for images, labels in DataLoader(
            trainable.train_data(), batch_sampler=sampler, generator=torch.Generator()
        ):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    state = decode(trained(trainable, values, 3))

    assert difference(encode(state["model"]), encode(model.state_dict())) == ""
    assert (
        difference(encode(state["optimizer"]["state"]), encode(optimizer.state_dict()["state"]))
        == ""
    )
