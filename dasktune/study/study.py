"""A study: one search, described once and never changed.

Holds the user's training code, the space, and the policies; checks all of it when it is made, so
that nothing starts with a wrong argument. Knows nothing of how the search goes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from dasktune.errors import InvalidStudyError
from dasktune.plan.keys import Family
from dasktune.samplers.grid import Grid
from dasktune.samplers.random import Random
from dasktune.samplers.sampler import EarlierTrial, Sampler
from dasktune.space.arguments import whole
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point, SearchSpace
from dasktune.study.fingerprint import Fingerprint, fingerprint
from dasktune.study.limits import Limits, limits
from dasktune.study.scores import Mode, score_of
from dasktune.study.warm_start import EarlierResult, earlier_trials
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
    metrics: tuple[str, ...]
    """Names of the tuned metrics in what `evaluate()` returns; mostly one."""
    modes: tuple[Mode, ...]
    """For each of them whether more is better, or less."""
    metric: str
    """The one of them by which trials are compared."""
    mode: Mode
    """Its mode."""
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
    limits: Limits
    """When it ends although its tuner would go on."""
    first: tuple[Point, ...]
    """Draws of the first trials, before the sampler is asked."""
    taken_over: tuple[Point, ...]
    """Draws of the trials of an earlier timeline that this one goes on with; they come first."""
    warm_start: tuple[EarlierTrial, ...] = field(repr=False)
    """Trials of earlier studies that the sampler learns from."""
    fingerprint: Fingerprint = field(repr=False)
    """Digest of the training code, with its parts."""

    def __init__(  # noqa: PLR0913  (all keywords: a study is described in one place)
        self,
        trainable: object,
        *,
        space: Mapping[str, object] | SearchSpace,
        tuner: Tuner,
        metric: str | Sequence[str],
        mode: Mode | Sequence[Mode],
        rank_by: str | None = None,
        sampler: Sampler | None = None,
        n_trials: int | None = None,
        seed: int = 0,
        training_seed: int = 0,
        name: str = "study",
        retries: int = 2,
        max_failures: int = 3,
        timeout: float | str | None = None,
        max_steps_executed: int | None = None,
        target: float | None = None,
        patience: int | None = None,
        first: Sequence[Mapping[str, object] | Configuration] = (),
        warm_start: Sequence[EarlierResult] = (),
    ) -> None:
        """Check and keep the description.

        Args:
            trainable: An object with `setup`, `step`, `evaluate`, `state_dict`, `load_state_dict`.
            space: Domains, schedules, templates or fixed values by hyper-parameter name.
            tuner: Which trials train how far.
            metric: Name of the tuned metric, or a list of several, which give a Pareto front.
            mode: "max" or "min"; a list of as many for several metrics.
            rank_by: Of several metrics, the one by which a tuner compares trials; tuners that
                stop trials early need it.
            sampler: Which configurations are tried; by default `Random()`.
            n_trials: Trials in all; may be left out for `Grid()`, which then takes the whole space.
            seed: Drives draws.
            training_seed: Seeds training.
            name: Letters, digits, `.`, `_` and `-`.
            retries: How often a stage that raised is tried again.
            max_failures: Failed trials before the study gives up, if none gave a report.
            timeout: Seconds after which the study ends, or a text such as "90s" or "2h"; time in
                which nobody drove it does not count.
            max_steps_executed: Steps trained by workers, in all studies of a run, after which it
                ends; paths that are running stop at their next step boundary.
            target: A value of the metric with which the study ends.
            patience: The study ends when so many trials in a row reported nothing better.
            first: Configurations of the first trials, as mappings from names to values or
                schedules; they count among the trials.
            warm_start: Results of earlier studies whose trials the sampler learns from; their
                states are found in the store anyway. Trials outside this space are left out.

        Raises:
            InvalidStudyError: Something does not fit; the message says what would.
        """
        searched = space if isinstance(space, SearchSpace) else SearchSpace(space)
        chosen = Random() if sampler is None else sampler
        _check_kind("sampler", chosen, Sampler, "dasktune.Random()")
        _check_kind("tuner", tuner, Tuner, "dasktune.FullTraining(max_steps=10)")
        if isinstance(chosen, Grid):
            searched.points()  # refuses what is continuous
        tuner.check(searched)
        refuse_no_trainable(trainable)
        metrics, modes = _metrics(metric, mode)
        ranked = _ranked(metrics, rank_by, tuner)
        _check_text(
            "name", name, _NAME, "letters, digits, '.', '_' and '-', first a letter or digit"
        )
        n = _n_trials(n_trials, chosen, searched)
        one_mode = modes[metrics.index(ranked)]
        given = {
            "trainable": trainable,
            "space": searched,
            "sampler": chosen,
            "tuner": tuner,
            "metrics": metrics,
            "modes": modes,
            "metric": ranked,
            "mode": one_mode,
            "n_trials": n,
            "seed": whole(seed, "seed", 0),
            "training_seed": whole(training_seed, "training_seed", 0),
            "name": name,
            "retries": whole(retries, "retries", 0),
            "max_failures": whole(max_failures, "max_failures", 1),
            "limits": limits(
                timeout=timeout,
                max_steps_executed=max_steps_executed,
                target=target,
                patience=patience,
            ),
            "first": _first(first, searched, n),
            "taken_over": (),
            "warm_start": earlier_trials(
                warm_start, space=searched, metrics=metrics, modes=modes, metric=ranked
            ),
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
        """Return the metric that ranks trials, greater as better; None if it is no finite number.

        Raises:
            KeyError: The metric is not among the results.
        """
        return score_of(metrics[self.metric], self.mode)

    def scores(self, metrics: Mapping[str, object]) -> tuple[float | None, ...]:
        """Return the same for every tuned metric.

        Raises:
            KeyError: A metric is not among the results.
        """
        return tuple(
            [score_of(metrics[n], m) for n, m in zip(self.metrics, self.modes, strict=True)]
        )


def _check_kind(name: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        hint = "an instance, not the class" if isinstance(value, type) else "one"
        raise InvalidStudyError(f"{name} is {value!r}; it must be {hint}, such as {example}")


def _check_text(name: str, value: object, pattern: re.Pattern[str], right: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidStudyError(f"{name} is {value!r}; it must be {right}")


def _metrics(metric: object, mode: object) -> tuple[tuple[str, ...], tuple[Mode, ...]]:
    if isinstance(metric, str):
        names, modes = [metric], [mode]
    elif isinstance(metric, Sequence) and not isinstance(mode, str) and isinstance(mode, Sequence):
        names, modes = list(metric), list(mode)
        if not names or len(set(map(str, names))) < len(names):
            raise InvalidStudyError(
                f"metric is {metric!r}; a list of metrics must have at least one, each once"
            )
        if len(names) != len(modes):
            raise InvalidStudyError(
                f"mode is {mode!r}; it must have one mode for each of {len(names)} metrics"
            )
    elif isinstance(metric, Sequence):
        raise InvalidStudyError(
            f"mode is {mode!r}; with several metrics it must be a list of 'max' and 'min'"
        )
    else:
        raise InvalidStudyError(
            f"metric is {metric!r}; it must be the name of a result of evaluate()"
        )
    for name in names:
        _check_text("metric", name, _ANY_TEXT, "the name of a result of evaluate()")
    for each in modes:
        if each not in ("max", "min"):
            raise InvalidStudyError(f"mode is {each!r}; it must be 'max' or 'min'")
    return tuple(names), cast("tuple[Mode, ...]", tuple(modes))


def _ranked(metrics: tuple[str, ...], rank_by: object, tuner: Tuner) -> str:
    if rank_by is None:
        if len(metrics) > 1 and tuner.compares:
            raise InvalidStudyError(
                f"rank_by is None; {type(tuner).__name__} compares trials by one metric, and there "
                f"are {len(metrics)}: name one of {', '.join(metrics)}"
            )
        return metrics[0]
    if rank_by not in metrics:
        raise InvalidStudyError(
            f"rank_by is {rank_by!r}; it must be one of the metrics: {', '.join(metrics)}"
        )
    return str(rank_by)


def _first(
    first: Sequence[Mapping[str, object] | Configuration], space: SearchSpace, n_trials: int
) -> tuple[Point, ...]:
    if isinstance(first, str | Mapping | Configuration) or not isinstance(first, Sequence):
        raise InvalidStudyError(
            f"first is {first!r}; it must be a list of mappings such as [{{'lr': 0.1}}]"
        )
    if len(first) > n_trials:
        raise InvalidStudyError(
            f"first has {len(first)} configurations and n_trials is {n_trials}; they count among "
            "the trials, so there must not be more of them"
        )
    return tuple([space.point_of(configuration) for configuration in first])


_METHODS = ("setup", "step", "evaluate", "state_dict", "load_state_dict")
"""What training code must have."""


def refuse_no_trainable(trainable: object) -> None:
    """Make sure that something is training code, before anything is tried with it.

    Raises:
        InvalidStudyError: It is a class, or lacks a method.
    """
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
