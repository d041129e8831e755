"""A trainable that is right, and others each with one mistake that people make."""

import gc
import os
import random
import signal
import sys
import time
import zlib
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
        self.w = self.w + time.perf_counter_ns()


class Address(Right):
    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        self.w = self.w + id(self)


class SetOrder(Right):
    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        words = {f"word {i}" for i in range(20)}
        # A number that depends on the whole order: two processes agree once in 2**32 runs.
        self.w = self.w + zlib.crc32(" ".join(words).encode())


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


class EvaluateDisturbsUnseen(Right):
    """What it changes is nowhere that can be looked into."""

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        modes = ["training"]
        self.is_training: Any = lambda: bool(modes)
        self.leave = modes.clear

    def step(self, hp: Values, t: int) -> None:
        if self.is_training():
            super().step(hp, t)

    def evaluate(self) -> dict[str, Any]:
        self.leave()
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


# --- only in another process, of threads, of many instances


class OnlyHere:
    """What no other process can unpickle."""

    def __reduce__(self) -> Any:  # noqa: ANN401
        return only_here, (os.getpid(),)


def only_here(pid: int) -> OnlyHere:
    if os.getpid() != pid:
        raise LookupError(f"process {pid} has it")
    return OnlyHere()


class DiesOfUnpickling:
    """What ends another process that unpickles it."""

    def __reduce__(self) -> Any:  # noqa: ANN401
        return die_unless_in, (os.getpid(),)


def die_unless_in(pid: int) -> DiesOfUnpickling:
    if os.getpid() != pid:
        os.kill(os.getpid(), signal.SIGKILL)
    return DiesOfUnpickling()


class HoldsWhatIsOnlyHere(Right):
    def __init__(self) -> None:
        self.held = OnlyHere()


class HoldsWhatKills(Right):
    def __init__(self) -> None:
        self.held = DiesOfUnpickling()


class OtherElsewhere(Right):
    """Trains in the process that made it, and does something else in others."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        if t == 1 and os.getpid() != self.pid:
            self.happen()

    def happen(self) -> None:
        raise NotImplementedError


class KilledElsewhere(OtherElsewhere):
    def happen(self) -> None:
        sys.stderr.write("a warning\nno memory for 9 numbers\n\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


class CrashesElsewhere(OtherElsewhere):
    def happen(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class ExitsElsewhere(OtherElsewhere):
    def happen(self) -> None:
        sys.exit("no license")


class LeavesElsewhere(OtherElsewhere):
    def happen(self) -> None:
        os._exit(0)


class RaisesElsewhere(OtherElsewhere):
    def happen(self) -> None:
        raise ValueError("not here")


class HangsElsewhere(OtherElsewhere):
    def happen(self) -> None:
        time.sleep(600)


class CrashesWhenAllIsDone(OtherElsewhere):
    """Crashes as its process ends, as libraries of devices do; nothing that was trained is lost."""

    def close(self) -> None:
        if os.getpid() != self.pid:
            last_words.append(Crash())

    def happen(self) -> None:
        pass


class Crash:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


last_words: list[Crash] = []


class TakesKnobs(Right):
    """Its states depend on the knobs that it was told of."""

    def apply_system(self, parameters: Values) -> None:
        self.parameters = dict(parameters)

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        self.w = self.w + self.parameters["threads"]


class Counted(Right):
    """Notes how many of its instances live at once, with the one that was given."""

    most = 0

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        type(self).most = max(type(self).most, self.alive())

    @classmethod
    def alive(cls) -> int:
        return sum(type(each) is cls for each in gc.get_objects())


class Closed(Right):
    """Notes how many of its instances are open at once."""

    now, most = 0, 0

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        type(self).now += 1
        type(self).most = max(type(self).most, self.now)

    def close(self) -> None:
        type(self).now -= 1


class FailsToClose(Right):
    def close(self) -> None:
        raise OSError("still in use")


# --- as people write networks, with numpy


class ForgetsPosition(Right):
    """Reads its data in order, and begins again wherever a state is loaded."""

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        self.position = 0

    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        self.w = self.w + DATA[self.position]
        self.position += 1


DATA = [0.5, 1.0, 2.0, 4.0]


class Buffers:
    """A layer that follows the mean of what it sees, and keeps it out of its state."""

    def __init__(self) -> None:
        self.mean = np.zeros(4)

    def state_dict(self) -> dict[str, Any]:
        return {}


class LosesBuffer(Right):
    """As batch normalisation whose running mean is not persistent, in its metrics."""

    def setup(self, hp: Values, seed: int) -> None:
        super().setup(hp, seed)
        self.norm = Buffers()

    def step(self, hp: Values, t: int) -> None:
        super().step(hp, t)
        self.norm.mean = 0.9 * self.norm.mean + 0.1 * self.w

    def evaluate(self) -> dict[str, Any]:
        return {"loss": float(np.square(self.w - self.norm.mean).sum())}
