"""What a study gave: its trials, the best of them, and what sharing saved.

Made from a core at any moment; the same object whether the study ran on machines or in the
simulator.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, cast

from dasktune.errors import BackendError
from dasktune.plan.history import key_of
from dasktune.plan.merging import steps_requested, steps_unique
from dasktune.space.configuration import Configuration
from dasktune.study.commands import StudyStatus
from dasktune.study.core import StudyCore
from dasktune.study.ports import States, Trainable
from dasktune.study.study import Study
from dasktune.study.study_run import StudyRun
from dasktune.study.timeline import Timeline
from dasktune.study.trial_record import TrialRecord
from dasktune.trial import Report, TrialStatus
from dasktune.units import Seconds, Step

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What became of one trial."""

    number: int
    """Its number in the study, from 0."""
    configuration: Configuration
    """Its hyper-parameters, as schedules."""
    status: TrialStatus
    """How it ended."""
    reason: str
    """Why it ended; for a failed one with the traceback."""
    reports: tuple[Report, ...]
    """All it reported, by step."""
    metrics: Mapping[str, float]
    """Metrics of its best report; empty if it gave none."""
    steps: Step
    """Step of its best report; 0 if it gave none."""
    steps_requested: Step
    """The furthest step that it was asked for."""
    parent: int | None = None
    """Number of the trial that it branched off, if it did; up to `branch_step` they are one."""
    branch_step: Step = 0
    """The first step at which it has values of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a study gave."""

    study: Study
    """The study as it was described."""
    status: StudyStatus | None
    """How it ended; None if it never started."""
    reason: str
    """Why it ended."""
    trials: tuple[TrialResult, ...]
    """All trials drawn, by number."""
    best: TrialResult | None
    """The trial with the best report: of equal ones the one at the later step, then the one of the
    lower number. None if no trial gave a report."""
    steps_requested: int
    """Steps if every trial ran alone, each counted once at its furthest request."""
    steps_unique: int
    """Distinct steps among them."""
    steps_executed: int
    """Steps that workers trained for all studies of the run."""
    steps_recomputed: int
    """Of those, steps trained more than once, or lost."""
    makespan_s: Seconds
    """Seconds from the first event to the last."""
    worker_seconds: Seconds
    """Seconds that workers were busy, for all studies of the run."""
    timeline: Timeline = field(repr=False)
    """Everything that happened and was decided."""
    states: States | None = field(default=None, repr=False)
    """Where the states are; None for a simulation, which has none."""

    @property
    def merge_rate(self) -> float:
        """Requested over distinct steps; 1.0 where nothing is shared."""
        return self.steps_requested / self.steps_unique if self.steps_unique else 1.0

    def load_state(self, trial: TrialResult) -> object:
        """Return the state of a trial at its best report: what its `state_dict()` returned there.

        Raises:
            BackendError: It is not stored: it was reported in passing, dropped, or simulated.
        """
        key = key_of(self.study.family, trial.configuration, trial.steps)
        state = self.states.load(key) if self.states is not None and trial.reports else None
        if state is None:
            raise BackendError(
                f"the state of trial {trial.number} at step {trial.steps} is not stored; states "
                "are kept where the tuner decides and where trials part, not where a trial "
                "reports in passing"
            )
        return state

    def best_model(self) -> Trainable:
        """Return a fresh trainable that holds the state of the best report.

        Raises:
            BackendError: No trial gave a report, or the state is not stored.
        """
        if self.best is None:
            raise BackendError("there is no best trial: none gave a report")
        state = self.load_state(self.best)
        trainable = deepcopy(cast("Trainable", self.study.trainable))
        trainable.setup(self.best.configuration.at(0), self.study.training_seed)
        trainable.load_state_dict(state)
        return trainable

    def rows(self) -> list[dict[str, object]]:
        """Return one row a trial: what it was, how it ended, and its best report."""
        return [_row(trial) for trial in self.trials]

    def to_dataframe(self) -> "DataFrame":
        """Return `rows` as a pandas data frame, which must be installed."""
        pandas = import_module("pandas")
        return pandas.DataFrame(self.rows())


def _row(trial: TrialResult) -> dict[str, object]:
    return {
        "trial": trial.number,
        "status": trial.status.value,
        "reason": trial.reason.partition("\n")[0],
        **{f"hp.{name}": text for name, text in trial.configuration.text.items()},
        **{f"metric.{name}": value for name, value in trial.metrics.items()},
        "steps": trial.steps,
        "steps_requested": trial.steps_requested,
    }


def results_of(core: StudyCore, timeline: Timeline, states: States | None = None) -> list[Result]:
    """Return the results of all studies of a core, in their order."""
    return [_result(core, run, timeline, states) for run in core.runs]


def _result(core: StudyCore, run: StudyRun, timeline: Timeline, states: States | None) -> Result:
    only = frozenset({run.index})
    trials = tuple(_trial(record) for record in run.trials)
    reported = [
        (report.score, report.step, -trial.number) for trial in trials for report in trial.reports
    ]
    best = trials[-max(reported)[2]] if reported else None
    return Result(
        study=run.study,
        status=run.status,
        reason=run.reason,
        trials=trials,
        best=best,
        steps_requested=steps_requested(core.plan, only),
        steps_unique=steps_unique(core.plan, only),
        steps_executed=core.plan.steps_executed,
        steps_recomputed=core.plan.steps_recomputed,
        makespan_s=core.now,
        worker_seconds=core.worker_seconds,
        timeline=timeline,
        states=states,
    )


def _trial(record: TrialRecord) -> TrialResult:
    reports = tuple(sorted(record.reports, key=lambda report: report.step))
    best = max(reports, key=lambda report: (report.score, report.step), default=None)
    return TrialResult(
        number=record.id.number,
        configuration=record.configuration,
        status=record.status,
        reason=record.reason,
        reports=reports,
        metrics=best.metrics if best is not None else {},
        steps=best.step if best is not None else 0,
        steps_requested=record.planned.furthest,
        parent=record.branch.parent if record.branch is not None else None,
        branch_step=record.branch.step if record.branch is not None else 0,
    )
