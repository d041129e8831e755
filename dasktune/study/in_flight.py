"""The paths that slots are running now, and the claims on the plan that go with them.

Called by the core only, which decides what runs; kept apart because it is bookkeeping: a path has a
slot, stages not answered yet, and their edges claimed, all three or none.
"""

from collections import deque
from dataclasses import dataclass

from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.search_plan import SearchPlan
from dasktune.plan.stage import Stage
from dasktune.scheduling.dispatch import Assignment
from dasktune.scheduling.slots import Slot, Slots
from dasktune.study.commands import RunPath, StopPath
from dasktune.study.events import MetricsReported, StageFailed, StageFinished


@dataclass(slots=True)
class Path:
    """A path on its way: the stages that have not been answered yet."""

    number: int
    slot: Slot
    stages: deque[tuple[Stage, Vertex]]
    is_stopping: bool = False
    is_held: bool = False
    """Whether it waits for somebody else: then its slot is not its own any more."""


class InFlight:
    """All paths that are running."""

    def __init__(self, plan: SearchPlan, slots: Slots) -> None:
        self._plan = plan
        self._slots = slots
        self.paths: dict[int, Path] = {}
        self._n_begun = 0

    def begin(self, assignment: Assignment) -> RunPath:
        """Occupy the slot of an assignment and claim its stages; return what is to be run."""
        self._n_begun += 1
        stages = deque((planned.stage, planned.end) for planned in assignment.path)
        path = Path(self._n_begun, assignment.slot, stages)
        self._slots.occupy(assignment.slot, path.number)
        self.paths[path.number] = path
        for stage, end in stages:
            self._plan.claim(end, stage.start, path.number)
        return RunPath(
            path=path.number,
            worker=assignment.slot.worker,
            slot=assignment.slot.index,
            stages=tuple([stage for stage, _ in stages]),
            is_warm=assignment.is_warm,
            reason=assignment.reason,
        )

    def at(self, event: StageFinished | StageFailed | MetricsReported) -> Path | None:
        """Return the path that is at the event's stage; None if it is not counted on any more."""
        path = self.paths.get(event.path)
        if path is None or path.stages[0][0].key != event.stage:
            return None
        return path

    def drop(self, path: Path) -> None:
        """End a path: take back the claims of all its stages that were not answered."""
        del self.paths[path.number]
        for stage, end in reversed(path.stages):
            self._plan.release(end, stage.start)
        path.stages.clear()

    def end(self, path: Path, warm: Vertex | None) -> None:
        """End a path, and let its slot be idle; it holds the state `warm`."""
        self.drop(path)
        if not path.is_held:
            self._slots.free(path.slot, warm)

    def hold(self, path: Path) -> None:
        """Let the slot of a path be idle; its stages stay claimed until the next is answered."""
        if not path.is_held:
            path.is_held = True
            self._slots.free(path.slot, path.slot.warm)

    def stop(self, path: Path, reason: str) -> list[StopPath]:
        """Return the command that stops a path, once."""
        if path.is_stopping:
            return []
        path.is_stopping = True
        slot = path.slot
        return [StopPath(path=path.number, worker=slot.worker, slot=slot.index, reason=reason)]

    def copy(self, plan: SearchPlan, slots: Slots, vertices: dict[int, Vertex]) -> "InFlight":
        """Return the same over copies of plan and slots."""
        twin = InFlight(plan, slots)
        twin._n_begun = self._n_begun
        for number, path in self.paths.items():
            slot = Slot(path.slot.worker, path.slot.index)
            if not path.is_held:
                slot = slots.by_worker[slot.worker][slot.index]
            stages = deque((stage, vertices[end.serial]) for stage, end in path.stages)
            twin.paths[number] = Path(number, slot, stages, path.is_stopping, path.is_held)
        return twin
