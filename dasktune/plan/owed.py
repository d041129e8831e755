"""Keep up to date which edges of the prefix tree are owed, how far they lead, and which are ready.

An edge is owed while the state below it is not stored and somebody waits for it, or for something
further down. Its length is the predicted cost of the longest owed path that begins with it. An edge
is ready when its start is stored and nobody runs it. `stage_tree.derive` works all of this out from
scratch; this index only follows changes, at O(vertices up to the nearest stored state) each.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from dasktune.plan.prefix_tree import PrefixTree, Vertex


class Owed:
    """The owed edges of one prefix tree."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._became_ready: list[Vertex] = []
        self._unwanted: set[int] = set()

    @property
    def has_news(self) -> bool:
        """Whether `take_ready` would return anything."""
        return bool(self._became_ready)

    def take_ready(self) -> list[Vertex]:
        """Return the vertices that became ready, or whose length grew, since the last call."""
        taken, self._became_ready = self._became_ready, []
        return taken

    def take_unwanted(self) -> list[int]:
        """Return the paths that have lost a reason to run since the last call."""
        taken, self._unwanted = sorted(self._unwanted), set()
        return taken

    def notice(self, vertex: Vertex) -> None:
        """Remember a vertex if it is ready."""
        if is_ready(vertex):
            self._became_ready.append(vertex)

    def notice_made(self) -> None:
        """Look at new vertices: one can stand where an edge was ready."""
        if self._tree.made:
            for vertex in self._tree.made:
                self.notice(vertex)
            self._tree.made.clear()

    def notice_below(self, vertex: Vertex) -> None:
        """Look at what can start from a state that was just stored."""
        for child in vertex.children():
            self.notice(child)

    def demand(self, vertex: Vertex) -> None:
        """Let the edges above a wanted state be owed, up to the nearest stored state."""
        if vertex.is_stored:
            self.notice(vertex)
            return
        below = 0.0
        while True:
            length = self._tree.edge_weight(vertex) + below
            if vertex.is_owed and vertex.length >= length:
                return
            vertex.is_owed = True
            vertex.length = length
            parent = vertex.parent
            assert parent is not None, "a root is always stored"
            if parent.is_stored:
                self.notice(vertex)
                return
            below, vertex = length, parent

    def recheck(self, vertex: Vertex) -> None:
        """Work out again what is owed at a vertex, and above it as far as that changes."""
        at: Vertex | None = vertex
        while at is not None:
            at = at.parent if self._has_changed(at) else None

    def recheck_all(self, vertices: Iterable[Vertex]) -> None:
        """Do the same for many: each vertex above them is worked out once, after those below it."""
        pending = [(-vertex.step, vertex.serial, vertex) for vertex in vertices]
        heapify(pending)
        queued = {serial for _, serial, _ in pending}
        while pending:
            _, _, vertex = heappop(pending)
            parent = vertex.parent
            if self._has_changed(vertex) and parent is not None and parent.serial not in queued:
                queued.add(parent.serial)
                heappush(pending, (-parent.step, parent.serial, parent))

    def _has_changed(self, vertex: Vertex) -> bool:
        """Work out again what is owed at one vertex; say whether its parent may have to follow."""
        owed, below = False, 0.0
        if not vertex.is_stored:
            owed = vertex.is_wanted
            for child in vertex.children():
                if child.is_owed:
                    owed, below = True, max(below, child.length)
        length = self._tree.edge_weight(vertex) + below if owed else 0.0
        has_changed = owed != vertex.is_owed or length != vertex.length
        if vertex.is_owed and not owed and vertex.runner is not None:
            self._unwanted.add(vertex.runner)
        vertex.is_owed, vertex.length = owed, length
        self.notice(vertex)
        return has_changed

    def copy(self, tree: PrefixTree, vertices: dict[int, Vertex]) -> "Owed":
        """Return an index over a copy of the tree, whose vertices are given by serial."""
        twin = Owed(tree)
        twin._became_ready = [vertices[vertex.serial] for vertex in self._became_ready]
        twin._unwanted = self._unwanted.copy()
        return twin


def is_needed(vertex: Vertex) -> bool:
    """Say whether an open request needs a state, or its metrics, to be made."""
    return vertex.is_owed or (vertex.is_stored and vertex.is_wanted)


def is_ready(vertex: Vertex) -> bool:
    """Say whether the way to a state, or its evaluation, could start now."""
    if vertex.runner is not None or vertex.failure is not None:
        return False
    if vertex.is_stored:
        return vertex.is_wanted
    return vertex.is_owed and vertex.parent is not None and vertex.parent.is_stored
