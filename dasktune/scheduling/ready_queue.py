"""Keep the ready stages of a search plan in a scheduler's order.

Two heaps with lazy deletion: one of all ready stages, and one for each state of those that start
from it, so that a slot which still holds a state finds the best continuation at once. Entries that
the plan has overtaken are dropped when they surface. O(log stages) for each change.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TypeAlias

from dasktune.plan.owed import is_ready
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.search_plan import SearchPlan
from dasktune.scheduling.scheduler import Scheduler

_Entry: TypeAlias = tuple[float, int, Vertex]


class ReadyQueue:
    """The stages that could start now."""

    def __init__(self, plan: SearchPlan, scheduler: Scheduler) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._all: list[_Entry] = []
        self._by_start: dict[int, list[_Entry]] = {}
        self._n_pushed = 0

    def first(self) -> Vertex | None:
        """Return the ready vertex that goes first."""
        self._take_news()
        entry = self._top(self._all)
        return entry[2] if entry is not None else None

    def first_from(self, start: Vertex, rank: float) -> Vertex | None:
        """Return the first ready vertex that starts from a state, if it has this rank."""
        entries = self._by_start.get(start.serial)
        if entries is None:
            return None
        while (entry := self._top(entries)) is not None and start_of(entry[2]) is not start:
            heappop(entries)  # the state it started from was lost, or another one lies between
        if entry is None:
            del self._by_start[start.serial]
            return None
        return entry[2] if entry[0] == rank else None

    def n_ready(self) -> int:
        """Return how many stages could start now. O(stages)."""
        self._take_news()
        return len({entry[2].serial for entry in self._all if self._is_current(entry)})

    def copy(self, plan: SearchPlan, vertices: dict[int, Vertex]) -> "ReadyQueue":
        """Return a queue over a copy of the plan, whose vertices are given by serial."""
        self._take_news()
        twin = ReadyQueue(plan, self._scheduler)
        twin._n_pushed = self._n_pushed
        twin._all = list(_translated(self._all, vertices))
        twin._by_start = {
            start: list(_translated(entries, vertices)) for start, entries in self._by_start.items()
        }
        return twin

    def _take_news(self) -> None:
        if not self._plan.owed.has_news:
            return
        for vertex in self._plan.owed.take_ready():
            if is_ready(vertex):
                self._n_pushed += 1
                entry = (self._scheduler.rank(vertex), self._n_pushed, vertex)
                heappush(self._all, entry)
                heappush(self._by_start.setdefault(start_of(vertex).serial, []), entry)

    def _top(self, entries: list[_Entry]) -> _Entry | None:
        while entries:
            if self._is_current(entries[0]):
                return entries[0]
            heappop(entries)
        return None

    def _is_current(self, entry: _Entry) -> bool:
        rank, _, vertex = entry
        return is_ready(vertex) and rank == self._scheduler.rank(vertex)


def start_of(vertex: Vertex) -> Vertex:
    """Return the state from which the stage to a ready vertex starts."""
    start = vertex if vertex.is_stored else vertex.parent
    assert start is not None, "a ready stage starts somewhere"
    return start


def _translated(entries: list[_Entry], vertices: dict[int, Vertex]) -> Iterator[_Entry]:
    # The order of a heap depends on ranks and numbers only, which stay.
    return ((rank, number, vertices[vertex.serial]) for rank, number, vertex in entries)
