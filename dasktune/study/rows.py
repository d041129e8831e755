"""Lay a result out as rows of plain values, for tables of any kind.

Called by results only. All rows have the same columns in the same order; None stands where a trial
has nothing to say.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from dasktune.errors import InvalidStudyError
from dasktune.space.schedule import Constant, Schedule

if TYPE_CHECKING:
    from dasktune.study.result import Result, TrialResult
    from dasktune.units import Step

Row: TypeAlias = dict[str, object]
"""Values by column."""

Of: TypeAlias = Literal["trials", "reports"]
"""What there is a row for."""


def rows_of(result: "Result", of: Of) -> list[Row]:
    """Return one row a trial, or one a report.

    Raises:
        InvalidStudyError: There are no such rows.
    """
    if of == "trials":
        return _rows(columns_of(result, of), [_trial(result, trial) for trial in result.trials])
    if of == "reports":
        reports = [
            {
                "trial": trial.number,
                "step": report.step,
                **_metrics(report.metrics),
                "score": report.score,
            }
            for trial in result.trials
            for report in trial.reports
        ]
        return _rows(columns_of(result, of), reports)
    raise InvalidStudyError(f"of is {of!r}; it must be 'trials' or 'reports'")


def columns_of(result: "Result", of: Of) -> list[str]:
    """Return the columns of those rows: the same whatever became of the trials but for metrics."""
    metrics = _metric_names(result)
    if of == "reports":
        return ["trial", "step", *[f"metric.{name}" for name in metrics], "score"]
    parameters = sorted({n for trial in result.trials for n in trial.configuration.names})
    steps = sorted({report.step for trial in result.trials for report in trial.reports})
    return [
        "trial",
        "status",
        "reason",
        *[f"hp.{name}" for name in parameters],
        *[f"metric.{name}" for name in metrics],
        *[_at(name, step) for name in result.study.metrics for step in steps],
        "steps",
        "steps_requested",
        "steps_new",
        "steps_shared",
        "seconds",
        "duplicate_of",
        "parent",
        "branch_step",
    ]


def _rows(columns: list[str], found: Iterable[Row]) -> list[Row]:
    empty = dict.fromkeys(columns)
    return [empty | row for row in found]


def _trial(result: "Result", trial: "TrialResult") -> Row:
    schedules = trial.configuration.schedules
    return {
        "trial": trial.number,
        "status": trial.status.value,
        "reason": trial.reason.partition("\n")[0],
        **{f"hp.{name}": _plain(schedule) for name, schedule in schedules},
        **_metrics(trial.metrics),
        **{
            _at(name, report.step): report.metrics[name]
            for report in trial.reports
            for name in result.study.metrics
        },
        "steps": trial.steps,
        "steps_requested": trial.steps_requested,
        "steps_new": trial.steps_new,
        "steps_shared": trial.steps_shared,
        "seconds": trial.seconds,
        "duplicate_of": trial.duplicate_of,
        "parent": trial.parent,
        "branch_step": None if trial.parent is None else trial.branch_step,
    }


def _at(name: str, step: "Step") -> str:
    return f"{name}@{step}"


def _metrics(metrics: Mapping[str, float]) -> Row:
    return {f"metric.{name}": value for name, value in metrics.items()}


def _metric_names(result: "Result") -> list[str]:
    """Return all metrics: the tuned ones first, in the study's order, the others by name."""
    tuned = result.study.metrics
    reports = [report for trial in result.trials for report in trial.reports]
    others = {name for report in reports for name in report.metrics}
    return [*tuned, *sorted(others.difference(tuned))]


def _plain(schedule: Schedule) -> object:
    """Return the value of a constant, and the text of what changes by step."""
    return schedule.v if isinstance(schedule, Constant) else schedule.text
