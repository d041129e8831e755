"""A small study for every tuner that we ship, and a process that trains them and is killed.

    python -m tests.every_tuner FOLDER

It imports torch once and forks for every run. A run kills itself after a few committed stages,
again and again, until one comes to the end; another trains the same study undisturbed. What came of
both is left in `FOLDER/NAME.json`.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer does, and would in every child
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

import dasktune as dt
from dasktune.runner import run
from dasktune.samplers.sampler import Sampler
from dasktune.store.codec import encode
from dasktune.store.store import Store
from dasktune.study.events import StageFinished
from dasktune.study.result import Result
from dasktune.study.timeline import Entry
from dasktune.torch import TorchTrainable
from dasktune.tuners.tuner import Tuner

N_IMAGES = 48
IMAGES, LABELS = load_digits(return_X_y=True)
PART = [int(i) for i in random.Random(0).sample(range(len(LABELS)), 2 * N_IMAGES)]


class Digits(TorchTrainable):
    """A small network on few digits; notes every step with the state that it begins with."""

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        del hp
        return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 10))

    def train_data(self) -> TensorDataset:
        return digits(PART[:N_IMAGES])

    def eval_data(self) -> TensorDataset:
        return digits(PART[N_IMAGES:])

    def update_groups(self, optimizer: Optimizer, hp: Mapping[str, Any]) -> None:
        # Called once before every step; the state says which.
        state = sha256(encode(self.state_dict())).hexdigest()
        values = ",".join(f"{name}={hp[name]}" for name in sorted(hp))
        with Path(self.notes).open("a") as notes:
            notes.write(f"{state} {values}\n")
        super().update_groups(optimizer, hp)


def digits(part: list[int]) -> TensorDataset:
    pixels = torch.tensor(IMAGES[part] / 16).float()
    return TensorDataset(pixels, torch.tensor(LABELS[part]))


SPACE: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(0.5),
            dt.step_decay(0.5, factor=0.1, at=[2]),
            dt.warmup(1, dt.constant(0.5)),
            dt.constant(0.05),
        ]
    ),
    "batch_size": dt.choice([dt.constant(8), dt.piecewise({0: 8, 1: 16})]),
    "momentum": dt.choice([0.0, dt.piecewise({0: 0.0, 3: 0.9})]),
}
"""Sixteen configurations that part at steps 0, 1, 2 and 3."""


@dataclass(frozen=True)
class Search:
    """A tuner with a sampler."""

    tuner: Tuner
    is_synchronous: bool
    """Whether what it decides depends on no worker's speed."""
    sampler: Sampler = dt.Random()  # noqa: RUF009  (frozen)

    def study(self, trainable: object, name: str) -> dt.Study:
        return dt.Study(
            trainable,
            space=SPACE,
            sampler=self.sampler,
            tuner=self.tuner,
            metric="loss",
            mode="min",
            n_trials=8,
            name=name,
        )


RUNGS: Any = {"min_steps": 1, "max_steps": 4, "reduction_factor": 2}
SEARCHES: dict[str, Search] = {
    "full": Search(dt.FullTraining(3, report_every=1), True),
    "halving": Search(dt.SuccessiveHalving(**RUNGS), True),
    "asha": Search(dt.ASHA(**RUNGS), False),
    "asha-stopping": Search(dt.ASHA(**RUNGS, variant="stopping"), False),
    "hyperband": Search(dt.Hyperband(**RUNGS), True),
    "async-hyperband": Search(dt.AsyncHyperband(**RUNGS), False),
    "median": Search(dt.MedianStopping(3, min_trials=1), False),
    "population": Search(
        dt.PopulationBasedTraining(max_steps=4, ready_steps=1, quantile=0.25), True
    ),
    "population-asynchronous": Search(
        dt.PopulationBasedTraining(max_steps=4, ready_steps=1, quantile=0.25, is_synchronous=False),
        False,
    ),
    "hyperband-tpe": Search(dt.Hyperband(**RUNGS), True, dt.Optuna()),
    "asha-tpe": Search(dt.ASHA(**RUNGS), False, dt.Optuna()),
}
"""All tuners, and two of them with a sampler that learns."""


def outcome(result: Result) -> list[Any]:
    """What became of the trials, as plain values."""
    return [
        [
            trial.configuration.text,
            trial.status.value,
            [[report.step, dict(report.metrics)] for report in trial.reports],
        ]
        for trial in result.trials
    ]


# --- the process that is killed -------------------------------------------------------------------

MOST_KILLS = 60


def forked(work: Callable[[], None]) -> bool:
    """Do something in a child; return whether it came to its end, and was not killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    assert status == 0, f"a run ended with {status}"
    return True


def killed_after(n_stages: int) -> Callable[[Entry], None]:
    """Kill the process once so many stages with steps have been committed."""
    left = n_stages

    def on_event(entry: Entry) -> None:
        nonlocal left
        left -= isinstance(entry.event, StageFinished) and entry.event.executed_steps > 0
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_event


def train(folder: Path, name: str, n_stages: int | None) -> None:
    """Run a study, and leave what came of it if it comes to its end."""
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True)
    study = SEARCHES[name].study(Digits(str(folder / f"{name}.steps")), name)
    on_event = None if n_stages is None else killed_after(n_stages)
    result = run(study, store=folder / "store", workers=0, on_event=on_event)
    told = {
        "outcome": outcome(result),
        "status": result.status and result.status.value,
        "steps": [result.steps_unique, result.steps_executed, result.steps_recomputed],
    }
    (folder / f"{name}.json").write_text(json.dumps(told))


def killed_study(folder: Path, name: str) -> None:
    """Run a study until it ends, whatever kills it, and once undisturbed."""
    rng = random.Random(name)
    journals: list[list[str]] = []
    is_over = False
    while not is_over:
        assert len(journals) < MOST_KILLS, "it makes no progress"
        is_over = forked(partial(train, folder / "killed", name, rng.randint(1, 4)))
        journal = Store(folder / "killed" / "store").journal(name)
        journals.append(list(journal.lines()))
        journal.close()
    (folder / "killed" / f"{name}.journals").write_text(json.dumps(journals))
    assert forked(partial(train, folder / "quiet", name, None))


if __name__ == "__main__":
    for each in SEARCHES:
        killed_study(Path(sys.argv[1]), each)
