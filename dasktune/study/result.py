"""What a study gave: its trials, the best of them, and what sharing saved.

Made from a core at any moment; the same object whether the study ran on machines or in the
simulator.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, cast

from dasktune.errors import BackendError
from dasktune.plan.history import key_of
from dasktune.plan.merging import steps_requested, steps_unique
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point
from dasktune.study.commands import StudyStatus
from dasktune.study.core import StudyCore
from dasktune.study.front import Scores, front_of
from dasktune.study.ports import States, Trainable
from dasktune.study.rows import Of, Row, columns_of, rows_of
from dasktune.study.shares import Shares, shares_of
from dasktune.study.study import Study
from dasktune.study.study_run import StudyRun
from dasktune.study.timeline import Timeline
from dasktune.study.trial_record import TrialRecord
from dasktune.trial import Report, TrialStatus
from dasktune.units import Seconds, Step

if TYPE_CHECKING:
    from pandas import DataFrame

    from dasktune.study.optuna_export import Evaluator, OptunaStudy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What became of one trial."""

    number: int
    """Its number in the study, from 0."""
    configuration: Configuration
    """Its hyper-parameters, as schedules."""
    point: Point
    """The draw that they come from; of a trial that branched off, from `branch_step` on."""
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
    """The furthest step that it was asked for, or at which its tuner ended it on the way."""
    steps_new: int = 0
    """Of these, steps that no trial of a lower number was asked for."""
    seconds: Seconds = 0.0
    """Seconds that workers were busy with stages of which it was the first, by number, to be asked
    for the last step: what is shared counts for one trial only."""
    duplicate_of: int | None = None
    """The first trial with the same values at every step of the study, however they are written;
    None if this is the first. A duplicate costs nothing, and reports the same."""
    parent: int | None = None
    """Number of the trial that it branched off, if it did; up to `branch_step` they are one."""
    branch_step: Step = 0
    """The first step at which it has values of its own."""

    @property
    def steps_shared(self) -> int:
        """Steps it was asked for that a trial of a lower number was asked for too."""
        return self.steps_requested - self.steps_new


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
    """The trial with the best report, by the metric that ranks trials: of equal ones the one that
    is better in the other metrics, if there are any, then the one at the later step, then the one
    of the lower number. None if no trial gave a report."""
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
    index: int = 0
    """Place of the study among those run together."""

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

    @property
    def pareto_front(self) -> tuple[TrialResult, ...]:
        """The trials that gave a report which no report of any trial dominates, by number.

        A report dominates another if it is at least as good in every tuned metric and better in
        one. `metrics` and `steps` of a trial in the front are those of such a report; of several
        the one that is best as in `best`. With one metric: the trials that reached the best value.
        """
        front = front_of(_scores(report) for trial in self.trials for report in trial.reports)
        found = []
        for trial in self.trials:
            kept = [report for report in trial.reports if _scores(report) in front]
            if kept:
                report = max(kept, key=_merit)
                found.append(replace(trial, metrics=report.metrics, steps=report.step))
        return tuple(found)

    def rows(self, of: Of = "trials") -> list[Row]:
        """Return what `to_dataframe` shows, as mappings from columns to plain values or None.

        Raises:
            InvalidStudyError: `of` is something else.
        """
        return rows_of(self, of)

    def to_dataframe(self, of: Of = "trials") -> "DataFrame":
        """Return a pandas data frame with one row a trial, or one row a report.

        Columns for trials, in this order:

        - `trial`, `status`, `reason` (first line);
        - `hp.NAME`: the value of a hyper-parameter that is constant, the text of a schedule;
        - `metric.NAME`: every metric of the best report, the tuned ones first;
        - `NAME@STEP`: every tuned metric at every step at which a trial reported;
        - `steps`: step of the best report; `steps_requested`: the furthest step asked for;
        - `steps_new` and `steps_shared`: of these, those that no trial of a lower number was asked
          for, and the rest; all `steps_new` are together `steps_unique`;
        - `seconds`: of workers, for stages of which it was the first to be asked for the last
          step; never more than `worker_seconds` in all, which counts stages of other studies too;
        - `duplicate_of`: number of the first trial with the same values at every step;
        - `parent`, `branch_step`: the trial that it branched off, and where.

        Columns for reports, curves by step: `trial`, `step`, `metric.NAME`, and `score`, the metric
        that ranks trials with its sign turned if less is better. Nothing is NaN but what is
        missing.

        Args:
            of: "trials" or "reports".

        Raises:
            InvalidStudyError: `of` is something else.
            BackendError: pandas is not installed.
        """
        pandas = _library("pandas", "pandas")
        frame = pandas.DataFrame(self.rows(of), columns=columns_of(self, of))
        whole = [name for name in ("duplicate_of", "parent", "branch_step") if name in frame]
        return frame.astype(dict.fromkeys(whole, "Int64"))

    def to_optuna(self) -> "OptunaStudy":
        """Return the study as one of Optuna's, in memory, for its plots, importances, dashboard.

        Trials keep their numbers. Parameters are the numbers drawn, by path, and the texts of
        options of choices; values are the tuned metrics of the best report; intermediate values
        the metric that ranks trials, by step. Completed trials are COMPLETE, stopped ones PRUNED,
        diverged and failed ones FAIL. User attributes: `configuration`, `status`, `reason`,
        `steps`, and where there is one `duplicate_of`, `parent` with `branch_step`. Times are
        seconds after 1970-01-01.

        Raises:
            BackendError: optuna is not installed.
        """
        study: OptunaStudy = _optuna().optuna_study(self)
        return study

    def importances(self, evaluator: "Evaluator | None" = None) -> dict[str, float]:
        """Return how much each drawn number matters for the metric that ranks trials.

        Args:
            evaluator: One of Optuna's; None: PED-ANOVA, which asks what tells the best tenth of
                the completed trials from all of them (Watanabe et al., IJCAI 2023).

        Returns:
            Shares of 1 by path, the greatest first; of the parameters that all completed trials
            have.

        Raises:
            BackendError: optuna is not installed, or fewer than three trials were completed.
        """
        shares: dict[str, float] = _optuna().importances(self, evaluator)
        return shares


