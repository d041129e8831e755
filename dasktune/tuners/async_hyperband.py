"""Asynchronous Hyperband: the brackets of Hyperband, each of them ASHA, all at once.

Like Hyperband it bets on several first rungs, and like ASHA it never waits for a rung to fill. A
trial belongs to one bracket, by its number, begins at that bracket's first rung and is compared
with the trials of that bracket only. A free worker gets, of all brackets, the promotion from the
highest rung, from the earlier bracket of two; if there is none, the next trial begins.

References:
    [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2
        and the paragraphs on asynchronous Hyperband, which loops through brackets of ASHA.
    [2] Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization",
        JMLR 18(185), 2018, algorithm 1: the brackets.

Departure: [1] moves on to the next bracket when the budget of the last one is used up; here trials
are dealt to all brackets in proportion to their sizes in [2], so that a study may end at any
number of trials, and no bracket waits for another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.brackets import (
    Bracket,
    bracket_table,
    check_brackets,
    in_proportion,
    n_trained_through,
)
from dasktune.tuners.ladder import Ladder
from dasktune.tuners.newcomers import Newcomers
from dasktune.tuners.rungs import Ties, check_ties
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from dasktune.units import Step


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncHyperband(Tuner):
    """Run brackets of ASHA side by side, from bold to careful.

    Example:
        >>> tuner = AsyncHyperband(min_steps=1, max_steps=9, reduction_factor=3)
        >>> [(bracket.n_trials, bracket.rungs) for bracket in tuner.brackets]
        [(9, (1, 3, 9)), (5, (3, 9)), (3, (9,))]
        >>> [tuner.bracket_of(trial) for trial in range(6)]
        [0, 1, 0, 2, 0, 1]
    """

    min_steps: Step
    """r: no rung is earlier; at least 1."""
    max_steps: Step
    """R: the last rung of every bracket; at least `min_steps`."""
    reduction_factor: float = 3
    """eta: one of so many trials goes on from a rung; at least 2."""
    ties: Ties = "number"
    """How equal scores are ranked."""

    def __post_init__(self) -> None:
        check_brackets(self.min_steps, self.max_steps, self.reduction_factor)
        check_ties(self.ties)

    @property
    def brackets(self) -> tuple[Bracket, ...]:
        """The brackets; their numbers of trials are the proportions in which trials are dealt."""
        return bracket_table(self.min_steps, self.max_steps, self.reduction_factor)

    def bracket_of(self, trial: int) -> int:
        """Return the place among `brackets` of a trial's."""
        n = 1 << trial.bit_length()  # so that neighbours are dealt once
        return in_proportion(self.brackets, n)[trial]

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """The rungs of all brackets, which are those of the first."""
        return self.brackets[0].rungs

    def steps_of(self, trial: int) -> tuple[Step, ...]:
        """Return the rungs of the trial's bracket."""
        return self.brackets[self.bracket_of(trial)].rungs

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return the trials that train through each rung, whether or not it is one of theirs."""
        dealt = in_proportion(self.brackets, n_trials)
        parts = [(bracket, dealt.count(i)) for i, bracket in enumerate(self.brackets)]
        return n_trained_through(self.decision_steps, parts, self.reduction_factor)

    def start(self, context: TunerContext) -> TunerRun:
        """Begin a run of this policy."""
        ladders = [
            Ladder(
                bracket.rungs,
                self.reduction_factor,
                self.ties,
                name=f"bracket {len(bracket.rungs) - 1}",  # the paper's s
            )
            for bracket in self.brackets
        ]
        dealt = in_proportion(self.brackets, context.n_trials)
        return _Run(ladders, dealt, Newcomers(context.n_trials))


class _Run(TunerRun):
    asks_on_demand = True

    def __init__(self, ladders: list[Ladder], dealt: tuple[int, ...], newcomers: Newcomers) -> None:
        self._ladders = ladders
        self._dealt = dealt  # places of ladders by trial; never changed
        self._newcomers = newcomers

    def ask(self) -> Sequence[Request]:
        steps = [ladder.promotable() or 0 for ladder in self._ladders]
        highest = max(steps)
        if highest:
            return (self._ladders[steps.index(highest)].promote(),)
        trial = self._newcomers.next()
        return () if trial is None else (self._of(trial).begin(trial),)

    def _of(self, trial: int) -> Ladder:
        return self._ladders[self._dealt[trial]]

    def tell(self, report: Report) -> Sequence[Ending]:
        return self._of(report.trial).tell(report)

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        is_new = self._newcomers.drop(trial)
        self._of(trial).end(trial, status, has_begun=not is_new)
        return ()

    def copy(self) -> Self:
        ladders = [ladder.copy() for ladder in self._ladders]
        return type(self)(ladders, self._dealt, self._newcomers.copy())
