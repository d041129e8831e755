"""What the core costs: time and memory per trial, replay, forks, simulated trials per second.

    .venv/bin/python benchmarks/core.py

Settles whether deciding stays cheap beside training, and whether it stays as cheap when a study is
large. Everything runs in one process on one core, without training: the simulator plays the world.
Prints a table; figures that are targets stand beside them, and the exit status says whether all are
met. Times are of this machine and vary with its load; counts do not.
"""

import gc
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import median, quantiles

import dasktune as dt
from dasktune.plan.merging import steps_requested
from dasktune.simulator.backend import SimulatedBackend
from dasktune.space import Point
from dasktune.study.commands import Command
from dasktune.study.core import StudyCore
from dasktune.study.drive import drive
from dasktune.study.events import Event
from dasktune.study.timeline import Timeline, replay
from dasktune.trial import TrialId

N_TRIALS = 10_000
THOUSAND = 1_000


class NoTraining:
    """A trainable that the simulator never calls."""

    def setup(self, hp: Mapping[str, object], seed: int) -> None:
        """Build nothing."""

    def step(self, hp: Mapping[str, object], t: int) -> None:
        """Train nothing."""

    def evaluate(self) -> dict[str, float]:
        """Measure nothing."""
        return {}

    def state_dict(self) -> dict[str, object]:
        """Hold nothing."""
        return {}

    def load_state_dict(self, state: object) -> None:
        """Take nothing."""


def sharing_space() -> dict[str, object]:
    """Return schedules that start alike and part step by step: some 117,000 configurations."""
    decays = [
        dt.step_decay(v, factor=f, at=[a, a + b])
        for v in (0.1, 0.05)
        for f in (0.1, 0.3)
        for a in range(5, 55, 5)
        for b in (10, 20, 30)
    ]
    batches = [dt.constant(64), *(dt.piecewise({0: 64, a: 128}) for a in range(10, 80, 5))]
    momenta = [dt.constant(0.9), *(dt.piecewise({0: 0.9, a: 0.95}) for a in range(10, 80, 10))]
    return {
        "lr": dt.choice([*decays, dt.cosine(0.1, 108), dt.exponential(0.1, 0.97)]),
        "batch_size": dt.choice(batches),
        "momentum": dt.choice(momenta),
        "weight_decay": dt.choice([dt.piecewise({0: 0.0, a: 1e-4}) for a in range(20, 100, 10)]),
    }


def space_without_sharing() -> dict[str, object]:
    """Constants from continuous ranges: no two trials share a step."""
    return {
        "lr": dt.loguniform(1e-4, 1),
        "batch_size": dt.choice([32, 64, 128]),
        "momentum": dt.uniform(0.5, 0.99),
    }


def space_of_curves() -> dict[str, object]:
    """Continuous ranges under schedules that change at every step: the longest chains of keys."""
    return {"lr": dt.cosine(dt.loguniform(1e-4, 1), 108), "momentum": dt.uniform(0.5, 0.99)}


class TimedCore(StudyCore):
    """A core that writes down what each event cost."""

    def __init__(self, study: dt.Study) -> None:
        """Begin like any core."""
        super().__init__([study])
        self.event_s: list[float] = []
        """Wall seconds of each event."""
        self.cpu_s = 0.0
        """Processor seconds of all events: less disturbed by what else runs on the machine."""

    def handle(
        self, event: Event, now: float, recorded: Mapping[TrialId, Point] | None = None
    ) -> tuple[Command, ...]:
        """Take in an event, and write down what it cost."""
        began, cpu_began = time.perf_counter(), time.process_time()
        commands = super().handle(event, now, recorded)
        self.cpu_s += time.process_time() - cpu_began
        self.event_s.append(time.perf_counter() - began)
        return commands


def study_of(space: Mapping[str, object], n_trials: int) -> dt.Study:
    """Describe a study of ASHA with rungs at 4, 12, 36 and 108 steps."""
    return dt.Study(
        NoTraining(),
        space=space,
        tuner=dt.ASHA(min_steps=4, max_steps=108, reduction_factor=3),
        metric="score",
        mode="max",
        n_trials=n_trials,
        name="core",
    )


def run_timed(study: dt.Study) -> tuple[TimedCore, Timeline, float]:
    """Simulate a study on 8 workers; return its core, its timeline and the wall seconds."""
    core, timeline = TimedCore(study), Timeline()
    gc.collect()
    began = time.perf_counter()
    drive(core, SimulatedBackend(dt.World(workers=8), ("score",)), timeline.record)
    return core, timeline, time.perf_counter() - began


