"""A tiny engine that trains as stages do: by the rules, in a page, without store and scheduler."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import cloudpickle

from dasktune.runtime.generators import SETUP, seed_generators
from dasktune.runtime.stage import evaluated
from dasktune.store.codec import decode, encode
from dasktune.torch import TorchTrainable

Schedule = Callable[[int], Mapping[str, Any]]


def fresh(trainable: TorchTrainable, schedule: Schedule, *, seed: int = 0) -> TorchTrainable:
    """A new instance from its pickle, set up with the values of step 0."""
    instance: TorchTrainable = cloudpickle.loads(cloudpickle.dumps(trainable))
    seed_generators(seed, SETUP)
    instance.setup(schedule(0), seed)
    return instance


def restored(
    trainable: TorchTrainable, schedule: Schedule, state: bytes, *, seed: int = 0
) -> TorchTrainable:
    """A new instance that holds a stored state."""
    instance = fresh(trainable, schedule, seed=seed)
    instance.load_state_dict(decode(state))
    return instance


def advance(
    instance: TorchTrainable, schedule: Schedule, steps: Iterable[int], *, seed: int = 0
) -> None:
    """Train the steps."""
    for step in steps:
        seed_generators(seed, step)
        instance.step(schedule(step), step)


def trained(  # noqa: PLR0913  (how to train, in one place)
    trainable: TorchTrainable,
    schedule: Schedule,
    steps: int,
    *,
    cuts: Iterable[int] = (),
    looks: Iterable[int] = (),
    seed: int = 0,
    knobs: Mapping[str, object] | None = None,
) -> bytes:
    """The state after some steps, as bytes.

    Args:
        trainable: What to train.
        schedule: Values by step.
        steps: How many.
        cuts: Steps before which a fresh instance takes over.
        looks: Steps before which the instance in training is evaluated and its state written.
        seed: The training seed.
        knobs: System parameters.
    """
    instance = fresh(trainable, schedule, seed=seed)
    instance.apply_system(knobs or {})
    for step in range(steps):
        if step in cuts:
            state = encode(instance.state_dict())
            instance.close()
            instance = restored(trainable, schedule, state, seed=seed)
            instance.apply_system(knobs or {})
        if step in looks:
            evaluated(instance)
            encode(instance.state_dict())
        advance(instance, schedule, [step], seed=seed)
    state = encode(instance.state_dict())
    instance.close()
    return state


def difference(left: bytes, right: bytes) -> str:
    """The first place where two states differ; empty if all bits and their order are the same."""
    return "" if left == right else _differs(decode(left), decode(right), "state") or "order"


def _differs(left: object, right: object, path: str) -> str:
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        found = (_differs(left[key], right[key], f"{path}[{key!r}]") for key in left)
    elif isinstance(left, list | tuple) and isinstance(right, type(left)):
        pairs = zip(left, right, strict=True)
        found = (_differs(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(pairs))
    else:
        return "" if encode(left) == encode(right) else path
    return next(filter(None, found), "")
