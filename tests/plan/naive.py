"""A search plan as it would be written without prefix trees: dictionaries keyed by all values.

A state is the list of values of every step that is done. Everything the real plan keeps as an index
is worked out here from scratch, one step of training at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dasktune.plan.keys import Family
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.stage import Stage
from dasktune.space import Configuration
from dasktune.trial import TrialId
from dasktune.units import Step
from tests.strategies import Pairs, pairs_at

Metrics = dict[str, float]


class State(NamedTuple):
    """A history and the number of steps done."""

    family: Family
    step: Step
    rows: tuple[Pairs, ...]
    """Values of each step that is done, and of step 0."""

    def at(self, step: Step) -> "State":
        """Return the state on the way here after `step` steps."""
        return State(self.family, step, self.rows[: max(step, 1)])

    def up(self) -> list["State"]:
        """List this state and all before it, down to the fresh one."""
        return [self.at(step) for step in range(self.step, -1, -1)]

    def is_on_way_to(self, other: "State") -> bool:
        """Say whether the other state's history passes here."""
        return self.step <= other.step and other.at(self.step) == self


def state_of(family: Family, configuration: Configuration, step: Step) -> State:
    """Return the state of a configuration after `step` steps."""
    return State(family, step, tuple(pairs_at(configuration, t) for t in range(max(step, 1))))


def state_at(vertex: Vertex) -> State:
    """Return the state that a vertex stands for."""
    return state_of(vertex.node.family, vertex.node.configuration, vertex.step)


def step_cost(pairs: Pairs, step: Step) -> float:
    """Predict the seconds of one step: unequal, and exact in binary."""
    return 0.25 * (1 + step % 3) + 0.5 * len(pairs[0][1])


def weigh(configuration: Configuration, start: Step, stop: Step) -> float:
    """Predict the seconds of some steps."""
    return sum(step_cost(pairs_at(configuration, t), t) for t in range(start, stop))


@dataclass(slots=True)
class NaiveTrial:
    """A trial as a list of values."""

    id: TrialId
    end: State
    decision_steps: tuple[Step, ...]
    furthest: Step = 0
    heard: Step = -1
    is_live: bool = True

    def at(self, step: Step) -> State:
        """Return its state after `step` steps."""
        return self.end.at(step)


class Heard(NamedTuple):
    """What one trial hears."""

    trial: TrialId
    step: Step
    metrics: Metrics | None


class Derived(NamedTuple):
    """A stage of the stage tree, named by states."""

    start: State
    stop: State
    report_steps: tuple[Step, ...]
    evaluates: bool
    is_running: bool
    parent: State | None
    """Where the stage above it ends."""


def stage_ends(stage: Stage) -> tuple[State, State]:
    """Return the states at which a stage starts and stops."""
    stop = state_of(stage.family, stage.configuration, stage.stop)
    return stop.at(stage.start), stop


