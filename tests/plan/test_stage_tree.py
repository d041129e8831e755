from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dasktune.plan.paths import plan_path
from dasktune.plan.search_plan import SearchPlan
from dasktune.plan.stage_tree import StageTree, TreeStage, derive
from tests.plan.naive import NaivePlan, State, stage_ends, state_of
from tests.strategies import DrawnTrial, asked, trial_sets


def trained(tree: StageTree) -> Counter[State]:
    """Count how often each step, named by the state after it, is in a stage."""
    spans = (stage_ends(entry.stage) for entry in tree.stages if entry.stage.n_steps)
    return Counter(state for start, stop in spans for state in NaivePlan.span(start, stop))


def on_way(tree: StageTree, state: State) -> list[TreeStage]:
    """Follow the stages up from the one that ends at a state; the first comes first."""
    index = next(
        (i for i, entry in enumerate(tree.stages) if stage_ends(entry.stage)[1] == state), None
    )
    chain: list[TreeStage] = []
    while index is not None:
        chain.insert(0, tree.stages[index])
        index = tree.stages[index].parent
    return chain


@given(trial_sets())
def test_stages_on_a_trials_way_are_its_steps_without_gap_or_overlap(
    drawn: list[DrawnTrial],
) -> None:
    tree = derive(asked(drawn))
    for trial in drawn:
        for step, _ in trial.requests:
            goal = state_of(trial.family, trial.configuration, step)
            chain = [entry.stage for entry in on_way(tree, goal)]
            assert [s.start for s in chain] == [0, *(s.stop for s in chain[:-1])]
            assert chain[-1].stop == step
            for stage in chain:
                values = [stage.configuration.at(t) for t in range(stage.start, stage.stop)]
                own = [trial.configuration.at(t) for t in range(stage.start, stage.stop)]
                assert repr(values) == repr(own)
                assert stage.family == trial.family


@given(trial_sets())
def test_every_distinct_step_is_in_one_stage(drawn: list[DrawnTrial]) -> None:
    tree = derive(asked(drawn))
    expected = {
        state
        for trial in drawn
        for state in state_of(trial.family, trial.configuration, trial.furthest).up()[:-1]
    }
    assert trained(tree) == Counter(expected)
    assert tree.n_steps == len(expected)
    assert sum(tree.durations(lambda stage: float(stage.n_steps))) == tree.n_steps


@given(trial_sets())
def test_every_request_ends_one_stage_that_evaluates(drawn: list[DrawnTrial]) -> None:
    ends = Counter(
        stage_ends(entry.stage)[1] for entry in derive(asked(drawn)).stages if entry.stage.evaluates
    )
    for trial in drawn:
        for step, _ in trial.requests:
            assert ends[state_of(trial.family, trial.configuration, step)] == 1


@given(trial_sets())
def test_stages_hang_together(drawn: list[DrawnTrial]) -> None:
    tree = derive(asked(drawn))
    roots = set(tree.roots())
    below = tree.children()
    for index, entry in enumerate(tree.stages):
        if entry.parent is None:
            assert index in roots
            assert entry.stage.start_key is None
            continue
        above = tree.stages[entry.parent].stage
        assert entry.parent < index
        assert index in below[entry.parent]
        assert stage_ends(above)[1] == stage_ends(entry.stage)[0]
        assert entry.stage.start_key == above.key
    assert sum(map(len, below)) + len(roots) == len(tree.stages)


@given(trial_sets(), st.integers(0, 5))
def test_a_claimed_path_is_in_the_tree_as_running(drawn: list[DrawnTrial], which: int) -> None:
    """And the rest of the tree stays as it was."""
    plan = asked(drawn)
    before = derive(plan)
    ready = [v for v in plan.tree.vertices() if v.is_owed and v.parent and v.parent.is_stored]
    if not ready:
        return
    path = plan_path(ready[which % len(ready)], lambda below: below[which % len(below)])
    for planned in path:
        plan.claim(planned.end, planned.stage.start, 1)
    after = derive(plan)
    assert [entry.stage for entry in after.stages] == [entry.stage for entry in before.stages]
    claimed = {planned.stage.key for planned in path}
    assert {entry.stage.key for entry in after.stages if entry.is_running} == claimed


def test_a_plan_that_owes_nothing_has_an_empty_tree() -> None:
    assert derive(SearchPlan()) == StageTree(())
