from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dasktune.plan.prefix_tree import Vertex
from dasktune.scheduling.slots import Slot, Slots
from dasktune.study.core import StudyCore
from dasktune.study.events import StudyStarted
from dasktune.units import WorkerId
from tests.scheduling.trees import study_of


def some_states() -> list[Vertex]:
    core = StudyCore([study_of([((0,),), ((1,),), ((2,),)])])
    core.handle(StudyStarted(study=0), 0.0)
    return core.plan.tree.vertices()[:3]


STATES = some_states()
workers = st.sampled_from([WorkerId(name) for name in "ab"])


class SlotsAgainstAList(RuleBasedStateMachine):
    """Slots beside a list of the idle ones in the order in which they became idle."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots()
        self.idle: list[tuple[Slot, Vertex | None]] = []
        self.busy: list[Slot] = []
        self.recalled: set[WorkerId] = set()
        self.n_paths = 0

    @rule(worker=workers, n_slots=st.integers(1, 2))
    def join(self, worker: WorkerId, n_slots: int) -> None:
        if worker not in self.slots.by_worker:
            self.slots.join(worker, n_slots)
            self.idle += [(slot, None) for slot in self.slots.by_worker[worker]]

    @rule(worker=workers)
    def leave(self, worker: WorkerId) -> None:
        gone = self.slots.leave(worker)
        known = [slot for slot, _ in self.idle] + self.busy
        mine = {id(slot) for slot in known if slot.worker == worker}
        assert mine == set(map(id, gone)) or (
            worker in self.recalled and mine <= set(map(id, gone))
        )
        self.idle = [(slot, warm) for slot, warm in self.idle if slot.worker != worker]
        self.busy = [slot for slot in self.busy if slot.worker != worker]
        self.recalled.discard(worker)

    @rule(worker=workers)
    def recall(self, worker: WorkerId) -> None:
        is_news = worker in self.slots.by_worker and worker not in self.recalled
        expected = self.slots.by_worker[worker] if is_news else []
        assert self.slots.recall(worker) == expected
        self.idle = [(slot, warm) for slot, warm in self.idle if slot.worker != worker]
        self.recalled |= self.slots.by_worker.keys() & {worker}

    @rule()
    def give_back(self) -> None:
        returned = self.recalled - {slot.worker for slot in self.busy}
        assert sorted(self.slots.take_returned()) == sorted(returned)
        self.recalled -= returned

    @precondition(lambda self: self.idle)
    @rule(state=st.sampled_from(STATES))
    def occupy(self, state: Vertex) -> None:
        slot = self.slots.idle_for(state) or self.slots.any_idle()
        self.n_paths += 1
        self.slots.occupy(slot, self.n_paths)
        self.idle = [(other, warm) for other, warm in self.idle if other is not slot]
        self.busy.append(slot)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), warm=st.sampled_from([None, *STATES]))
    def free(self, data: st.DataObject, warm: Vertex | None) -> None:
        slot = self.busy.pop(data.draw(st.integers(0, len(self.busy) - 1)))
        self.slots.free(slot, warm)
        if slot.worker not in self.recalled:
            self.idle.append((slot, warm))

    @rule()
    def go_on_with_a_copy(self) -> None:
        twin = self.slots.copy({state.serial: state for state in STATES})
        for slot in [slot for slot, _ in self.idle]:
            self.slots.occupy(slot, 0)
        of = {(s.worker, s.index): s for each in twin.by_worker.values() for s in each}
        self.idle = [(of[slot.worker, slot.index], warm) for slot, warm in self.idle]
        self.busy = [of[slot.worker, slot.index] for slot in self.busy]
        self.slots = twin

    @invariant()
    def the_longest_idle_slot_is_found_a_cold_one_first(self) -> None:
        assert self.slots.has_idle == bool(self.idle)
        if not self.recalled:
            assert len(self.slots) == len(self.idle) + len(self.busy)
        assert self.slots.n_busy == len(self.busy)
        if self.idle:
            cold = [slot for slot, warm in self.idle if warm is None]
            assert self.slots.any_idle() is (cold or [slot for slot, _ in self.idle])[0]

    @invariant()
    def a_slot_is_found_by_the_state_that_it_holds(self) -> None:
        for state in STATES:
            held = [slot for slot, warm in self.idle if warm is state]
            assert self.slots.idle_for(state) is (held[0] if held else None)


TestSlotsAgainstAList = SlotsAgainstAList.TestCase
TestSlotsAgainstAList.settings = settings(max_examples=40)


def test_the_longest_idle_slot_is_found_whatever_others_hold() -> None:
    slots, (one, other, _) = Slots(), STATES
    slots.join(WorkerId("a"), 3)
    first, second, third = slots.by_worker[WorkerId("a")]
    for slot in (first, second, third):
        slots.occupy(slot, 1)
    slots.free(first, one)
    slots.free(second, other)
    slots.free(third, one)
    slots.occupy(first, 2)
    assert slots.any_idle() is second


@given(worker=workers)
def test_a_worker_that_is_not_known_leaves_no_slot(worker: WorkerId) -> None:
    assert Slots().leave(worker) == []
