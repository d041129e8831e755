"""Keep all histories ever asked for, each shared prefix once.

A *node* is a history followed from where it leaves its parent's. It does not end: trials that stop
early and trials that leave at different steps all share it (Hippo's search-plan nodes [1]). A
*vertex* marks a state on a node that matters to somebody: a fork, a step at which a tuner may
decide, a report, a stored state. Vertices form a tree of their own; an edge is a piece of training.

Only the search plan writes here. Which history a node carries depends on the order of insertion;
which states exist, and how they hang together, does not.

References:
    [1] Shin et al., "Hippo", PVLDB 15(5), 2022, section on the search plan.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from dasktune.plan.history import Comparison, changes, tokens_at
from dasktune.plan.keys import Family, Link, extended, first_link, state_key
from dasktune.space.configuration import Configuration
from dasktune.trial import TrialId
from dasktune.units import Digest, Step

Weigh: TypeAlias = Callable[[Configuration, Step, Step], float]
"""Predicted cost, in seconds, of training a configuration from one step to another; additive."""


class Node:
    """One history from the step at which it leaves its parent's."""

    __slots__ = ("children", "configuration", "family", "number", "parent", "start", "steps",
                 "stop", "vertices")  # fmt: skip

    def __init__(
        self,
        number: int,
        family: Family,
        configuration: Configuration,
        *,
        parent: "Node | None",
        start: Step,
        stop: Step,
    ) -> None:
        self.number = number
        self.family = family
        self.configuration = configuration
        self.parent = parent
        self.start = start
        self.stop = stop  # up to here `configuration` speaks for every trial of the node
        self.children: dict[tuple[Step, tuple[tuple[str, str], ...]], Node] = {}
        self.steps: list[Step] = []  # ascending; `vertices` beside it
        self.vertices: list[Vertex] = []


class Vertex:
    """A state that matters, and the edge of training that leads to it from `parent`."""

    __slots__ = (
        "attempts", "branches", "deaths", "deciders", "ends", "failure", "is_asked",
        "is_evaluating", "is_kept", "is_owed", "is_stored", "is_trained", "length", "link",
        "listening", "metrics", "n_live", "next", "node", "parent", "reporters", "runner", "serial",
        "step", "waiting",
    )  # fmt: skip

    def __init__(self, node: Node, step: Step, parent: "Vertex | None", serial: int) -> None:
        self.node = node
        self.step = step
        self.parent = parent
        self.serial = serial
        self.next: Vertex | None = None  # the following vertex on the same node
        self.branches: dict[int, Vertex] | None = None  # first vertices of nodes that leave here
        self.link: Link | None = None
        self.is_stored = False
        self.is_trained = False  # the edge has been trained at least once
        self.is_asked = False  # a request was ever made here or below
        self.is_kept = False  # committed when it is passed, for histories that are known later
        self.is_owed = False  # the edge must be trained for a request that is still open
        self.length = 0.0  # while owed: cost of this edge and of the longest owed path below it
        self.runner: int | None = None  # number of the path that has claimed the edge
        self.is_evaluating = False  # ... but only to evaluate the state, which was stored
        self.metrics: Mapping[str, float] | None = None
        self.waiting: list[PlannedTrial] | None = None  # open requests
        self.listening: list[PlannedTrial] | None = None  # open reports in passing
        self.ends: list[PlannedTrial] | None = None  # trials whose last possible step is here
        self.n_live = 0  # trials that have not ended and end at or below here
        self.deciders = 0  # of those, the ones whose tuner may still want to decide here
        self.reporters = 0  # of those, the ones that report here in passing, now or later
        self.attempts = 0  # exceptions on the way here
        self.deaths = 0  # workers that died on the way here
        self.failure: str | None = None  # set once the limits are reached

    @property
    def edge_steps(self) -> int:
        """Steps of training from the parent to here."""
        return self.step - self.parent.step if self.parent is not None else 0

    @property
    def is_to_report(self) -> bool:
        """Whether metrics are taken when the state is passed: somebody listens, or will."""
        return bool(self.listening) or bool(self.reporters and self.metrics is None)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for the metrics of this state."""
        return bool(self.waiting) or bool(self.listening)

    def children(self) -> Iterator["Vertex"]:
        """Yield the vertices that follow: on the node itself first, then the branches in order."""
        if self.next is not None:
            yield self.next
        if self.branches is not None:
            yield from self.branches.values()

    @property
    def key(self) -> Digest:
        """Digest that names the state."""
        return state_key(link_of(self), self.step)


def link_of(vertex: Vertex) -> Link:
    """Return the chain's last link at a vertex, extending it from the nearest known one."""
    chain = []
    at = vertex
    while at.link is None and at.parent is not None:
        chain.append(at)
        at = at.parent
    if at.link is None:
        node = at.node
        at.link = first_link(node.family, tokens_at(node.configuration, 0))
    link = at.link
    for below in reversed(chain):
        # The link of a state covers the steps that are done: those before its own.
        link = extended(link, changes(below.node.configuration, max(at.step, 1), below.step))
        below.link = link
        at = below
    return link


