"""Follow every trial of a study in TensorBoard, while it runs.

    .venv/bin/pip install tensorboard torch
    .venv/bin/python examples/with_tensorboard.py
    .venv/bin/tensorboard --logdir runs

A run tells `on_event` every entry of its timeline; `Progress` knows which trials hear of it.
"""

from collections.abc import Mapping
from typing import Any

from torch.utils.tensorboard import SummaryWriter

import dasktune as dt
from dasktune.progress import Progress
from dasktune.study.timeline import Entry


class Descent:
    """Gradient descent on a parabola: stands for a network."""

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:
        """Begin far from the minimum, the same place for every seed."""
        del hp, seed
        self.x = 10.0

    def step(self, hp: Mapping[str, Any], t: int) -> None:
        """Go down."""
        del t
        self.x -= hp["lr"] * 2 * self.x

    def evaluate(self) -> dict[str, float]:
        """Measure how far it is."""
        return {"loss": self.x**2}

    def state_dict(self) -> dict[str, float]:
        """Return what later steps depend on."""
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take it back."""
        self.x = state["x"]


study = dt.Study(
    Descent(),
    space={"lr": dt.choice([0.1, dt.step_decay(0.1, factor=2, at=[4]), dt.cosine(0.2, 9)])},
    sampler=dt.Grid(),
    tuner=dt.ASHA(min_steps=1, max_steps=9),
    metric="loss",
    mode="min",
    name="descent",
)

if __name__ == "__main__":
    progress, writer = Progress([study]), SummaryWriter("runs")

    def follow(entry: Entry) -> None:
        """Write what trials have heard, and how many steps sharing has saved."""
        for heard in progress.take(entry):
            for name, value in heard.metrics.items():
                writer.add_scalar(f"{name}/trial {heard.trial}", value, heard.step)
        writer.add_scalar("steps saved", progress.steps_saved, progress.steps_done)

    result = dt.run(study, on_event=follow, workers=0)
    writer.close()
    assert result.best is not None
    print(f"best: trial {result.best.number}, loss {result.best.metrics['loss']:.6g}")
