"""A table of real learning curves: 200 schedules on Fashion-MNIST, the accuracy after each epoch.

Written by `benchmarks/search.py --record`, which calls `record_table` of this file
(benchmarks/fashion_curves.py): it trains as examples/fashion_mnist.py does, 10,000 images, some
minutes on two cores. `read_table` reads it, so that a search on real curves takes no training. Each
row is a draw of the space below and its accuracies on 2,000 test images.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path

import dasktune as dt
from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space import Point, SearchSpace

TABLE = Path(__file__).with_name("fashion_curves.json")
N_CONFIGURATIONS = 200
N_IMAGES = 10_000
MAX_EPOCHS = 18

SPACE: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(dt.choice([0.01, 0.03, 0.1])),
            dt.step_decay(
                dt.choice([0.03, 0.1]),
                factor=dt.choice([0.1, 0.3]),
                at=dt.choice([[6], [9], [12], [6, 12], [9, 15]]),
            ),
            dt.exponential(dt.choice([0.03, 0.1]), dt.choice([0.8, 0.9])),
            dt.cosine(dt.choice([0.03, 0.1]), MAX_EPOCHS),
            dt.warmup(3, dt.step_decay(0.1, factor=0.1, at=dt.choice([[6], [9]]))),
        ]
    ),
    "batch_size": dt.choice([64, dt.piecewise({0: 64, 9: 128}), dt.piecewise({0: 64, 6: 256})]),
    "momentum": dt.choice([0.8, 0.9]),
    "weight_decay": dt.choice([0.0, 5e-4]),
}


@cache
def read_table() -> dict[Point, list[float]]:
    """Return the accuracies after each epoch by draw."""
    rows = json.loads(TABLE.read_text())["rows"]
    return {Point.of(row["point"]): row["accuracy"] for row in rows}


def fashion_curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
    """Return what the table says of a configuration after so many epochs."""
    return {"accuracy": _rows()[configuration][step - 1]}


@cache
def _rows() -> dict[dt.Configuration, list[float]]:
    space = SearchSpace(SPACE)
    return {space.configuration(point): row for point, row in read_table().items()}


@dataclass(frozen=True, slots=True)
class Listed(Sampler):
    """Draws the rows of the table at random, each once."""

    draws_ahead = True

    def start(self, context: SamplerContext) -> SamplerRun:
        """Begin a run of this policy."""

        def place(point: Point) -> bytes:
            return blake2b(f"{context.seed}:{point.pairs}".encode()).digest()

        return _ListedRun(sorted(read_table(), key=place))


class _ListedRun(SamplerRun):
    def __init__(self, left: list[Point]) -> None:
        self._left = left

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:  # noqa: ARG002
        return self._left[attempt] if attempt < len(self._left) else None

    def record(self, number: int, point: Point) -> None:  # noqa: ARG002
        self._left = [known for known in self._left if known != point]

    def copy(self) -> "_ListedRun":
        return _ListedRun(self._left)


def record_table() -> None:
    """Train all configurations of the table and write it."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    fashion = import_module("fashion_mnist")
    study = dt.Study(
        fashion.Fashion(N_IMAGES),
        space=SPACE,
        tuner=dt.FullTraining(MAX_EPOCHS, report_every=1),
        metric="accuracy",
        mode="max",
        n_trials=N_CONFIGURATIONS,
        name="fashion-curves",
    )
    with tempfile.TemporaryDirectory() as store:
        result = dt.run(study, store=store)
    rows = [
        {"point": dict(trial.point), "accuracy": [r.metrics["accuracy"] for r in trial.reports]}
        for trial in result.trials
    ]
    head = {"images": N_IMAGES, "epochs": MAX_EPOCHS, "torch": import_module("torch").__version__}
    TABLE.write_text(
        json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n"
    )
