"""Match ready stages with idle slots, one path at a time, and say why.

The queue's first stage goes first. Of stages of equal rank, one that continues what a slot still
holds is preferred, and a slot that holds the start of a stage is preferred for it.
"""

from dataclasses import dataclass

from dasktune.plan.paths import PlannedStage, plan_path
from dasktune.scheduling.ready_queue import ReadyQueue, start_of
from dasktune.scheduling.scheduler import Scheduler
from dasktune.scheduling.slots import Slot, Slots


@dataclass(frozen=True, slots=True)
class Assignment:
    """A path for a slot, with its reason."""

    slot: Slot
    path: list[PlannedStage]
    is_warm: bool
    """Whether the slot holds the state that the path starts from."""
    reason: str


def assign_next(queue: ReadyQueue, slots: Slots, scheduler: Scheduler) -> Assignment | None:
    """Return the next assignment; None if no slot is idle or no stage ready. Changes nothing."""
    if not slots.has_idle:
        return None
    first = queue.first()
    if first is None:
        return None
    slot = slots.idle_for(start_of(first))
    if slot is None:
        slot = slots.any_idle()
        if slot.warm is not None:
            first = queue.first_from(slot.warm, scheduler.rank(first)) or first
    is_warm = slot.warm is not None and slot.warm is start_of(first)
    reason = scheduler.reason(first)
    return Assignment(
        slot,
        plan_path(first, scheduler.follow),
        is_warm,
        f"{reason}; the slot still holds its start" if is_warm else reason,
    )