def _optuna() -> ModuleType:
    _library("optuna", "optuna")
    return import_module("dasktune.study.optuna_export")


def _library(name: str, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise BackendError(
            f"{name} is not installed: pip install 'dasktune[{extra}]' brings it"
        ) from error


def results_of(core: StudyCore, timeline: Timeline, states: States | None = None) -> list[Result]:
    """Return the results of all studies of a core, in their order."""
    return [_result(core, run, timeline, states) for run in core.runs]


def _result(core: StudyCore, run: StudyRun, timeline: Timeline, states: States | None) -> Result:
    only = frozenset({run.index})
    shares = shares_of(core.plan, timeline, run.index)
    trials = tuple([_trial(record, shares) for record in run.trials])
    reported = [(*_merit(report), -trial.number) for trial in trials for report in trial.reports]
    best = trials[-max(reported)[-1]] if reported else None
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
        index=run.index,
    )


def _merit(report: Report) -> tuple[float, Scores, Step]:
    """Return what reports are compared by, greater is better."""
    return report.score, _scores(report), report.step


def _scores(report: Report) -> Scores:
    return report.scores or (report.score,)


def _trial(record: TrialRecord, shares: Shares) -> TrialResult:
    number = record.id.number
    reports = tuple(sorted(record.reports, key=lambda report: report.step))
    best = max(reports, key=_merit, default=None)
    return TrialResult(
        number=number,
        configuration=record.configuration,
        point=record.point,
        status=record.status,
        reason=record.reason,
        reports=reports,
        metrics=best.metrics if best is not None else {},
        steps=best.step if best is not None else 0,
        steps_requested=record.planned.counted,
        steps_new=shares.steps_new.get(number, 0),
        seconds=shares.seconds.get(number, 0.0),
        duplicate_of=shares.duplicate_of.get(number),
        parent=record.branch.parent if record.branch is not None else None,
        branch_step=record.branch.step if record.branch is not None else 0,
    )
