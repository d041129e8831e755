"""Say which trial of a study each step and each second is put down to.

Called by results. What several trials share is put down to the first of them, by number: so the
parts add up to the whole, and a trial that comes later shows how little it added.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dasktune.plan.merging import first_asked
from dasktune.plan.search_plan import SearchPlan
from dasktune.plan.stage import Stage
from dasktune.study.commands import RunPath
from dasktune.study.events import StageFinished
from dasktune.study.timeline import Timeline
from dasktune.units import Digest, Seconds

if TYPE_CHECKING:
    from dasktune.plan.prefix_tree import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is put down to each trial of one study, by number; who is missing has nothing."""

    steps_new: Mapping[int, int]
    """Steps that no trial of a lower number asked for; in all the study's distinct steps."""
    seconds: Mapping[int, Seconds]
    """Seconds that workers were busy with stages, each put down to the first trial that asked for
    its last step."""
    duplicate_of: Mapping[int, int]
    """The first trial that has the same values at every step of the study, if another one has."""


def shares_of(plan: SearchPlan, timeline: Timeline, study: int) -> Shares:
    """Put the steps and seconds of a study down to its trials.

    Args:
        plan: Of all studies that ran together.
        timeline: What happened to it.
        study: Place of the study among them.
    """
    steps_new: dict[int, int] = defaultdict(int)
    only = frozenset({study})
    for trial, vertex in first_asked(plan, only):
        steps_new[trial.id.number] += vertex.edge_steps
    owners = {
        vertex.serial: trial.id.number for trial, vertex in first_asked(plan, only, counts_all=True)
    }
    return Shares(
        steps_new=steps_new,
        seconds=_seconds(plan, timeline, owners),
        duplicate_of=_duplicates(plan, study),
    )


def _seconds(plan: SearchPlan, timeline: Timeline, owners: Mapping[int, int]) -> dict[int, Seconds]:
    stages: dict[Digest, Stage] = {}
    seconds: dict[int, Seconds] = defaultdict(float)
    for entry in timeline.entries:
        event = entry.event
        if isinstance(event, StageFinished) and event.seconds and event.stage in stages:
            owner = _owner(plan, stages[event.stage], owners)
            if owner is not None:
                seconds[owner] += event.seconds
        for command in entry.commands:
            if isinstance(command, RunPath):
                stages.update({stage.key: stage for stage in command.stages})
    return seconds


def _owner(plan: SearchPlan, stage: Stage, owners: Mapping[int, int]) -> int | None:
    """Return the first trial that asked for the last step of a stage, None if none did."""
    shared = plan.tree.shared_until(stage.family, stage.configuration, stage.stop)
    if shared is None:
        return None
    vertex = plan.tree.before(shared[0], stage.stop)
    return owners.get(vertex.serial) if vertex.step == stage.stop else None


def _duplicates(plan: SearchPlan, study: int) -> dict[int, int]:
    """Find trials of one study that end on the same node: their histories never part."""
    first: dict[Node, int] = {}
    found: dict[int, int] = {}
    for trial in plan.trials.values():
        if trial.id.study == study:
            number = first.setdefault(trial.node, trial.id.number)
            if number != trial.id.number:
                found[trial.id.number] = number
    return found
