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
from typing import final

from dasktune.errors import InvalidStudyError
from dasktune.tuners.halving import HalvingRun
from dasktune.tuners.rungs import (
    Ties,
    check_factor,
    check_rungs,
    check_ties,
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

    def start(self, context: TunerContext) -> TunerRun:
        """Begin a run of this policy."""
        return HalvingRun(self.rungs, self.reduction_factor, self.ties, range(context.n_trials))
