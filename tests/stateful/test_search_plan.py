"""The search plan under random sequences of what can happen to it, beside a naive twin."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dasktune.plan.merging import steps_requested
from dasktune.plan.owed import is_needed, is_ready
from dasktune.plan.paths import PlannedStage, is_cut, plan_path
from dasktune.plan.prefix_tree import PlannedTrial, Vertex
from dasktune.plan.search_plan import Answer, SearchPlan
from dasktune.plan.stage_tree import derive
from dasktune.scheduling.critical_path_first import CriticalPathFirst
from dasktune.scheduling.fifo import Fifo
from dasktune.scheduling.ready_queue import ReadyQueue
from dasktune.space import Configuration
from dasktune.trial import TrialId
from dasktune.units import Digest, Step
from tests.plan.naive import (
    Derived,
    Heard,
    NaivePlan,
    State,
    stage_ends,
    state_at,
    state_of,
    weigh,
)
from tests.strategies import (
    FAMILIES,
    HORIZON,
    DrawnTrial,
    close_configurations,
    subsets,
    trial_sets,
)

pytestmark = pytest.mark.slow

N_TRIALS = 6
picks = st.integers(0, 11)
some_steps = st.integers(0, HORIZON)
turns = st.lists(st.integers(0, 3), max_size=3)
report_steps = subsets(range(1, HORIZON), max_size=2)


@dataclass(slots=True)
class Path:
    """A path on its way: its number, the stages not answered, the reports of the first one."""

    number: int
    stages: deque[PlannedStage]
    n_reported: int = 0

    @property
    def first(self) -> PlannedStage:
        return self.stages[0]


@dataclass(slots=True)
class GivenUp:
    """A stage whose worker was lost and may still have committed."""

    key: Digest
    start: Step
    stop: State


@dataclass(slots=True)
class Left:
    """A copy, or an original, that nobody goes on with."""

    plan: SearchPlan
    queue: ReadyQueue
    before: list[object]


def ids(trials: Sequence[PlannedTrial] | None) -> list[TrialId]:
    return [trial.id for trial in trials or ()]


def dump(plan: SearchPlan, queue: ReadyQueue) -> list[object]:
    """List everything that can be known of a plan and its queue."""
    first = queue.first()
    found: list[object] = [
        plan.steps_unique,
        steps_requested(plan),
        plan.steps_executed,
        plan.steps_recomputed,
        plan.n_owed,
        queue.n_ready(),
        first.serial if first is not None else None,
        [
            (t.id, t.node.number, t.furthest, t.heard, t.n_open, t.is_live)
            for t in plan.trials.values()
        ],
    ]
    found += [
        (
            (v.serial, v.node.number, v.step, v.key, v.parent.serial if v.parent else None),
            [child.serial for child in v.children()],
            (v.is_stored, v.is_trained, v.is_asked, v.is_owed, v.length),
            (v.runner, v.is_evaluating, v.attempts, v.deaths, v.failure, v.n_live, v.deciders),
            (v.metrics, ids(v.waiting), ids(v.listening), ids(v.ends)),
        )
        for v in plan.tree.vertices()
    ]
    return found


def run_to_the_end(plan: SearchPlan, queue: ReadyQueue, running: list[list[PlannedStage]]) -> None:
    """Finish what runs, then run whatever is ready, until nothing is."""
    number = 10**6
    while True:
        for planned in [planned for path in running for planned in path]:
            stage, end = planned.stage, planned.end
            if stage.n_steps:
                plan.finish(end, stage.start, reached=stage.stop, executed_steps=stage.n_steps)
            else:
                plan.release(end, stage.start)
            if stage.evaluates:
                plan.measured(end, {})
        first = queue.first()
        if first is None:
            return
        number += 1
        running = [plan_path(first, lambda below: below[-1])]
        for planned in running[0]:
            plan.claim(planned.end, planned.stage.start, number)


class SearchPlanMachine(RuleBasedStateMachine):
    """Does the same to both, and compares all there is to know."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = SearchPlan(weigh)
        self.naive = NaivePlan()
        self.scheduler: CriticalPathFirst | Fifo = CriticalPathFirst()
        self.queue = ReadyQueue(self.plan, self.scheduler)
        self.paths: dict[int, Path] = {}
        self.given_up: list[GivenUp] = []
        self.left: list[Left] = []
        self.heard: set[tuple[TrialId, Step]] = set()
        self.n_paths = 0
        self.known: dict[int, State] = {}
        self.owed_before: set[State] = set()
        self.candidates: list[Configuration] = []

    @initialize(
        is_fifo=st.booleans(),
        drawn=trial_sets(min_size=2, max_size=4, n_studies=2, chosen=close_configurations),
        candidates=st.lists(close_configurations, max_size=2),
    )
    def begin(
        self, is_fifo: bool, drawn: list[DrawnTrial], candidates: list[Configuration]
    ) -> None:
        self.candidates = candidates
        self.scheduler = Fifo() if is_fifo else CriticalPathFirst()
        self.queue = ReadyQueue(self.plan, self.scheduler)
        for trial in drawn:
            self.add(trial)
        for trial, planned in zip(drawn, self.plan.trials.values(), strict=True):
            for step, report_steps in trial.requests[:1]:
                self.ask(planned, step, report_steps)

    # --- trials -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.plan.trials) < N_TRIALS)
    @rule(drawn=trial_sets(max_size=1, n_studies=2, chosen=close_configurations))
    def draw_one_more(self, drawn: list[DrawnTrial]) -> None:
        self.add(drawn[0])

    def add(self, drawn: DrawnTrial) -> None:
        trial = TrialId(drawn.id.study, len(self.plan.trials))
        end = state_of(drawn.family, drawn.configuration, drawn.stop)
        planned = self.plan.add(
            trial,
            drawn.family,
            drawn.configuration,
            stop=drawn.stop,
            decision_steps=drawn.decision_steps,
        )
        self.naive.add(trial, end, drawn.decision_steps)
        assert self.plan.trials[trial] is planned

    def free(self) -> list[PlannedTrial]:
        """List the trials that can be asked for more."""
        waiting = {trial for trials in self.naive.waiting.values() for trial in trials}
        return [
            trial
            for trial in self.plan.trials.values()
            if trial.is_live and trial.id not in waiting and trial.furthest < trial.stop
        ]

    @precondition(lambda self: self.free())
    @rule(pick=picks, more=st.integers(1, HORIZON), reports=report_steps)
    def request(self, pick: int, more: int, reports: list[Step]) -> None:
        free = self.free()
        trial = free[pick % len(free)]
        before = trial.furthest
        step = min(before + more, trial.stop)
        self.ask(trial, step, [at for at in reports if before < at < step])

    def ask(self, trial: PlannedTrial, step: Step, report_steps: Sequence[Step]) -> None:
        answers = self.plan.request(trial, step, report_steps)
        self.hear(answers, self.naive.request(trial.id, step, report_steps))
        assert trial.furthest == step

    def end_trials(self, trials: list[PlannedTrial]) -> None:
        self.naive.end([trial.id for trial in trials])
        self.plan.end(trials)

    def hear(self, answers: list[Answer], expected: list[Heard]) -> None:
        """Compare answers; who hears of a failure ends, as its study would decide."""
        assert [(a.trial.id, a.step, a.metrics) for a in answers] == expected
        for answer in answers:
            assert (answer.metrics is None) == (answer.failure is not None)
            assert (answer.trial.id, answer.step) not in self.heard
            self.heard.add((answer.trial.id, answer.step))
        self.end_trials([answer.trial for answer in answers if answer.metrics is None])

    # --- work ---------------------------------------------------------------------------------

    def ready(self) -> list[Vertex]:
        return [vertex for vertex in self.plan.tree.vertices() if is_ready(vertex)]

    @precondition(lambda self: self.ready())
    @rule(pick=st.none() | picks, choices=turns)
    def claim(self, pick: int | None, choices: list[int]) -> None:
        ready = self.ready()
        first = self.queue.first() if pick is None else ready[pick % len(ready)]
        assert first is not None
        taken: list[tuple[set[State], State | None]] = []

        def follow(below: Sequence[Vertex]) -> Vertex | None:
            turn = choices[len(taken) % len(choices)] if choices else 0
            chosen = below[turn] if turn < len(below) else None
            states = {self.state(vertex) for vertex in below}
            taken.append((states, self.state(chosen) if chosen is not None else None))
            return chosen

        path = plan_path(first, follow)
        self.check_path(self.state(first), path, taken)
        self.n_paths += 1
        for planned in path:
            self.plan.claim(planned.end, planned.stage.start, self.n_paths)
            self.naive.claim(*stage_ends(planned.stage), self.n_paths)
        self.paths[self.n_paths] = Path(self.n_paths, deque(path))

    def check_path(
        self,
        first: State,
        path: list[PlannedStage],
        taken: list[tuple[set[State], State | None]],
    ) -> None:
        turn = iter(taken)

        def repeat(below: list[State]) -> State | None:
            offered, chosen = next(turn)
            assert offered == set(below)
            return chosen

        stages = [planned.stage for planned in path]
        assert [(*stage_ends(s), s.report_steps) for s in stages] == self.naive.path(first, repeat)
        assert next(turn, None) is None
        for planned in path:
            start, stop = stage_ends(planned.stage)
            wanted = stop in self.naive.wanted() or self.naive.deciders(stop) > 0
            assert planned.stage.evaluates == wanted
            assert self.state(planned.end) == stop
            known = next(v for v in self.plan.tree.vertices() if self.state(v) == start)
            assert planned.stage.start_key == (known.key if start.step else None)
            assert planned.stage.key == planned.end.key

    def pick_path(self, pick: int) -> Path:
        paths = list(self.paths.values())
        return paths[pick % len(paths)]

    @precondition(lambda self: self.paths)
    @rule(pick=picks, fewer=st.sampled_from([0, 0, 0, 1, 2]))
    def finish(self, pick: int, fewer: int) -> None:
        path = self.pick_path(pick)
        stage = path.first.stage
        at = self.commit(path, stage.stop, max(0, stage.n_steps - fewer))
        path.n_reported = 0
        if not path.stages:
            del self.paths[path.number]
        if stage.evaluates:
            self.measure(at)

    @precondition(lambda self: self.paths)
    @rule(pick=picks, back=st.integers(1, HORIZON), evaluates=st.booleans())
    def finish_early(self, pick: int, back: int, evaluates: bool) -> None:
        path = self.pick_path(pick)
        stage = path.first.stage
        reached = max(stage.start, stage.stop - back)
        at = self.commit(path, reached, reached - stage.start)
        if evaluates:
            self.measure(at)
        self.drop(path)

    def commit(self, path: Path, reached: Step, executed: int) -> Vertex:
        """Answer the first stage of a path; nothing new is stored if it was not trained."""
        planned = path.stages.popleft()
        stage, end = planned.stage, planned.end
        start, stop = stage_ends(stage)
        if reached > stage.start:
            at = self.plan.finish(end, stage.start, reached=reached, executed_steps=executed)
            self.naive.finish(start, stop, reached, executed)
        else:
            self.plan.release(end, stage.start)
            self.naive.release(start, stop)
            at = self.plan.tree.vertex(end.node, reached)
        assert self.state(at) == stop.at(reached)
        return at

    def measure(self, vertex: Vertex) -> None:
        state = self.state(vertex)
        metrics = {"loss": float(len(self.naive.measured))}
        self.hear(self.plan.measured(vertex, metrics), self.naive.measure(state, metrics))

    @precondition(lambda self: any(self.unreported(path) for path in self.paths.values()))
    @rule(pick=picks)
    def report_in_passing(self, pick: int) -> None:
        paths = [path for path in self.paths.values() if self.unreported(path)]
        path = paths[pick % len(paths)]
        step = self.unreported(path)[0]
        path.n_reported += 1
        vertex = self.plan.tree.before(path.first.end.node, step)
        assert vertex.step == step
        self.measure(vertex)

    @staticmethod
    def unreported(path: Path) -> tuple[Step, ...]:
        return path.first.stage.report_steps[path.n_reported :]

    # --- what goes wrong, or seldom happens ---------------------------------------------------

    def rare(self) -> list[Callable[[int, int], None]]:
        """List what can happen now."""
        able = {
            self.end: any(trial.is_live for trial in self.plan.trials.values()),
            self.lose_worker: bool(self.paths),
            self.fail: bool(self.paths),
            self.finish_late: bool(self.given_up),
            self.lose_state: any(state.step for state in self.naive.stored),
            self.copy: len(self.left) < 3,
        }
        return [event for event in able if able[event]]

    @rule(which=picks, pick=picks, much=some_steps)
    def let_something_rare_happen(self, which: int, pick: int, much: int) -> None:
        if rare := self.rare():
            rare[which % len(rare)](pick, much)

    def end(self, pick: int, much: int) -> None:
        """End one trial or two."""
        live = [trial for trial in self.plan.trials.values() if trial.is_live]
        self.end_trials([live[pick % len(live)], live[(pick + much) % len(live)]])

    def drop(self, path: Path) -> None:
        """Take back what a path has not answered, the last stage first."""
        del self.paths[path.number]
        for planned in reversed(path.stages):
            self.plan.release(planned.end, planned.stage.start)
            self.naive.release(*stage_ends(planned.stage))

    def lose_worker(self, pick: int, _much: int) -> None:
        path = self.pick_path(pick)
        self.drop(path)
        for planned in path.stages:
            stage = planned.stage
            self.given_up.append(GivenUp(stage.key, stage.start, stage_ends(stage)[1]))

    def finish_late(self, pick: int, much: int) -> None:
        """Let a lost worker's commit arrive, with metrics or without."""
        late = self.given_up.pop(pick % len(self.given_up))
        reached = max(late.start, late.stop.step - much // 2)
        executed = reached - late.start
        at = self.plan.found(late.key, reached, executed)
        self.naive.find(late.stop, reached, executed)
        assert at is not None
        assert self.state(at) == late.stop.at(reached)
        if much % 2:
            self.measure(at)

    def fail(self, pick: int, much: int) -> None:
        path = self.pick_path(pick)
        end = path.first.end
        state = self.state(end)
        self.drop(path)
        self.plan.wasted(much)
        self.naive.n_executed += much
        self.naive.n_recomputed += much
        self.hear(self.plan.fail(end, "boom"), self.naive.fail(state))

    def lose_state(self, pick: int, _much: int) -> None:
        stored = [v for v in self.plan.tree.vertices() if v.is_stored and v.step]
        vertex = stored[pick % len(stored)]
        state = self.state(vertex)
        self.hear(self.plan.lose(vertex.key), self.naive.lose(state))

    def copy(self, pick: int, _much: int) -> None:
        """Go on with a copy or with the original; the other must stay as it is."""
        plan, vertices = self.plan.copy()
        queue = self.queue.copy(plan, vertices)
        before = dump(self.plan, self.queue)
        assert dump(plan, queue) == before
        if pick % 2:
            self.left.append(Left(plan, queue, before))
            return
        self.left.append(Left(self.plan, self.queue, before))
        self.plan, self.queue = plan, queue
        for path in self.paths.values():
            path.stages = deque(
                PlannedStage(planned.stage, vertices[planned.end.serial]) for planned in path.stages
            )

    # --- what always holds --------------------------------------------------------------------

    def state(self, vertex: Vertex) -> State:
        """Return the state of a vertex, which never changes."""
        if vertex.serial not in self.known:
            self.known[vertex.serial] = state_at(vertex)
        return self.known[vertex.serial]

    @invariant()
    def laws_hold(self) -> None:
        self.vertices_stand_where_histories_part_or_somebody_asked()
        self.index_equals_derivation_from_scratch()
        self.queue_holds_what_is_ready_in_order()
        self.stage_tree_equals_the_naive_one()
        self.no_open_request_is_forgotten()
        self.counts_equal_the_naive_ones()
        self.paths_that_lost_their_reason_are_named()
        self.new_steps_are_those_nobody_asked_for()
        self.left_alone_the_plan_answers_everybody()
        self.copies_go_their_own_way()

    def vertices_stand_where_histories_part_or_somebody_asked(self) -> None:
        vertices = self.plan.tree.vertices()
        states = [self.state(vertex) for vertex in vertices]
        assert len(states) == len(set(states))
        assert set(states) == self.naive.vertices
        assert len({vertex.key for vertex in vertices}) == len(
            {(s.family, s.step, s.rows) for s in states}
        )
        for vertex in vertices:
            if vertex.parent is not None:
                assert self.state(vertex.parent) == self.naive.parent(self.state(vertex))
                assert vertex in vertex.parent.children()

    def index_equals_derivation_from_scratch(self) -> None:
        naive = self.naive
        owed, children = naive.owed(), naive.children()
        ready = naive.ready(owed)
        for vertex in self.plan.tree.vertices():
            state = self.state(vertex)
            edge = naive.span(state.at(vertex.parent.step), state) if vertex.parent else [state]
            assert vertex.is_stored == (state in naive.stored)
            assert vertex.is_owed == (state in owed)
            assert vertex.length == naive.length(state, owed)
            assert vertex.runner == naive.claims.get(state)
            assert ids(vertex.waiting) == [] or set(ids(vertex.waiting)) == naive.waiting[state]
            assert len(ids(vertex.waiting)) == len(naive.waiting.get(state, ()))
            assert sorted(ids(vertex.listening)) == sorted(naive.listening.get(state, ()))
            assert vertex.metrics == naive.measured.get(state)
            assert vertex.n_live == naive.n_live(state)
            assert vertex.deciders == naive.deciders(state)
            assert is_cut(vertex) == naive.is_cut(state, children)
            assert is_ready(vertex) == (state in ready)
            assert is_needed(vertex) == (
                state in owed or (state in naive.stored and state in naive.wanted())
            )
            if vertex.parent is not None:
                assert {at in owed for at in edge} == {vertex.is_owed}
                assert {at in naive.asked for at in edge} == {vertex.is_asked}
                assert {at in naive.trained for at in edge} == {vertex.is_trained}
        assert self.plan.n_owed == sum(is_needed(v) for v in self.plan.tree.vertices())

    def queue_holds_what_is_ready_in_order(self) -> None:
        ready = self.ready()
        first = self.queue.first()
        assert self.queue.n_ready() == len(ready)
        rank = self.scheduler.rank
        if first is None:
            assert not ready
            return
        assert first in ready
        assert rank(first) == min(map(rank, ready))
        for start in self.plan.tree.vertices():
            from_here = [v for v in ready if (v if v.is_stored else v.parent) is start]
            best = self.queue.first_from(start, rank(first))
            if best is None:
                assert all(rank(vertex) != rank(first) for vertex in from_here)
            else:
                assert best in from_here
                assert rank(best) == rank(first)

    def stage_tree_equals_the_naive_one(self) -> None:
        tree = derive(self.plan)
        found = []
        for entry in tree.stages:
            parent = tree.stages[entry.parent].stage if entry.parent is not None else None
            stage = entry.stage
            found.append(
                Derived(
                    *stage_ends(stage),
                    stage.report_steps,
                    stage.evaluates,
                    entry.is_running,
                    stage_ends(parent)[1] if parent is not None else None,
                )
            )
        assert len(found) == len(set(found))
        assert set(found) == self.naive.derive()

    def no_open_request_is_forgotten(self) -> None:
        owed = self.naive.owed()
        ready = self.naive.ready(owed)
        for wanted in self.naive.wanted():
            on_way = [at for at in wanted.up() if at in owed and at in self.naive.vertices]
            first = on_way[-1] if on_way else wanted
            assert first in ready or first in self.naive.claims

    def counts_equal_the_naive_ones(self) -> None:
        plan, naive = self.plan, self.naive
        assert plan.steps_unique == len(naive.asked)
        assert steps_requested(plan) == sum(trial.furthest for trial in naive.trials.values())
        assert plan.steps_executed == naive.n_executed
        assert plan.steps_recomputed == naive.n_recomputed
        for trial in plan.trials.values():
            assert trial.heard == naive.trials[trial.id].heard

    def paths_that_lost_their_reason_are_named(self) -> None:
        owed = self.naive.owed()
        lost = {
            self.naive.claims[state] for state in (self.owed_before - owed) & set(self.naive.claims)
        }
        assert set(self.plan.owed.take_unwanted()) == lost
        self.owed_before = owed

    def new_steps_are_those_nobody_asked_for(self) -> None:
        for configuration in self.candidates:
            for step in (1, HORIZON // 2, HORIZON):
                state = state_of(FAMILIES[0], configuration, step)
                expected = len(set(state.up()[:-1]) - self.naive.asked)
                assert self.plan.new_steps(FAMILIES[0], configuration, step) == expected

    def left_alone_the_plan_answers_everybody(self) -> None:
        plan, vertices = self.plan.copy()
        queue = self.queue.copy(plan, vertices)
        running = [
            [PlannedStage(planned.stage, vertices[planned.end.serial]) for planned in path.stages]
            for path in self.paths.values()
        ]
        run_to_the_end(plan, queue, running)
        assert [v for v in plan.tree.vertices() if v.is_wanted or v.is_owed or v.runner] == []

    def copies_go_their_own_way(self) -> None:
        for left in self.left:
            assert dump(left.plan, left.queue) == left.before


TestSearchPlan = SearchPlanMachine.TestCase
TestSearchPlan.settings = settings(max_examples=200, stateful_step_count=40)
