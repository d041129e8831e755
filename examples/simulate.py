"""Search 36 learning-rate and batch-size schedules on simulated workers, and explain the winner.

    .venv/bin/python examples/simulate.py

Nothing is trained: the world says how long a step takes and what a trial scores. The decisions are
those of a real run: which trials train how far, which steps they share, which worker runs what.
"""

from collections.abc import Mapping
from math import exp

import dasktune as dt


class Network:
    """Stands for training code; the simulator does not call it."""

    def setup(self, hp: Mapping[str, object], seed: int) -> None:
        """Build the model from the values of step 0."""

    def step(self, hp: Mapping[str, object], t: int) -> None:
        """Train one epoch."""

    def evaluate(self) -> dict[str, float]:
        """Measure the model."""
        return {}

    def state_dict(self) -> dict[str, object]:
        """Return what later epochs depend on."""
        return {}

    def load_state_dict(self, state: object) -> None:
        """Take it back."""


def learning_curve(configuration: dt.Configuration, step: int) -> dict[str, float]:
    """Score like training does: large rates learn fast, small ones end well."""
    rates = [float(configuration.at(t)["lr"]) for t in range(step)]  # type: ignore[arg-type]
    learnt = 1 - exp(-4 * sum(rates))
    noise = rates[-1] * 64 / float(configuration.at(step - 1)["batch_size"])  # type: ignore[arg-type]
    return {"accuracy": round(0.5 + 0.45 * learnt - 0.5 * noise, 6)}


decays = [
    dt.step_decay(0.1, factor=factor, at=at)
    for factor in (0.1, 0.3)
    for at in ([6], [9], [12], [6, 12], [9, 15])
]
study = dt.Study(
    Network(),
    space={
        "lr": dt.choice(
            [
                dt.constant(0.1),
                *decays,
                dt.exponential(0.1, 0.9),
                dt.exponential(0.1, 0.8),
                dt.cosine(0.1, 18),
                dt.warmup(3, dt.constant(0.1)),
                dt.warmup(3, dt.step_decay(0.1, factor=0.1, at=[6])),
                dt.warmup(3, dt.step_decay(0.1, factor=0.1, at=[9])),
                dt.warmup(3, dt.exponential(0.1, 0.9)),
            ]
        ),
        "batch_size": dt.choice([dt.constant(64), dt.piecewise({0: 64, 9: 128})]),
        "momentum": 0.9,
    },
    tuner=dt.FullTraining(max_steps=18),
    metric="accuracy",
    mode="max",
    n_trials=36,
    name="fashion",
)

if __name__ == "__main__":
    print("all 36 trials of 18 epochs, an epoch takes 10 s, a state 1 s to load or save:")
    for workers in (1, 2, 8):
        world = dt.World(workers=workers, step_s=10, load_s=1, save_s=1, curve=learning_curve)
        result = dt.simulate(study, world)
        alone_s = 36 * (18 * 10 + 1) / workers
        print(
            f"  {workers} workers: {result.steps_requested} epochs requested, "
            f"{result.steps_executed} trained, merge rate {result.merge_rate:.2f}; "
            f"{result.makespan_s:.0f} s, at least {alone_s:.0f} s without sharing"
        )
    print()
    print(dt.explain(result))
    assert result.best is not None
    print()
    print(dt.explain(result, trial=result.best.number))
    print(dt.explain(result, trial=result.best.number, other=0))
