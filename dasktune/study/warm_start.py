"""Take over what earlier studies found, for the sampler of a new one to learn from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from dasktune.errors import InvalidStudyError
from dasktune.samplers.sampler import EarlierTrial
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import SearchSpace
from dasktune.space.value import shown
from dasktune.study.scores import Mode, score_of
from dasktune.trial import Report, TrialStatus


class _Trial(Protocol):
    """What a trial of an earlier result must say."""

    @property
    def configuration(self) -> Configuration: ...
    @property
    def reports(self) -> tuple[Report, ...]: ...
    @property
    def status(self) -> TrialStatus: ...


class EarlierResult(Protocol):
    """What an earlier result must say: `dasktune.study.result.Result` does."""

    @property
    def trials(self) -> Sequence[_Trial]:
        """Its trials, by number."""


def earlier_trials(
    results: Sequence[EarlierResult],
    *,
    space: SearchSpace,
    metrics: tuple[str, ...],
    modes: tuple[Mode, ...],
    metric: str,
) -> tuple[EarlierTrial, ...]:
    """Return the trials of earlier results that lie in a space, with the scores of a new study.

    Raises:
        InvalidStudyError: They are no results; or there are trials, and none lies in the space or
            reported the metrics.
    """
    found: list[EarlierTrial] = []
    n_seen = 0
    at = metrics.index(metric)
    for result in _checked(results):
        # Functions are another object now, or only their values are left. Those that give the same
        # values as far as anything was trained are one to all that was reported.
        trained = max([r.step for trial in result.trials for r in trial.reports], default=0)
        for trial in result.trials:
            n_seen += 1
            point = space.locate(trial.configuration, until=trained)
            if point is None:
                continue
            reports = []
            for report in trial.reports:
                scores = _scores(report.metrics, metrics, modes)
                if scores is not None:
                    reports.append(replace(report, score=scores[at], scores=scores, branch=None))
            if reports:
                found.append(EarlierTrial(point=point, reports=tuple(reports), status=trial.status))
    if n_seen and not found:
        raise InvalidStudyError(
            f"warm_start has {n_seen} trials, and none of them lies in this space and reported "
            f"{', '.join(metrics)}; leave it out, or give results of a study like this one"
        )
    return tuple(found)


def _checked(results: object) -> Sequence[EarlierResult]:
    right = "it must be a list of results, such as [dasktune.load_result('earlier')]"
    if isinstance(results, str) or not isinstance(results, Sequence):
        raise InvalidStudyError(f"warm_start is {_shown(results)}; {right}")
    for result in results:
        if not isinstance(getattr(result, "trials", None), Sequence):
            raise InvalidStudyError(f"warm_start holds {_shown(result)}; {right}")
    return results


def _shown(thing: object) -> str:
    """Show what is no list of results; a result says a lot, and its kind is enough."""
    is_result = hasattr(thing, "trials")
    return f"one {type(thing).__name__}" if is_result else shown(thing)


def _scores(
    values: Mapping[str, object], metrics: tuple[str, ...], modes: tuple[Mode, ...]
) -> tuple[float, ...] | None:
    scores = [score_of(values.get(n), m) for n, m in zip(metrics, modes, strict=True)]
    known = [score for score in scores if score is not None]
    return tuple(known) if len(known) == len(scores) else None
