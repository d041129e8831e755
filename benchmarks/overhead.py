"""What running costs beside training: trials per second of no-op trials, beside a bare loop.

    .venv/bin/python benchmarks/overhead.py [--trials 200 1000 10000] [--rounds 3]

Settles how short steps may be before the runtime is felt. Trials share nothing and train one step
that does nothing, on two workers of this computer. The bare loop is the least that the same
promises cost: a task pinned to a free worker, which writes one file durably, with the same batching
of messages; it decides nothing, records nothing and could not go on after a crash. Both run in
turns. Ratios are of one run; absolute times are of this machine and its load.
"""

import argparse
import gc
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from distributed import Client, as_completed

import dasktune as dt
from dasktune.clusters.local import local_workers
from dasktune.study.events import StageFinished, WorkerJoined
from dasktune.study.timeline import Entry

WORKERS = 2


class NoTraining:
    """A trainable whose steps do nothing."""

    def setup(self, hp: Mapping[str, object], seed: int) -> None:
        """Build nothing."""

    def step(self, hp: Mapping[str, object], t: int) -> None:
        """Train nothing."""

    def evaluate(self) -> dict[str, float]:
        """Measure nothing."""
        return {"score": 0.0}

    def state_dict(self) -> dict[str, object]:
        """Hold next to nothing."""
        return {"nothing": 0}

    def load_state_dict(self, state: object) -> None:
        """Take nothing."""


def run_dasktune(client: Client, n_trials: int, folder: Path) -> Iterator[float]:
    """Run no-op trials; yield the seconds of all, and of the last thousand over the first."""
    study = dt.Study(
        NoTraining(),
        space={"x": dt.randint(0, 10**9)},
        tuner=dt.FullTraining(1),
        metric="score",
        mode="max",
        n_trials=n_trials,
        name="overhead",
    )
    finished: list[float] = []

    def note(entry: Entry) -> None:
        if isinstance(entry.event, WorkerJoined | StageFinished):
            finished.append(time.perf_counter())

    dt.run(study, client=client, store=folder / "store", on_event=note)
    yield finished[-1] - finished[0]
    thousand = min(1000, n_trials // 2)
    yield (finished[-1] - finished[-1 - thousand]) / (
        finished[WORKERS + thousand] - finished[WORKERS]
    )


def write_durably(file: str) -> None:
    """Do what the least durable promise needs: write a small file and flush it to the disk."""
    with Path(file).open("wb") as stream:
        stream.write(b"nothing")
        stream.flush()
        os.fsync(stream.fileno())


def run_bare(client: Client, n_trials: int, folder: Path) -> float:
    """Keep two workers busy with pinned tasks that each write a file; return the seconds."""
    client.scheduler_comm.interval = 0.001
    workers = list(client.scheduler_info()["workers"])
    began = time.perf_counter()
    names = iter(range(n_trials))

    def submit(worker: str, number: int) -> object:
        future = client.submit(
            write_durably, str(folder / f"{number}"), key=f"bare-{number}", workers=[worker]
        )
        where[future.key] = worker
        return future

    where: dict[str, str] = {}
    running = as_completed([submit(worker, next(names)) for worker in workers])
    for future in running:
        number = next(names, None)
        if number is not None:
            running.add(submit(where.pop(future.key), number))
        future.release()
    return time.perf_counter() - began


def first_step_s() -> float:
    """Return the seconds from the call of `run` to the end of the first step, workers included."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        study = dt.Study(
            NoTraining(),
            space={"x": 1},
            tuner=dt.FullTraining(1),
            metric="score",
            mode="max",
            n_trials=1,
            name="launch",
        )
        at: list[float] = []
        dt.run(
            study,
            workers=WORKERS,
            store=folder,
            on_event=lambda entry: (
                at.append(time.perf_counter()) if isinstance(entry.event, StageFinished) else None
            ),
        )
        return at[0] - began


def main() -> int:
    """Print the table; return 0 if the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[200, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    print("| trials | per second | bare loop | ratio (at least 0.7) | last over first thousand |")
    print("| --- | --- | --- | --- | --- |")
    is_met = True
    with local_workers(WORKERS) as client:
        for n_trials in options.trials:
            ours, bare, growth = [], [], []
            for _ in range(options.rounds):
                with tempfile.TemporaryDirectory() as folder:
                    seconds, last_over_first = run_dasktune(client, n_trials, Path(folder))
                    ours.append(n_trials / seconds)
                    growth.append(last_over_first)
                    gc.collect()
                with tempfile.TemporaryDirectory() as folder:
                    bare.append(n_trials / run_bare(client, n_trials, Path(folder)))
            ratio = median(o / b for o, b in zip(ours, bare, strict=True))
            is_met &= ratio >= 0.7 and (n_trials < 2000 or median(growth) <= 1.5)  # noqa: PLR2004
            print(
                f"| {n_trials} | {median(ours):.0f} | {median(bare):.0f} | {ratio:.2f} | "
                f"{median(growth):.2f} |",
                flush=True,
            )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of driver and scheduler: {peak_mb:.0f} MB")
    print(f"launch to first step: {median(first_step_s() for _ in range(3)):.2f} s (at most 1.0)")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
