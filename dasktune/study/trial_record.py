"""What the core keeps of one trial: what it was asked and what it reported."""

from dataclasses import replace
from typing import TYPE_CHECKING

from dasktune.plan.prefix_tree import PlannedTrial
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point
from dasktune.trial import Branch, Report, TrialId, TrialStatus

if TYPE_CHECKING:
    from dasktune.plan.search_plan import Answer
    from dasktune.units import Step


class TrialRecord:
    """A trial, what it was asked and what it reported."""

    __slots__ = (
        "asked", "branch", "configuration", "held", "id", "n_reports_due", "planned", "point",
        "reason", "reports", "status",
    )  # fmt: skip

    def __init__(
        self,
        trial: TrialId,
        point: Point,
        configuration: Configuration,
        planned: PlannedTrial,
        branch: Branch | None = None,
    ) -> None:
        self.id = trial
        self.point = point  # of what it does from `branch` on, or from the beginning
        self.configuration = configuration
        self.planned = planned
        self.branch = branch
        self.status = TrialStatus.DRAWN
        self.reason = ""
        self.asked: Step = 0
        self.reports: list[Report] = []
        self.n_reports_due = 0  # reports in passing that it has not heard
        self.held: Answer | None = None  # what it asked for, known before those

    def copy(self, planned: PlannedTrial) -> "TrialRecord":
        """Return a record that goes on from here by itself."""
        twin = TrialRecord(self.id, self.point, self.configuration, planned, self.branch)
        twin.status, twin.reason, twin.asked = self.status, self.reason, self.asked
        twin.reports, twin.n_reports_due = self.reports.copy(), self.n_reports_due
        if self.held is not None:
            twin.held = replace(self.held, trial=planned)
        return twin
