"""Where the configurations of one study come from: given first, recorded, or its sampler's.

Called by the study's run only. Draws are recorded facts: a draw that a timeline holds is fed to the
sampler instead of asked from it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dasktune.samplers.sampler import NewSteps, SamplerContext
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point
from dasktune.study.study import Study
from dasktune.trial import Branch, Report, TrialId, TrialStatus

if TYPE_CHECKING:
    from dasktune.units import Step

_MOST_REPEATS = 128
"""Explorations in a row that may give a point that is there already. Of one number and two factors
both products are soon taken; then only the quarter that is drawn anew gives new points."""


class Drawing:
    """The draws of one study."""

    def __init__(self, index: int, study: Study) -> None:
        self._index = index
        self._study = study
        self._branched: dict[tuple[int, Step], set[Point]] = {}  # by parent and step
        self._drawn: set[int] = set()  # trials of the sampler; the others branched off
        self._sampler = study.sampler.start(
            SamplerContext(
                space=study.space,
                n_trials=study.n_trials,
                seed=study.seed,
                max_steps=study.max_steps,
                n_scores=len(study.metrics),
                earlier=study.warm_start,
            )
        )

    def draw(
        self, number: int, new_steps: NewSteps, recorded: Mapping[TrialId, Point] | None
    ) -> Point | None:
        """Return the draw of a trial; None if the space is exhausted."""
        place = len(self._drawn)  # trials that branched off before take no place among these
        if recorded is not None:
            point = recorded.get(TrialId(self._index, number))
        elif place < len(self._study.taken_over):
            point = self._study.taken_over[place]
        elif place < len(self._study.first):
            point = self._study.first[place]
        else:
            point = self._sampler.ask(number, new_steps)
        if point is not None:
            self._drawn.add(number)
            self._sampler.record(number, point)
        return point

    def branched(
        self,
        number: int,
        branch: Branch,
        point: Point,
        recorded: Mapping[TrialId, Point] | None,
    ) -> Point:
        """Return the draw of a trial that branches off one with this point.

        It differs from that point, and from other branches there, unless the space is too small:
        training is exact, so two trials that are equal from one state on stay equal.
        """
        taken = self._branched.setdefault((branch.parent, branch.step), {point})
        found = (recorded or {}).get(TrialId(self._index, number))
        for attempt in range(_MOST_REPEATS):
            if found is not None:
                break
            salt = f"{branch.salt}:{attempt}"
            explored = branch.exploration.explore(self._study.space, point, salt)
            if explored not in taken or attempt == _MOST_REPEATS - 1:
                found = explored
        assert found is not None
        taken.add(found)
        return found

    def configuration(self, point: Point) -> Configuration:
        """Return what a point stands for."""
        return self._study.space.configuration(point)

    def tell(self, report: Report, *, rests: bool) -> None:
        """Let the sampler hear a report, if the trial is one of its own."""
        if report.trial in self._drawn:
            self._sampler.tell(report, rests=rests)

    def end(self, trial: int, status: TrialStatus) -> None:
        """Let the sampler hear that a trial is over, if it is one of its own."""
        if trial in self._drawn:
            self._sampler.end(trial, status)

    def copy(self) -> "Drawing":
        """Return a drawing that goes on from here by itself."""
        twin = object.__new__(Drawing)
        twin._index, twin._study = self._index, self._study
        twin._branched = {at: taken.copy() for at, taken in self._branched.items()}
        twin._drawn = self._drawn.copy()
        twin._sampler = self._sampler.copy()
        return twin
