"""Derive, from scratch, the stages that a search plan still owes at this moment.

For previews, bounds, `explain` and tests: what the plan keeps as an index is worked out here by
walking everything. Nothing is stored.

References:
    [1] Shin et al., "Hippo: Sharing Computations in Hyper-Parameter Optimization", PVLDB 15(5),
        2022, section on stage trees.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dasktune.plan.paths import is_cut, stage_between
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.search_plan import SearchPlan
from dasktune.plan.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeStage:
    """A stage in its place."""

    stage: Stage
    parent: int | None
    """Index of the stage that it continues; None where its start is stored or fresh."""
    is_running: bool
    """Whether a path has claimed it."""


@dataclass(frozen=True, slots=True)
class StageTree:
    """The stages owed, parents before children."""

    stages: tuple[TreeStage, ...] = field(default=())

    def children(self) -> list[list[int]]:
        """Return the indices of the stages that continue each stage."""
        below: list[list[int]] = [[] for _ in self.stages]
        for index, stage in enumerate(self.stages):
            if stage.parent is not None:
                below[stage.parent].append(index)
        return below

    def roots(self) -> Iterator[int]:
        """Yield the indices of the stages that could start at once."""
        return (i for i, stage in enumerate(self.stages) if stage.parent is None)

    @property
    def n_steps(self) -> int:
        """Steps of training in all stages."""
        return sum(entry.stage.n_steps for entry in self.stages)

    def durations(self, seconds: Callable[[Stage], float]) -> list[float]:
        """Return the predicted seconds of each stage, given those of one."""
        return [seconds(entry.stage) for entry in self.stages]


def derive(plan: SearchPlan) -> StageTree:
    """Return the stages that open requests of a plan need, cut where stages are cut. O(plan)."""
    order = plan.tree.vertices()
    needed: set[int] = set()
    for vertex in reversed(order):
        if not vertex.is_stored and (
            vertex.is_wanted or any(child.serial in needed for child in vertex.children())
        ):
            needed.add(vertex.serial)
    stages: list[TreeStage] = []
    for vertex in order:
        if vertex.is_stored and vertex.is_wanted:
            stages.append(_entry(stage_between(vertex, vertex, ()), None, vertex))
        if vertex.is_stored:
            _grow(stages, vertex, needed)
    return StageTree(tuple(stages))


def _grow(stages: list[TreeStage], stored: Vertex, needed: set[int]) -> None:
    """Append the stages below a stored state, as far as the next stored ones."""
    pending: list[tuple[Vertex, Vertex, int | None]] = [
        (stored, child, None) for child in stored.children() if child.serial in needed
    ]
    for start, first, parent in pending:  # grows while it is walked
        reports: list[int] = []
        at = first
        below = _needed_below(at, needed)
        while below and not at.waiting and not is_cut(at) and below[0].runner == at.runner:
            if at.is_to_report:
                reports.append(at.step)
            at = below[0]
            below = _needed_below(at, needed)
        stages.append(_entry(stage_between(start, at, reports), parent, at))
        pending += [(at, child, len(stages) - 1) for child in below]


def _needed_below(vertex: Vertex, needed: set[int]) -> list[Vertex]:
    return [child for child in vertex.children() if child.serial in needed]


def _entry(stage: Stage, parent: int | None, end: Vertex) -> TreeStage:
    return TreeStage(stage=stage, parent=parent, is_running=end.runner is not None)
