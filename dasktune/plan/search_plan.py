"""Know, at any moment, which training is asked for, done, running and still owed.

The search plan merges the histories of all trials, counts who waits for which state, and keeps an
index of the pieces of training (edges between vertices) that open requests still need (`owed`).
Only the study's core writes here; tuners, workers and time are unknown.

Every change costs O(vertices between it and the nearest stored state above).

References:
    [1] Shin et al., "Hippo: Sharing Computations in Hyper-Parameter Optimization", PVLDB 15(5),
        2022: search plan and stage tree. Hippo rebuilds its tree at every decision; this one is
        kept up to date instead, because a decision must not cost more when the study is larger.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dasktune.plan.keys import Family
from dasktune.plan.owed import Owed, is_needed
from dasktune.plan.prefix_tree import PlannedTrial, PrefixTree, Vertex, Weigh
from dasktune.space.configuration import Configuration
from dasktune.trial import TrialId
from dasktune.units import Digest, Step


def count_steps(_configuration: Configuration, start: Step, stop: Step) -> float:
    """Weigh training by its number of steps: one second each, whatever the values."""
    return float(stop - start)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one trial hears about one state: its metrics, or why there are none."""

    trial: PlannedTrial
    step: Step
    metrics: Mapping[str, float] | None
    failure: str | None = None


