"""Give a free slot the stage that has been ready for the longest time: the plain baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dasktune.plan.prefix_tree import Vertex
from dasktune.scheduling.scheduler import Scheduler


@final
@dataclass(frozen=True, slots=True)
class Fifo(Scheduler):
    """Serve stages in the order in which they became ready, one at a time."""

    def rank(self, vertex: Vertex) -> float:  # noqa: ARG002
        """Return the same for all, so that the order of becoming ready decides."""
        return 0.0

    def follow(self, below: Sequence[Vertex]) -> Vertex | None:  # noqa: ARG002
        """End the path: each stage waits for its turn."""
        return None

    def reason(self, vertex: Vertex) -> str:  # noqa: ARG002
        """Name the order."""
        return "first to become ready"
