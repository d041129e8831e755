"""How much is found for how many executed steps, by every tuner and sampler?

    .venv/bin/python benchmarks/search.py                 # about 15 minutes on two cores
    .venv/bin/python benchmarks/search.py --seeds 5       # a glance
    .venv/bin/python benchmarks/search.py --record        # make the table of real curves again

*Regret* is the best accuracy that the space holds less the best that was reported so far; the
curves are those of curves.py, on simulated workers. Four questions: (1) do SHA and ASHA, at one
fifth of the steps of full training, reach at most random search's regret at full; (2) does
prefix-aware search beat its plain sampler at equal executed steps where trials share steps, and
cost at most 2 % where they do not; (3) which rule for ties leaves more prefixes and less regret;
(4) the same on a table of real curves.
"""

import argparse
import os
import platform
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from curves import LATE, MAX_STEPS, SPACES, Nothing, best_made_up, made_up, size_of
from fashion_curves import MAX_EPOCHS, Listed, fashion_curve, read_table, record_table
from fashion_curves import SPACE as FASHION

import dasktune as dt
from dasktune.samplers.sampler import Sampler
from dasktune.simulator.world import Curve
from dasktune.study.events import MetricsReported, StageFinished
from dasktune.study.result import Result
from dasktune.tuners.tuner import Tuner

Trace = list[tuple[int, float]]
"""Executed steps, and the best accuracy reported by then."""

HALVING: dict[str, Any] = {"min_steps": 1, "max_steps": MAX_STEPS, "reduction_factor": 3}
"""r = 1, R = 81, eta = 3: the example of the Hyperband paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a search takes place."""

    space: Mapping[str, object]
    curve: Curve
    best: float
    """The best accuracy there is."""
    max_steps: int = MAX_STEPS
    n_full: int = 100
    """Trials of full training, which sets the scale of executed steps."""
    n_most: int = 2_500
    """Trials that other tuners may begin; limits of executed steps end them before."""
    sampler: Sampler = field(default_factory=dt.Random)
    """Draws at random."""
    judged: tuple[str, ...] = ("Random, ASHA", "Random, SuccessiveHalving")
    """Pairs that are to be as good at one fifth of the steps as full training at all."""
    workers: int = 4


def made_up_settings() -> tuple[Setting, Setting, Setting]:
    """Return the made-up network where steps are shared, where none is, and where most are."""
    shared, unshared, late = (
        Setting(space=space, curve=made_up, best=best_made_up(name))
        for name, space in SPACES.items()
    )
    return shared, unshared, replace(late, n_most=size_of(LATE))


def real_setting() -> Setting:
    """Return the table of real curves."""
    best = max(max(row) for row in read_table().values())
    return Setting(
        space=FASHION,
        curve=fashion_curve,
        best=best,
        max_steps=MAX_EPOCHS,
        n_full=80,
        n_most=len(read_table()),
        sampler=Listed(),
        judged=("Random, ASHA, eta 2", "Random, SuccessiveHalving, eta 2"),
    )


def search(
    setting: Setting,
    sampler: Sampler,
    tuner: Tuner,
    *,
    seed: int,
    n_trials: int,
    max_steps_executed: int | None = None,
) -> tuple[Result, Trace]:
    """Run one search on simulated workers."""
    study = dt.Study(
        Nothing(),
        space=setting.space,
        sampler=sampler,
        tuner=tuner,
        metric="accuracy",
        mode="max",
        n_trials=n_trials,
        seed=seed,
        max_steps_executed=max_steps_executed,
    )
    result = dt.simulate(study, dt.World(workers=setting.workers, curve=setting.curve))
    return result, traced(result)


def traced(result: Result) -> Trace:
    """Follow the best report of a search by executed steps."""
    executed, best = 0, 0.0
    trace = []
    for entry in result.timeline.entries:
        event = entry.event
        if isinstance(event, StageFinished):
            executed += event.executed_steps
        if isinstance(event, StageFinished | MetricsReported) and event.metrics:
            best = max(best, event.metrics["accuracy"])
            trace.append((executed, best))
    return trace


