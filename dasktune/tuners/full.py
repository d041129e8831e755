"""Train every trial to the end: no early stopping.

The baseline of every comparison, and what grid search over few configurations wants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import whole
from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from dasktune.units import Step


@final
@dataclass(frozen=True, slots=True)
class FullTraining(Tuner):
    """Train each trial for `max_steps` steps.

    Example:
        >>> FullTraining(10, report_every=4).report_steps
        (4, 8)
    """

    compares = False

    max_steps: Step
    """Steps of each trial, at least 1."""
    report_every: int | None = None
    """Report metrics in passing every so many steps; None: only at the end."""

    def __post_init__(self) -> None:
        whole(self.max_steps, "max_steps", 1)
        if self.report_every is not None:
            whole(self.report_every, "report_every", 1)
            if self.report_every > self.max_steps:
                raise InvalidStudyError(
                    f"report_every is {self.report_every}; it must not be larger than max_steps, "
                    f"which is {self.max_steps}"
                )

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """Only the end: nothing is decided before."""
        return (self.max_steps,)

    @property
    def report_steps(self) -> tuple[Step, ...]:
        """Steps before the end whose metrics are reported in passing."""
        if self.report_every is None:
            return ()
        return tuple(range(self.report_every, self.max_steps, self.report_every))

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return that all trials are trained to the end."""
        return (n_trials,)

    def start(self, context: TunerContext) -> "TunerRun":
        """Begin a run of this policy."""
        return _Run(self, context.n_trials, asks_on_demand=not context.draws_ahead)


class _Run(TunerRun):
    def __init__(self, tuner: FullTraining, n_trials: int, *, asks_on_demand: bool) -> None:
        self.asks_on_demand = asks_on_demand
        self._tuner = tuner
        self._n_trials = n_trials
        self._n_asked = 0

    def ask(self) -> Sequence[Request]:
        n = min(self._n_trials, self._n_asked + 1 if self.asks_on_demand else self._n_trials)
        asked = range(self._n_asked, n)
        self._n_asked = n
        step, reports = self._tuner.max_steps, self._tuner.report_steps
        return [
            Request(trial=number, step=step, report_steps=reports, reason="full training")
            for number in asked
        ]

    def tell(self, report: Report) -> Sequence[Ending]:
        if report.step < self._tuner.max_steps:
            return ()
        return (
            Ending(trial=report.trial, status=TrialStatus.COMPLETED, reason="trained to the end"),
        )

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:  # noqa: ARG002
        return ()

    def copy(self) -> Self:
        twin = type(self)(self._tuner, self._n_trials, asks_on_demand=self.asks_on_demand)
        twin._n_asked = self._n_asked
        return twin
