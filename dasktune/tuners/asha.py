"""Asynchronous successive halving by promotion: never wait for a rung to fill.

Whenever a worker is free, the best trial that may be promoted is; if there is none, another trial
begins at the first rung. A trial that is not promoted is paused, not stopped: as its rung grows it
may yet be among the best.

References:
    [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
        algorithm 2. Symbols: r `min_steps`, R `max_steps`, eta `reduction_factor`; a trial of a
        rung with n reports may go on while it is among the best floor(n / eta).

Departure: trials that diverged or failed count among the n of their rung, behind all others, so
that a space with many of them does not starve the promotions; one that diverged before it was asked
for, since it shares a state with another, counts at the first rung.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Self, final

from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.rungs import (
    Ranking,
    Ties,
    check_factor,
    check_ties,
    n_promoted,
    rung_steps,
    survivors,
)
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from dasktune.units import Step


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ASHA(Tuner):
    """Promote a trial as soon as it is among the best of those that finished its rung.

    Example:
        >>> ASHA(min_steps=2, max_steps=18, reduction_factor=3).decision_steps
        (2, 6, 18)
    """

    min_steps: Step
    """r: the first rung, at least 1."""
    max_steps: Step
    """R: the last rung; at least `min_steps`."""
    reduction_factor: float = 3
    """eta: one of so many trials goes on from a rung; > 1."""
    ties: Ties = "number"
    """How equal scores are ranked."""

    def __post_init__(self) -> None:
        check_factor(self.reduction_factor)
        check_ties(self.ties)
        rung_steps(self.min_steps, self.max_steps, self.reduction_factor)

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """The rungs."""
        return rung_steps(self.min_steps, self.max_steps, self.reduction_factor)

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return the trials on each rung: 1, 1 / eta, 1 / eta² … of all, rounded down each time."""
        return survivors(n_trials, len(self.decision_steps), self.reduction_factor)

    def start(self, context: TunerContext) -> "TunerRun":
        """Begin a run of this policy."""
        return _Run(self, context.n_trials)


class _Rung:
    """Who has finished one rung, and who of them was not promoted yet."""

    __slots__ = ("paused", "ranking", "step")

    def __init__(self, step: Step, ties: Ties) -> None:
        self.step = step
        self.ranking = Ranking(ties)
        self.paused: list[tuple[float, int, int]] = []  # a heap of places, best first

    def finish(self, report: Report) -> None:
        heappush(self.paused, self.ranking.add(report.trial, report.score, report.branch))

    def promotable(self, reduction_factor: float) -> int | None:
        """Return the best trial not promoted yet if it is among the best floor(n / eta)."""
        if not self.paused:
            return None
        best = self.paused[0][2]
        if self.ranking.rank(best) >= n_promoted(len(self.ranking), reduction_factor):
            return None
        return best

    def copy(self, ties: Ties) -> "_Rung":
        twin = _Rung(self.step, ties)
        twin.ranking = self.ranking.copy()
        twin.paused = self.paused.copy()
        return twin


class _Run(TunerRun):
    asks_on_demand = True

    def __init__(self, tuner: ASHA, n_trials: int) -> None:
        self._tuner = tuner
        self._n_trials = n_trials
        self._n_begun = 0
        self._over: set[int] = set()  # trials that ended before they began
        self._rungs = [_Rung(step, tuner.ties) for step in tuner.decision_steps]
        self._rung_of: dict[int, int] = {}  # of trials that wait for a report

    def ask(self) -> Sequence[Request]:
        for index in range(len(self._rungs) - 2, -1, -1):  # the highest rung first
            rung = self._rungs[index]
            trial = rung.promotable(self._tuner.reduction_factor)
            if trial is not None:
                heappop(rung.paused)
                n = len(rung.ranking)
                best = n_promoted(n, self._tuner.reduction_factor)
                return self._request(
                    trial, index + 1, f"promoted: among the best {best} of {n} at step {rung.step}"
                )
        while self._n_begun in self._over:
            self._n_begun += 1
        if self._n_begun < self._n_trials:
            self._n_begun += 1
            return self._request(self._n_begun - 1, 0, "begins at the first rung")
        return ()

    def _request(self, trial: int, rung: int, reason: str) -> Sequence[Request]:
        self._rung_of[trial] = rung
        return (Request(trial=trial, step=self._rungs[rung].step, reason=reason),)

    def tell(self, report: Report) -> Sequence[Ending]:
        index = self._rung_of.pop(report.trial)
        if index == len(self._rungs) - 1:
            return (
                Ending(
                    trial=report.trial,
                    status=TrialStatus.COMPLETED,
                    reason="trained to the last rung",
                ),
            )
        self._rungs[index].finish(report)
        return ()

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        if trial < self._n_begun and trial not in self._rung_of:
            self._drop_paused(trial)
            return ()
        if trial >= self._n_begun:
            self._over.add(trial)
        index = self._rung_of.pop(trial, 0)
        if status is not TrialStatus.STOPPED:
            self._rungs[index].ranking.add(trial, -inf)
        return ()

    def _drop_paused(self, trial: int) -> None:
        """Forget a paused trial: it can diverge when a state that it shares does."""
        for rung in self._rungs:
            rung.paused = sorted(place for place in rung.paused if place[2] != trial)

    def copy(self) -> Self:
        twin = type(self)(self._tuner, self._n_trials)
        twin._n_begun = self._n_begun
        twin._over = self._over.copy()
        twin._rungs = [rung.copy(self._tuner.ties) for rung in self._rungs]
        twin._rung_of = self._rung_of.copy()
        return twin