class PlannedTrial:
    """A trial as the search plan sees it: a path through the prefix tree."""

    __slots__ = (
        "decision_steps", "furthest", "heard", "id", "is_live", "n_open", "node", "report_steps",
        "stop", "stopped_at",
    )  # fmt: skip

    def __init__(
        self, trial: TrialId, node: Node, stop: Step, decision_steps: tuple[Step, ...]
    ) -> None:
        self.id = trial
        self.node = node
        self.stop = stop
        self.decision_steps = decision_steps
        self.report_steps: tuple[Step, ...] = ()
        self.furthest: Step = 0  # the furthest step ever asked for
        self.stopped_at: Step | None = None  # where it was ended on the way to a request
        self.heard: Step = -1  # the furthest request that was answered
        self.n_open = 0  # requests and reports that it waits for
        self.is_live = True

    @property
    def counted(self) -> Step:
        """The furthest step that it counts for: where it was ended, or was last asked for."""
        return self.furthest if self.stopped_at is None else self.stopped_at

    def copy(self, node: Node) -> "PlannedTrial":
        """Return the same on a copy of the prefix tree."""
        twin = PlannedTrial(self.id, node, self.stop, self.decision_steps)
        twin.furthest, twin.heard, twin.is_live = self.furthest, self.heard, self.is_live
        twin.n_open, twin.report_steps = self.n_open, self.report_steps
        twin.stopped_at = self.stopped_at
        return twin


