"""What running costs beside training: trials per second of no-op trials, beside a bare loop.

    .venv/bin/python benchmarks/overhead.py [--trials 200 1000 10000] [--rounds 3]

Without a number after `--trials` only launches are measured.

Settles how short steps may be before the runtime is felt. Trials share nothing and train one step
that does nothing, on two workers of this computer. The bare loop is the least that the same
promises cost: a task pinned to a free worker, which writes one file and syncs it and its folder,
with the same batching of messages; it decides nothing, records nothing and could not go on after a
crash. A second loop leaves the folder unsynced, and a power failure may take its files. All run in
turns. Ratios are of one run; absolute times are of this machine and its load.

A launch is counted from the call of `run` to the beginning of the first step (with torch: of its
first batch): starting workers, imports there, joining, journal, draws, setup. What the script has
imported by then, torch among it, is not counted. Joined workers are up, and have not trained
before in their first study.
"""

import argparse
import gc
import importlib
import logging
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from distributed import Client, as_completed

import dasktune as dt
from dasktune.clusters.local import local_workers
from dasktune.study.events import StageFinished, WorkerJoined
from dasktune.study.timeline import Entry

WORKERS = 2
RATIO, GROWTH = 0.7, 1.5
NO_OP_WITHIN_S, TORCH_WITHIN_S = 1.0, 2.0


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


def write_synced(file: str) -> None:
    """Write a file, and sync it."""
    with Path(file).open("wb") as stream:
        stream.write(b"nothing")
        stream.flush()
        os.fsync(stream.fileno())


def write_durably(file: str) -> None:
    """Do what a durable file takes: sync it, and the folder, or a power failure takes its name."""
    write_synced(file)
    folder = os.open(Path(file).parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def run_bare(client: Client, n_trials: int, folder: Path, write: Callable[[str], None]) -> float:
    """Keep two workers busy with pinned tasks that each write a file; return the seconds."""
    client.scheduler_comm.interval = 0.001
    workers = list(client.scheduler_info()["workers"])
    began = time.perf_counter()
    names = iter(range(n_trials))

    def submit(worker: str, number: int) -> object:
        future = client.submit(
            write, str(folder / f"{number}"), key=f"bare-{number}", workers=[worker]
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


class NoTrainingNoted(NoTraining):
    """The same, which leaves a note of when its first step began."""

    def __init__(self, note: str) -> None:
        self.note = note

    def step(self, hp: Mapping[str, object], t: int) -> None:  # noqa: ARG002
        """Train nothing."""
        note_time(self.note)


def note_time(file: str) -> None:
    """Write down the time, unless somebody has; the clock is the same in all processes."""
    if not Path(file).exists():
        Path(file).write_text(str(time.monotonic()))


def first_step_s(trainable: Callable[[str], object], *, client: Client | None = None) -> float:
    """Return the seconds from the call of `run` to the beginning of the first step."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "began")
        study = dt.Study(
            trainable(str(note)),
            space={"lr": 0.1, "batch_size": 32},
            tuner=dt.FullTraining(1),
            metric="score" if trainable is NoTrainingNoted else "accuracy",
            mode="max",
            n_trials=1,
            name="launch",
        )
        called = time.monotonic()
        where: dict[str, Any] = {"workers": WORKERS} if client is None else {"client": client}
        dt.run(study, store=Path(folder, "store"), **where)
        return float(note.read_text()) - called


def launches(rounds: int) -> Iterator[tuple[str, float, float]]:
    """Yield what is launched where, the seconds to its first step, and how many may pass."""
    # Not at the top: workers import this script, and without training code with torch no torch.
    perceptron = importlib.import_module("perceptron").Perceptron
    for kind, name, limit_s in (
        (NoTrainingNoted, "no-op", NO_OP_WITHIN_S),
        (perceptron, "torch", TORCH_WITHIN_S),
    ):
        yield (
            f"{name}, workers started by `run`",
            median(first_step_s(kind) for _ in range(rounds)),
            limit_s,
        )
        joined = []
        for _ in range(rounds):
            with local_workers(WORKERS) as client:
                joined.append([first_step_s(kind, client=client) for _ in range(2)])
        yield f"{name}, joined workers, their first study", median(s[0] for s in joined), limit_s
        yield f"{name}, joined workers, a later study", median(s[1] for s in joined), limit_s


def overhead(sizes: Sequence[int], rounds: int) -> bool:
    """Print trials per second; return whether the targets are met."""
    print(
        "| trials | per second | bare loop | ratio (at least 0.7) | from, to "
        "| to a loop that does not sync the folder | last over first thousand (at most 1.5) "
        "| driver and scheduler, peak |"
    )
    print("| --- " * 8 + "|")
    is_met = True
    with local_workers(WORKERS) as client:
        for n_trials in sizes:
            ours, growth = list[float](), list[float]()
            bare, loose = list[float](), list[float]()
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as folder:
                    seconds, last_over_first = run_dasktune(client, n_trials, Path(folder))
                    ours.append(n_trials / seconds)
                    growth.append(last_over_first)
                    gc.collect()
                for write, rates in ((write_durably, bare), (write_synced, loose)):
                    with tempfile.TemporaryDirectory() as folder:
                        seconds = run_bare(client, n_trials, Path(folder), write)
                        rates.append(n_trials / seconds)
            ratios = [o / b for o, b in zip(ours, bare, strict=True)]
            to_loose = median(o / b for o, b in zip(ours, loose, strict=True))
            ratio = median(ratios)
            is_met &= ratio >= RATIO and (n_trials < 2000 or median(growth) <= GROWTH)  # noqa: PLR2004
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"| {n_trials} | {median(ours):.0f} | {median(bare):.0f} | {ratio:.3f} | "
                f"{min(ratios):.2f}, {max(ratios):.2f} | {to_loose:.2f} | "
                f"{median(growth):.2f} | {peak_mb:.0f} MB |",
                flush=True,
            )
    return is_met


def main() -> int:
    """Print the tables; return 0 if the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, nargs="*", default=[200, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("dasktune").setLevel(logging.ERROR)
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    is_met = overhead(options.trials, options.rounds) if options.trials else True
    print("\n| launch to first step | seconds | at most |")
    print("| --- | --- | --- |")
    for what, seconds, limit_s in launches(options.rounds):
        is_met &= seconds <= limit_s
        print(f"| {what} | {seconds:.2f} | {limit_s:.1f} |", flush=True)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
