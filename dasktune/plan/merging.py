"""Count what sharing saves, and say why two trials share or do not.

Merge rates follow Hippo: steps if every trial ran alone, each counted once at its furthest request,
over distinct steps; a trial that its tuner ended on the way counts up to there. For studies A, B, …
run together, `merge_rate` of all of them is the k-wise rate q; `merge_rate` of one is its own p.

References:
    [1] Shin et al., "Hippo: Sharing Computations in Hyper-Parameter Optimization", PVLDB 15(5),
        2022: merge rate p of one study, k-wise rate q of several.
"""

from collections.abc import Iterator, Sequence

from dasktune.plan.history import same_until
from dasktune.plan.keys import Family
from dasktune.plan.prefix_tree import PlannedTrial, Vertex
from dasktune.plan.search_plan import SearchPlan
from dasktune.space.configuration import Configuration
from dasktune.trial import TrialId
from dasktune.units import Step


def steps_requested(plan: SearchPlan, studies: frozenset[int] | None = None) -> int:
    """Return the steps of these studies' trials, each at its furthest request. None: all."""
    return sum(trial.counted for trial in _of(plan, studies))


def steps_unique(plan: SearchPlan, studies: frozenset[int] | None = None) -> int:
    """Return the distinct steps on the way to these studies' furthest requests. None: all."""
    return sum(vertex.edge_steps for _, vertex in first_asked(plan, studies))


def first_asked(
    plan: SearchPlan, studies: frozenset[int] | None = None, *, counts_all: bool = False
) -> Iterator[tuple[PlannedTrial, Vertex]]:
    """Yield each state on the way to these studies' requests, with the first trial to ask for it.

    The first in order of insertion: of one study the one of the lowest number.

    Args:
        plan: What was asked for.
        studies: Whose trials; None: all.
        counts_all: Whether a trial that was ended on the way counts up to what it was asked for.
    """
    seen: set[int] = set()
    for trial in _of(plan, studies):
        step = trial.furthest if counts_all else trial.counted
        vertex: Vertex | None = plan.tree.before(trial.node, step)
        while step and vertex is not None and vertex.serial not in seen:
            seen.add(vertex.serial)
            yield trial, vertex
            vertex = vertex.parent


def merge_rate(plan: SearchPlan, studies: frozenset[int] | None = None) -> float:
    """Return requested over distinct steps: 1.0 where nothing is shared, or asked for."""
    unique = steps_unique(plan, studies)
    return steps_requested(plan, studies) / unique if unique else 1.0


def distinct_steps(configurations: Sequence[Configuration], stop: Step) -> int:
    """Return the distinct steps of these histories, all of one family, up to a step."""
    plan = SearchPlan()
    family = Family("", 0)
    for number, configuration in enumerate(configurations):
        trial = plan.add(TrialId(0, number), family, configuration, stop=stop, decision_steps=())
        plan.request(trial, stop)
    return plan.steps_unique


def why_shared(a: Configuration, b: Configuration, stop: Step) -> str:
    """Say in a sentence how far two histories of one family agree, and what parts them."""
    if [name for name, _ in a.schedules] != [name for name, _ in b.schedules]:
        only = sorted({name for name, _ in a.schedules} ^ {name for name, _ in b.schedules})
        return f"they share nothing: only one of them has {', '.join(only)}"
    shared = same_until(a, b, stop)
    if shared == stop:
        return f"they share all {stop} steps"
    parted = [
        f"{name} is {left.at(shared)!r} in one and {right.at(shared)!r} in the other"
        for (name, left), (_, right) in zip(a.schedules, b.schedules, strict=True)
        if same_until(Configuration(((name, left),)), Configuration(((name, right),)), shared + 1)
        == shared
    ]
    first = "they share nothing" if shared == 0 else f"they share steps 0 to {shared - 1}"
    return f"{first}: at step {shared} {' and '.join(parted)}"


def _of(plan: SearchPlan, studies: frozenset[int] | None) -> list[PlannedTrial]:
    return [trial for trial in plan.trials.values() if studies is None or trial.id.study in studies]
