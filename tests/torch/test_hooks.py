"""What hooks get, and what is said when they answer with something that does not fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import dasktune as dt
from dasktune.errors import StageError
from dasktune.runtime.stage import evaluated
from dasktune.store.codec import encode
from dasktune.study.fingerprint import fingerprint
from dasktune.study.ports import Trainable
from dasktune.torch import TorchTrainable
from tests.torch.engine import advance, fresh
from tests.torch.networks import HP, Content, Convolution, examples

pytestmark = pytest.mark.torch


def constant(_step: int) -> Mapping[str, Any]:
    return {"lr": 0.1, "momentum": 0.9, "batch_size": 8, "width": 5}


class Plain(TorchTrainable):
    """The hooks that everybody writes."""

    def model(self, hp: HP) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, hp["width"]), nn.Linear(hp["width"], 3))

    def train_data(self) -> TensorDataset:
        return examples(20, 0)

    def eval_data(self) -> TensorDataset:
        return examples(10, 1)


def test_it_is_a_trainable_and_three_hooks_are_enough() -> None:
    assert isinstance(Plain(), Trainable)

    instance = fresh(Plain(), constant)
    advance(instance, constant, range(10))

    metrics = evaluated(instance)
    assert metrics.keys() == {"loss", "accuracy"}
    assert metrics["accuracy"] >= 0.7


@pytest.mark.parametrize("trainable", [Plain(), Convolution()])
def test_default_metrics_are_those_of_all_samples_in_evaluation(trainable: TorchTrainable) -> None:
    instance = fresh(trainable, constant)
    images, labels = trainable.eval_data()[:]  # type: ignore[index]

    metrics = instance.evaluate()

    with torch.no_grad():
        scores = instance.module.eval()(images)
    assert metrics["loss"] == pytest.approx(float(nn.functional.cross_entropy(scores, labels)))
    assert metrics["accuracy"] == (scores.argmax(1) == labels).sum().item() / len(labels)


def test_values_reach_parameter_groups_by_name_at_each_step() -> None:
    seen: list[dict[str, Any]] = []

    class Watched(Plain):
        def train_batch(self, model: nn.Module, batch: Content, hp: HP) -> Tensor:
            seen.append({**groups[0], "hp": dict(hp), "n": len(batch[0])})
            return super().train_batch(model, batch, hp)

        def optimizer(self, model: nn.Module, hp: HP) -> torch.optim.Optimizer:
            adam = torch.optim.Adam(model.parameters(), lr=7.0, eps=0.5)
            groups[:] = adam.param_groups
            return adam

    groups: list[dict[str, Any]] = []
    schedule = [
        {
            "lr": 0.1,
            "betas": (0.9, 0.9),
            "width": 5,
            "batch_size": 10,
            "params": 1,
            "momentum": 0.5,
        },
        {"lr": 0.2, "betas": (0.8, 0.9), "width": 5, "batch_size": 20, "weight_decay": 0.1},
    ]
    instance = Watched()
    instance.setup(schedule[0], 0)
    for step, hp in enumerate(schedule):
        instance.step(hp, step)

    assert [entry["n"] for entry in seen] == [10, 10, 20]
    assert [entry["hp"] for entry in seen] == [schedule[0], schedule[0], schedule[1]]
    assert [entry["lr"] for entry in seen] == [0.1, 0.1, 0.2]
    assert [entry["betas"] for entry in seen] == [(0.9, 0.9)] * 2 + [(0.8, 0.9)]
    assert [entry["weight_decay"] for entry in seen] == [0, 0, 0.1]
    assert {entry["eps"] for entry in seen} == {0.5}
    assert "momentum" not in seen[0]
    assert len(seen[0]["params"]) == 4


class TwoGroups(Plain):
    def optimizer(self, model: nn.Module, hp: HP) -> torch.optim.Optimizer:
        body, head = model[1], model[2]  # type: ignore[index]
        return torch.optim.SGD(
            [
                {"params": body.parameters(), "lr": hp["lr"]},
                {"params": head.parameters(), "lr": 1.0},
            ]
        )


class TwoRates(TwoGroups):
    def update_groups(self, optimizer: torch.optim.Optimizer, hp: HP) -> None:
        for group, scale in zip(optimizer.param_groups, (1.0, 10.0), strict=True):
            group["lr"] = scale * hp["lr"]


def test_groups_that_differ_are_refused_unless_a_hook_writes_their_values() -> None:
    with pytest.raises(StageError, match=r"lr \[0\.1, 1\.0\].*override update_groups"):
        fresh(TwoGroups(), constant)

    instance = fresh(TwoRates(), constant)
    advance(instance, constant, [0])
    groups = instance.state_dict()["optimizer"]["param_groups"]  # type: ignore[index]
    assert [group["lr"] for group in groups] == [0.1, 1.0]


def test_gradients_can_be_clipped_before_they_are_used() -> None:
    norms = []

    class Clipped(Plain):
        amp = "float16"

        def gradients(self, model: nn.Module, hp: HP) -> None:
            norms.append(nn.utils.get_total_norm(p.grad for p in model.parameters()))  # type: ignore[misc]
            nn.utils.clip_grad_norm_(model.parameters(), 1e-12)

        def optimizer(self, model: nn.Module, hp: HP) -> torch.optim.Optimizer:
            return torch.optim.SGD(model.parameters(), lr=1.0)

    torch.manual_seed(0)
    instance = Clipped()
    instance.setup(constant(0), 0)
    before = [parameter.detach().clone() for parameter in instance.module.parameters()]
    advance(instance, constant, range(8))  # at first the scale of the loss is too large

    for old, new in zip(before, instance.module.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=1e-10)
    finite = [float(norm) for norm in norms if norm.isfinite()]
    assert finite
    assert max(finite) < 100  # without the scale


@pytest.mark.parametrize(
    ("amp", "dtype"), [(False, torch.float32), (True, torch.bfloat16), ("float16", torch.float16)]
)
def test_precision_is_that_of_training_and_of_evaluation(amp: object, dtype: torch.dtype) -> None:
    seen = []

    class Watched(Plain):
        def loss(self, outputs: Tensor, targets: Tensor, hp: HP) -> Tensor:
            seen.append(outputs.dtype)
            return super().loss(outputs, targets, hp)

    instance = Watched()
    instance.amp = amp  # type: ignore[assignment]
    _once(instance, constant(0))

    assert set(seen) == {dtype}
    assert {parameter.dtype for parameter in instance.module.parameters()} == {torch.float32}


def test_a_module_that_was_built_for_evaluation_is_trained_all_the_same() -> None:
    modes = []

    class Watched(Plain):
        def model(self, hp: HP) -> nn.Module:
            return super().model(hp).eval()

        def train_batch(self, model: nn.Module, batch: Content, hp: HP) -> Tensor:
            modes.append(model.training)
            return super().train_batch(model, batch, hp)

    _once(Watched(), constant(0))

    assert set(modes) == {True}


class Sample(NamedTuple):
    image: Tensor
    label: int


class Dictionaries(TorchTrainable):
    """Batches, outputs and targets that are no plain tensors."""

    def model(self, hp: HP) -> nn.Module:
        return nn.Linear(4, 3)

    def train_data(self) -> list[Sample]:
        return [Sample(torch.full((4,), float(i)), i % 3) for i in range(9)]

    def eval_data(self) -> list[dict[str, Any]]:
        return [{"image": sample.image, "label": sample.label} for sample in self.train_data()]

    def train_batch(self, model: nn.Module, batch: Content, hp: HP) -> Tensor:
        assert isinstance(batch, Sample)
        return self.loss(model(batch.image), batch.label, hp)

    def eval_batch(self, model: nn.Module, batch: Content) -> tuple[Content, Content]:
        scores = model(batch["image"])
        return {"scores": scores, "batch": scores.mean()}, (batch["label"],)

    def metrics(self, outputs: Content, targets: Content) -> dict[str, float]:
        (labels,) = targets
        assert outputs["batch"].shape == (1,)
        return {"n": float(len(labels)), "shape": float(outputs["scores"].numel())}


def test_batches_may_be_named_tuples_dicts_and_lists_of_samples() -> None:
    instance = fresh(Dictionaries(), constant)
    advance(instance, constant, [0])

    assert instance.evaluate() == {"n": 9.0, "shape": 27.0}


@dataclass(frozen=True)
class Frozen(Plain):
    depth: int = 1


def test_a_trainable_may_be_a_frozen_dataclass() -> None:
    instance = fresh(Frozen(depth=2), constant)
    advance(instance, constant, [0])

    assert instance.depth == 2  # type: ignore[attr-defined]


# A copy is as new; only what is written by the user is part of the identity


def test_pickling_leaves_out_what_is_in_training() -> None:
    instance = Convolution("adam")
    instance.apply_system({"num_workers": 0})
    instance.setup(constant(0), 0)
    instance.evaluate()

    assert vars(fresh(instance, constant)).keys() - {"_loop"} == vars(Convolution("adam")).keys()
    instance.close()
    assert encode(fresh(instance, constant).state_dict()) == encode(
        fresh(Convolution("adam"), constant).state_dict()
    )


def study(trainable: object) -> dt.Study:
    return dt.Study(
        trainable,
        space={"lr": 0.1, "batch_size": 4},
        tuner=dt.FullTraining(max_steps=2),
        metric="accuracy",
        mode="max",
        n_trials=1,
    )


def test_attributes_are_part_of_the_identity_and_an_unused_instance_is_not_changed() -> None:
    digests = {
        fingerprint(trainable).digest
        for trainable in (
            Convolution(),
            Convolution(batches_per_step=2),
            Convolution(amp=True),
            Convolution(drop_last=True),
        )
    }
    assert len(digests) == 4

    used = Convolution()
    used.setup(constant(0), 0)
    used.close()
    assert study(used).fingerprint.digest in digests


# One sentence for what does not fit


class Iterating(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Wrong(Plain):
    """Answers one hook with what the test wants."""

    def __init__(self, hook: str, answer: object) -> None:
        self.hook = hook
        self.answer = answer

    def model(self, hp: HP) -> Content:
        return self.answer if self.hook == "model" else super().model(hp)

    def optimizer(self, model: nn.Module, hp: HP) -> Content:
        return self.answer if self.hook == "optimizer" else super().optimizer(model, hp)

    def train_data(self) -> Content:
        return self.answer if self.hook == "train_data" else super().train_data()

    def eval_data(self) -> Content:
        return self.answer if self.hook == "eval_data" else super().eval_data()

    def loss(self, outputs: Content, targets: Content, hp: HP) -> Content:
        return self.answer if self.hook == "loss" else super().loss(outputs, targets, hp)

    def eval_batch(self, model: nn.Module, batch: Content) -> Content:
        return self.answer if self.hook == "eval_batch" else super().eval_batch(model, batch)

    def metrics(self, outputs: Content, targets: Content) -> Content:
        return self.answer if self.hook == "metrics" else super().metrics(outputs, targets)


@pytest.mark.parametrize(
    ("hook", "answer", "sentence"),
    [
        ("model", None, r"model\(hp\) returned None; it must return a torch Module"),
        ("model", nn.Linear, r"it must return a torch Module: give an instance, not the class"),
        ("optimizer", 3, r"optimizer\(model, hp\) returned 3; it must return a torch Optimizer"),
        ("train_data", None, r"train_data\(\) returned None; .* a data set with len\(\)"),
        ("train_data", [], r"train_data\(\) returned a data set without samples"),
        ("train_data", Iterating(), r"returned .*; it must return a data set with len\(\)"),
        (
            "train_data",
            [torch.zeros(1, 6, 6)] * 4,
            r"train_batch.* pairs .*, not with Tensor: over",
        ),
        ("eval_data", [torch.zeros(1, 6, 6)] * 4, r"eval_batch.* pairs .*, not with Tensor: over"),
        ("loss", 0.5, r"the loss of a batch is 0\.5; it must be a tensor of one number"),
        ("loss", torch.zeros(2), r"the loss of a batch is tensor.*; it must be a tensor of one"),
        ("loss", torch.zeros(()), r"computed from the outputs of the model"),
        ("eval_batch", 3, r"what eval_batch\(\) returns deals with pairs .*, not with int"),
        ("eval_batch", ("a", "b"), r"eval_batch\(\) gave an object of str"),
        ("metrics", 0.9, r"evaluate\(\) returned 0\.9; it must return a mapping"),
    ],
)
def test_a_hook_that_answers_wrong_is_named(hook: str, answer: object, sentence: str) -> None:
    instance = Wrong(hook, answer)
    with pytest.raises(StageError, match=sentence):
        _once(instance, constant(0))


def _once(instance: TorchTrainable, hp: HP) -> None:
    instance.setup(hp, 0)
    instance.step(hp, 0)
    evaluated(instance)


@pytest.mark.parametrize(
    ("hp", "sentence"),
    [
        ({"lr": 0.1}, r"no hyper-parameter 'batch_size' among lr: add it to the space"),
        ({"batch_size": 8}, r"no hyper-parameter 'lr' among batch_size: add it"),
        ({"lr": 0.1, "batch_size": 0}, r"batch_size is 0; it must be a whole number"),
        ({"lr": 0.1, "batch_size": 8.0}, r"batch_size is 8\.0; it must be a whole number"),
        ({"lr": 0.1, "batch_size": True}, r"batch_size is True; it must be a whole number"),
    ],
)
def test_a_hyper_parameter_that_is_missing_or_wrong_is_named(hp: HP, sentence: str) -> None:
    with pytest.raises(StageError, match=sentence):
        _once(Convolution(), hp)


@pytest.mark.parametrize(
    ("trainable", "sentence"),
    [
        (
            Convolution(amp="half"),
            r"amp is 'half'; it must be False, True, 'bfloat16' or 'float16'",
        ),
        (Convolution(batches_per_step=-1), r"batches_per_step is -1; it must be a whole number"),
        (Convolution(batches_per_step=0), r"batches_per_step is 0; it must be a whole number"),
    ],
)
def test_an_attribute_that_is_wrong_is_named(trainable: TorchTrainable, sentence: str) -> None:
    with pytest.raises(StageError, match=sentence):
        _once(trainable, constant(0))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"num_workers": -1}, r"num_workers is -1; it must be a whole number, at least 0"),
        ({"prefetch_factor": 0}, r"prefetch_factor is 0; it must be a whole number, at least 1"),
        ({"threads": 0}, r"threads is 0; it must be a whole number, at least 1"),
    ],
)
def test_a_system_parameter_that_is_wrong_is_named(
    parameters: Mapping[str, object], sentence: str
) -> None:
    with pytest.raises(StageError, match=sentence):
        Plain().apply_system(parameters)


def test_a_class_without_its_hooks_is_not_made() -> None:
    class Half(TorchTrainable):
        def model(self, hp: HP) -> nn.Module:
            return nn.Linear(1, 1)

    with pytest.raises(TypeError, match=r"eval_data.*train_data"):
        Half()  # type: ignore[abstract]


def test_what_is_used_before_setup_says_so() -> None:
    for use in (Plain().evaluate, Plain().state_dict, lambda: Plain().module):
        with pytest.raises(StageError, match=r"Plain is not set up: call setup\(hp, seed\) first"):
            use()