class PrefixTree:
    """All histories of one search plan, and the vertices on them."""

    def __init__(self, weigh: Weigh) -> None:
        self.weigh = weigh
        self.made: list[Vertex] = []
        """Vertices made since the search plan last looked; it empties the list."""
        self._roots: dict[tuple[Family, tuple[tuple[str, str], ...]], Node] = {}
        self._compare = Comparison()
        self._n_nodes = 0
        self._n_vertices = 0

    def roots(self) -> Iterator[Vertex]:
        """Yield the fresh states, in order of insertion."""
        for node in self._roots.values():
            yield node.vertices[0]

    def insert(self, family: Family, configuration: Configuration, stop: Step) -> Node:
        """Return the node that carries `configuration` through `stop` steps, made if need be.

        O(forks on the way times hyper-parameters); steps are compared only where two schedules
        are neither identical nor told apart by their first changes.
        """
        start_tokens = tokens_at(configuration, 0)
        node = self._roots.get((family, start_tokens))
        if node is None:
            node = self._node(family, configuration, parent=None, start=0, stop=stop)
            self._roots[family, start_tokens] = node
            root = self._vertex(node, 0, None)
            root.is_stored = True  # a fresh state needs no checkpoint
            root.is_trained = True
            _put(node, 0, 0, root)
            return node
        while True:
            common = min(stop, node.stop)
            leaves_at = self._compare.same_until(configuration, node.configuration, common)
            if leaves_at == common:
                if stop > node.stop:  # the longer history speaks for the node from now on
                    node.configuration, node.stop = configuration, stop
                return node
            at = (leaves_at, tokens_at(configuration, leaves_at))
            child = node.children.get(at)
            if child is None:
                child = self._node(family, configuration, parent=node, start=leaves_at, stop=stop)
                node.children[at] = child
                self.vertex(node, leaves_at)
                return child
            node = child

    def shared_until(
        self, family: Family, configuration: Configuration, stop: Step
    ) -> tuple[Node, Step] | None:
        """Return the node that a configuration would follow furthest, and the step it leaves it.

        None if it would share nothing. Changes nothing.
        """
        node = self._roots.get((family, tokens_at(configuration, 0)))
        if node is None:
            return None
        while True:
            common = min(stop, node.stop)
            leaves_at = self._compare.same_until(configuration, node.configuration, common)
            child = None
            if leaves_at < common:
                child = node.children.get((leaves_at, tokens_at(configuration, leaves_at)))
            if child is None:
                return node, leaves_at
            node = child

    def vertex(self, node: Node, step: Step) -> Vertex:
        """Return the vertex of a state, splitting an edge if there is none yet."""
        while step <= node.start and node.parent is not None:
            node = node.parent  # the state at which a node leaves belongs to its parent
        index = bisect_left(node.steps, step)
        if index < len(node.steps) and node.steps[index] == step:
            return node.vertices[index]
        if index > 0:
            above = node.vertices[index - 1]
        else:
            assert node.parent is not None, "a root node has a vertex at step 0"
            above = self.vertex(node.parent, node.start)
        below = node.vertices[index] if index < len(node.vertices) else None
        made = self._vertex(node, step, above)
        _put(node, index, step, made)
        if above.node is node:
            above.next = made
        else:
            if above.branches is None:
                above.branches = {}
            above.branches[node.number] = made
        if below is not None:
            self._split(made, below)
        self.made.append(made)
        return made

    def before(self, node: Node, step: Step) -> Vertex:
        """Return the last vertex at or before a state of a node's history; changes nothing."""
        while True:
            index = bisect_left(node.steps, step + 1)
            if index > 0:
                return node.vertices[index - 1]
            assert node.parent is not None, "a root node has a vertex at step 0"
            step, node = min(step, node.start), node.parent

    def after(self, node: Node, step: Step) -> Vertex | None:
        """Return the first vertex after a state on the node itself, if any; changes nothing."""
        index = bisect_left(node.steps, step + 1)
        return node.vertices[index] if index < len(node.steps) else None

    def vertices(self) -> list[Vertex]:
        """Return all vertices, parents before children."""
        found = list(self.roots())
        for vertex in found:  # grows while it is walked
            found.extend(vertex.children())
        return found

    def copy(self) -> tuple["PrefixTree", dict[int, Node], dict[int, Vertex]]:
        """Return a tree that shares values only, its nodes by number and its vertices by serial.

        Lists of trials are left out: they belong to the search plan, which fills them in.
        """
        twin = PrefixTree(self.weigh)
        twin._compare = self._compare  # what it remembers is true of every tree
        twin._n_nodes, twin._n_vertices = self._n_nodes, self._n_vertices
        vertices: dict[int, Vertex] = {}
        nodes: dict[int, Node] = {}
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            parent = nodes[node.parent.number] if node.parent is not None else None
            fresh = Node(node.number, node.family, node.configuration,
                         parent=parent, start=node.start, stop=node.stop)  # fmt: skip
            nodes[node.number] = fresh
            fresh.steps = node.steps.copy()
            for vertex in node.vertices:
                above = vertices[vertex.parent.serial] if vertex.parent is not None else None
                made = _twin(vertex, fresh, above)
                vertices[vertex.serial] = made
                fresh.vertices.append(made)
            pending.extend(node.children.values())
        for key, node in self._roots.items():
            twin._roots[key] = nodes[node.number]
            pending.append(node)
        while pending:  # children and branches keep their order
            node = pending.pop()
            nodes[node.number].children = {k: nodes[c.number] for k, c in node.children.items()}
            for vertex in node.vertices:
                made = vertices[vertex.serial]
                if vertex.next is not None:
                    made.next = vertices[vertex.next.serial]
                if vertex.branches is not None:
                    made.branches = {k: vertices[b.serial] for k, b in vertex.branches.items()}
            pending.extend(node.children.values())
        return twin, nodes, vertices

    def _node(
        self,
        family: Family,
        configuration: Configuration,
        *,
        parent: Node | None,
        start: Step,
        stop: Step,
    ) -> Node:
        self._n_nodes += 1
        return Node(self._n_nodes, family, configuration, parent=parent, start=start, stop=stop)

    def _vertex(self, node: Node, step: Step, parent: Vertex | None) -> Vertex:
        self._n_vertices += 1
        return Vertex(node, step, parent, self._n_vertices)

    def _split(self, made: Vertex, below: Vertex) -> None:
        """Let the new vertex take the upper part of the edge to `below`."""
        made.next = below
        below.parent = made
        made.is_asked = below.is_asked
        made.is_trained = below.is_trained
        made.runner = below.runner if not below.is_evaluating else None
        made.n_live = below.n_live
        if below.is_owed:
            made.is_owed = True
            made.length = below.length
            below.length -= self.edge_weight(made)

    def edge_weight(self, vertex: Vertex) -> float:
        """Return the predicted cost of the edge to a vertex."""
        if vertex.parent is None:
            return 0.0
        return self.weigh(vertex.node.configuration, vertex.parent.step, vertex.step)


def _put(node: Node, index: int, step: Step, vertex: Vertex) -> None:
    node.steps.insert(index, step)
    node.vertices.insert(index, vertex)


def _twin(vertex: Vertex, node: Node, parent: Vertex | None) -> Vertex:
    # One by one: a loop over the names takes three times as long, and forks are made to be cheap.
    made = Vertex(node, vertex.step, parent, vertex.serial)
    made.link = vertex.link
    made.is_stored = vertex.is_stored
    made.is_trained = vertex.is_trained
    made.is_asked = vertex.is_asked
    made.is_kept = vertex.is_kept
    made.is_owed = vertex.is_owed
    made.length = vertex.length
    made.runner = vertex.runner
    made.is_evaluating = vertex.is_evaluating
    made.metrics = vertex.metrics
    made.n_live = vertex.n_live
    made.deciders = vertex.deciders
    made.reporters = vertex.reporters
    made.attempts = vertex.attempts
    made.deaths = vertex.deaths
    made.failure = vertex.failure
    return made
