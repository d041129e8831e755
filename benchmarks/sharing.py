"""What sharing gains on real training: 36 schedules on Fashion-MNIST, two workers.

    .venv/bin/python benchmarks/sharing.py [--images 10000] [--rounds 5] [--steps 18]

Settles whether shared prefixes turn into time. Compared, in turns in one run: dasktune; one plain
Dask task a trial with Dask's allocator setting as it comes; and the same with it mended, which is
what dasktune's own workers do. Plain tasks keep no states and could not go on after a crash. The
clock runs from the first finished `setup` of the last worker to get there. Needs the images: see
examples/fashion_mnist.py.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import cloudpickle
import dask
from distributed import Client, LocalCluster, wait

import dasktune as dt
from dasktune.clusters.local import local_workers
from dasktune.runtime.generators import SETUP, seed_generators
from dasktune.space import Configuration
from dasktune.tuners.tuner import Tuner

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from fashion_mnist import Fashion, study

WORKERS = 2


class Timed(Fashion):  # type: ignore[misc]  # mypy does not find the example
    """The example's network, which writes down when it was ready and how long it worked."""

    def __init__(self, n_images: int, notes: str) -> None:
        """Train on the first images; write into a folder of notes, one file a process."""
        super().__init__(n_images)
        self.notes = notes

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:
        """Build, and note the time."""
        super().setup(hp, seed)
        self._note("ready", time.time())

    def step(self, hp: Mapping[str, Any], t: int) -> None:
        """Train an epoch, and note how long it took."""
        began = time.perf_counter()
        super().step(hp, t)
        self._note("step", time.perf_counter() - began)

    def evaluate(self) -> dict[str, float]:
        """Evaluate, and note how long it took."""
        began = time.perf_counter()
        metrics = super().evaluate()
        self._note("evaluate", time.perf_counter() - began)
        return dict(metrics)

    def _note(self, what: str, value: float) -> None:
        with (Path(self.notes) / str(os.getpid())).open("a") as stream:
            stream.write(f"{what} {value}\n")


def noted(folder: str) -> tuple[float, float]:
    """Return when the last worker was ready, and the seconds that all of them worked."""
    ready, work_s = [], 0.0
    for file in Path(folder).iterdir():
        pairs = [line.split() for line in file.read_text().splitlines()]
        ready.append(min(float(value) for what, value in pairs if what == "ready"))
        work_s += sum(float(value) for what, value in pairs if what != "ready")
    return max(ready), work_s


def train_alone(packed: bytes, steps: int) -> dict[str, float]:
    """Train one trial from start to end: the body of a plain task."""
    trainable, configuration = cloudpickle.loads(packed)
    seed_generators(0, SETUP)
    trainable.setup(configuration.at(0), 0)
    for t in range(steps):
        seed_generators(0, t)
        trainable.step(configuration.at(t), t)
    return dict(trainable.evaluate())


@contextmanager
def plain_workers(*, is_mended: bool) -> Iterator[Client]:
    """Start two plain Dask workers of one thread, with the allocator as it comes or mended."""
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    key = "distributed.nanny.pre-spawn-environ"
    environment["MALLOC_TRIM_THRESHOLD_"] = str(1 << 30) if is_mended else "65536"
    if is_mended:
        environment["MALLOC_MMAP_THRESHOLD_"] = str(1 << 30)
    with (
        dask.config.set({key: environment}),
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def plain(
    images: int, configurations: list[Configuration], steps: int, *, is_mended: bool
) -> float:
    """Train every trial in a task of its own; return the seconds."""
    with tempfile.TemporaryDirectory() as notes, plain_workers(is_mended=is_mended) as client:
        trainable = Timed(images, notes)
        tasks = [
            client.submit(train_alone, cloudpickle.dumps((trainable, c)), steps, pure=False)
            for c in configurations
        ]
        wait(tasks)
        ended = time.time()
        for task in tasks:
            task.result()
        return ended - noted(notes)[0]


def shared(images: int, tuner: Tuner, steps: int) -> tuple[float, float, dt.Study]:
    """Run the study with dasktune; return seconds, seconds over their lower bound, the study."""
    with (
        tempfile.TemporaryDirectory() as notes,
        tempfile.TemporaryDirectory() as store,
        local_workers(WORKERS) as client,
    ):
        example = study(images)
        one = dt.Study(
            Timed(images, notes),
            space=example.space,
            sampler=dt.Grid(),
            tuner=tuner,
            metric="accuracy",
            mode="max",
            name="sharing",
        )
        result = dt.run(one, client=client, store=store)
        ended = time.time()
        ready, work_s = noted(notes)
        seconds = ended - ready
        critical_s = work_s / max(result.steps_executed, 1) * steps
        return seconds, seconds / max(work_s / WORKERS, critical_s), one


def main() -> int:
    """Print medians of the rounds and their ratios; return 0 if the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=18)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    full: Tuner = dt.FullTraining(options.steps)
    asha: Tuner = dt.ASHA(min_steps=2, max_steps=options.steps, reduction_factor=3)
    space = study(options.images).space
    configurations = [space.configuration(point) for point in space.points()]
    rounds = []
    for number in range(options.rounds):
        ours_s, over_bound, _ = shared(options.images, full, options.steps)
        asha_s, _, _ = shared(options.images, asha, options.steps)
        mended_s = plain(options.images, configurations, options.steps, is_mended=True)
        as_comes_s = plain(options.images, configurations, options.steps, is_mended=False)
        rounds.append((ours_s, over_bound, asha_s, mended_s, as_comes_s))
        print(
            f"round {number}: dasktune {ours_s:.1f} s ({over_bound:.2f} of its bound), with ASHA "
            f"{asha_s:.1f} s; plain Dask mended {mended_s:.1f} s, as it comes {as_comes_s:.1f} s",
            flush=True,
        )
    against_mended = median(r[3] / r[0] for r in rounds)
    against_plain = median(r[4] / r[0] for r in rounds)
    bound = median(r[1] for r in rounds)
    print(f"\nfaster than plain Dask, mended: {against_mended:.2f} times (at least 1.75)")
    print(f"faster than plain Dask as it comes: {against_plain:.2f} times (at least 4.8)")
    print(f"makespan over its lower bound: {bound:.3f} (at most 1.08)")
    asha_gain = median(r[3] / r[2] for r in rounds)
    print(f"ASHA against the full grid of plain Dask, mended: {asha_gain:.1f} times")
    return 0 if against_mended >= 1.75 and against_plain >= 4.8 and bound <= 1.08 else 1  # noqa: PLR2004


if __name__ == "__main__":
    sys.exit(main())
