"""Hyperband: successive halving several times over, with other numbers of trials and first rungs.

How many trials to begin and how early to compare them is a bet on how soon scores tell. Hyperband
makes each bet once, at about equal cost: its first bracket begins many trials and compares them
early, its last trains a few to the end.

The brackets follow one another: all trials of one are over before the next begins, so that a
sampler that learns from reports proposes the trials of a bracket knowing all before it (BOHB).
Within a bracket each rung waits for all its trials; where workers would idle, and the sampler
learns nothing, `AsyncHyperband` keeps them busy.

References:
    [1] Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization",
        JMLR 18(185), 2018, algorithm 1. Symbols: R `max_steps`, eta `reduction_factor`.
    [2] Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale",
        ICML 2018.

Departures: at least one trial goes on from each rung, which only concerns a bracket that is not
full. The brackets begin again from the first while there are trials left, and the last may have
fewer trials than it has room for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.brackets import (
    Bracket,
    bracket_of,
    bracket_table,
    check_brackets,
    in_turn,
    n_trained_through,
)
from dasktune.tuners.halving import HalvingRun
from dasktune.tuners.rungs import Ties, check_ties
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from dasktune.units import Step


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperband(Tuner):
    """Run brackets of successive halving one after the other, from bold to careful.

    A round of the brackets below takes 143 trials; a study of fewer leaves the last brackets out.

    Example:
        >>> tuner = Hyperband(min_steps=1, max_steps=81, reduction_factor=3)
        >>> [(bracket.n_trials, bracket.rungs) for bracket in tuner.brackets[2:]]
        [(15, (9, 27, 81)), (8, (27, 81)), (5, (81,))]
        >>> sum(bracket.n_trials for bracket in tuner.brackets)
        143
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
        """One round of brackets, in the order in which they run."""
        return bracket_table(self.min_steps, self.max_steps, self.reduction_factor)

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """The rungs of all brackets, which are those of the first."""
        return self.brackets[0].rungs

    def steps_of(self, trial: int) -> tuple[Step, ...]:
        """Return the rungs of the trial's bracket."""
        return bracket_of(self.brackets, trial).rungs

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return the trials that train through each rung, whether or not it is one of theirs."""
        parts = [(bracket, len(trials)) for bracket, trials in in_turn(self.brackets, n_trials)]
        return n_trained_through(self.decision_steps, parts, self.reduction_factor)

    def start(self, context: TunerContext) -> TunerRun:
        """Begin a run of this policy."""
        halvings: list[HalvingRun] = []
        bracket_of: list[int] = []
        for bracket, trials in in_turn(self.brackets, context.n_trials):
            name = f"bracket {len(bracket.rungs) - 1}"  # the paper's s
            bracket_of += [len(halvings)] * len(trials)
            halvings.append(
                HalvingRun(bracket.rungs, self.reduction_factor, self.ties, trials, name)
            )
        return _Run(halvings, bracket_of)


class _Run(TunerRun):
    asks_on_demand = False

    def __init__(self, halvings: list[HalvingRun], bracket_of: list[int]) -> None:
        self._halvings = halvings
        self._bracket_of = bracket_of  # by trial; never changed
        self._at = 0

    def ask(self) -> Sequence[Request]:
        while self._at < len(self._halvings):
            if not self._halvings[self._at].is_over:
                return self._halvings[self._at].ask()
            self._at += 1
        return ()

    def tell(self, report: Report) -> Sequence[Ending]:
        return self._halvings[self._bracket_of[report.trial]].tell(report)

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        return self._halvings[self._bracket_of[trial]].end(trial, status)

    def copy(self) -> Self:
        twin = type(self)([halving.copy() for halving in self._halvings], self._bracket_of)
        twin._at = self._at
        return twin
