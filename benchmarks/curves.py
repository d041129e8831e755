"""Learning curves for benchmarks/search.py (benchmarks/curves.py): a made-up network.

*The made-up network.* Its excess loss x starts at 1 and moves, at every step, a part
1 - exp(-r) of the way to a floor f, both set by the values of the step: with the effective learning
rate e = lr * (64 / batch_size) / (1 - momentum),

    r = 0.12 * e / (1 + e),     f = 0.04 * e ** 1.5 + 0.3 * wd_miss ** 2 + 0.02,

where wd_miss = |log10(weight_decay / 5e-4)| / 2, at most 1. Above e = 8 training is unstable: x
grows by a twentieth. So a large rate is ahead early and ends on a high floor, a small rate is slow
and ends lower, and a schedule that decays has the best of both if it decays neither too early nor
too late: the curves cross. accuracy = 1 - x / 1.2 - noise, where noise in [0, 0.005) is a hash of
the values of all steps so far: a function of the state, as with a deterministic trainer.
"""

import math
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

import dasktune as dt
from dasktune.samplers.sampler import SamplerContext
from dasktune.space import SearchSpace

MAX_STEPS = 81

SHARED: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(dt.choice([0.01, 0.02, 0.05, 0.1, 0.2, 0.3])),
            dt.step_decay(
                dt.choice([0.05, 0.1, 0.2, 0.3, 0.5]),
                factor=dt.choice([0.1, 0.3]),
                at=dt.choice([[27], [45], [63], [27, 54], [45, 63]]),
            ),
            dt.warmup(
                9, dt.step_decay(dt.choice([0.1, 0.3]), factor=0.1, at=dt.choice([[36], [54]]))
            ),
            dt.exponential(dt.choice([0.1, 0.2, 0.3, 0.5]), dt.choice([0.93, 0.97])),
            dt.cosine(dt.choice([0.05, 0.1, 0.2, 0.3, 0.5]), MAX_STEPS),
        ]
    ),
    "batch_size": dt.choice([64, dt.piecewise({0: 64, 36: 128}), dt.piecewise({0: 64, 54: 256})]),
    "momentum": dt.choice([0.8, 0.9, 0.95]),
    "weight_decay": dt.choice([5e-5, 5e-4, 5e-3, dt.piecewise({0: 5e-4, 45: 5e-5})]),
}
"""Schedules that start alike and part later."""

UNSHARED: dict[str, object] = {
    "lr": dt.loguniform(1e-3, 0.5),
    "batch_size": dt.choice([32, 64, 128, 256]),
    "momentum": dt.uniform(0.5, 0.95),
    "weight_decay": dt.loguniform(5e-6, 5e-2),
}
"""Constants, mostly continuous: no two trials share a step."""


LATE: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(0.1),
            dt.step_decay(
                0.1, factor=dt.choice([0.1, 0.2, 0.3, 0.5]), at=dt.choice([[9], [27], [45], [63]])
            ),
            dt.warmup(
                3, dt.step_decay(0.2, factor=dt.choice([0.1, 0.3]), at=dt.choice([[27], [54]]))
            ),
        ]
    ),
    "batch_size": dt.choice([64, dt.piecewise({0: 64, 12: 128}), dt.piecewise({0: 64, 36: 256})]),
    "momentum": dt.choice([0.9, dt.piecewise({0: 0.9, 27: 0.95}), dt.piecewise({0: 0.9, 54: 0.8})]),
    "weight_decay": dt.choice([5e-4, dt.piecewise({0: 5e-4, 6: 5e-5}), 5e-3]),
}
"""Few beginnings: at the first rungs most trials are equal."""

SPACES = {"shared": SHARED, "unshared": UNSHARED, "late": LATE}


class Nothing:
    """Training code that simulated worlds never call."""

    def setup(self, hp: Mapping[str, object], seed: int) -> None:
        """Do nothing."""

    def step(self, hp: Mapping[str, object], t: int) -> None:
        """Do nothing."""

    def evaluate(self) -> dict[str, float]:
        """Give nothing."""
        return {}

    def state_dict(self) -> object:
        """Give nothing."""
        return None

    def load_state_dict(self, state: object) -> None:
        """Do nothing."""


def made_up(configuration: dt.Configuration, step: int) -> dict[str, float]:
    """Return the metrics of the made-up network after so many steps."""
    return {"accuracy": accuracies(configuration)[step - 1]}


@cache
def accuracies(configuration: dt.Configuration) -> tuple[float, ...]:
    """Return the accuracy after each step."""
    excess, digest = 1.0, b""
    found = []
    for step in range(MAX_STEPS):
        values = configuration.at(step)
        excess = _moved(excess, values)
        digest = blake2b(digest + repr(sorted(values.items())).encode(), digest_size=8).digest()
        noise = int.from_bytes(digest) / 2**64
        found.append(1 - excess / 1.2 - 0.005 * noise)
    return tuple(found)


def _moved(excess: float, hp: Mapping[str, Any]) -> float:
    rate = hp["lr"] * 64 / hp["batch_size"] / (1 - hp["momentum"])
    if rate > 8:  # noqa: PLR2004
        return min(excess * 1.05, 1.2)
    miss = min(1.0, abs(math.log10(hp["weight_decay"] / 5e-4)) / 2)
    floor: float = 0.04 * rate**1.5 + 0.3 * miss**2 + 0.02
    kept: float = math.exp(-0.12 * rate / (1 + rate))
    return floor + (excess - floor) * kept


def best_made_up(name: str) -> float:
    """Return the best accuracy at any step that a space of the made-up network holds.

    Finite spaces are gone through; of the continuous one 5,000 random draws stand for all.
    """
    space = SearchSpace(SPACES[name])
    if space.size is not None:
        points = list(space.points())
    else:
        run = dt.Random().start(SamplerContext(space=space, n_trials=_N_DRAWS, seed=0))
        points = [point for n in range(_N_DRAWS) if (point := run.ask(n, _no_cost)) is not None]
    return max(max(accuracies(space.configuration(point))) for point in points)


def size_of(definitions: Mapping[str, object]) -> int:
    """Return how many configurations a finite space has."""
    size = SearchSpace(definitions).size
    assert size is not None
    return size


_N_DRAWS = 5_000


def _no_cost(_configuration: dt.Configuration, step: int) -> int:
    return step
