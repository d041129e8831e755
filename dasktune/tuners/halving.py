"""One synchronous bracket on its way: at each rung, wait for all, and let the best go on.

Shared by successive halving, which has one bracket, and Hyperband, which has several.
"""

from collections.abc import Sequence
from math import inf
from typing import Self, final

from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.rungs import Ranking, Ties, n_promoted
from dasktune.tuners.tuner import TunerRun
from dasktune.units import Step


@final
class HalvingRun(TunerRun):
    """A run of successive halving over some trials."""

    asks_on_demand = False

    def __init__(
        self,
        rungs: Sequence[Step],
        reduction_factor: float,
        ties: Ties,
        trials: Sequence[int],
        name: str = "",
    ) -> None:
        """Begin with nobody asked.

        Args:
            rungs: Steps at which trials are compared, ascending.
            reduction_factor: eta.
            ties: How equal scores are ranked.
            trials: Numbers of the trials that take part.
            name: Names the bracket in reasons; empty where there is but one.
        """
        self._rungs = rungs
        self._factor = reduction_factor
        self._ties: Ties = ties
        self._name = name
        self._rung = 0
        self._entering = list(trials)  # to be asked for the rung
        self._pending = set(trials)  # those that have not finished the rung
        self._reports: dict[int, Report | None] = {}
        self._standing = ""  # how the last rung was decided

    @property
    def is_over(self) -> bool:
        """Whether no trial of the bracket will be asked again."""
        return not self._pending

    def ask(self) -> Sequence[Request]:
        """Return requests for all that enter the next rung, once the last one is decided."""
        asked, self._entering = self._entering, []
        step = self._rungs[self._rung]
        name = self._name and f"{self._name}, "
        reason = f"{name}rung {self._rung}: {len(asked)} trials train to step {step}"
        return [
            Request(trial=number, step=step, reason=reason + self._standing) for number in asked
        ]

    def tell(self, report: Report) -> Sequence[Ending]:
        """Hear a report; the last of a rung decides it."""
        self._reports[report.trial] = report
        return self._finish(report.trial)

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        """Rank a trial that diverged or failed last; one that does not exist is not counted."""
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
        if self._rung == len(self._rungs) - 1:
            return [
                self._ending(n, TrialStatus.COMPLETED, "trained to the last rung")
                for n, told in sorted(reports.items())
                if told is not None
            ]
        return self._halve(reports)

    def _halve(self, reports: dict[int, Report | None]) -> Sequence[Ending]:
        """Rank the rung in trial order; let the best go on and end the others."""
        ranking = Ranking(self._ties)
        for number, report in sorted(reports.items()):
            if report is None:
                ranking.add(number, -inf)
            else:
                ranking.add(number, report.score, report.branch)
        best = ranking.best(max(1, n_promoted(len(reports), self._factor)))
        step = self._rungs[self._rung]
        self._standing = f", the best {len(best)} of {len(reports)} at step {step}"
        going_on = set(best)
        self._rung += 1
        self._entering = sorted(best)
        self._pending = set(best)
        return [
            self._ending(
                number,
                TrialStatus.STOPPED,
                f"not among the best {len(best)} of {len(reports)} at step {step}: "
                f"rank {ranking.rank(number) + 1}",
            )
            for number, report in sorted(reports.items())
            if report is not None and number not in going_on
        ]

    def _ending(self, trial: int, status: TrialStatus, reason: str) -> Ending:
        name = self._name and f"{self._name}: "
        return Ending(trial=trial, status=status, reason=f"{name}{reason}")

    def copy(self) -> Self:
        """Return a run that goes on from here by itself."""
        twin = type(self)(self._rungs, self._factor, self._ties, self._entering, self._name)
        twin._rung = self._rung
        twin._pending = self._pending.copy()
        twin._reports = self._reports.copy()
        twin._standing = self._standing
        return twin
