"""The median stopping rule: end a trial that does worse than most of those before it did.

References:
    [1] Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017,
        section 3.2.2. A pending trial is stopped at step s if its best objective value by step s is
        strictly worse than the median, over all completed trials, of the running average of the
        objective values that each reported up to step s.

What is compared here, word by word: *objective values* are the scores reported so far, every
`report_every` steps, each counted once in the average; *completed* trials are those trained to
`max_steps`, so that those stopped, diverged, failed or still training count for nothing; the
*median* of an even number is the mean of the middle two. Averages and medians are exact fractions,
so no rounding makes equal trials differ.

Departures: no trial is stopped before `grace_steps`, nor before `min_trials` are completed. Trials
begin one at a time, as workers get free, so that later ones have something to be compared with.

Nothing is cut or stored where a trial reports in passing: a stopped trial ends at a step boundary
after its report, and whoever shares its steps goes on.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from math import inf
from typing import Self, final

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import whole
from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.newcomers import Newcomers
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from dasktune.units import Step


@final
@dataclass(frozen=True, slots=True)
class MedianStopping(Tuner):
    """Stop a trial whose best score is below the median of what completed trials had by then.

    Example:
        >>> MedianStopping(10, report_every=3, grace_steps=4).report_steps
        (3, 6, 9)
    """

    max_steps: Step
    """Steps of each trial that is not stopped, at least 1."""
    _: KW_ONLY
    report_every: int = 1
    """Report, and decide, every so many steps."""
    grace_steps: Step = 0
    """No trial is stopped before it has trained so many steps; below `max_steps`."""
    min_trials: int = 5
    """No trial is stopped before so many are completed, at least 1."""

    def __post_init__(self) -> None:
        whole(self.max_steps, "max_steps", 1)
        whole(self.report_every, "report_every", 1)
        whole(self.grace_steps, "grace_steps", 0)
        whole(self.min_trials, "min_trials", 1)
        if self.report_every > self.max_steps:
            raise InvalidStudyError(
                f"report_every is {self.report_every}; it must not be larger than max_steps, "
                f"which is {self.max_steps}"
            )
        if self.grace_steps >= self.max_steps:
            raise InvalidStudyError(
                f"grace_steps is {self.grace_steps}; it must be less than max_steps, which is "
                f"{self.max_steps}, or no trial would ever be stopped"
            )

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """Only the end: a trial that is stopped in passing needs no stored state."""
        return (self.max_steps,)

    @property
    def report_steps(self) -> tuple[Step, ...]:
        """Steps before the end whose metrics are reported in passing."""
        return tuple(range(self.report_every, self.max_steps, self.report_every))

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return that all trials are trained to the end: how many are stopped is not known."""
        return (n_trials,)

    def start(self, context: TunerContext) -> TunerRun:
        """Begin a run of this policy."""
        return _Run(self, Newcomers(context.n_trials))


class _Run(TunerRun):
    asks_on_demand = True

    def __init__(self, tuner: MedianStopping, newcomers: Newcomers) -> None:
        self._tuner = tuner
        self._newcomers = newcomers
        self._n_completed = 0
        self._scores: dict[int, dict[Step, float]] = {}  # of trials that train, by step
        self._best: dict[int, float] = {}  # of the same
        self._averages: dict[Step, list[Fraction]] = {step: [] for step in tuner.report_steps}

    def ask(self) -> Sequence[Request]:
        trial = self._newcomers.next()
        if trial is None:
            return ()
        self._scores[trial] = {}
        self._best[trial] = -inf
        tuner = self._tuner
        return (
            Request(
                trial=trial,
                step=tuner.max_steps,
                report_steps=tuner.report_steps,
                reason="trains to the end unless it falls behind",
            ),
        )

    def tell(self, report: Report) -> Sequence[Ending]:
        trial, step = report.trial, report.step
        if step == self._tuner.max_steps:
            self._complete(trial)
            reason = "trained to the end"
            return (Ending(trial=trial, status=TrialStatus.COMPLETED, reason=reason),)
        self._scores[trial][step] = report.score
        self._best[trial] = max(self._best[trial], report.score)
        if not self._is_behind(trial, step):
            return ()
        self._forget(trial)
        reason = (
            f"its best score by step {step} is below the median of the running averages of "
            f"{self._n_completed} completed trials"
        )
        return (Ending(trial=trial, status=TrialStatus.STOPPED, reason=reason),)

    def _is_behind(self, trial: int, step: Step) -> bool:
        tuner = self._tuner
        if step < tuner.grace_steps or self._n_completed < tuner.min_trials:
            return False
        averages = self._averages[step]
        high = len(averages) // 2
        low = (len(averages) - 1) // 2
        return 2 * Fraction(self._best[trial]) < averages[low] + averages[high]

    def _complete(self, trial: int) -> None:
        """Let later trials be compared with one that has heard all its reports."""
        total = Fraction(0)
        for n, (step, score) in enumerate(sorted(self._scores[trial].items()), start=1):
            total += Fraction(score)
            insort(self._averages[step], total / n)
        self._n_completed += 1
        self._forget(trial)

    def _forget(self, trial: int) -> None:
        del self._scores[trial]
        del self._best[trial]

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:  # noqa: ARG002
        if not self._newcomers.drop(trial):
            self._forget(trial)
        return ()

    def copy(self) -> Self:
        twin = type(self)(self._tuner, self._newcomers.copy())
        twin._n_completed = self._n_completed
        twin._scores = {trial: scores.copy() for trial, scores in self._scores.items()}
        twin._best = self._best.copy()
        twin._averages = {step: averages.copy() for step, averages in self._averages.items()}
        return twin
