"""What a scheduler decides: which ready stage is next, and which way a path goes at a fork.

A scheduler is a policy without state. The queue, the slots and the cutting of stages are the same
for all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dasktune.plan.prefix_tree import Vertex


class Scheduler(ABC):
    """A policy: an order on ready stages, and a choice at forks."""

    __slots__ = ()

    @abstractmethod
    def rank(self, vertex: Vertex) -> float:
        """Return the rank of the stage that leads to a ready vertex; the smallest goes first.

        Stages of equal rank go in the order in which they became ready.
        """

    @abstractmethod
    def follow(self, below: Sequence[Vertex]) -> Vertex | None:
        """Choose the vertex that a path goes on to at a fork; None ends the path."""

    @abstractmethod
    def reason(self, vertex: Vertex) -> str:
        """Say why the stage that leads to a ready vertex goes first."""
