"""What the core wishes, as it tells the world: imperatives, each with its reason.

`RunPath`, `StopPath`, `ReturnWorker`, `ReportDemand`, `SetTimer` and `EndRun` are for backends to
perform, who share a cluster's workers by the third and fourth. The others are decisions: they need
nobody to act, and stand in the timeline so that replay, `explain` and the report can tell what was
drawn, asked for and ended, and why.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from dasktune.plan.stage import Stage
from dasktune.space.search_space import Point
from dasktune.trial import TrialId, TrialStatus
from dasktune.units import Seconds, Step, WorkerId


class StudyStatus(Enum):
    """How a study stands."""

    RUNNING = "running"
    """Begun, not ended."""
    COMPLETED = "completed"
    """Nothing more is to be asked for."""
    FAILED = "failed"
    """It could not go on; the reason says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawTrial:
    """Let a trial have a configuration."""

    trial: TrialId
    point: Point
    """The draw; the study's space makes the configuration of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTrial:
    """Let a new trial have another one's configuration up to a step, and a draw's from there."""

    trial: TrialId
    point: Point
    """What it does from `step` on."""
    parent: int
    """Number of the trial that it follows up to there."""
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTrial:
    """Let a trial train up to a step."""

    trial: TrialId
    step: Step
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrial:
    """Let a trial be over."""

    trial: TrialId
    status: TrialStatus
    """COMPLETED, STOPPED, DIVERGED or FAILED."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPath:
    """Run stages one after the other on a slot, committing the state at the end of each."""

    path: int
    """Number of the path: events about it carry it."""
    worker: WorkerId
    slot: int
    """From 0 to the worker's number of slots - 1; free until now."""
    stages: tuple[Stage, ...]
    """At least one; each starts where the one before it ends."""
    is_warm: bool
    """Whether the slot still holds the state that the first stage starts from."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPath:
    """Stop a running path at its next step boundary, commit there, and drop the rest of it.

    The stage that is running is answered with the step that it reached; a path that was between
    stages answers the next one with no step done.
    """

    path: int
    worker: WorkerId
    slot: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnWorker:
    """Give a recalled worker back: it runs nothing, and is not counted on any more."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDemand:
    """Say whether the use for workers has changed."""

    wants: bool
    """Whether another slot would be given a path at once."""
    has_idle: bool
    """Whether a slot has nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Answer with `TimerFired` when it is this time."""

    study: int
    at_s: Seconds
    """In seconds since the first event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndStudy:
    """Let a study be over."""

    study: int
    status: StudyStatus
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """Let the run be over: no study goes on, and no stage is running."""

    reason: str


Command: TypeAlias = (
    DrawTrial
    | BranchTrial
    | AskTrial
    | EndTrial
    | RunPath
    | StopPath
    | ReturnWorker
    | ReportDemand
    | SetTimer
    | EndStudy
    | EndRun
)
