"""Asynchronous successive halving: never wait for a rung to fill.

Two variants. By *promotion*: whenever a worker is free, the best trial that may be promoted is; if
there is none, another trial begins at the first rung. A trial that is not promoted is paused, not
stopped: as its rung grows it may yet be among the best. By *stopping*: a trial goes on from rung to
rung by itself, and is stopped for good at the first at which too many are better; nothing waits,
but the first trials of a rung go on with little to be compared with.

References:
    [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
        algorithm 2: promotion. Symbols: r `min_steps`, R `max_steps`, eta `reduction_factor`; a
        trial of a rung with n reports may go on while it is among the best floor(n / eta).
    [2] Salinas et al., "Syne Tune: A Library for Large Scale Hyperparameter Tuning and Reproducible
        Research", AutoML 2022, asynchronous Hyperband of type "stopping": a trial goes on if and
        only if its score is at or above the (1 - 1 / eta) quantile, linearly interpolated, of all
        scores told at the rung so far, its own among them. Of n scores that is: at most
        floor((n - 1) / eta) are better. The first goes on always, equals of one that does too.

Departure: trials that diverged or failed count among the n of their rung, behind all others, so
that a space with many of them does not starve the promotions; one that diverged before it was asked
for, since it shares a state with another, counts at the first rung.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, Self, TypeAlias, final, get_args

from dasktune.errors import InvalidStudyError
from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.ladder import Ladder
from dasktune.tuners.newcomers import Newcomers
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

Variant: TypeAlias = Literal["promotion", "stopping"]
"""Whether trials pause at each rung until they may go on, or go on until they may not."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ASHA(Tuner):
    """Let a trial go on as soon as it is among the best of those that finished its rung.

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
    """How equal scores are ranked; the stopping variant treats them equally."""
    variant: Variant = "promotion"
    """Whether trials pause at each rung until they may go on, or go on until they may not."""

    def __post_init__(self) -> None:
        check_factor(self.reduction_factor)
        check_ties(self.ties)
        if self.variant not in get_args(Variant):
            raise InvalidStudyError(
                f"variant is {self.variant!r}; it must be 'promotion' or 'stopping'"
            )
        if self.variant == "stopping" and self.ties != "number":
            raise InvalidStudyError(
                f"ties is {self.ties!r} and variant 'stopping', which lets equal scores go on or "
                "stop together; leave ties out"
            )
        rung_steps(self.min_steps, self.max_steps, self.reduction_factor)

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """The rungs."""
        return rung_steps(self.min_steps, self.max_steps, self.reduction_factor)

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return the trials on each rung: 1, 1 / eta, 1 / eta² … of all, rounded down each time."""
        return survivors(n_trials, len(self.decision_steps), self.reduction_factor)

    def start(self, context: TunerContext) -> TunerRun:
        """Begin a run of this policy."""
        newcomers = Newcomers(context.n_trials)
        if self.variant == "stopping":
            return _Stopping(self.decision_steps, self.reduction_factor, newcomers)
        ladder = Ladder(self.decision_steps, self.reduction_factor, self.ties)
        return _Promotion(ladder, newcomers)


class _Promotion(TunerRun):
    asks_on_demand = True

    def __init__(self, ladder: Ladder, newcomers: Newcomers) -> None:
        self._ladder = ladder
        self._newcomers = newcomers

    def ask(self) -> Sequence[Request]:
        if self._ladder.promotable() is not None:
            return (self._ladder.promote(),)
        trial = self._newcomers.next()
        return () if trial is None else (self._ladder.begin(trial),)

    def tell(self, report: Report) -> Sequence[Ending]:
        return self._ladder.tell(report)

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        is_new = self._newcomers.drop(trial)
        self._ladder.end(trial, status, has_begun=not is_new)
        return ()

    def copy(self) -> Self:
        return type(self)(self._ladder.copy(), self._newcomers.copy())


class _Stopping(TunerRun):
    asks_on_demand = True

    def __init__(
        self, rungs: tuple[Step, ...], reduction_factor: float, newcomers: Newcomers
    ) -> None:
        self._rungs = rungs
        self._factor = reduction_factor
        self._newcomers = newcomers
        self._rankings = [Ranking("number") for _ in rungs]
        self._rung_of: dict[int, int] = {}  # of trials that wait for a report
        self._going_on: deque[tuple[int, int, str]] = deque()  # trials, their next rungs, and why

    def ask(self) -> Sequence[Request]:
        """Let trials go on in the order in which they may, before new ones begin."""
        if self._going_on:
            return self._request(*self._going_on.popleft())
        trial = self._newcomers.next()
        return () if trial is None else self._request(trial, 0, "begins at the first rung")

    def _request(self, trial: int, rung: int, reason: str) -> Sequence[Request]:
        self._rung_of[trial] = rung
        return (Request(trial=trial, step=self._rungs[rung], reason=reason),)

    def tell(self, report: Report) -> Sequence[Ending]:
        rung = self._rung_of.pop(report.trial)
        if rung == len(self._rungs) - 1:
            return (
                Ending(
                    trial=report.trial,
                    status=TrialStatus.COMPLETED,
                    reason="trained to the last rung",
                ),
            )
        ranking = self._rankings[rung]
        ranking.add(report.trial, report.score)
        n, n_better = len(ranking), ranking.n_better(report.score)
        most = n_promoted(n - 1, self._factor)
        standing = f"{n_better} of {n} were better at step {report.step}"
        if n_better <= most:
            self._going_on.append((report.trial, rung + 1, f"goes on: {standing}"))
            return ()
        reason = f"{standing}; a trial goes on if at most {most} are"
        return (Ending(trial=report.trial, status=TrialStatus.STOPPED, reason=reason),)

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        is_new = self._newcomers.drop(trial)
        if is_new or trial in self._rung_of:
            rung = self._rung_of.pop(trial, 0)
            if status is not TrialStatus.STOPPED:
                self._rankings[rung].add(trial, -inf)
        else:  # it may go on, and has been counted
            self._going_on = deque([each for each in self._going_on if each[0] != trial])
        return ()

    def copy(self) -> Self:
        twin = type(self)(self._rungs, self._factor, self._newcomers.copy())
        twin._rankings = [ranking.copy() for ranking in self._rankings]
        twin._rung_of = self._rung_of.copy()
        twin._going_on = self._going_on.copy()
        return twin
