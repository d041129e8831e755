"""Cut the owed training below a state into the stages of one path.

A path is what a free slot gets: from a ready state along one branch at each fork, to a request
where a tuner must decide or to where nothing more is owed. A stage ends, and commits, where a
tuner must or may decide, and where histories of unstopped trials part: a fork that only stopped
trials took cuts nothing. States that are kept for histories known later are committed, too. Which
branch is followed is the scheduler's choice.

References:
    [1] Shin et al., "Hippo: Sharing Computations in Hyper-Parameter Optimization", PVLDB 15(5),
        2022, section on scheduling: a worker receives the whole path. Ending a path at the first
        open request is our own: what the tuner answers may change which way is the longest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dasktune.plan.prefix_tree import Vertex, link_of
from dasktune.plan.stage import Stage
from dasktune.units import Step

Follow: TypeAlias = Callable[[Sequence[Vertex]], Vertex | None]
"""Choose among owed, unclaimed vertices below a fork the one a path goes on to; None: stop here."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage beside the vertex that it leads to."""

    stage: Stage
    end: Vertex


def plan_path(first: Vertex, follow: Follow) -> list[PlannedStage]:
    """Return the stages of one path that begins with the edge to a ready vertex."""
    if first.is_stored:
        return [PlannedStage(stage_between(first, first, ()), first)]
    path: list[PlannedStage] = []
    assert first.parent is not None, "a root is always stored"
    start = first.parent
    reports: list[Step] = []
    at = first
    while True:
        following = _following(at)
        if at.waiting or is_cut(at) or not following:
            path.append(PlannedStage(stage_between(start, at, reports), at))
            chosen = None if at.waiting or not following else follow(following)
            if chosen is None:
                return path
            start, reports = at, []
        else:
            if at.is_to_report:
                reports.append(at.step)
            chosen = following[0]
        at = chosen


def is_cut(vertex: Vertex) -> bool:
    """Say whether a stage that passes a state must commit it, whoever asks for the stage."""
    if vertex.deciders or vertex.is_kept:
        return True
    if not vertex.branches:
        return False
    live = (child for child in vertex.children() if child.n_live)
    return next(live, None) is not None and next(live, None) is not None


def _following(vertex: Vertex) -> list[Vertex]:
    return [
        child
        for child in vertex.children()
        if child.is_owed and child.runner is None and child.failure is None
    ]


def stage_between(start: Vertex, end: Vertex, reports: Sequence[Step]) -> Stage:
    """Return the stage from one vertex down to another, or the evaluation of one."""
    return Stage(
        key=end.key,
        start_key=start.key if start.step else None,
        start_link=link_of(start),
        start=start.step,
        stop=end.step,
        family=end.node.family,
        configuration=end.node.configuration,
        report_steps=tuple(reports),
        evaluates=bool(end.waiting or end.deciders or end.is_to_report),
    )