@dataclass(slots=True)
class NaivePlan:
    """Who waits for which state; what is stored, measured, trained, running and given up."""

    trials: dict[TrialId, NaiveTrial] = field(default_factory=dict)
    vertices: set[State] = field(default_factory=set)
    waiting: dict[State, set[TrialId]] = field(default_factory=dict)
    listening: dict[State, set[TrialId]] = field(default_factory=dict)
    stored: set[State] = field(default_factory=set)
    measured: dict[State, Metrics] = field(default_factory=dict)
    trained: set[State] = field(default_factory=set)
    failed: set[State] = field(default_factory=set)
    claims: dict[State, int] = field(default_factory=dict)
    asked: set[State] = field(default_factory=set)
    n_executed: int = 0
    n_recomputed: int = 0

    # --- what happens -------------------------------------------------------------------------

    def add(self, trial: TrialId, end: State, decision_steps: tuple[Step, ...]) -> None:
        """Add a trial; its states of interest are its ends, its decisions and its forks."""
        self.stored.add(end.at(0))
        self.vertices |= {end.at(0), end, *[end.at(step) for step in decision_steps]}
        for other in self.trials.values():
            common = min(end.step, other.end.step)
            parts_at = next((t for t in range(common) if end.rows[t] != other.end.rows[t]), common)
            if end.family == other.end.family and 0 < parts_at < common:
                self.vertices.add(end.at(parts_at))
        self.trials[trial] = NaiveTrial(trial, end, decision_steps)

    def request(self, trial: TrialId, step: Step, reports: Sequence[Step]) -> list[Heard]:
        """Open a request; a way that was given up is the last thing the trial hears."""
        asker = self.trials[trial]
        asker.furthest = max(asker.furthest, step)
        self.asked |= set(asker.at(step).up()[:-1])
        self.vertices.add(asker.at(step))
        heard = []
        for at in (*reports, step):
            state = asker.at(at)
            self.vertices.add(state)
            if state in self.measured:
                heard.append(Heard(trial, at, self.measured[state]))
                if at == step:
                    asker.heard = max(asker.heard, step)
            elif self.is_given_up(state):
                return [*heard, Heard(trial, at, None)]
            else:
                lists = self.waiting if at == step else self.listening
                lists.setdefault(state, set()).add(trial)
        return heard

    def measure(self, state: State, metrics: Metrics) -> list[Heard]:
        """Let everybody hear who waits for the metrics of a state."""
        if state in self.measured:
            return []
        self.measured[state] = metrics
        waiting = self.waiting.pop(state, set())
        for trial in waiting:
            self.trials[trial].heard = max(self.trials[trial].heard, state.step)
        hearers = sorted(waiting | self.listening.pop(state, set()))
        return [Heard(trial, state.step, metrics) for trial in hearers]

    def end(self, trials: Iterable[TrialId]) -> None:
        """Forget all that these trials wait for."""
        for trial in trials:
            self.trials[trial].is_live = False
            for lists in (self.waiting, self.listening):
                for state in [state for state in lists if trial in lists[state]]:
                    lists[state].discard(trial)
                    if not lists[state]:
                        del lists[state]

    def claim(self, start: State, stop: State, path: int) -> None:
        """Let a path run some steps, or an evaluation."""
        for state in self.span(start, stop):
            assert state not in self.claims, "two paths would train one step"
            self.claims[state] = path

    def release(self, start: State, stop: State) -> None:
        """Take a claim back."""
        for state in self.span(start, stop):
            del self.claims[state]

    def finish(self, start: State, stop: State, reached: Step, executed: int) -> None:
        """Store the state that was reached."""
        self.release(start, stop)
        at = stop.at(reached)
        self._count(executed, set(self.span(start, at)))
        self.vertices.add(at)
        self.stored.add(at)

    def find(self, stop: State, reached: Step, executed: int) -> None:
        """Store a state that nobody counted on."""
        at = stop.at(reached)
        self.vertices.add(at)
        start = stop.at(reached - executed)
        if at.step:  # a state that exists was trained, whoever did it
            start = min(start, self.parent(at), key=lambda state: state.step)
        self._count(executed, set(self.span(start, at)))
        self.stored.add(at)

    def _count(self, executed: int, states: set[State]) -> None:
        self.n_executed += executed
        self.n_recomputed += max(0, executed - len(states - self.trained))
        self.trained |= states

    def lose(self, state: State) -> list[Heard]:
        """Forget a stored state; who now waits beyond a way that was given up hears so."""
        if state.step == 0 or state not in self.stored:
            return []
        self.stored.discard(state)
        self.failed.discard(state)
        return self.give_up_below(state) if self.is_given_up(state) else []

    def fail(self, state: State) -> list[Heard]:
        """Give up the way to a state, or its evaluation if it is stored."""
        self.failed.add(state)
        return self.give_up_below(state)

    def give_up_below(self, state: State) -> list[Heard]:
        """List who waits for a state, or beyond it with no stored state between."""
        first: dict[TrialId, Step] = {}
        for lists in (self.waiting, self.listening):
            for wanted, trials in lists.items():
                if not state.is_on_way_to(wanted):
                    continue
                between = wanted.up()[: wanted.step - state.step + 1]
                if wanted != state and any(at in self.stored for at in between):
                    continue
                for trial in trials:
                    first[trial] = min(wanted.step, first.get(trial, wanted.step))
        return [Heard(trial, first[trial], None) for trial in sorted(first)]

    # --- what follows -------------------------------------------------------------------------

    @staticmethod
    def span(start: State, stop: State) -> list[State]:
        """List the states after each step between two states; the state itself if they are one."""
        return stop.up()[: max(stop.step - start.step, 1)]

    def is_given_up(self, state: State) -> bool:
        """Say whether the way to a state, from the last stored one, was given up."""
        if state in self.failed:
            return True
        for at in state.up():
            if at in self.stored:
                return False
            if at in self.failed:
                return True
        return False

    def wanted(self) -> set[State]:
        """Return the states whose metrics somebody waits for."""
        return set(self.waiting) | set(self.listening)

    def owed(self) -> set[State]:
        """Return the states after each step that must be trained for open requests."""
        found: set[State] = set()
        for state in self.wanted():
            for at in state.up():
                if at in self.stored:
                    break
                found.add(at)
        return found

    def parent(self, state: State) -> State:
        """Return the last state of interest before one."""
        return next(at for at in state.up()[1:] if at in self.vertices)

    def children(self) -> dict[State, list[State]]:
        """Return the states of interest that follow each one."""
        below: dict[State, list[State]] = {state: [] for state in self.vertices}
        for state in self.vertices:
            if state.step:
                below[self.parent(state)].append(state)
        return below

    def length(self, vertex: State, owed: set[State]) -> float:
        """Return the cost of the longest owed way that begins with the edge to a vertex."""
        if vertex not in owed:
            return 0.0
        start = self.parent(vertex)
        costs = {start: 0.0}
        for state in sorted(owed, key=lambda at: at.step):
            if start.is_on_way_to(state) and (
                state.is_on_way_to(vertex) or vertex.is_on_way_to(state)
            ):
                above = costs.get(state.at(state.step - 1))
                if above is not None:
                    costs[state] = above + step_cost(state.rows[-1], state.step - 1)
        return max(costs.values())

    def ready(self, owed: set[State]) -> set[State]:
        """Return the vertices whose edge, or evaluation, could start now."""
        found = set()
        for vertex in self.vertices:
            if vertex in self.claims or vertex in self.failed:
                continue
            if vertex in self.stored:
                if vertex in self.wanted():
                    found.add(vertex)
            elif vertex in owed and self.parent(vertex) in self.stored:
                found.add(vertex)
        return found

    def n_live(self, state: State) -> int:
        """Return how many trials that go on pass a state."""
        return sum(t.is_live and state.is_on_way_to(t.end) for t in self.trials.values())

    def deciders(self, state: State) -> int:
        """Return how many trials' tuners may still decide at a state."""
        return sum(
            t.is_live
            and state.step in t.decision_steps
            and state.step > t.heard
            and state.is_on_way_to(t.end)
            for t in self.trials.values()
        )

    def is_cut(self, state: State, children: dict[State, list[State]]) -> bool:
        """Say whether a stage must end at a state."""
        n_ways = sum(self.n_live(child) > 0 for child in children[state])
        return self.deciders(state) > 0 or n_ways > 1

    def derive(self) -> set[Derived]:
        """Return the stage tree."""
        owed, children = self.owed(), self.children()
        found = {
            Derived(state, state, (), True, state in self.claims, None)
            for state in self.wanted() & self.stored
        }
        pending: list[tuple[State, State, State | None]] = [
            (state, child, None)
            for state in self.vertices & self.stored
            for child in children[state]
            if child in owed
        ]
        while pending:
            start, at, parent = pending.pop()
            reports = []
            while True:
                below = [child for child in children[at] if child in owed]
                if at in self.waiting or len(below) != 1 or self.is_cut(at, children):
                    break
                if self.claims.get(at) != self.claims.get(below[0]):
                    break
                if at in self.listening:
                    reports.append(at.step)
                at = below[0]
            evaluates = at in self.wanted() or self.deciders(at) > 0
            running = at in self.claims
            found.add(Derived(start, at, tuple(reports), evaluates, running, parent))
            pending += [(at, child, at) for child in below]
        return found

    def path(
        self, first: State, follow: Callable[[list[State]], State | None]
    ) -> list[tuple[State, State, tuple[Step, ...]]]:
        """Return the stages of a path that begins with a ready vertex, as (start, stop, reports).

        `follow` chooses among the ways on at the end of each stage.
        """
        if first in self.stored:
            return [(first, first, ())]
        owed, children = self.owed(), self.children()
        stages: list[tuple[State, State, tuple[Step, ...]]] = []
        reports: list[Step] = []
        start, at = self.parent(first), first
        while True:
            following = [
                child
                for child in children[at]
                if child in owed and child not in self.claims and child not in self.failed
            ]
            chosen = following[0] if following else None
            if at in self.waiting or self.is_cut(at, children) or chosen is None:
                stages.append((start, at, tuple(reports)))
                chosen = follow(following) if following and at not in self.waiting else None
                if chosen is None:
                    return stages
                start, reports = at, []
            elif at in self.listening:
                reports.append(at.step)
            at = chosen
