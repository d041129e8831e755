"""What happened in the world, as the core is told: facts, in the past tense.

Backends, fleets and drivers make them; `StudyCore.handle` takes them one at a time, with the time.
States and stages are named by key, never by trial: the core knows which trials share them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dasktune.units import Digest, Seconds, Step, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStarted:
    """A study has begun to count."""

    study: int
    """Its place among the studies run together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker is ready for stages."""

    worker: WorkerId
    """Not in use by another worker now."""
    n_slots: int = 1
    """Paths that it can run at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker is gone, with whatever it was running and had not committed."""

    worker: WorkerId
    """Its name; it may join again."""
    died: bool
    """True: it broke off without being asked to go; what it was executing is suspect."""
    reason: str = ""
    """What is known of the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecalled:
    """A worker is needed elsewhere: its paths stop at their next step boundary, none begins."""

    worker: WorkerId
    """Its name; `ReturnWorker` answers once it runs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReported:
    """A running stage passed a report step."""

    path: int
    """Number of the path, from `RunPath`."""
    stage: Digest
    """Key of the stage."""
    step: Step
    """One of the stage's report steps."""
    metrics: Mapping[str, float]
    """What `evaluate()` gave there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFinished:
    """A stage has committed a state: its own, or an earlier one if it was stopped on the way.

    If it was stopped, its path has ended there.
    """

    path: int
    """Number of the path, from `RunPath`."""
    stage: Digest
    """Key of the stage."""
    reached: Step
    """Step of the committed state: the stage's `stop`, or less."""
    metrics: Mapping[str, float] | None
    """Metrics of the committed state, if they were taken."""
    executed_steps: int
    """Steps really trained: fewer than the stage has where a state was found in the store."""
    seconds: Seconds = 0.0
    """How long the worker was busy with it, loading and saving included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed:
    """A stage raised; its path has ended there."""

    path: int
    """Number of the path, from `RunPath`."""
    stage: Digest
    """Key of the stage."""
    error: str
    """The exception in one line."""
    traceback: str = ""
    """The traceback, as text."""
    executed_steps: int = 0
    """Steps trained in vain, as far as known."""
    seconds: Seconds = 0.0
    """How long the worker was busy with it, as far as known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathHeld:
    """Somebody else is training the next steps of a path: its slot is free until it is answered.

    Its next stage will be answered with what has come of that, and the path ends there.
    """

    path: int
    """Number of the path, from `RunPath`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLost:
    """A stored state cannot be read any more."""

    state: Digest
    """Its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """It is the time that a study asked to be told of."""

    study: int
    """Its place among the studies run together."""


BY_USER = "interrupted"
"""Why a run is stopped when the user asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The user asked to stop, or the world: running stages end at their next step boundary."""

    reason: str = BY_USER
    """Why, as the end of the run will say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A driver goes on with what an earlier one left: no worker of that time is counted on."""


Event: TypeAlias = (
    StudyStarted
    | WorkerJoined
    | WorkerLeft
    | WorkerRecalled
    | MetricsReported
    | StageFinished
    | StageFailed
    | PathHeld
    | StateLost
    | TimerFired
    | Interrupted
    | Resumed
)
