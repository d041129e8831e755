"""Follow simulated studies assignment by assignment: which stage, on which slot, and why."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.plan.stage_tree import derive
from dasktune.scheduling.bounds import remaining_below
from dasktune.scheduling.critical_path_first import CriticalPathFirst
from dasktune.scheduling.fifo import Fifo
from dasktune.scheduling.scheduler import Scheduler
from dasktune.simulator.backend import SimulatedBackend
from dasktune.simulator.world import Fault, StageRaises, StateVanishes, WorkerDies
from dasktune.study.commands import AskTrial, Command, RunPath
from dasktune.study.core import StudyCore
from dasktune.study.events import StageFinished, StudyStarted, WorkerJoined
from dasktune.study.timeline import Timeline
from dasktune.tuners.tuner import Tuner
from dasktune.units import WorkerId
from tests.oracles import History
from tests.scheduling.trees import branching, owed_at_start, study_of

speeds = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4)


class Follower:
    """Goes through a timeline and knows, at each assignment, what could have been assigned."""

    def __init__(self, studies: list[dt.Study], timeline: Timeline, scheduler: Scheduler) -> None:
        tree = owed_at_start(*studies)
        self.scheduler = scheduler
        self.stages = {str(entry.stage.key): entry.stage for entry in tree.stages}
        below = tree.children()
        keys = [str(entry.stage.key) for entry in tree.stages]
        self.below = {key: [keys[i] for i in below[at]] for at, key in enumerate(keys)}
        self.length: dict[str, int] = {}
        for key in reversed(keys):
            longest = max((self.length[child] for child in self.below[key]), default=0)
            self.length[key] = self.stages[key].n_steps + longest
        self.ready = {keys[i]: 0 for i in tree.roots()}  # with the number of the event since which
        self.idle: dict[str, str | None] = {}  # with the state that each slot holds
        self.last: dict[int, tuple[str, str]] = {}
        self.next_on_path: dict[str, str] = {}
        self.n_events = 0
        self.n_warm = 0
        for entry in timeline.entries:
            self.n_events += 1
            match entry.event:
                case WorkerJoined(worker=worker):
                    self.idle[worker] = None
                case StageFinished():
                    self.finish(entry.event)
            for command in entry.commands:
                if isinstance(command, RunPath):
                    self.check(command)

    def finish(self, event: StageFinished) -> None:
        key = str(event.stage)
        claimed = {self.next_on_path.get(key)}
        self.ready |= {child: self.n_events for child in self.below[key] if child not in claimed}
        last, worker = self.last[event.path]
        if key == last:
            self.idle[worker] = key

    def rank(self, key: str) -> int:
        """What the scheduler must minimise."""
        by_length = isinstance(self.scheduler, CriticalPathFirst)
        return -self.length[key] if by_length else 0

    def check(self, command: RunPath) -> None:
        path = [str(stage.key) for stage in command.stages]
        first, held = path[0], self.idle.pop(command.worker)
        start = self.stages[first].start_key
        assert first in self.ready
        assert self.rank(first) == min(self.rank(key) for key in self.ready)
        assert command.is_warm == (start is not None and start == held)
        equal = [key for key in self.ready if self.rank(key) == self.rank(first)]
        if command.is_warm:
            self.n_warm += 1
        else:
            assert start is None or start not in self.idle.values(), "its start is held elsewhere"
            held_on = [k for k in equal if held is not None and self.stages[k].start_key == held]
            assert held_on == [], "the slot could have gone on from what it holds"
            assert self.ready[first] == min(self.ready[key] for key in equal)
        self.check_reason(command, first)
        self.check_path(path)
        del self.ready[first]
        self.last[command.path] = (path[-1], command.worker)

    def check_reason(self, command: RunPath, first: str) -> None:
        reason = "first to become ready"
        if isinstance(self.scheduler, CriticalPathFirst):
            reason = f"longest remaining path: {self.length[first]} s"
        warm = "; the slot still holds its start" if command.is_warm else ""
        assert command.reason == reason + warm

    def check_path(self, path: list[str]) -> None:
        """By critical path along the longest branches down to an open request, else one stage."""
        for key, following in pairwise(path):
            self.next_on_path[key] = following
            assert self.length[following] == max(self.length[child] for child in self.below[key])
            assert not self.stages[key].evaluates
        if isinstance(self.scheduler, CriticalPathFirst):
            assert self.stages[path[-1]].evaluates
        else:
            assert len(path) == 1


@pytest.mark.parametrize("scheduler", [CriticalPathFirst(), Fifo()])
@given(long=branching(6), short=branching(4, stop=3), speeds=speeds)
def test_every_assignment_is_the_first_in_order_with_what_the_slot_holds_preferred(
    scheduler: Scheduler, long: list[History], short: list[History], speeds: list[float]
) -> None:
    studies = [study_of(long), study_of(short, name="short")]
    results = dt.simulate(studies, dt.World(workers=speeds), scheduler=scheduler)
    follower = Follower(studies, results[0].timeline, scheduler)
    assert follower.ready == {}
    assert len(follower.idle) == len(speeds)


def comb(n_teeth: int) -> list[History]:
    """A trunk that one trial leaves at each step."""
    return [
        tuple((0,) if t < tooth else (tooth,) for t in range(n_teeth + 1))
        for tooth in range(1, n_teeth + 1)
    ]


def test_one_slot_goes_on_from_what_it_holds_wherever_it_can() -> None:
    study = study_of(comb(5))
    result = dt.simulate(study, dt.World(load_s=10.0), scheduler=Fifo())
    follower = Follower([study], result.timeline, Fifo())
    # Each fork has two stages below, of which one follows it at once on the only slot.
    assert follower.n_warm == 4


TUNERS: list[Tuner] = [
    dt.FullTraining(6, report_every=2),
    dt.SuccessiveHalving(rungs=[1, 3, 6], reduction_factor=2),
    dt.ASHA(min_steps=1, max_steps=6, reduction_factor=2),
]


@st.composite
def worlds(draw: st.DrawFn) -> dt.World:
    """Draw unequal workers that die and come back, states that vanish and stages that raise."""
    workers = draw(speeds)
    halves = st.integers(0, 12).map(lambda n: n / 2)
    faults: list[Fault] = [StageRaises(fraction=draw(st.sampled_from([0.0, 0.3])))]
    for worker in draw(st.lists(st.integers(0, len(workers) - 1), max_size=2)):
        faults.append(WorkerDies(worker=worker, at_s=draw(halves), back_after_s=draw(halves)))
        faults.append(StateVanishes(at_s=draw(halves)))
    return dt.World(workers=workers, faults=faults)


def decisions(
    studies: list[dt.Study], scheduler: Scheduler, world: dt.World
) -> Iterator[tuple[StudyCore, tuple[Command, ...]]]:
    """Go through a simulated run; give the core and its commands after each event."""
    core = StudyCore(studies, scheduler)
    backend = SimulatedBackend(world, ("a",))
    for index in range(len(studies)):
        core.handle(StudyStarted(study=index), 0.0)
    while not core.is_over:
        commands = core.handle(*backend.next_event())
        yield core, commands
        for command in commands:
            backend.perform(command)


def straight(x: int, stop: int) -> History:
    return ((x,),) * stop


def test_a_path_that_has_become_shorter_while_it_was_ready_loses_its_place() -> None:
    hopeless = study_of([straight(0, 6), straight(1, 6)], name="hopeless")
    short = study_of([straight(1, 4)], name="short", metric="b")
    middle = study_of([straight(2, 5)], name="middle", metric="b")
    # The first report has no "a", and of the six steps that are ready four are still wanted.
    world = dt.World(curve=lambda *_: {"b": 1.0})
    results = dt.simulate([hopeless, short, middle], world)
    commands = [command for _, command in results[0].timeline.commands()]
    paths = [command for command in commands if isinstance(command, RunPath)]
    assert [path.stages[-1].stop for path in paths] == [6, 5, 4]


@pytest.mark.parametrize("n_workers", [1, 3, 9])
def test_a_tuner_that_is_asked_on_demand_begins_a_trial_for_every_slot(n_workers: int) -> None:
    study = study_of([straight(x, 6) for x in range(6)], TUNERS[2])
    result = dt.simulate(study, dt.World(workers=n_workers))
    at_once = [at_s for at_s, command in result.timeline.commands() if isinstance(command, RunPath)]
    assert at_once.count(0.0) == min(n_workers, 6)


@pytest.mark.parametrize("tuner", TUNERS)
@pytest.mark.parametrize("scheduler", [CriticalPathFirst(), Fifo()])
@settings(max_examples=50)
@given(histories=branching(6), world=worlds())
def test_no_slot_idles_while_a_stage_is_ready(
    tuner: Tuner, scheduler: Scheduler, histories: list[History], world: dt.World
) -> None:
    for core, commands in decisions([study_of(histories, tuner)], scheduler, world):
        tree = derive(core.plan)
        ready = [i for i in tree.roots() if not tree.stages[i].is_running]
        assert not (ready and core.slots.has_idle)
        assert all(command.reason for command in commands if isinstance(command, RunPath))
        if core.slots.has_idle and not core.is_over:
            one_more = WorkerJoined(worker=WorkerId("one more"))
            decided = core.fork().handle(one_more, core.now)
            assert not any(isinstance(command, RunPath | AskTrial) for command in decided)


@pytest.mark.parametrize("tuner", TUNERS[:2])
@settings(max_examples=50)
@given(long=branching(6), short=branching(4, stop=3), world=worlds())
def test_no_longer_path_is_left_ready_also_after_trials_have_ended(
    tuner: Tuner, long: list[History], short: list[History], world: dt.World
) -> None:
    def curve(configuration: dt.Configuration, step: int) -> dict[str, float]:
        x = configuration.at(step - 1)["x"]
        assert isinstance(x, int)
        return {"a": nan if x % 3 == 1 else float(x)}

    studies = [study_of(long, tuner), study_of(short, name="short")]
    for core, commands in decisions(studies, CriticalPathFirst(), replace(world, curve=curve)):
        tree = derive(core.plan)
        tails = remaining_below(tree, tree.durations(lambda stage: stage.n_steps))
        length = {
            entry.stage.key: entry.stage.n_steps + tail
            for entry, tail in zip(tree.stages, tails, strict=True)
        }
        ready = [tree.stages[i] for i in tree.roots()]
        left = [length[entry.stage.key] for entry in ready if not entry.is_running]
        for command in commands:
            if isinstance(command, RunPath):
                assert length[command.stages[0].key] >= max(left, default=0)
