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
from dataclasses import dataclass
from statistics import mean
from typing import Any

from curves import MAX_STEPS, SHARED, UNSHARED, Nothing, best_made_up, made_up
from fashion_curves import record_table

import dasktune as dt
from dasktune.samplers.sampler import Sampler
from dasktune.simulator.world import Curve
from dasktune.study.events import MetricsReported, StageFinished
from dasktune.study.result import Result
from dasktune.tuners.tuner import Tuner

Trace = list[tuple[int, float]]
"""Executed steps, and the best accuracy reported by then."""

HALVING: dict[str, Any] = {"min_steps": 3, "max_steps": MAX_STEPS, "reduction_factor": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a search takes place."""

    space: Mapping[str, object]
    curve: Curve
    best: float
    workers: int = 4


def settings() -> tuple[Setting, Setting]:
    """Return the made-up network on both spaces: with shared steps, and without."""
    return (
        Setting(space=SHARED, curve=made_up, best=best_made_up(is_shared=True)),
        Setting(space=UNSHARED, curve=made_up, best=best_made_up(is_shared=False)),
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


def tuners_table(setting: Setting, pairs: Sequence[tuple[str, Sampler, Tuner]], seeds: int) -> bool:
    """Print regret against executed steps for pairs of sampler and tuner; check question 1."""
    n_trials = 60
    full_steps = round(
        mean(
            search(setting, dt.Random(), dt.FullTraining(MAX_STEPS), seed=s, n_trials=n_trials)[
                0
            ].steps_executed
            for s in range(seeds)
        )
    )
    budgets = [full_steps // 5, full_steps // 2, full_steps]
    print(f"\nFull training of {n_trials} random trials executes {full_steps} steps.\n")
    print("| sampler and tuner | " + " | ".join(f"regret at {b} steps" for b in budgets) + " |")
    print("| --- |" + " --- |" * len(budgets))
    found = {}
    for name, sampler, tuner in pairs:
        traces = [
            search(
                setting, sampler, tuner, seed=s, n_trials=4 * n_trials,
                max_steps_executed=full_steps,
            )[1]
            for s in range(seeds)
        ]  # fmt: skip
        found[name] = [mean(regret_at(t, setting.best, b) for t in traces) for b in budgets]
        print(f"| {name} | " + " | ".join(f"{r:.4f}" for r in found[name]) + " |", flush=True)
    goal = found["Random, FullTraining"][-1]
    is_met = True
    for name in ("Random, ASHA", "Random, SuccessiveHalving"):
        is_met &= found[name][0] <= goal
        print(
            f"\n{name} at one fifth of the steps: {found[name][0]:.4f}, full training at all: "
            f"{goal:.4f} (at most that: {_yes(found[name][0] <= goal)})"
        )
    return is_met


def prefix_table(shared: Setting, apart: Setting, seeds: int) -> bool:
    """Print prefix-aware search against its plain sampler, in pairs of the same seed."""
    print("\n| space, tuner | executed steps | plain | prefix-aware | difference | p |")
    print("| --- | --- | --- | --- | --- | --- |")
    is_met = True
    tuners: list[tuple[str, Tuner]] = [
        ("FullTraining", dt.FullTraining(MAX_STEPS)),
        ("ASHA", dt.ASHA(**HALVING)),
    ]
    for where, setting in (("shared", shared), ("nothing shared", apart)):
        for name, tuner in tuners:
            for budget in (300, 600):
                plain, aware = (
                    [
                        regret_at(
                            search(
                                setting, sampler, tuner, seed=s, n_trials=600,
                                max_steps_executed=budget,
                            )[1],
                            setting.best,
                            budget,
                        )
                        for s in range(seeds)
                    ]
                    for sampler in (dt.Random(), dt.PrefixAware(dt.Random()))
                )  # fmt: skip
                gain = mean(plain) - mean(aware)
                p = sign_flip_p([a - b for a, b in zip(plain, aware, strict=True)])
                if setting is shared:
                    is_met &= gain > 0 and p < 0.01  # noqa: PLR2004
                else:
                    is_met &= mean(aware) <= 1.02 * mean(plain)
                print(
                    f"| {where}, {name} | {budget} | {mean(plain):.4f} | {mean(aware):.4f} | "
                    f"{-gain / mean(plain):+.1%} | {p:.4f} |",
                    flush=True,
                )
    print(
        f"\nbetter where steps are shared (p < 0.01), at most 2 % worse elsewhere: {_yes(is_met)}"
    )
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


def ties_table(setting: Setting, seeds: int) -> None:
    """Print how many distinct prefixes survive each rung, and regret, by the rule for ties."""
    print(
        "\n| tuner | ties | distinct prefixes on each rung | steps executed | regret at the end |"
    )
    print("| --- | --- | --- | --- | --- |")
    kinds: list[tuple[str, Callable[..., Tuner]]] = [
        ("SuccessiveHalving", dt.SuccessiveHalving),
        ("ASHA", dt.ASHA),
    ]
    for name, kind in kinds:
        for ties in ("number", "spread"):
            results = [
                search(setting, dt.Random(), kind(**HALVING, ties=ties), seed=s, n_trials=240)
                for s in range(seeds)
            ]
            rungs = kind(**HALVING).decision_steps
            distinct = [mean(_prefixes(r, step) for r, _ in results) for step in rungs]
            steps = mean(r.steps_executed for r, _ in results)
            regret = mean(setting.best - t[-1][1] for _, t in results)
            print(
                f"| {name} | {ties} | {', '.join(f'{d:.1f}' for d in distinct)} | {steps:.0f} | "
                f"{regret:.4f} |",
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


def pairs_of(names: Sequence[str]) -> list[tuple[str, Sampler, Tuner]]:
    """Return the pairs of sampler and tuner that are compared."""
    everything: list[tuple[str, Sampler, Tuner]] = [
        ("Random, FullTraining", dt.Random(), dt.FullTraining(MAX_STEPS)),
        ("Random, SuccessiveHalving", dt.Random(), dt.SuccessiveHalving(**HALVING)),
        ("Random, ASHA", dt.Random(), dt.ASHA(**HALVING)),
        ("Random, ASHA stopping", dt.Random(), dt.ASHA(**HALVING, variant="stopping")),
        ("Random, Hyperband", dt.Random(), dt.Hyperband(**HALVING)),
        ("Random, AsyncHyperband", dt.Random(), dt.AsyncHyperband(**HALVING)),
        ("Random, MedianStopping", dt.Random(), dt.MedianStopping(max_steps=MAX_STEPS)),
        ("PrefixAware, FullTraining", dt.PrefixAware(dt.Random()), dt.FullTraining(MAX_STEPS)),
        ("PrefixAware, ASHA", dt.PrefixAware(dt.Random()), dt.ASHA(**HALVING)),
    ]
    return [pair for pair in everything if not names or pair[0] in names]


def main() -> int:
    """Print the tables; return 0 if the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--record", action="store_true", help="train the table of real curves")
    options = parser.parse_args()
    if options.record:
        record_table()
        return 0
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores")
    shared, apart = settings()
    print(f"\nMade-up network, {options.seeds} seeds.")
    is_met = tuners_table(shared, pairs_of([]), options.seeds)
    is_met &= prefix_table(shared, apart, options.seeds)
    ties_table(shared, options.seeds)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
