"""A trainable that is right, and others each with one mistake that people make."""

import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

HP = {"lr": 0.1}
Values = Mapping[str, Any]


class Right:
    """Momentum descent on a noisy parabola, with numpy."""

    def setup(self, _hp: Values, seed: int) -> None:
        self.seed = seed
        self.w = np.random.normal(size=4)
        self.velocity = np.zeros(4)

    def step(self, hp: Values, _t: int) -> None:
        noise = np.random.normal(size=4) * random.random()
        self.velocity = 0.9 * self.velocity - hp["lr"] * (self.w + 0.01 * noise)
        self.w = self.w + self.velocity

    def evaluate(self) -> dict[str, Any]:
        return {"loss": float(np.square(self.w).sum())}

    def state_dict(self) -> Any:  # noqa: ANN401
        return {"w": self.w, "velocity": self.velocity}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        self.w, self.velocity = state["w"], state["velocity"]


class Plain:
    """Right, without numpy."""

    def setup(self, _hp: Values, _seed: int) -> None:
        self.w = random.gauss(0, 1)

    def step(self, hp: Values, _t: int) -> None:
        self.w -= hp["lr"] * (self.w + random.gauss(0, 1))

    def evaluate(self) -> dict[str, Any]:
        return {"loss": self.w**2}

    def state_dict(self) -> Any:  # noqa: ANN401
        return {"w": self.w}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        self.w = state["w"]


class Forgets(Right):
    """Keeps the weights, not the velocity."""

    def state_dict(self) -> Any:  # noqa: ANN401
        return {"w": self.w}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        self.w = state["w"]


class DoesNotTakeBack(Right):
    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        self.w = state["w"]


class OwnGenerator(Right):
    """Its generator is seeded, but no part of the state."""

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        self.rng = np.random.default_rng(seed)

    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        self.w = self.w + self.rng.normal(size=4)


class UnseededGenerator(OwnGenerator):
    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        self.rng = np.random.default_rng()


class Clock(Right):
    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        self.w = self.w + time.perf_counter_ns() % 1000


class Address(Right):
    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        self.w = self.w + id(self) % 10007


class SetOrder(Right):
    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        words = {f"word {i}" for i in range(20)}
        self.w = self.w + [len(word) * i for i, word in enumerate(words)][3] + hash("a") % 7


class EvaluateChangesState(Right):
    def evaluate(self) -> dict[str, Any]:
        self.w[1] *= 0.5
        return super().evaluate()


class EvaluateDraws(Right):
    def evaluate(self) -> dict[str, Any]:
        return {"loss": float(np.square(self.w).sum()), "luck": random.random()}


class EvaluateDisturbs(Right):
    """As a module that is left in evaluation mode."""

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        self.is_training = True

    def step(self, hp: Values, t: int) -> None:
        if self.is_training:
            super().step(hp, t)

    def evaluate(self) -> dict[str, Any]:
        self.is_training = False
        return super().evaluate()


class MetricsOfTheRun(Right):
    """Counts steps outside the state."""

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        self.n = 0

    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        self.n += 1

    def evaluate(self) -> dict[str, Any]:
        return {**super().evaluate(), "steps": self.n}


class LookingChanges(Right):
    def state_dict(self) -> Any:  # noqa: ANN401
        self.velocity = self.velocity * 0
        return super().state_dict()


class KeepsAnObject(Right):
    def state_dict(self) -> Any:  # noqa: ANN401
        return {"model": {"layers": [self.w, object()]}}


class KeepsNothing(Right):
    def state_dict(self) -> Any:  # noqa: ANN401
        return None


class NoMapping(Right):
    def evaluate(self) -> Any:  # noqa: ANN401
        return 0.5


class NoNumber(Right):
    def evaluate(self) -> dict[str, Any]:
        return {"loss": "small"}


class OtherMetric(Right):
    def evaluate(self) -> dict[str, Any]:
        return {"error": 0.5, "time": 1.0}


class Raises(Right):
    def step(self, hp: Values, t: int) -> None:
        if t == 1:
            raise ValueError("no more data")
        super().step(hp, t)
