"""Synchronous successive halving: at each rung, wait for all, and let the best go on.

References:
    [1] Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter
        Optimization", AISTATS 2016, algorithm 1. Symbols: n trials, eta `reduction_factor`.
    [2] Li et al., "Hyperband", JMLR 18(185), 2018: rungs at r eta^k, k = 0, 1, … The last rung is
        always at `max_steps` here, also where r eta^k does not meet it.

At least one trial goes on from each rung, so that a study with fewer trials than eta ends with a
fully trained one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Self, final

from dasktune.errors import InvalidStudyError
from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.rungs import (
    Ranking,
    Ties,
    check_factor,
    check_rungs,
    check_ties,
    n_promoted,
    rung_steps,
    survivors,
)
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from dasktune.units import Step


@final
@dataclass(frozen=True, slots=True, init=False)
class SuccessiveHalving(Tuner):
    """Compare all trials at each rung, and go on with the best floor(n / reduction_factor).

    Example:
        >>> SuccessiveHalving(min_steps=2, max_steps=18, reduction_factor=3).rungs
        (2, 6, 18)
        >>> SuccessiveHalving(rungs=[5, 20], reduction_factor=4).rungs
        (5, 20)
    """

    rungs: tuple[Step, ...]
    """Steps at which trials are compared, ascending; at the last they are complete."""
    reduction_factor: float
    """eta: one of so many trials goes on from a rung; > 1."""
    ties: Ties
    """How equal scores are ranked."""

    def __init__(
        self,
        *,
        rungs: Sequence[Step] | None = None,
        min_steps: Step | None = None,
        max_steps: Step | None = None,
        reduction_factor: float = 3,
        ties: Ties = "number",
    ) -> None:
        check_factor(reduction_factor)
        check_ties(ties)
        if rungs is not None and (min_steps is not None or max_steps is not None):
            raise InvalidStudyError(
                f"rungs is {rungs!r} and min_steps or max_steps is given too; "
                "give either the rungs or both bounds"
            )
        if rungs is not None:
            steps = check_rungs(rungs)
        elif min_steps is not None and max_steps is not None:
            steps = rung_steps(min_steps, max_steps, reduction_factor)
        else:
            raise InvalidStudyError(
                f"min_steps is {min_steps!r} and max_steps is {max_steps!r}; "
                "give both bounds, or the rungs"
            )
        object.__setattr__(self, "rungs", steps)
        object.__setattr__(self, "reduction_factor", reduction_factor)
        object.__setattr__(self, "ties", ties)

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """The rungs."""
        return self.rungs

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return the trials on each rung: 1, 1 / eta, 1 / eta² … of all, rounded down each time."""
        return survivors(n_trials, len(self.decision_steps), self.reduction_factor)

    def start(self, context: TunerContext) -> "TunerRun":
        """Begin a run of this policy."""
        return _Run(self, list(range(context.n_trials)))


class _Run(TunerRun):
    asks_on_demand = False

    def __init__(self, tuner: SuccessiveHalving, entering: list[int]) -> None:
        self._tuner = tuner
        self._rung = 0
        self._entering: list[int] = entering  # to be asked for the rung
        self._pending: set[int] = set(entering)  # those that have not finished the rung
        self._reports: dict[int, Report | None] = {}
        self._standing = ""  # how the last rung was decided

    def ask(self) -> Sequence[Request]:
        asked, self._entering = self._entering, []
        step = self._tuner.rungs[self._rung]
        reason = f"rung {self._rung}: {len(asked)} trials train to step {step}{self._standing}"
        return [Request(trial=number, step=step, reason=reason) for number in asked]

    def tell(self, report: Report) -> Sequence[Ending]:
        self._reports[report.trial] = report
        return self._finish(report.trial)

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        if status is not TrialStatus.STOPPED:
            self._reports[trial] = None
        if trial in self._entering:
            self._entering.remove(trial)
        return self._finish(trial)

    def _finish(self, trial: int) -> Sequence[Ending]:
        self._pending.discard(trial)
        if self._pending:
            return ()
        reports, self._reports = self._reports, {}
        if self._rung == len(self._tuner.rungs) - 1:
            return [
                Ending(trial=n, status=TrialStatus.COMPLETED, reason="trained to the last rung")
                for n, told in sorted(reports.items())
                if told is not None
            ]
        return self._halve(reports)

    def _halve(self, reports: dict[int, Report | None]) -> Sequence[Ending]:
        """Rank the rung in trial order; let the best go on and end the others."""
        ranking = Ranking(self._tuner.ties)
        for number, report in sorted(reports.items()):
            if report is None:
                ranking.add(number, -inf)
            else:
                ranking.add(number, report.score, report.branch)
        best = ranking.best(max(1, n_promoted(len(reports), self._tuner.reduction_factor)))
        step = self._tuner.rungs[self._rung]
        self._standing = f", the best {len(best)} of {len(reports)} at step {step}"
        going_on = set(best)
        self._rung += 1
        self._entering = sorted(best)
        self._pending = set(best)
        return [
            Ending(
                trial=number,
                status=TrialStatus.STOPPED,
                reason=f"not among the best {len(best)} of {len(reports)} at step {step}: "
                f"rank {ranking.rank(number) + 1}",
            )
            for number, report in sorted(reports.items())
            if report is not None and number not in going_on
        ]

    def copy(self) -> Self:
        twin = type(self)(self._tuner, self._entering.copy())
        twin._rung = self._rung
        twin._pending = self._pending.copy()
        twin._reports = self._reports.copy()
        twin._standing = self._standing
        return twin
