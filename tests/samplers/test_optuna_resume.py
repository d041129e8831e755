"""A study with a sampler of Optuna is stopped, goes on, and draws as if nothing had happened."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, TPESampler

import dasktune as dt
from dasktune.runner import run
from dasktune.study.result import Result


class Descent:
    """Go downhill from a noisy place."""

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:  # noqa: ARG002
        self.at = np.random.standard_normal(3)

    def step(self, hp: Mapping[str, Any], t: int) -> None:  # noqa: ARG002
        self.at = self.at - hp["lr"] * (self.at - hp["pull"])

    def evaluate(self) -> Mapping[str, float]:
        return {"loss": float((self.at**2).sum())}

    def state_dict(self) -> object:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        self.at = state["at"]


def tpe(seed: int) -> BaseSampler:
    return TPESampler(seed=seed, n_startup_trials=4)


def cma_es(seed: int) -> BaseSampler:
    return CmaEsSampler(seed=seed, popsize=4, warn_independent_sampling=False)


def nsga2(seed: int) -> BaseSampler:
    return NSGAIISampler(seed=seed, population_size=4)


def study(factory: Callable[[int], BaseSampler]) -> dt.Study:
    rate = dt.loguniform(1e-3, 1)
    return dt.Study(
        Descent(),
        space={
            "lr": dt.choice([rate, dt.step_decay(rate, factor=0.1, at=[2])]),
            "pull": dt.uniform(-1, 1),
        },
        sampler=dt.Optuna(factory),
        tuner=dt.ASHA(min_steps=1, max_steps=4, reduction_factor=2),
        metric="loss",
        mode="min",
        n_trials=16,
    )


def draws(result: Result) -> list[Mapping[str, str]]:
    return [dict(trial.configuration.text) for trial in result.trials]


class StoppedError(Exception):
    """The driver ends here."""


@pytest.mark.parametrize("factory", [tpe, cma_es, nsga2])
def test_a_stopped_study_goes_on_with_the_draws_of_one_that_was_not(
    factory: Callable[[int], BaseSampler], tmp_path: Path
) -> None:
    whole = run(study(factory), store=tmp_path / "whole", workers=0)
    for n_events in (7, 5, 9):
        left = iter(range(n_events))

        def stop(_: object, left: Any = left) -> None:  # noqa: ANN401
            if next(left, None) is None:
                raise StoppedError

        with pytest.raises(StoppedError):
            run(study(factory), store=tmp_path / "cut", workers=0, on_event=stop)
    again = run(study(factory), store=tmp_path / "cut", workers=0)
    assert draws(again) == draws(whole)
    assert len({tuple(text.items()) for text in draws(whole)}) == 16
    assert [trial.reports for trial in again.trials] == [trial.reports for trial in whole.trials]
