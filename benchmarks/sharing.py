"""What sharing gains on real training: 36 trials on Fashion-MNIST, two workers of one thread.

    .venv/bin/python benchmarks/sharing.py [--only grid asha nothing] [--rounds 5]
                                           [--images 10000] [--steps 18]

Settles whether shared prefixes turn into time, and what a study pays that has none. Three parts:

* grid: the 36 schedules of examples/fashion_mnist.py, all trained to the end;
* asha: the same 36 under ASHA with rungs at 2, 6 and 18 epochs;
* nothing: 36 constant learning rates, which share no step.

Compared with them is plain Dask: one task a trial, with Dask's allocator setting as it comes and
with it mended, which is what dasktune's own workers do. A plain task trains its trial from step 0
and evaluates once, at the end; it keeps no state and could not go on after a crash. In the part
asha it stops where ASHA left its trial in the same round, which plain Dask could not know: that
compares equal training, and says nothing of what early stopping itself saves.

Measurements of a round are taken in turns, each in a process of its own. The clock runs from when
both workers have finished their first `setup` until the results are there. Its lower bound is the
greater of work / workers and the critical path: work is all time inside step() and evaluate() from
the clock's start on, the critical path the longest chain of measured steps that need each other,
with the evaluation at its end. Under ASHA workers also wait for decisions, of which the bound knows
nothing. The local cluster's scheduler is a thread of the driver's process, so the two have one
memory. Needs the images: see examples/fashion_mnist.py.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import cloudpickle
import dask
from distributed import Client, LocalCluster

import dasktune as dt
from dasktune.clusters.local import local_workers
from dasktune.runtime.generators import SETUP, seed_generators
from dasktune.space.search_space import SearchSpace
from dasktune.study.commands import StudyStatus

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from fashion_mnist import Fashion, study

WORKERS = 2
PARTS = ("grid", "asha", "nothing")
DASKS_THRESHOLD = "65536"
MISSED = "**no**"
MENDED = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


# --- what is trained, and what it notes -----------------------------------------------------------


class Timed:
    """The example's network, which notes when it was ready, and each step and evaluation.

    Its state has one thing more: a digest of the values of all steps so far, so that the notes tell
    which step needs which.
    """

    def __init__(self, n_images: int, notes: str) -> None:
        """Train on the first images; note into a folder, one file a process."""
        self.network = Fashion(n_images)
        self.notes = notes
        self.history = ""

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:
        """Build, and note the time."""
        self.network.setup(hp, seed)
        self._note(kind="ready", ended=time.monotonic())

    def step(self, hp: Mapping[str, Any], t: int) -> None:
        """Train an epoch, and note it."""
        began = time.monotonic()
        self.network.step(hp, t)
        ended = time.monotonic()
        before, values = self.history, sorted(hp.items())
        self.history = sha256(f"{before} {values}".encode()).hexdigest()
        self._note(kind="step", t=t, before=before, history=self.history, began=began, ended=ended)

    def evaluate(self) -> dict[str, float]:
        """Evaluate, and note it."""
        began = time.monotonic()
        metrics = self.network.evaluate()
        self._note(kind="evaluate", history=self.history, began=began, ended=time.monotonic())
        return dict(metrics)

    def state_dict(self) -> object:
        """Return the network's state and the history."""
        return {"network": self.network.state_dict(), "history": self.history}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.network.load_state_dict(state["network"])
        self.history = state["history"]

    def _note(self, **what: object) -> None:
        with (Path(self.notes) / str(os.getpid())).open("a") as stream:
            stream.write(json.dumps(what) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What the workers of one measurement noted."""

    since_s: float
    """When the last worker had finished its first setup; of the monotonic clock."""
    work_s: float
    """Seconds inside step() and evaluate() since then, of all workers together."""
    critical_s: float
    """Seconds of the longest chain of steps that need each other, with its last evaluation."""
    n_steps: int


def noted(folder: str) -> Noted:
    """Read the notes of all workers."""
    files = [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in Path(folder).iterdir()
    ]
    if len(files) != WORKERS:
        raise SystemExit(f"{len(files)} worker processes trained, not {WORKERS}: no measurement")
    since_s = max(min(n["ended"] for n in notes if n["kind"] == "ready") for notes in files)

    def seconds(note: Mapping[str, Any]) -> float:
        return max(0.0, float(note["ended"] - max(note["began"], since_s)))

    spans = [note for notes in files for note in notes if note["kind"] != "ready"]
    steps = sorted((n for n in spans if n["kind"] == "step"), key=lambda note: note["t"])
    chains = {"": 0.0}
    for step in steps:
        length = chains[step["before"]] + seconds(step)
        chains[step["history"]] = max(length, chains.get(step["history"], 0.0))
    ends = [chains[n["history"]] + seconds(n) for n in spans if n["kind"] == "evaluate"]
    return Noted(
        since_s=since_s,
        work_s=sum(map(seconds, spans)),
        critical_s=max([*chains.values(), *ends]),
        n_steps=len(steps),
    )


# --- one measurement, in a process of its own -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be measured."""

    part: str
    images: int
    steps: int
    """How far trials are trained at most."""
    allocator: str = ""
    """Of plain Dask: mended, or as it comes; empty for dasktune."""
    ends: Sequence[int] = ()
    """Of plain Dask: the step to which each trial is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of it."""

    seconds: float
    bound_s: float
    """No schedule of the same steps on these workers is shorter."""
    critical_s: float
    trained: int
    ends: Sequence[int]
    """The step for which each trial was asked at last."""
    before_mb: float
    """Memory before the run, everything imported, of the process with driver and scheduler."""
    peak_mb: float
    """Its peak at the end."""


def described(order: Order, notes: str) -> dt.Study:
    """Return the study of a part."""
    space = study(order.images).space
    if order.part == "nothing":
        rates = [dt.constant(round(0.01 * 1.07**i, 6)) for i in range(36)]
        space = SearchSpace({"lr": dt.choice(rates), "batch_size": 64, "momentum": 0.9})
    asha = dt.ASHA(min_steps=2, max_steps=order.steps, reduction_factor=3)
    return dt.Study(
        Timed(order.images, notes),
        space=space,
        sampler=dt.Grid(),
        tuner=asha if order.part == "asha" else dt.FullTraining(order.steps),
        metric="accuracy",
        mode="max",
        name=f"sharing-{order.part}",
    )


def take(order: Order) -> Measured:
    """Take the measurement in this process."""
    with tempfile.TemporaryDirectory() as notes:
        one = described(order, notes)
        before_mb = memory_mb("VmRSS")
        workers = plain_workers(order.allocator) if order.allocator else local_workers(WORKERS)
        with workers as client:
            train = with_plain_dask if order.allocator else with_dasktune
            ends, n_steps = train(one, client, order.ends)
            ended_s, peak_mb = time.monotonic(), memory_mb("VmHWM")
        found = noted(notes)
    if found.n_steps != n_steps:
        raise SystemExit(f"{found.n_steps} steps were trained, not {n_steps}: no measurement")
    return Measured(
        seconds=ended_s - found.since_s,
        bound_s=max(found.work_s / WORKERS, found.critical_s),
        critical_s=found.critical_s,
        trained=found.n_steps,
        ends=ends,
        before_mb=before_mb,
        peak_mb=peak_mb,
    )


def with_dasktune(one: dt.Study, client: Client, ends: Sequence[int]) -> tuple[Sequence[int], int]:
    """Run a study; return the step for which each trial was asked, and how many are distinct."""
    del ends  # the tuner says
    with tempfile.TemporaryDirectory() as store:
        result = dt.run(one, client=client, store=store)
    if result.status is not StudyStatus.COMPLETED:
        raise SystemExit(f"the study did not end: {result.reason or 'interrupted'}")
    return [trial.steps_requested for trial in result.trials], result.steps_unique


def with_plain_dask(
    one: dt.Study, client: Client, ends: Sequence[int]
) -> tuple[Sequence[int], int]:
    """Train each trial to its end in a task of its own; return the ends and the number of steps."""
    configurations = [one.space.configuration(point) for point in one.space.points()]
    tasks = [
        client.submit(train_alone, cloudpickle.dumps((one.trainable, c)), end, pure=False)
        for c, end in zip(configurations, ends, strict=True)
    ]
    client.gather(tasks)
    return ends, sum(ends)


def train_alone(packed: bytes, end: int) -> dict[str, float]:
    """Train one trial from start to end: the body of a plain task."""
    trainable, configuration = cloudpickle.loads(packed)
    seed_generators(0, SETUP)
    trainable.setup(configuration.at(0), 0)
    for t in range(end):
        seed_generators(0, t)
        trainable.step(configuration.at(t), t)
    return dict(trainable.evaluate())


@contextmanager
def plain_workers(allocator: str) -> Iterator[Client]:
    """Start two plain Dask workers of one thread, and make sure of their allocator's setting."""
    settings = {"distributed.nanny.pre-spawn-environ": MENDED} if allocator == "mended" else {}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        thresholds = set(client.run(os.environ.get, "MALLOC_TRIM_THRESHOLD_").values())
        wanted = MENDED["MALLOC_TRIM_THRESHOLD_"] if allocator == "mended" else DASKS_THRESHOLD
        if thresholds != {wanted}:
            raise SystemExit(f"workers have the trim thresholds {thresholds}, not {wanted}")
        yield client


def memory_mb(which: str) -> float:
    """Return memory of this process, as Linux counts it: VmRSS is now, VmHWM its peak.

    `getrusage` would give the peak of the process that this one was forked from, if larger.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{which}:"))


def measure(order: Order) -> Measured:
    """Take a measurement in a process of its own, so that none colours the next."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        command = [sys.executable, __file__, "--order", json.dumps(asdict(order)), str(answer)]
        process = subprocess.Popen(command)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise SystemExit("interrupted: this round does not count") from None
        if status != 0:
            raise SystemExit(f"a measurement of {order.part} failed or was interrupted")
        return Measured(**json.loads(answer.read_text()))


# --- rounds, and what they say --------------------------------------------------------------------


def take_round(options: argparse.Namespace, part: str) -> dict[str, Measured]:
    """Measure all that a part compares, once, in turns."""
    order = Order(part=part, images=options.images, steps=options.steps)
    found = {"dasktune": measure(order)}
    kinds = ("mended",) if part == "nothing" else ("mended", "as it comes")
    for kind in kinds:
        plain = Order(**(asdict(order) | {"allocator": kind, "ends": found["dasktune"].ends}))
        found[kind] = measure(plain)
    return found


def table(part: str, rounds: Sequence[Mapping[str, Measured]]) -> list[str]:
    """Say in rows of Markdown what the rounds of a part say: medians, and ranges of ratios."""
    ours = [found["dasktune"] for found in rounds]

    def middle(name: str) -> float:
        return float(median(getattr(m, name) for m in ours))

    over_bound = [m.seconds / m.bound_s for m in ours]
    epochs = " or ".join(sorted({f"{sum(m.ends)} / {m.trained}" for m in ours}))
    rows = [
        f"epochs asked for / distinct and trained | {epochs} | |",
        f"dasktune | {middle('seconds'):.1f} s | |",
        f"its lower bound | {middle('bound_s'):.1f} s | |",
        f"the critical path in it | {middle('critical_s'):.1f} s | |",
        f"dasktune over its lower bound | {judged(over_bound, most=1.08)}",
    ]
    for kind, least in (("mended", 1.75), ("as it comes", 4.8)):
        if kind not in rounds[0]:
            continue
        plain = [found[kind].seconds for found in rounds]
        gains = [s / m.seconds for m, s in zip(ours, plain, strict=True)]
        rows.append(f"plain Dask, allocator {kind} | {median(plain):.1f} s | |")
        if part == "nothing":
            rows.append(f"dasktune over that | {judged([1 / gain for gain in gains], most=1.03)}")
        else:
            rows.append(f"that over dasktune | {judged(gains, least=least)}")
    memory = f"{middle('peak_mb'):.0f} MB, {middle('before_mb'):.0f} MB of them imports"
    rows.append(f"peak memory of driver and scheduler together | {memory} | |")
    return [f"| {part}: {row} |" for row in rows]


def judged(ratios: Sequence[float], *, least: float = 0.0, most: float = inf) -> str:
    """Return three columns: the median of ratios and their range, the target, if it is met."""
    found = median(ratios)
    target = f"at least {least}" if least else f"at most {most}"
    met = "yes" if least <= found <= most else MISSED
    return f"{found:.3f} ({min(ratios):.3f} to {max(ratios):.3f}) | {target} | {met}"


def main() -> int:
    """Print a table ready for README.md; return 0 if all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--order", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.order is not None:
        order = Order(**json.loads(options.order[0]))
        Path(options.order[1]).write_text(json.dumps(asdict(take(order))))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the measurement too
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    print(f"{options.images} images, {options.steps} epochs, {options.rounds} rounds\n", flush=True)
    rounds: dict[str, list[dict[str, Measured]]] = {part: [] for part in options.only}
    for number in range(options.rounds):
        for part, taken in rounds.items():
            taken.append(take_round(options, part))
            seconds = ", ".join(f"{name} {m.seconds:.1f} s" for name, m in taken[-1].items())
            print(f"round {number}, {part}: {seconds}", flush=True)
    rows = [row for part, taken in rounds.items() for row in table(part, taken)]
    print("", "| what | measured | target | met |", "| --- | --- | --- | --- |", *rows, sep="\n")
    return 1 if any(MISSED in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