def regret_at(trace: Trace, best: float, steps: int) -> float:
    """Return the regret once so many steps were executed."""
    found = 0.0
    for executed, accuracy in trace:
        if executed > steps:
            break
        found = accuracy
    return best - found


# --- the tables -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Searches that differ by their seed, as a process can be told of them."""

    setting: Setting
    sampler: Sampler
    tuner: Tuner
    n_trials: int
    max_steps_executed: int | None = None

    def __call__(self, seed: int) -> tuple[Trace, int, tuple[int, ...]]:
        """Return the trace, the executed steps, and the distinct prefixes on each rung."""
        result, trace = search(
            self.setting,
            self.sampler,
            self.tuner,
            seed=seed,
            n_trials=self.n_trials,
            max_steps_executed=self.max_steps_executed,
        )
        distinct = tuple([_prefixes(result, step) for step in self.tuner.decision_steps])
        return trace, result.steps_executed, distinct


Found = list[tuple[Trace, int, tuple[int, ...]]]


class Seeds:
    """Runs a task for every seed, on all cores."""

    def __init__(self, n: int, pool: ProcessPoolExecutor) -> None:
        self.n = n
        self._pool = pool

    def of(self, task: Task) -> Found:
        """Return what each seed found, in order."""
        return list(self._pool.map(task, range(self.n), chunksize=max(1, self.n // 16)))


def tuners_table(
    setting: Setting, pairs: Sequence[tuple[str, Sampler, Tuner]], seeds: Seeds
) -> bool:
    """Print regret against executed steps for pairs of sampler and tuner; check question 1."""
    full = Task(
        setting=setting,
        sampler=setting.sampler,
        tuner=dt.FullTraining(setting.max_steps),
        n_trials=setting.n_full,
    )
    full_steps = round(mean(steps for _, steps, _ in seeds.of(full)))
    budgets = [full_steps // 5, full_steps // 2, full_steps]
    print(f"\nFull training of {setting.n_full} random trials executes {full_steps} steps.\n")
    print("| sampler and tuner | " + " | ".join(f"regret at {b} steps" for b in budgets) + " |")
    print("| --- |" + " --- |" * len(budgets))
    found = {}
    for name, sampler, tuner in pairs:
        found[name] = regrets(setting, sampler, tuner, budgets, seeds)
        print(f"| {name} | " + " | ".join(f"{r:.4f}" for r in found[name]) + " |", flush=True)
    goal = found["Random, FullTraining"][-1]
    is_met = True
    for name in setting.judged:
        is_met &= found[name][0] <= goal
        print(
            f"\n{name} at one fifth of the steps: {found[name][0]:.4f}, full training at all: "
            f"{goal:.4f} (at most that: {_yes(found[name][0] <= goal)})"
        )
    return is_met


def regrets(
    setting: Setting, sampler: Sampler, tuner: Tuner, budgets: Sequence[int], seeds: Seeds
) -> list[float]:
    """Return the mean regret at each budget of executed steps.

    Synchronous halving knows its trials from the start, so each budget has a bracket of its own:
    the largest that seed 0 completes within it.
    """
    if isinstance(tuner, dt.SuccessiveHalving):
        found = []
        for budget in budgets:
            n = largest_bracket(setting, sampler, tuner, budget)
            task = Task(setting=setting, sampler=sampler, tuner=tuner, n_trials=n)
            found.append(mean(setting.best - trace[-1][1] for trace, _, _ in seeds.of(task)))
        return found
    task = Task(
        setting=setting,
        sampler=sampler,
        tuner=tuner,
        n_trials=20 if isinstance(tuner, dt.PopulationBasedTraining) else setting.n_most,
        max_steps_executed=budgets[-1],
    )
    traces = [trace for trace, _, _ in seeds.of(task)]
    return [mean(regret_at(trace, setting.best, budget) for trace in traces) for budget in budgets]


def largest_bracket(setting: Setting, sampler: Sampler, tuner: Tuner, budget: int) -> int:
    """Return how many trials a bracket may have to be completed within some executed steps."""
    low, high = 1, setting.n_most + 1
    while high - low > 1:
        middle = (low + high) // 2
        result, _ = search(setting, sampler, tuner, seed=0, n_trials=middle)
        low, high = (middle, high) if result.steps_executed <= budget else (low, middle)
    return low


def prefix_table(shared: Setting, apart: Setting, seeds: Seeds) -> bool:
    """Print prefix-aware search against its plain sampler, in pairs of the same seed.

    The verdict is on the mean regret over the way: after each hundred executed steps.
    """
    budgets = range(100, 1401, 100)
    shown = (400, 700, 1400)
    print(
        "\n| space, tuner | sampler | "
        + " | ".join(f"regret at {b} steps" for b in shown)
        + " | mean over the way | difference | p |\n| --- | --- |"
        + " --- |" * (len(shown) + 3)
    )
    is_met = True
    tuners: list[tuple[str, Tuner]] = [
        ("FullTraining", dt.FullTraining(MAX_STEPS)),
        ("ASHA", dt.ASHA(**HALVING)),
    ]
    for where, setting in (("shared", shared), ("nothing shared", apart)):
        for name, tuner in tuners:
            means: list[list[float]] = []
            for kind, sampler in (
                ("plain", dt.Random()),
                ("prefix-aware", dt.PrefixAware(dt.Random())),
            ):
                task = Task(
                    setting=setting,
                    sampler=sampler,
                    tuner=tuner,
                    n_trials=setting.n_most,
                    max_steps_executed=budgets[-1],
                )
                traces = [trace for trace, _, _ in seeds.of(task)]
                at = {b: [regret_at(t, setting.best, b) for t in traces] for b in budgets}
                means.append([mean(at[b][i] for b in budgets) for i in range(len(traces))])
                cells = " | ".join(f"{mean(at[b]):.4f}" for b in shown)
                verdict = " | "
                if len(means) > 1:
                    p = sign_flip_p([x - y for x, y in zip(*means, strict=True)])
                    change = mean(means[1]) / mean(means[0]) - 1
                    verdict = f"{change:+.1%} | {p:.4f}"
                    is_met &= change < 0 and p < 0.01 if setting is shared else change <= 0.02  # noqa: PLR2004
                print(
                    f"| {where}, {name} | {kind} | {cells} | {mean(means[-1]):.4f} | {verdict} |",
                    flush=True,
                )
    print(f"\nbetter where steps are shared (p < 0.01), else at most 2 % worse: {_yes(is_met)}")
    return is_met


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the one-sided p of a mean above 0 when signs are flipped at random, 10,000 times."""
    rng = random.Random(0)
    observed = sum(differences)
    n = 10_000
    hits = sum(
        sum(d if rng.random() < 0.5 else -d for d in differences) >= observed  # noqa: PLR2004
        for _ in range(n)
    )
    return (hits + 1) / (n + 1)


def ties_table(places: Sequence[tuple[str, Setting]], seeds: Seeds) -> None:
    """Print how many distinct prefixes survive each rung, and regret, by the rule for ties."""
    print("\n| space, tuner | ties | distinct prefixes on each rung | executed steps | regret |")
    print("| --- | --- | --- | --- | --- |")
    kinds: list[tuple[str, Callable[..., Tuner]]] = [
        ("SuccessiveHalving", dt.SuccessiveHalving),
        ("ASHA", dt.ASHA),
    ]
    for where, setting in places:
        for name, kind in kinds:
            for ties in ("number", "spread"):
                tuner = kind(**HALVING, ties=ties)
                n = min(400, setting.n_most)
                task = Task(setting=setting, sampler=dt.Random(), tuner=tuner, n_trials=n)
                found = seeds.of(task)
                distinct = [mean(d[i] for _, _, d in found) for i in range(len(found[0][2]))]
                steps = mean(executed for _, executed, _ in found)
                regret = mean(setting.best - trace[-1][1] for trace, _, _ in found)
                print(
                    f"| {where}, {name} | {ties} | {', '.join(f'{d:.1f}' for d in distinct)} | "
                    f"{steps:.0f} | {regret:.4f} |",
                    flush=True,
                )


def _prefixes(result: Result, step: int) -> int:
    """Count the different histories up to a step among the trials that reported there."""
    histories = {
        tuple([tuple(trial.configuration.at(t).items()) for t in range(step)])
        for trial in result.trials
        if any(report.step == step for report in trial.reports)
    }
    return len(histories)


def _yes(is_met: bool) -> str:
    return "yes" if is_met else "**no**"


def pairs_of(random: Sampler, max_steps: int, min_steps: int) -> list[tuple[str, Sampler, Tuner]]:
    """Return the pairs of sampler and tuner that are compared."""
    full = dt.FullTraining(max_steps)
    rungs: dict[str, Any] = {"min_steps": min_steps, "max_steps": max_steps, "reduction_factor": 3}
    aware = dt.PrefixAware(random)
    return [
        ("Random, FullTraining", random, full),
        ("Random, SuccessiveHalving", random, dt.SuccessiveHalving(**rungs)),
        ("Random, ASHA", random, dt.ASHA(**rungs)),
        ("Random, ASHA stopping", random, dt.ASHA(**rungs, variant="stopping")),
        ("Random, Hyperband", random, dt.Hyperband(**rungs)),
        ("Random, AsyncHyperband", random, dt.AsyncHyperband(**rungs)),
        ("Random, MedianStopping", random, dt.MedianStopping(max_steps=max_steps)),
        ("PrefixAware, FullTraining", aware, full),
        ("PrefixAware, ASHA", aware, dt.ASHA(**rungs)),
    ]


def main() -> int:
    """Print the tables; return 0 if the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument(
        "--only", nargs="+", choices=["real", "tuners", "prefix", "ties"],
        default=["real", "tuners", "prefix", "ties"],
    )  # fmt: skip
    parser.add_argument("--record", action="store_true", help="train the table of real curves")
    options = parser.parse_args()
    if options.record:
        record_table()
        return 0
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    with ProcessPoolExecutor() as pool:
        seeds = Seeds(options.seeds, pool)
        is_met = True
        if "real" in options.only:
            print(f"\nReal curves (Fashion-MNIST, 200 schedules), {options.seeds} seeds.")
            is_met &= tuners_table(real_setting(), real_pairs(), seeds)
        print(f"\nMade-up network, {options.seeds} seeds.")
        shared, apart, late = made_up_settings()
        if "tuners" in options.only:
            is_met &= tuners_table(shared, made_up_pairs(dt.Random()), seeds)
        if "prefix" in options.only:
            is_met &= prefix_table(shared, apart, seeds)
        if "ties" in options.only:
            ties_table([("shared", shared), ("mostly shared", late)], seeds)
    return 0 if is_met else 1


def real_pairs() -> list[tuple[str, Sampler, Tuner]]:
    """Return the pairs for the real curves, with halving by two from the first epoch."""
    rungs: dict[str, Any] = {"min_steps": 1, "max_steps": MAX_EPOCHS, "reduction_factor": 2}
    return [
        *pairs_of(Listed(), MAX_EPOCHS, 2),
        ("Random, SuccessiveHalving, eta 2", Listed(), dt.SuccessiveHalving(**rungs)),
        ("Random, ASHA, eta 2", Listed(), dt.ASHA(**rungs)),
        ("PrefixAware, ASHA, eta 2", dt.PrefixAware(Listed()), dt.ASHA(**rungs)),
    ]


def made_up_pairs(random: Sampler) -> list[tuple[str, Sampler, Tuner]]:
    """Return the pairs for the made-up network, with populations, a grid, and Optuna's TPE."""
    full = dt.FullTraining(MAX_STEPS)
    return [
        *pairs_of(random, MAX_STEPS, 1),
        (
            "Random, population of 20",
            random,
            dt.PopulationBasedTraining(max_steps=MAX_STEPS, ready_steps=9),
        ),
        ("Grid, FullTraining", dt.Grid(), full),
        ("TPE, FullTraining", dt.Optuna(), full),
    ]


if __name__ == "__main__":
    sys.exit(main())
