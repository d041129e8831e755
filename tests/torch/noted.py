"""A network that notes every step it trains, and a process that runs a study of it.

The notes are lines such as `tests.runtime.trainables.Notes` reads: who trained which step, and from
which state.
"""

import multiprocessing
import os
import signal
import time
from hashlib import sha256
from pathlib import Path

import torch
from distributed import Client

import dasktune as dt
from dasktune.runner import run
from dasktune.store.codec import encode
from dasktune.study.study import Study
from dasktune.tuners.tuner import Tuner
from tests.runtime.trainables import LIMIT_S, Notes, wait_until
from tests.torch.networks import HP, Convolution

BATCHES = 4
"""Of a step: epochs have six at first, so most states lie inside one."""

SPACE: dict[str, object] = {
    "lr": dt.choice(
        [
            dt.constant(0.1),
            dt.step_decay(0.1, factor=0.1, at=[3]),
            dt.warmup(2, dt.constant(0.1)),
        ]
    ),
    "momentum": dt.choice([0.9, dt.piecewise({0: 0.5, 4: 0.9})]),
    "batch_size": dt.choice([4, dt.piecewise({0: 4, 2: 7})]),
}
"""Twelve configurations with four beginnings; they part at steps 0, 2 and 3."""

STEPS = 6


class Noted(Convolution):
    """Momentum, dropout, batch normalisation and shuffled batches; can be held at a step."""

    def __init__(self, folder: str) -> None:
        super().__init__("sgd", batches_per_step=BATCHES)
        self.folder = folder

    def update_groups(self, optimizer: torch.optim.Optimizer, hp: HP) -> None:
        """Note the step that begins: the engine comes here once in each."""
        before = sha256(encode(self.state_dict())).hexdigest()
        t = int(self.module[1].num_batches_tracked) // BATCHES  # type: ignore[index]
        values = ",".join(f"{name}={hp[name]}" for name in sorted(hp))
        with Path(self.folder, "steps").open("a") as notes:
            notes.write(f"{os.getpid()} {t} {before} {values}\n")
        while Path(self.folder, f"hold-{t}").exists():
            time.sleep(0.005)
        super().update_groups(optimizer, hp)


def noted_study(folder: Path, tuner: Tuner | None = None, **changes: object) -> Study:
    """Twelve trials of six steps."""
    given = {"space": SPACE} | changes
    return Study(
        Noted(str(folder)),
        sampler=dt.Grid(),
        tuner=tuner or dt.FullTraining(STEPS),
        metric="accuracy",
        mode="max",
        **given,  # type: ignore[arg-type]
    )


def _drive(folder: str, store: str, address: str | None) -> None:
    study = noted_study(Path(folder))
    if address is None:
        run(study, store=store, workers=0)
    else:
        with Client(address, timeout=LIMIT_S) as client:
            run(study, store=store, client=client)


def killed_driver(notes: Notes, store: str, address: str | None, *, t: int) -> None:
    """Run the study in a process of its own, and kill that in the first step `t`.

    Args:
        notes: Of the study's folder.
        store: Where states are kept.
        address: Of a scheduler; None: the process trains by itself.
        t: Who comes to this step is held there until the driver is dead.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dasktune.runner", "tests.torch.noted"])
    driver = context.Process(target=_drive, args=(str(notes.folder), store, address))
    with notes.held(t):
        driver.start()
        try:
            wait_until(lambda: any(c.t == t for c in notes.calls) or not driver.is_alive())
        finally:
            driver.kill()
            driver.join(LIMIT_S)
    assert driver.exitcode == -signal.SIGKILL, "the driver ended before it was killed"
