"""What `dasktune.progress` tells of single trials."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dasktune.space.search_space import Point
from dasktune.trial import TrialId, TrialStatus
from dasktune.units import Step

if TYPE_CHECKING:
    from dasktune.plan.keys import Link
    from dasktune.space.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A trial has heard the metrics of the state that it was asked to train to."""

    study: str
    """Name of its study."""
    trial: int
    """Its number there."""
    step: Step
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best report of a study so far."""

    value: float
    """Of the tuned metric."""
    step: Step
    trial: int | None
    """The trial; None for a report in passing, which belongs to a state and all who share it."""


class TrialProgress:
    """How one trial gets on."""

    __slots__ = (
        "asked",
        "began",
        "configuration",
        "id",
        "link",
        "metrics",
        "point",
        "reason",
        "status",
        "step",
    )

    def __init__(self, trial: TrialId, point: Point) -> None:
        self.id = trial
        self.point = point
        self.status = TrialStatus.DRAWN
        self.reason = ""
        """Why it ended."""
        self.began: Step = 0
        """The first step that is its own; up to there it follows the trial that it branched off."""
        self.asked: Step = 0
        """The furthest step that it was asked to train to."""
        self.step: Step = 0
        """The furthest step whose metrics it has heard."""
        self.metrics: Mapping[str, float] = {}
        """What it heard there."""
        self.configuration: Configuration | None = None
        """Its schedules, once it was asked."""
        self.link: Link | None = None