def last_over_first(space: Mapping[str, object]) -> float:
    """Return what the last thousand trials of 10,000 add, over what the first thousand cost.

    Medians of three rounds of processor seconds: T(10,000) - T(9,000) over T(1,000).
    """
    ratios = []
    for _ in range(3):
        cost = {
            n: run_timed(study_of(space, n))[0].cpu_s
            for n in (THOUSAND, N_TRIALS - THOUSAND, N_TRIALS)
        }
        added = cost[N_TRIALS] - cost[N_TRIALS - THOUSAND]
        ratios.append(added / cost[THOUSAND])
    return median(ratios)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure."""

    what: str
    value: str
    target: str = ""
    is_met: bool = True


def measure(name: str, space: Mapping[str, object]) -> Iterator[Row]:
    """Run a study of 10,000 trials and tell what its core cost."""
    study = study_of(space, N_TRIALS)
    core, timeline, wall_s = run_timed(study)
    plan = core.plan
    yield Row(
        f"{name}: steps requested / distinct / executed, events",
        f"{steps_requested(plan)} / {plan.steps_unique} / {plan.steps_executed}, "
        f"{len(core.event_s)}",
    )
    per_trial_ms = 1000 * sum(core.event_s) / N_TRIALS
    yield _limit(f"{name}: core time per trial", per_trial_ms, "ms", 0.4)
    yield _limit(f"{name}: last thousand over first", last_over_first(space), "times", 1.5)
    yield Row(f"{name}: first event, all draws", f"{core.event_s[0]:.2f} s")
    p99 = quantiles(core.event_s, n=100)[98]
    yield Row(
        f"{name}: 99th percentile of an event, slowest after the first",
        f"{1000 * p99:.2f} ms, {1000 * max(core.event_s[1:]):.1f} ms",
    )
    yield _limit(f"{name}: simulated trials per second", N_TRIALS / wall_s, "", at_least=2000)
    began = time.perf_counter()
    core.fork()
    yield Row(f"{name}: fork at the end", f"{time.perf_counter() - began:.2f} s")
    lines = list(timeline.lines())
    began = time.perf_counter()
    replay([study], lines)
    yield _limit(f"{name}: replay", time.perf_counter() - began, "s", 15)
    yield Row(f"{name}: memory per trial", f"{memory_per_trial(study) / 1000:.1f} kB")


def memory_per_trial(study: dt.Study) -> float:
    """Return the bytes that a core holds per trial at the end of a study."""
    gc.collect()
    tracemalloc.start()
    core = StudyCore([study])
    backend = SimulatedBackend(dt.World(workers=8), ("score",))
    drive(core, backend, lambda _now, _event, _commands: None)
    del backend
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / len(core.runs[0].trials)


def measure_wide() -> Iterator[Row]:
    """Run 448 trials of successive halving on 1,000 workers."""
    study = dt.Study(
        NoTraining(),
        space=sharing_space(),
        tuner=dt.SuccessiveHalving(min_steps=15, max_steps=120, reduction_factor=4),
        metric="score",
        mode="max",
        n_trials=448,
        name="wide",
    )
    began = time.perf_counter()
    dt.simulate(study, dt.World(workers=1000))
    yield _limit("448 trials of SHA on 1,000 workers", time.perf_counter() - began, "s", 2)


def _limit(what: str, value: float, unit: str, at_most: float = inf, at_least: float = -inf) -> Row:
    target = f"at most {at_most:g}" if at_most < inf else f"at least {at_least:,.0f}"
    return Row(what, f"{value:,.3g} {unit}".strip(), target, at_least <= value <= at_most)


def main() -> int:
    """Print the table; return 0 if all targets are met."""
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    print()
    print("| what | measured | target | met |")
    print("| --- | --- | --- | --- |")
    is_met = True
    rows = chain(
        measure("sharing", sharing_space()),
        measure("nothing shared", space_without_sharing()),
        measure("curves", space_of_curves()),
        measure_wide(),
    )
    for row in rows:
        is_met &= row.is_met
        met = ("yes" if row.is_met else "**no**") if row.target else ""
        print(f"| {row.what} | {row.value} | {row.target} | {met} |", flush=True)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