class SearchPlan:
    """All histories ever asked for, with requests, results and stored states."""

    def __init__(self, weigh: Weigh = count_steps) -> None:
        self.tree = PrefixTree(weigh)
        self.owed = Owed(self.tree)
        self.trials: dict[TrialId, PlannedTrial] = {}
        self.steps_unique = 0
        """Distinct steps on the paths to all requests ever made."""
        self.steps_executed = 0
        """Steps that workers said they trained."""
        self.steps_recomputed = 0
        """Of those, steps that had been trained before or were lost."""
        self._by_key: dict[Digest, Vertex] = {}

    # --- trials -------------------------------------------------------------------------------

    def add(  # noqa: PLR0913  (all keywords: what is known ahead of a trial)
        self,
        trial: TrialId,
        family: Family,
        configuration: Configuration,
        *,
        stop: Step,
        decision_steps: tuple[Step, ...],
        report_steps: tuple[Step, ...] = (),
        keep_steps: tuple[Step, ...] = (),
    ) -> PlannedTrial:
        """Let a drawn trial take part in where stages are cut, before it is asked to train.

        Args:
            trial: Must be new.
            family: What it must have in common with others to share with them.
            configuration: Its history.
            stop: The furthest step that its tuner will ever ask for.
            decision_steps: Steps, ascending, at which its tuner is known to decide.
            report_steps: Steps, ascending, at which it is known to report in passing: metrics are
                taken there by whoever is the first to pass.
            keep_steps: Steps whose states are committed when they are passed, since histories that
                are known later may leave there.
        """
        node = self.tree.insert(family, configuration, stop)
        planned = PlannedTrial(trial, node, stop, decision_steps)
        planned.report_steps = report_steps
        self.trials[trial] = planned
        end = self.tree.vertex(node, stop)
        if end.ends is None:
            end.ends = []
        end.ends.append(planned)
        self._count_live(end, 1)
        for step in decision_steps:
            self.tree.vertex(node, step).deciders += 1
        for step in report_steps:
            self.tree.vertex(node, step).reporters += 1
        for step in keep_steps:
            self.tree.vertex(node, step).is_kept = True
        self.owed.notice_made()
        return planned

    def end(self, trials: Iterable[PlannedTrial]) -> None:
        """Forget what these trials wait for: none of them will be asked again."""
        touched: dict[int, Vertex] = {}
        for trial in trials:
            if not trial.is_live:
                continue
            trial.is_live = False
            self._count_live(self.tree.vertex(trial.node, trial.stop), -1)
            for step in trial.decision_steps:
                if step > trial.heard:
                    self.tree.vertex(trial.node, step).deciders -= 1
            for step in trial.report_steps:
                self.tree.vertex(trial.node, step).reporters -= 1
            for vertex in self._forget(trial):
                touched[vertex.serial] = vertex
        self.owed.recheck_all(touched.values())

    def _forget(self, trial: PlannedTrial) -> list[Vertex]:
        """Take a trial out of every list it waits in."""
        touched = []
        vertex: Vertex | None = self.tree.vertex(trial.node, trial.furthest)
        while vertex is not None and trial.n_open:
            for waiters in (vertex.waiting, vertex.listening):
                if waiters and trial in waiters:
                    waiters.remove(trial)
                    trial.n_open -= 1
                    touched.append(vertex)
            vertex = vertex.parent
        return touched

    @staticmethod
    def _count_live(vertex: Vertex | None, change: int) -> None:
        while vertex is not None:
            vertex.n_live += change
            vertex = vertex.parent

    # --- requests and answers -----------------------------------------------------------------

    def request(
        self, trial: PlannedTrial, step: Step, report_steps: Sequence[Step] = ()
    ) -> list[Answer]:
        """Open a request; return what is known already, in order of steps, a failure last."""
        vertex = self._vertex(trial, step)
        trial.furthest = max(trial.furthest, step)
        self._count_asked(vertex)
        answers = []
        opened = []
        for at in (*report_steps, step):
            vertex = self._vertex(trial, at)
            if vertex.metrics is not None:
                if at == step:
                    self._hear(trial, vertex)
                answers.append(Answer(trial, at, vertex.metrics))
            elif (failure := self._failure_above(vertex)) is not None:
                answers.append(Answer(trial, at, None, failure))
                break
            else:
                self._open(trial, vertex, is_report=at != step)
                opened.append(vertex)
        for vertex in reversed(opened):
            self.owed.demand(vertex)
        return answers

    @staticmethod
    def _open(trial: PlannedTrial, vertex: Vertex, *, is_report: bool) -> None:
        trial.n_open += 1
        if is_report:
            vertex.listening = vertex.listening or []
            vertex.listening.append(trial)
        else:
            vertex.waiting = vertex.waiting or []
            vertex.waiting.append(trial)

    def _vertex(self, trial: PlannedTrial, step: Step) -> Vertex:
        vertex = self.tree.vertex(trial.node, step)
        self.owed.notice_made()
        return vertex

    def _count_asked(self, vertex: Vertex) -> None:
        while not vertex.is_asked:
            vertex.is_asked = True
            if vertex.parent is None:
                return
            self.steps_unique += vertex.edge_steps
            vertex = vertex.parent

    @staticmethod
    def _failure_above(vertex: Vertex) -> str | None:
        if vertex.failure is not None:
            return vertex.failure  # of a stored state: its evaluation
        at: Vertex | None = vertex
        while at is not None and not at.is_stored:
            if at.failure is not None:
                return at.failure
            at = at.parent
        return None

    def _hear(self, trial: PlannedTrial, vertex: Vertex) -> None:
        for step in trial.decision_steps:  # those that were skipped, too
            if trial.heard < step <= vertex.step:
                self.tree.vertex(trial.node, step).deciders -= 1
        trial.heard = max(trial.heard, vertex.step)

    def measured(self, vertex: Vertex, metrics: Mapping[str, float]) -> list[Answer]:
        """Record the metrics of a state; return the answers it gives, in trial order."""
        if vertex.metrics is not None:
            return []  # a state has one answer: the first
        vertex.metrics = metrics
        answers = []
        for trial in vertex.waiting or ():
            self._hear(trial, vertex)
            answers.append(Answer(trial, vertex.step, metrics))
        answers += [Answer(trial, vertex.step, metrics) for trial in vertex.listening or ()]
        for answer in answers:
            answer.trial.n_open -= 1
        vertex.waiting = vertex.listening = None
        answers.sort(key=lambda answer: answer.trial.id)
        self.owed.recheck(vertex)
        return answers

    # --- work ---------------------------------------------------------------------------------

    def claim(self, end: Vertex, start: Step, path: int) -> None:
        """Mark the edges from `start` down to `end` as running on a path."""
        self._by_key[end.key] = end
        if end.is_stored:  # zero steps: only an evaluation
            end.runner = path
            end.is_evaluating = True
            return
        vertex: Vertex | None = end
        while vertex is not None and vertex.step > start:
            vertex.runner = path
            vertex = vertex.parent

    def release(self, end: Vertex, start: Step) -> None:
        """Take a claim back: the work is owed again if somebody still wants it."""
        end.is_evaluating = False
        for vertex in _edges(start, end):
            vertex.runner = None
            self.owed.recheck(vertex)

    def finish(self, end: Vertex, start: Step, *, reached: Step, executed_steps: int) -> Vertex:
        """Record that a claimed stage has committed the state at `reached`; return its vertex.

        Args:
            end: Where the stage was to end.
            start: Where it was to begin.
            reached: Where it did end: `end.step`, or an earlier step boundary.
            executed_steps: Steps that were really trained: fewer if a state was found on the way.
        """
        at = end if reached == end.step else self.tree.vertex(end.node, reached)
        self.owed.notice_made()
        claimed = _edges(start, end)
        end.is_evaluating = False
        for vertex in claimed:
            vertex.runner = None
        self._count_trained([v for v in claimed if v.step <= reached], executed_steps)
        at.is_stored = True
        self._by_key[at.key] = at
        for vertex in claimed:
            self.owed.recheck(vertex)
        self.owed.recheck(at)
        self.owed.notice_below(at)
        return at

    def found(self, key: Digest, reached: Step, executed_steps: int) -> Vertex | None:
        """Record a committed state that no claim was counted on for; None if it is not known."""
        vertex = self._by_key.get(key)
        if vertex is None:
            return None
        at = vertex if reached == vertex.step else self.tree.vertex(vertex.node, reached)
        self.owed.notice_made()
        self._count_trained(_edges(reached - executed_steps, at), executed_steps)
        if not at.is_stored:
            at.is_stored = True
            self._by_key[at.key] = at
            self.owed.recheck(at)
            self.owed.notice_below(at)
        return at

    def _count_trained(self, edges: Iterable[Vertex], executed_steps: int) -> None:
        new_steps = 0
        for edge in edges:
            if not edge.is_trained:
                edge.is_trained = True
                new_steps += edge.edge_steps
        self.steps_executed += executed_steps
        self.steps_recomputed += max(0, executed_steps - new_steps)

    def wasted(self, executed_steps: int) -> None:
        """Count steps that were trained and left no state."""
        self.steps_executed += executed_steps
        self.steps_recomputed += executed_steps

    def lose(self, key: Digest) -> list[Answer]:
        """Record that a stored state is gone; it is made again if somebody needs it.

        Returns:
            An answer to every trial that waits beyond it, if the way to it was given up before.
        """
        vertex = self._by_key.get(key)
        if vertex is None or vertex.parent is None or not vertex.is_stored:
            return []
        vertex.is_stored = False
        vertex.failure = None  # was that of an evaluation
        self.owed.recheck(vertex)
        failure = self._failure_above(vertex)
        return self._failed(vertex, failure) if failure is not None else []

    def fail(self, vertex: Vertex, failure: str) -> list[Answer]:
        """Give up the way to a state, or the evaluation of a stored one.

        Returns:
            An answer to every trial that waits for it, and beyond it unless it is stored.
        """
        vertex.failure = failure
        return self._failed(vertex, failure)

    @staticmethod
    def _failed(vertex: Vertex, failure: str) -> list[Answer]:
        answers: dict[TrialId, Answer] = {}
        pending = [vertex]
        while pending:
            at = pending.pop()
            for trial in (at.waiting or []) + (at.listening or []):
                known = answers.get(trial.id)
                if known is None or at.step < known.step:
                    answers[trial.id] = Answer(trial, at.step, None, failure)
            if not at.is_stored:
                pending += [child for child in at.children() if not child.is_stored]
        return [answers[trial] for trial in sorted(answers)]

    def live_below(self, vertex: Vertex) -> list[PlannedTrial]:
        """Return the trials that have not ended and share a state, in trial order."""
        found: list[PlannedTrial] = []
        pending = [vertex]
        while pending:
            at = pending.pop()
            found += [trial for trial in at.ends or () if trial.is_live]
            pending += [child for child in at.children() if child.n_live]
        return sorted(found, key=lambda trial: trial.id)

    # --- questions ----------------------------------------------------------------------------

    def branch(self, trial: PlannedTrial, step: Step) -> tuple[int, Step]:
        """Return an identity of a trial's history up to a step: equal if and only if shared."""
        node = trial.node
        while step <= node.start and node.parent is not None:
            node = node.parent
        return node.number, step

    def new_steps(self, family: Family, configuration: Configuration, step: Step) -> int:
        """Return how many steps that nobody has asked for yet a configuration would cost."""
        shared = self.tree.shared_until(family, configuration, step)
        if shared is None:
            return step
        node, leaves_at = shared
        below = self.tree.after(node, leaves_at)
        if below is not None and below.is_asked:
            return step - leaves_at
        covered: Vertex | None = self.tree.before(node, leaves_at)
        while covered is not None and not covered.is_asked:
            covered = covered.parent
        return step - (covered.step if covered is not None else 0)

    @property
    def n_owed(self) -> int:
        """Number of states and metrics that are still to be made; walks the whole tree."""
        return sum(is_needed(vertex) for vertex in self.tree.vertices())

    def copy(self) -> tuple["SearchPlan", dict[int, Vertex]]:
        """Return a plan that goes on from here by itself, and its vertices by serial. O(plan)."""
        twin = SearchPlan(self.tree.weigh)
        twin.tree, nodes, vertices = self.tree.copy()
        twin.owed = self.owed.copy(twin.tree, vertices)
        twin.steps_unique = self.steps_unique
        twin.steps_executed = self.steps_executed
        twin.steps_recomputed = self.steps_recomputed
        for trial in self.trials.values():
            twin.trials[trial.id] = trial.copy(nodes[trial.node.number])
        for vertex in self.tree.vertices():
            made = vertices[vertex.serial]
            for name in ("waiting", "listening", "ends"):
                trials = getattr(vertex, name)
                if trials is not None:
                    setattr(made, name, [twin.trials[trial.id] for trial in trials])
        twin._by_key = {key: vertices[vertex.serial] for key, vertex in self._by_key.items()}
        return twin, vertices


def _edges(start: Step, end: Vertex) -> list[Vertex]:
    """Return the vertex at the end and those above it whose edges begin at `start` or later."""
    edges = [end]
    vertex = end.parent
    while vertex is not None and vertex.step > start:
        edges.append(vertex)
        vertex = vertex.parent
    return edges
