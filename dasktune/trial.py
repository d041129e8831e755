"""What samplers, tuners and the search plan say to one another about trials.

Values only: who a trial is, how far it is asked to train, what came of it. Used by everything from
the tuners upwards; decides nothing.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dasktune.space.exploration import Exploration
from dasktune.units import Step


class TrialId(NamedTuple):
    """Who a trial is: the place of its study among those run together, and its number there."""

    study: int
    number: int


class TrialStatus(Enum):
    """Where the life of a trial stands."""

    DRAWN = "drawn"
    """Has a configuration and was never asked to train."""
    WAITING = "waiting"
    """Asked to train up to a step whose report is not in yet."""
    PAUSED = "paused"
    """Has reported all it was asked for, and may be asked again."""
    COMPLETED = "completed"
    """Trained as far as its tuner ever trains a trial."""
    STOPPED = "stopped"
    """Ended by its tuner, or with its study, before the last step."""
    DIVERGED = "diverged"
    """The tuned metric was not a finite number."""
    FAILED = "failed"
    """A stage that it needed raised, or killed its workers, more often than allowed."""

    @property
    def is_final(self) -> bool:
        """Whether the trial has ended for good."""
        return self in _FINAL


_FINAL = frozenset(
    {TrialStatus.COMPLETED, TrialStatus.STOPPED, TrialStatus.DIVERGED, TrialStatus.FAILED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A tuner's wish: let a new trial follow another one up to a step, and go its own way then.

    Nothing is copied: the new trial's history has the other's values before that step, so all of
    that is shared.
    """

    parent: int
    """Number of the trial to follow."""
    step: Step
    """The first step at which the new trial has values of its own, at least 1."""
    exploration: Exploration
    """How those differ from the parent's."""
    salt: str
    """Makes explorations of the same parent differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A tuner's wish: train this trial up to that step and report there."""

    trial: int
    """Number of the trial in its study."""
    step: Step
    """Where the tuner decides next: the trial's state is committed and evaluated there."""
    report_steps: tuple[Step, ...] = ()
    """Earlier steps, ascending, whose metrics are reported in passing; none is a cut."""
    reason: str
    """Why, in words that `explain` repeats."""
    branch: Branch | None = None
    """Where the trial comes from, if it is new and not the sampler's: its number is then the
    next one that no trial has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A tuner's news: the metrics of one trial at one step."""

    trial: int
    """Number of the trial in its study."""
    step: Step
    """Steps trained when the metrics were taken."""
    metrics: Mapping[str, float]
    """Every metric that `evaluate()` gave, by name."""
    score: float
    """The tuned metric with the study's mode applied: finite, greater is better."""
    branch: Hashable = None
    """Identity of the trial's history up to the tuner's next decision step: two trials with equal
    branches will still share everything there. None at the last decision step."""
    scores: tuple[float, ...] = ()
    """Every tuned metric like `score`, in the study's order; for samplers that weigh several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A tuner's verdict: this trial is not asked again."""

    trial: int
    """Number of the trial in its study."""
    status: TrialStatus
    """COMPLETED or STOPPED."""
    reason: str
    """Why, in words that `explain` repeats."""
