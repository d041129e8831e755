"""A study: one search, described once and never changed.

Holds the user's training code, the space, and the policies; checks all of it when it is made, so
that nothing starts with a wrong argument. Knows nothing of how the search goes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal, cast

from dasktune.errors import InvalidStudyError
from dasktune.plan.keys import Family
from dasktune.samplers.grid import Grid
from dasktune.samplers.random import Random
from dasktune.samplers.sampler import Sampler
from dasktune.space.arguments import whole
from dasktune.space.search_space import SearchSpace
from dasktune.study.fingerprint import Fingerprint, fingerprint
from dasktune.tuners.tuner import Tuner
from dasktune.units import Step

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ANY_TEXT = re.compile(r".+", re.DOTALL)


@dataclass(frozen=True, slots=True, init=False)
class Study:
    """One search: training code, space, policies, metric and limits."""

    trainable: object
    """The user's training code: a Trainable."""
    space: SearchSpace
    """All configurations."""
    sampler: Sampler
    """Which configurations are tried."""
    tuner: Tuner
    """Which trials train how far."""
    metric: str
    """Name of the tuned metric in what `evaluate()` returns."""
    mode: Literal["max", "min"]
    """Whether more of the metric is better, or less."""
    n_trials: int
    """Trials in all, at least 1."""
    seed: int
    """Drives draws; in no key."""
    training_seed: int
    """Seeds training itself; in every key."""
    name: str
    """Names the study to people, and in the store."""
    retries: int
    """How often a stage that raised is tried again, at least 0."""
    max_failures: int
    """The study gives up when so many trials failed before any gave a report, at least 1."""
    fingerprint: Fingerprint = field(repr=False)
    """Digest of the training code, with its parts."""

    def __init__(  # noqa: PLR0913  (all keywords: a study is described in one place)
        self,
        trainable: object,
        *,
        space: Mapping[str, object] | SearchSpace,
        tuner: Tuner,
        metric: str,
        mode: Literal["max", "min"],
        sampler: Sampler | None = None,
        n_trials: int | None = None,
        seed: int = 0,
        training_seed: int = 0,
        name: str = "study",
        retries: int = 2,
        max_failures: int = 3,
    ) -> None:
        """Check and keep the description.

        Args:
            trainable: An object with `setup`, `step`, `evaluate`, `state_dict`, `load_state_dict`.
            space: Domains, schedules, templates or fixed values by hyper-parameter name.
            tuner: Which trials train how far.
            metric: Name of the tuned metric.
            mode: "max" or "min".
            sampler: Which configurations are tried; by default `Random()`.
            n_trials: Trials in all; may be left out for `Grid()`, which then takes the whole space.
            seed: Drives draws.
            training_seed: Seeds training.
            name: Letters, digits, `.`, `_` and `-`.
            retries: How often a stage that raised is tried again.
            max_failures: Failed trials before the study gives up, if none gave a report.

        Raises:
            InvalidStudyError: Something does not fit; the message says what would.
        """
        searched = space if isinstance(space, SearchSpace) else SearchSpace(space)
        chosen = Random() if sampler is None else sampler
        _check_kind("sampler", chosen, Sampler, "dasktune.Random()")
        _check_kind("tuner", tuner, Tuner, "dasktune.FullTraining(max_steps=10)")
        if isinstance(chosen, Grid):
            searched.points()  # refuses what is continuous
        _check_trainable(trainable)
        _check_text("metric", metric, _ANY_TEXT, "the name of a result of evaluate()")
        if mode not in ("max", "min"):
            raise InvalidStudyError(f"mode is {mode!r}; it must be 'max' or 'min'")
        _check_text(
            "name", name, _NAME, "letters, digits, '.', '_' and '-', first a letter or digit"
        )
        given = {
            "trainable": trainable,
            "space": searched,
            "sampler": chosen,
            "tuner": tuner,
            "metric": metric,
            "mode": mode,
            "n_trials": _n_trials(n_trials, chosen, searched),
            "seed": whole(seed, "seed", 0),
            "training_seed": whole(training_seed, "training_seed", 0),
            "name": name,
            "retries": whole(retries, "retries", 0),
            "max_failures": whole(max_failures, "max_failures", 1),
            "fingerprint": fingerprint(trainable),
        }
        for key, value in given.items():
            object.__setattr__(self, key, value)

    @property
    def family(self) -> Family:
        """What trials of other studies must have in common with these to share steps."""
        return Family(self.fingerprint.digest, self.training_seed)

    @property
    def max_steps(self) -> Step:
        """The furthest step that any trial is asked for."""
        return self.tuner.decision_steps[-1]

    def score(self, metrics: Mapping[str, object]) -> float | None:
        """Return the tuned metric with greater as better; None if it is not a finite number.

        Raises:
            KeyError: The metric is not among the results.
        """
        value = metrics[self.metric]
        if value is None or isinstance(value, str):
            return None
        try:
            number = float(cast("float", value))
        except (TypeError, ValueError, OverflowError):
            return None
        if not isfinite(number):
            return None
        return number if self.mode == "max" else -number


def _check_kind(name: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        hint = "an instance, not the class" if isinstance(value, type) else "one"
        raise InvalidStudyError(f"{name} is {value!r}; it must be {hint}, such as {example}")


def _check_text(name: str, value: object, pattern: re.Pattern[str], right: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidStudyError(f"{name} is {value!r}; it must be {right}")


_METHODS = ("setup", "step", "evaluate", "state_dict", "load_state_dict")


def _check_trainable(trainable: object) -> None:
    missing = [name for name in _METHODS if not callable(getattr(trainable, name, None))]
    if isinstance(trainable, type) and not missing:
        raise InvalidStudyError(
            f"trainable is the class {trainable.__qualname__}; give an instance: "
            f"{trainable.__qualname__}()"
        )
    if missing:
        raise InvalidStudyError(
            f"trainable {trainable!r} has no method {', '.join(missing)}; a trainable needs "
            f"{', '.join(_METHODS)}"
        )


def _n_trials(n_trials: int | None, sampler: Sampler, space: SearchSpace) -> int:
    if n_trials is not None:
        return whole(n_trials, "n_trials", 1)
    if isinstance(sampler, Grid) and space.size is not None:
        return space.size
    raise InvalidStudyError("n_trials is None; say how many trials there are in all, e.g. 36")
