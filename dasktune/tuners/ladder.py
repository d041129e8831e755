"""The rungs of one asynchronous bracket: who stands where, and who may be promoted.

Shared by ASHA, which has one bracket, and asynchronous Hyperband, which has several.

References:
    [1] Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020,
        algorithm 2: a trial of a rung with n reports may go on while it is among the best
        floor(n / eta).
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.rungs import Ranking, Ties, n_promoted
from dasktune.units import Step


class _Rung:
    """Who has finished one rung, and who of them was not promoted yet."""

    __slots__ = ("paused", "ranking", "step")

    def __init__(self, step: Step, ties: Ties) -> None:
        self.step = step
        self.ranking = Ranking(ties)
        self.paused: list[tuple[float, int, int]] = []  # a heap of places, best first

    def finish(self, report: Report) -> None:
        heappush(self.paused, self.ranking.add(report.trial, report.score, report.branch))

    def may_promote(self, reduction_factor: float) -> bool:
        """Return whether the best trial not promoted yet is among the best floor(n / eta)."""
        if not self.paused:
            return False
        best = self.paused[0][2]
        return self.ranking.rank(best) < n_promoted(len(self.ranking), reduction_factor)

    def copy(self, ties: Ties) -> "_Rung":
        twin = _Rung(self.step, ties)
        twin.ranking = self.ranking.copy()
        twin.paused = self.paused.copy()
        return twin


class Ladder:
    """One asynchronous bracket: its rungs, and the trials that train between them."""

    __slots__ = ("_factor", "_name", "_rung_of", "_rungs", "_ties")

    def __init__(
        self, steps: Sequence[Step], reduction_factor: float, ties: Ties, name: str = ""
    ) -> None:
        """Begin with nobody on any rung.

        Args:
            steps: The rungs, ascending.
            reduction_factor: eta.
            ties: How equal scores are ranked.
            name: What reasons begin with; empty where there is but one bracket.
        """
        self._factor = reduction_factor
        self._ties = ties
        self._name = name and f"{name}: "
        self._rungs = [_Rung(step, ties) for step in steps]
        self._rung_of: dict[int, int] = {}  # of trials that wait for a report

    def promotable(self) -> Step | None:
        """Return the highest rung from which a trial may go on, by its step; None if none."""
        index = self._promotable()
        return None if index is None else self._rungs[index].step

    def _promotable(self) -> int | None:
        for index in range(len(self._rungs) - 2, -1, -1):
            if self._rungs[index].may_promote(self._factor):
                return index
        return None

    def promote(self) -> Request:
        """Let the best trial of the highest rung that allows it go on; there must be one."""
        index = self._promotable()
        assert index is not None
        rung = self._rungs[index]
        trial = heappop(rung.paused)[2]
        n = len(rung.ranking)
        best = n_promoted(n, self._factor)
        return self._request(
            trial, index + 1, f"promoted: among the best {best} of {n} at step {rung.step}"
        )

    def begin(self, trial: int) -> Request:
        """Let a new trial train to the first rung."""
        return self._request(trial, 0, "begins at the first rung")

    def _request(self, trial: int, rung: int, reason: str) -> Request:
        self._rung_of[trial] = rung
        return Request(trial=trial, step=self._rungs[rung].step, reason=f"{self._name}{reason}")

    def tell(self, report: Report) -> Sequence[Ending]:
        """Hear a report of a trial that was asked; it is complete at the last rung."""
        index = self._rung_of.pop(report.trial)
        if index < len(self._rungs) - 1:
            self._rungs[index].finish(report)
            return ()
        reason = f"{self._name}trained to the last rung"
        return (Ending(trial=report.trial, status=TrialStatus.COMPLETED, reason=reason),)

    def end(self, trial: int, status: TrialStatus, *, has_begun: bool) -> None:
        """Count a trial that diverged or failed last: at the rung it was asked for, or the first.

        One that is paused has been counted already, and is only forgotten.
        """
        if has_begun and trial not in self._rung_of:
            self._drop_paused(trial)
            return
        index = self._rung_of.pop(trial, 0)
        if status is not TrialStatus.STOPPED:
            self._rungs[index].ranking.add(trial, -inf)

    def _drop_paused(self, trial: int) -> None:
        """Forget a paused trial: it can diverge when a state that it shares does."""
        for rung in self._rungs:
            rung.paused = sorted(place for place in rung.paused if place[2] != trial)

    def copy(self) -> "Ladder":
        """Return a bracket that goes on from here by itself."""
        twin = Ladder((), self._factor, self._ties)
        twin._name = self._name
        twin._rungs = [rung.copy(self._ties) for rung in self._rungs]
        twin._rung_of = self._rung_of.copy()
        return twin
