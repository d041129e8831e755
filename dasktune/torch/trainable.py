"""Fill in the Trainable protocol for an ordinary supervised loop.

The user says what is trained on what (hooks); this module says in which order, and what makes up a
state. Each step is a function of (state, values of the step, training seed) alone, so training cut
at any steps, on whatever worker, gives the same bits as in one piece, on one kind of machine; on a
GPU as long as `deterministic` is not switched off.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dasktune.errors import StageError
from dasktune.torch import answers
from dasktune.torch.batches import evaluation_batches, training_batches
from dasktune.torch.datasets import kept, origin
from dasktune.torch.devices import chosen_device
from dasktune.torch.evaluation import evaluating, joined
from dasktune.torch.loader import Content, Knobs, Loader, Samples
from dasktune.torch.loop import Loop
from dasktune.torch.randomness import derived_seed, seeded
from dasktune.torch.repeatable import prepare, repeatable
from dasktune.units import Step

HyperParameters: TypeAlias = Mapping[str, Any]
"""Values of one step by name."""

_DATA_SEED = derived_seed("dasktune-data-1")


class TorchTrainable(ABC):
    """A supervised training loop; give it a model and data, and change what is not ordinary.

    Hooks must depend on their arguments and on attributes set in `__init__` alone. Randomness
    comes from the global generators, which are seeded for each step; a generator of your own is
    part of no state. Hyper-parameters arrive three ways: `batch_size` decides the batches; a name
    that the optimizer's parameter groups know (lr, momentum, weight_decay, betas...) is written
    there before each step; the hooks get all of them. `train_batch`, `loss` and `gradients` get
    the values of their step, `model` and `optimizer` those of step 0.

        class Digits(TorchTrainable):
            def model(self, hp):
                return nn.Sequential(nn.Linear(64, hp["width"]), nn.ReLU(), nn.Linear(...))

            def train_data(self):
                return TensorDataset(images[:1000], labels[:1000])

            def eval_data(self):
                return TensorDataset(images[1000:], labels[1000:])

    The attributes below change results: like all attributes of a trainable they are part of its
    identity, whether they are set in the class or in `__init__`.
    """

    batches_per_step: int | None = None
    """How many batches a step trains; None: a step is an epoch."""
    drop_last: bool = False
    """Whether an epoch leaves out its last batch if that has too few samples."""
    eval_batch_size: int = 256
    """Samples that are evaluated together."""
    amp: bool | Literal["bfloat16", "float16"] = False
    """Mixed precision: the type that autocast computes in; True is bfloat16. With float16 the loss
    is scaled, and the scale is part of the state."""
    deterministic: bool = True
    """Whether an operation that gives other bits each time on a GPU is refused, by its name. False
    lets it through: then a state that has to be made again, after a fault or without room in the
    store, may differ from the one that others went on from."""

    # Hooks without which there is nothing to train

    @abstractmethod
    def model(self, hp: HyperParameters) -> nn.Module:
        """Build the module."""

    @abstractmethod
    def train_data(self) -> Samples:
        """Return the data to train on: samples by number, mostly pairs (input, target).

        Called once in a process, then the data set is kept for later instances. What is random
        here, such as a split, comes out the same in every call, and in `eval_data`. What is random
        in the data set itself (augmentation) is drawn anew in each epoch, from the global
        generators, the same for any number of loader workers.
        """

    @abstractmethod
    def eval_data(self) -> Samples:
        """Return the data to evaluate on, likewise."""

    # Hooks that fit the ordinary case

    def optimizer(self, model: nn.Module, hp: HyperParameters) -> Optimizer:
        """Make the optimizer; by default SGD with whatever of its settings `hp` has."""
        settings = ("momentum", "dampening", "weight_decay", "nesterov")
        given = {name: hp[name] for name in settings if name in hp}
        return torch.optim.SGD(model.parameters(), lr=answers.needed(hp, "lr"), **given)

    def update_groups(self, optimizer: Optimizer, hp: HyperParameters) -> None:
        """Bring the values of a step to the optimizer; by default by name, to all groups."""
        for group in optimizer.param_groups:
            for name in answers.tuned(group, hp):
                group[name] = hp[name]

    def loss(self, outputs: Content, targets: Content, hp: HyperParameters) -> Tensor:  # noqa: ARG002
        """Return what is made small, one number; by default the mean cross entropy."""
        if isinstance(outputs, Tensor) and outputs.is_cuda:
            outputs, targets = answers.flattened(outputs, targets)  # else its sum does not repeat
        return nn.functional.cross_entropy(outputs, targets)

    def metrics(self, outputs: Content, targets: Content) -> Mapping[str, float]:
        """Measure the outputs for all of `eval_data`.

        By default `loss`, with the hyper-parameters of step 0 (a state has no others), and
        `accuracy` if targets are numbers of classes.
        """
        measured = {"loss": float(self.loss(outputs, targets, self._running().first_values))}
        if answers.are_classes(outputs, targets):
            hits = outputs.argmax(dim=1) == targets
            measured["accuracy"] = int(hits.sum()) / hits.numel()
        return measured

    def train_batch(self, model: nn.Module, batch: Content, hp: HyperParameters) -> Tensor:
        """Return the loss of one batch; by default of a pair (inputs, targets)."""
        inputs, targets = answers.pair(batch, "train_batch(model, batch, hp)")
        return self.loss(model(inputs), targets, hp)

    def gradients(self, model: nn.Module, hp: HyperParameters) -> None:  # noqa: B027  (a hook)
        """Change gradients before the optimizer uses them, e.g. clip them; by default don't.

        They are those of one batch, without the scale of float16, also of parameters that the
        optimizer does not have.
        """

    def eval_batch(self, model: nn.Module, batch: Content) -> tuple[Content, Content]:
        """Return outputs and targets of one batch; by default of a pair (inputs, targets).

        Where outputs are large, return only what `metrics` needs: they are kept until it is called.
        """
        inputs, targets = answers.pair(batch, "eval_batch(model, batch)")
        return model(inputs), targets

    def collate(self, samples: list[Content]) -> Content:
        """Make a batch of samples; by default stack tensors, also in tuples and dicts."""
        return torch.utils.data.default_collate(samples)

    def to_device(self, batch: Content, device: torch.device) -> Content:
        """Bring a batch to where the model is; by default its tensors, also in tuples and dicts."""
        return answers.moved(batch, device)

    # The Trainable protocol; not to be overridden

    @property
    def module(self) -> nn.Module:
        """The module in training: what `model` built, on its device."""
        return self._running().module

    @final
    def setup(self, hp: HyperParameters, seed: int) -> None:
        """Build module and optimizer from the values of step 0; data is read when it is needed."""
        self.close()
        maker = origin(self)
        device = chosen_device()
        answers.truth(self.deterministic, "deterministic")
        prepare(device)  # in any case: who trains here next may want it, and it is asked for once
        module = answers.instance(self.model(hp), nn.Module, "model(hp)").to(device)
        optimizer = answers.instance(self.optimizer(module, hp), Optimizer, "optimizer(model, hp)")
        if type(self).update_groups is TorchTrainable.update_groups:
            answers.check_groups(optimizer, hp)
        precision = answers.precision(self.amp)
        scaler = torch.amp.GradScaler(device.type) if precision == torch.float16 else None
        self.__dict__["_loop"] = Loop(  # so that a frozen dataclass works too
            origin=maker,
            first_values=dict(hp),
            training_seed=seed,
            device=device,
            module=module,
            optimizer=optimizer,
            precision=precision,
            scaler=scaler,
        )

    @final
    def step(self, hp: HyperParameters, t: Step) -> None:  # noqa: ARG002  (the position says it)
        """Train an epoch, or `batches_per_step` batches."""
        loop = self._running()
        loader = self._loader("train_data")
        n_batches = self.batches_per_step
        wanted, behind = training_batches(
            loader.n_samples,
            loop.position,
            training_seed=loop.training_seed,
            batch_size=answers.count(answers.needed(hp, "batch_size"), "batch_size"),
            n_batches=None if n_batches is None else answers.count(n_batches, "batches_per_step"),
            drop_last=self.drop_last,
        )
        self.update_groups(loop.optimizer, hp)
        loop.begin_step()
        loop.module.train()
        with repeatable(loop.device, strict=self.deterministic):
            for batch in loader.batches(wanted):
                self._train(loop, self.to_device(batch, loop.device), hp)
        loop.position = behind

    @final
    def evaluate(self) -> Mapping[str, float]:
        """Measure the module; modes, buffers, generators and the data position stay."""
        loop = self._running()
        loader = self._loader("eval_data")
        batches = evaluation_batches(
            loader.n_samples, answers.count(self.eval_batch_size, "eval_batch_size")
        )
        pairs = []
        with evaluating(loop.module), repeatable(loop.device, strict=self.deterministic):
            for batch in loader.batches(batches):
                moved = self.to_device(batch, loop.device)
                with loop.autocast():
                    pair = self.eval_batch(loop.module, moved)
                pairs.append(answers.pair(pair, "what eval_batch() returns"))
            outputs, targets = (joined(pieces) for pieces in zip(*pairs, strict=True))
            with loop.autocast():
                return self.metrics(outputs, targets)

    @final
    def state_dict(self) -> dict[str, object]:
        """Return all that the steps to come depend on.

        Tensors are those in training, not copies: write them down before the next step.
        """
        return self._running().state()

    @final
    def load_state_dict(self, state: object) -> None:
        """Take back what `state_dict` returned; the state stays the caller's own."""
        self._running().restore(state)

    @final
    def apply_system(self, parameters: Mapping[str, object]) -> None:
        """Set the system parameters that are meant for training; leave the others alone.

        `num_workers`, `prefetch_factor` and `pin_memory` change no bit of the result; `threads`,
        of this process, changes how sums are rounded.
        """
        self.__dict__["_knobs"] = self._knobs_now().changed(parameters)
        if "threads" in parameters:
            torch.set_num_threads(answers.count(parameters["threads"], "threads"))
        if "_loop" in self.__dict__:
            self._running().loaders.clear()

    @final
    def close(self) -> None:
        """Let go of the module, the optimizer and the loader workers."""
        self.__dict__.pop("_loop", None)

    def __getstate__(self) -> dict[str, object]:
        """Give the attributes as they were before `setup`: a copy is as new."""
        return {name: value for name, value in vars(self).items() if name not in _OURS}

    def _running(self) -> Loop:
        loop = self.__dict__.get("_loop")
        if not isinstance(loop, Loop):
            raise StageError(f"{type(self).__qualname__} is not set up: call setup(hp, seed) first")
        return loop

    def _knobs_now(self) -> Knobs:
        return cast("Knobs", self.__dict__.get("_knobs", Knobs()))

    def _loader(self, hook: Literal["train_data", "eval_data"]) -> Loader:
        loop = self._running()
        if hook not in loop.loaders:
            is_ordinary = type(self).collate is TorchTrainable.collate
            loop.loaders[hook] = Loader(
                kept(loop.origin, hook, partial(self._read, hook)),
                None if is_ordinary else self.collate,
                knobs=self._knobs_now(),
                device=loop.device,
            )
        return loop.loaders[hook]

    def _read(self, hook: Literal["train_data", "eval_data"]) -> Samples:
        """Call a data hook, with the same randomness whoever needs the data first."""
        before = dict(vars(self))
        with seeded(_DATA_SEED):
            data = getattr(self, hook)()
        for name, value in vars(self).items():
            if name not in before or before[name] is not value:
                raise StageError(
                    f"{hook}() set the attribute {name!r}, which a later instance would lack, "
                    "since data sets are kept and the hook is not called again: return it inside "
                    "the data set, or set it in __init__"
                )
        return answers.samples(data, hook)

    def _train(self, loop: Loop, batch: Content, hp: HyperParameters) -> None:
        """Make one step of the optimizer."""
        loop.forget_gradients()
        with loop.autocast():
            loss = answers.loss(self.train_batch(loop.module, batch, hp))
        loop.backward(loss)
        self.gradients(loop.module, hp)
        loop.update()


_OURS = ("_loop", "_knobs")
"""Attributes that are there only while an instance is in use."""
