from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dasktune.plan.merging import steps_requested
from dasktune.plan.prefix_tree import PrefixTree
from dasktune.plan.search_plan import SearchPlan
from dasktune.plan.stage_tree import derive
from dasktune.space import Configuration
from dasktune.units import Digest, Step
from tests.plan.naive import State, state_at, state_of
from tests.strategies import (
    FAMILIES,
    HORIZON,
    DrawnTrial,
    added,
    asked,
    configurations,
    differ_at,
    trial_sets,
)

steps = st.integers(0, HORIZON)


class Named(NamedTuple):
    """A stage of the stage tree by what it is."""

    start_key: Digest | None
    key: Digest
    start: Step
    stop: Step
    report_steps: tuple[Step, ...]
    evaluates: bool
    parent: Digest | None


def named(plan: SearchPlan) -> list[Named]:
    tree = derive(plan)
    stages = [
        Named(
            entry.stage.start_key,
            entry.stage.key,
            entry.stage.start,
            entry.stage.stop,
            entry.stage.report_steps,
            entry.stage.evaluates,
            None if entry.parent is None else tree.stages[entry.parent].stage.key,
        )
        for entry in tree.stages
    ]
    return sorted(stages, key=lambda stage: stage.key)


def states(tree: PrefixTree) -> dict[State, Digest]:
    return {state_at(vertex): vertex.key for vertex in tree.vertices()}


@given(trial_sets(), st.data())
def test_order_of_trials_matters_for_no_state_and_no_stage(
    drawn: list[DrawnTrial], data: st.DataObject
) -> None:
    a, b = asked(drawn), asked(data.draw(st.permutations(drawn)))
    assert states(a.tree) == states(b.tree)
    assert named(a) == named(b)
    assert (a.steps_unique, steps_requested(a)) == (b.steps_unique, steps_requested(b))


@given(trial_sets(), st.data())
def test_a_trial_may_be_drawn_after_others_were_asked(
    drawn: list[DrawnTrial], data: st.DataObject
) -> None:
    """Drawing and asking may come in any order that each trial's own order allows."""
    things = [trial for trial in drawn for _ in range(1 + len(trial.requests))]
    done = dict.fromkeys((trial.id for trial in drawn), 0)
    mixed = SearchPlan()
    for trial in data.draw(st.permutations(things)):
        if trial.id not in mixed.trials:
            mixed.add(
                trial.id,
                trial.family,
                trial.configuration,
                stop=trial.stop,
                decision_steps=trial.decision_steps,
            )
        else:
            mixed.request(mixed.trials[trial.id], *trial.requests[done[trial.id]])
            done[trial.id] += 1
    plan = asked(drawn)
    assert states(plan.tree) == states(mixed.tree)
    assert named(plan) == named(mixed)
    assert plan.steps_unique == mixed.steps_unique


@given(trial_sets(), st.lists(st.tuples(st.integers(0, 5), steps), max_size=6))
def test_every_state_has_one_vertex(
    drawn: list[DrawnTrial], wanted: list[tuple[int, Step]]
) -> None:
    plan = added(drawn)
    for which, at in wanted:
        trial = drawn[which % len(drawn)]
        step = min(at, trial.stop)
        vertex = plan.tree.vertex(plan.trials[trial.id].node, step)
        assert state_at(vertex) == state_of(trial.family, trial.configuration, step)
        assert plan.tree.vertex(plan.trials[trial.id].node, step) is vertex
    found = [state_at(vertex) for vertex in plan.tree.vertices()]
    assert len(found) == len(set(found))


@given(trial_sets())
def test_edges_stay_inside_one_node(drawn: list[DrawnTrial]) -> None:
    """So the configuration of the lower end speaks for the whole edge."""
    plan = asked(drawn)
    for vertex in plan.tree.vertices():
        above = vertex.parent
        if above is None:
            assert vertex.step == 0
            continue
        assert vertex.node.start <= above.step < vertex.step <= vertex.node.stop
        assert above.node is vertex.node or above.step == vertex.node.start
        assert state_at(above) == state_at(vertex).at(above.step)
        assert vertex in above.children()


@given(trial_sets())
def test_parents_come_before_children(drawn: list[DrawnTrial]) -> None:
    order = asked(drawn).tree.vertices()
    place = {vertex.serial: i for i, vertex in enumerate(order)}
    assert len(place) == len(order)
    assert all(
        place[vertex.parent.serial] < place[vertex.serial]
        for vertex in order
        if vertex.parent is not None
    )


@given(trial_sets(), steps)
def test_before_is_the_last_vertex_on_a_history(drawn: list[DrawnTrial], step: Step) -> None:
    plan = asked(drawn)
    every = plan.tree.vertices()
    for trial in drawn:
        at = state_of(trial.family, trial.configuration, min(step, trial.stop))
        on_way = [vertex for vertex in every if state_at(vertex).is_on_way_to(at)]
        found = plan.tree.before(plan.trials[trial.id].node, at.step)
        assert found is max(on_way, key=lambda vertex: vertex.step)
    assert plan.tree.vertices() == every


@given(trial_sets(), steps)
def test_after_is_the_next_vertex_of_the_node(drawn: list[DrawnTrial], step: Step) -> None:
    plan = asked(drawn)
    every = plan.tree.vertices()
    for planned in plan.trials.values():
        later = [v for v in every if v.node is planned.node and v.step > step]
        expected = min(later, key=lambda vertex: vertex.step, default=None)
        assert plan.tree.after(planned.node, step) is expected
    assert plan.tree.vertices() == every


@given(trial_sets(), configurations, st.integers(1, HORIZON))
def test_shared_until_is_the_furthest_that_any_trial_goes_along(
    drawn: list[DrawnTrial], configuration: Configuration, stop: Step
) -> None:
    plan = asked(drawn)
    every = plan.tree.vertices()
    shared = max(
        (
            differ_at(trial.configuration, configuration, min(trial.stop, stop))
            for trial in drawn
            if trial.family == FAMILIES[0]
        ),
        default=0,
    )
    found = plan.tree.shared_until(FAMILIES[0], configuration, stop)
    if shared == 0:
        assert found is None
    else:
        assert found is not None
        node, step = found
        assert step == shared
        assert node.start <= step <= node.stop
        assert differ_at(node.configuration, configuration, step) == step
    assert plan.tree.vertices() == every


@given(trial_sets(min_size=2), steps)
def test_branches_are_equal_if_and_only_if_the_state_is_shared(
    drawn: list[DrawnTrial], step: Step
) -> None:
    plan = asked(drawn)
    for a in drawn:
        for b in drawn:
            at = min(step, a.stop, b.stop)
            is_shared = state_of(a.family, a.configuration, at) == state_of(
                b.family, b.configuration, at
            )
            branches = [plan.branch(plan.trials[trial.id], at) for trial in (a, b)]
            assert (branches[0] == branches[1]) == is_shared


@given(trial_sets(), st.data())
def test_live_below_are_the_trials_that_pass_and_have_not_ended(
    drawn: list[DrawnTrial], data: st.DataObject
) -> None:
    plan = added(drawn)
    ended = data.draw(st.sets(st.sampled_from([trial.id for trial in drawn])))
    plan.end([plan.trials[trial] for trial in ended])
    for vertex in plan.tree.vertices():
        state = state_at(vertex)
        passing = sorted(
            trial.id
            for trial in drawn
            if trial.id not in ended
            and state.is_on_way_to(state_of(trial.family, trial.configuration, trial.stop))
        )
        assert [trial.id for trial in plan.live_below(vertex)] == passing
        assert vertex.n_live == len(passing)
