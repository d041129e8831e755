"""Give a free slot the longest path of remaining stages, whole.

The longest path below a ready state bounds the makespan from below, so it must not wait; the slot
keeps the model in memory along it.

References:
    [1] Shin et al., "Hippo: Sharing Computations in Hyper-Parameter Optimization", PVLDB 15(5),
        2022, section on scheduling.
    [2] Hu, "Parallel Sequencing and Assembly Line Problems", Operations Research 9(6), 1961:
        highest level first is optimal for unit tasks on trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dasktune.plan.prefix_tree import Vertex
from dasktune.scheduling.scheduler import Scheduler


@final
@dataclass(frozen=True, slots=True)
class CriticalPathFirst(Scheduler):
    """Rank by the predicted seconds of the longest owed path that a stage begins."""

    def rank(self, vertex: Vertex) -> float:
        """Return minus the length: the longest goes first."""
        return -vertex.length

    def follow(self, below: Sequence[Vertex]) -> Vertex | None:
        """Go on with the longest; of equal ones with the first."""
        return max(below, key=_length)

    def reason(self, vertex: Vertex) -> str:
        """Name the length."""
        return f"longest remaining path: {vertex.length:g} s"


def _length(vertex: Vertex) -> float:
    return vertex.length
