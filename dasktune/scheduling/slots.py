"""Know the slots of all workers: which are idle, and which state each still holds.

A slot runs one path at a time. After a path it keeps the last state in memory: it is *warm* with
it, and a path from that state saves the loading.
"""

from dataclasses import dataclass

from dasktune.plan.prefix_tree import Vertex
from dasktune.units import WorkerId


@dataclass(slots=True, eq=False)
class Slot:
    """One place for one path on one worker."""

    worker: WorkerId
    index: int
    warm: Vertex | None = None
    """The state that it holds in memory."""
    path: int | None = None
    """Number of the path that it runs; None: idle."""


class Slots:
    """All slots, in the order in which they became idle."""

    def __init__(self) -> None:
        self.by_worker: dict[WorkerId, list[Slot]] = {}
        self._recalled: dict[WorkerId, None] = {}
        self._cold: dict[tuple[WorkerId, int], Slot] = {}
        self._warm: dict[tuple[WorkerId, int], Slot] = {}
        self._warm_with: dict[int, dict[tuple[WorkerId, int], Slot]] = {}

    def __len__(self) -> int:
        """Return the number of slots."""
        return sum(len(slots) for slots in self.by_worker.values())

    @property
    def n_busy(self) -> int:
        """Number of slots that run a path."""
        return sum(slot.path is not None for slots in self.by_worker.values() for slot in slots)

    @property
    def has_idle(self) -> bool:
        """Whether a path could start now."""
        return bool(self._cold) or bool(self._warm)

    def join(self, worker: WorkerId, n_slots: int) -> None:
        """Add a worker, all its slots idle."""
        slots = [Slot(worker, index) for index in range(n_slots)]
        self.by_worker[worker] = slots
        for slot in slots:
            self._cold[worker, slot.index] = slot

    def leave(self, worker: WorkerId) -> list[Slot]:
        """Remove a worker; return its slots."""
        slots = self.by_worker.pop(worker, [])
        if worker in self._recalled:
            del self._recalled[worker]  # its idle slots are not counted any more
            return slots
        for slot in slots:
            if slot.path is None:
                self._not_idle(slot)
        return slots

    def recall(self, worker: WorkerId) -> list[Slot]:
        """Let no further path begin on a worker; return its slots, none if it is not known."""
        if worker not in self.by_worker or worker in self._recalled:
            return []
        slots = self.by_worker[worker]
        for slot in slots:
            if slot.path is None:
                self._not_idle(slot)
        self._recalled[worker] = None
        return slots

    def take_returned(self) -> list[WorkerId]:
        """Remove the recalled workers that run nothing any more; return them."""
        returned = [
            worker
            for worker in self._recalled
            if all(slot.path is None for slot in self.by_worker[worker])
        ]
        for worker in returned:
            self.leave(worker)
        return returned

    def idle_for(self, start: Vertex) -> Slot | None:
        """Return the slot, longest idle, that is warm with a state."""
        warm = self._warm_with.get(start.serial)
        return next(iter(warm.values())) if warm else None

    def any_idle(self) -> Slot:
        """Return an idle slot: one that holds no state if possible, else the longest idle."""
        return next(iter((self._cold or self._warm).values()))

    def occupy(self, slot: Slot, path: int) -> None:
        """Let an idle slot run a path."""
        self._not_idle(slot)
        slot.path = path

    def free(self, slot: Slot, warm: Vertex | None) -> None:
        """Let a slot be idle; it holds the state `warm`."""
        slot.path = None
        slot.warm = warm
        if slot.worker in self._recalled:
            return
        key = (slot.worker, slot.index)
        if warm is None:
            self._cold[key] = slot
        else:
            self._warm[key] = slot
            self._warm_with.setdefault(warm.serial, {})[key] = slot

    def copy(self, vertices: dict[int, Vertex]) -> "Slots":
        """Return slots over a copy of the plan, whose vertices are given by serial."""
        twin = Slots()
        for worker, slots in self.by_worker.items():
            twin.by_worker[worker] = [
                Slot(worker, s.index, vertices[s.warm.serial] if s.warm else None, s.path)
                for s in slots
            ]
        twin._recalled = self._recalled.copy()
        twin._cold = {key: twin.by_worker[key[0]][key[1]] for key in self._cold}
        twin._warm = {key: twin.by_worker[key[0]][key[1]] for key in self._warm}
        twin._warm_with = {
            serial: {key: twin.by_worker[key[0]][key[1]] for key in warm}
            for serial, warm in self._warm_with.items()
        }
        return twin

    def _not_idle(self, slot: Slot) -> None:
        key = (slot.worker, slot.index)
        if slot.warm is None:
            del self._cold[key]
            return
        del self._warm[key]
        warm = self._warm_with[slot.warm.serial]
        del warm[key]
        if not warm:
            del self._warm_with[slot.warm.serial]
