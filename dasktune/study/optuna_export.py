"""Hand a result to Optuna: its plots, importances and dashboard then work on our studies.

Imported by results when somebody asks for it, never before: Optuna need not be installed.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.importance import (
    BaseImportanceEvaluator,
    PedAnovaImportanceEvaluator,
    get_param_importances,
)
from optuna.trial import FrozenTrial, TrialState

from dasktune.errors import BackendError
from dasktune.samplers.distributions import distributions_of, suggested
from dasktune.study.commands import AskTrial, EndTrial
from dasktune.trial import TrialStatus
from dasktune.units import Seconds

if TYPE_CHECKING:
    from dasktune.study.result import Result, TrialResult

OptunaStudy: TypeAlias = optuna.study.Study
"""What Optuna calls a study."""

Evaluator: TypeAlias = BaseImportanceEvaluator
"""What Optuna weighs parameters with."""

_STATES: Mapping[TrialStatus, TrialState] = {
    TrialStatus.DRAWN: TrialState.WAITING,
    TrialStatus.WAITING: TrialState.RUNNING,
    TrialStatus.PAUSED: TrialState.RUNNING,
    TrialStatus.COMPLETED: TrialState.COMPLETE,
    TrialStatus.STOPPED: TrialState.PRUNED,
    TrialStatus.DIVERGED: TrialState.FAIL,
    TrialStatus.FAILED: TrialState.FAIL,
}

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  (Optuna's times have no zone)
_FEWEST = 3
"""Completed trials below which nothing can be told: PED-ANOVA compares the best two with all."""


def optuna_study(result: "Result", metrics: tuple[str, ...] | None = None) -> OptunaStudy:
    """Return a study in memory that has a trial for each of ours, of the same number.

    Args:
        result: Whose trials.
        metrics: Those of the tuned metrics that are its values, by default all.
    """
    study = result.study
    names = study.metrics if metrics is None else metrics
    modes = dict(zip(study.metrics, study.modes, strict=True))
    directions = ["maximize" if modes[name] == "max" else "minimize" for name in names]
    distributions = distributions_of(study.space)
    lives = _lives(result)
    with _quiet():
        made = optuna.create_study(study_name=study.name, directions=directions)
        made.set_metric_names(list(names))
        for trial in result.trials:
            life = lives.get(trial.number, (0.0, 0.0))
            made.add_trial(_frozen(result, trial, names, distributions, life))
    return made


def importances(result: "Result", evaluator: Evaluator | None) -> dict[str, float]:
    """Return the shares of the parameters that all completed trials have, by path.

    Raises:
        BackendError: Fewer than three trials were completed.
    """
    study = optuna_study(result, (result.study.metric,))
    n_complete = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    if n_complete < _FEWEST:
        raise BackendError(
            f"{n_complete} of {len(result.trials)} trials of {result.study.name} were completed; "
            f"importances need at least {_FEWEST}"
        )
    with _quiet():
        chosen = PedAnovaImportanceEvaluator() if evaluator is None else evaluator
    return {
        path: float(share) for path, share in get_param_importances(study, evaluator=chosen).items()
    }


def _frozen(
    result: "Result",
    trial: "TrialResult",
    metrics: tuple[str, ...],
    distributions: Mapping[str, BaseDistribution],
    life: tuple[Seconds, Seconds],
) -> FrozenTrial:
    state = _STATES[trial.status]
    has_values = bool(trial.metrics) and state in (TrialState.COMPLETE, TrialState.PRUNED)
    here = {path: distributions[path] for path in trial.point}
    return FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=state,
        value=None,
        values=[trial.metrics[name] for name in metrics] if has_values else None,
        datetime_start=_time(life[0]) if state is not TrialState.WAITING else None,
        datetime_complete=_time(life[1]) if state.is_finished() else None,
        params={path: suggested(n, here[path]) for path, n in trial.point.items()},
        distributions=here,
        user_attrs=_attributes(trial),
        system_attrs={},
        intermediate_values={r.step: r.metrics[result.study.metric] for r in trial.reports},
    )


def _attributes(trial: "TrialResult") -> dict[str, object]:
    """Return what Optuna has no word for; all of it can be written as JSON."""
    found: dict[str, object] = {
        "configuration": trial.configuration.text,
        "status": trial.status.value,
        "reason": trial.reason,
        "steps": trial.steps,
    }
    if trial.duplicate_of is not None:
        found["duplicate_of"] = trial.duplicate_of
    if trial.parent is not None:
        found |= {"parent": trial.parent, "branch_step": trial.branch_step}
    return found


def _lives(result: "Result") -> dict[int, tuple[Seconds, Seconds]]:
    """Return when each trial was first asked to train, and when it ended, by number."""
    lives: dict[int, tuple[Seconds, Seconds]] = {}
    for at_s, command in result.timeline.commands():
        if isinstance(command, AskTrial | EndTrial) and command.trial.study == result.index:
            began_s, _ = lives.get(command.trial.number, (at_s, at_s))
            lives[command.trial.number] = (began_s, at_s)
    return lives


def _time(seconds: Seconds) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


@contextmanager
def _quiet() -> Iterator[None]:
    """Say nothing of studies in memory, nor that parts of Optuna may still change."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
