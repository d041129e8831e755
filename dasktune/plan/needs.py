"""Say which states something may still begin from; the others can be made again, or not."""

from typing import TYPE_CHECKING

from dasktune.plan.search_plan import SearchPlan
from dasktune.units import Digest

if TYPE_CHECKING:
    from dasktune.plan.prefix_tree import Vertex


def needed_states(plan: SearchPlan) -> set[Digest]:
    """Return the keys of the states that what is owed, or may yet be asked for, begins from.

    That is the nearest stored states above each owed edge, and above where each unstopped trial may
    come to. And the ends of owed edges: a worker may have stored them, and be about to say so.
    O(plan).
    """
    ends = [vertex for vertex in plan.tree.vertices() if vertex.is_owed]
    ends += [
        plan.tree.before(trial.node, trial.stop) for trial in plan.trials.values() if trial.is_live
    ]
    keys = {vertex.key for vertex in ends if vertex.is_owed}
    for vertex in ends:
        at: Vertex | None = vertex
        while at is not None and (not at.is_stored or at.is_owed):
            at = at.parent
        if at is not None and at.step:
            keys.add(at.key)
    return keys
