from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dasktune.plan.owed import is_ready
from dasktune.plan.paths import PlannedStage, plan_path
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.search_plan import SearchPlan
from dasktune.plan.stage import Stage
from dasktune.plan.stage_tree import derive
from dasktune.units import Step
from tests.plan.naive import NaivePlan, State, stage_ends, state_of
from tests.strategies import DrawnTrial, added, asked, trial_sets

turns = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def run(plan: SearchPlan, turns: Sequence[int], *, stop_at_requests: bool = False) -> list[Stage]:
    """Execute paths, one at a time, until nothing is ready; ways are chosen by turns."""
    done: list[Stage] = []
    while True:
        ready = [vertex for vertex in plan.tree.vertices() if is_ready(vertex)]
        if not ready:
            return done
        turn = turns[len(done) % len(turns)]

        def follow(below: Sequence[Vertex], turn: int = turn) -> Vertex | None:
            return below[turn] if turn < len(below) else None

        path = plan_path(ready[turn % len(ready)], follow)
        for planned in path:
            plan.claim(planned.end, planned.stage.start, len(done) + 1)
        done += [planned.stage for planned in path]
        for planned in path:
            answer(plan, planned)
        if stop_at_requests:
            return done


def answer(plan: SearchPlan, planned: PlannedStage) -> None:
    stage, end = planned.stage, planned.end
    for step in stage.report_steps:
        plan.measured(plan.tree.before(end.node, step), {"at": float(step)})
    at = plan.finish(end, stage.start, reached=stage.stop, executed_steps=stage.n_steps)
    if stage.evaluates:
        plan.measured(at, {"at": float(stage.stop)})


def strictly_inside(stages: Sequence[Stage]) -> set[State]:
    """Return the states that stages pass without stopping."""
    inside: set[State] = set()
    for stage in stages:
        start, stop = stage_ends(stage)
        inside.update(NaivePlan.span(start, stop)[1:])
    return inside


def derived(plan: SearchPlan) -> list[Stage]:
    return [entry.stage for entry in derive(plan).stages]


def boundaries(plan: SearchPlan) -> set[tuple[State, State]]:
    return {stage_ends(stage) for stage in derived(plan)}


def forks(drawn: Sequence[DrawnTrial]) -> set[State]:
    """Return the states at which two trials part."""
    found: set[State] = set()
    for a in drawn:
        for b in drawn:
            common = min(a.stop, b.stop)
            ways = [state_of(trial.family, trial.configuration, common).rows for trial in (a, b)]
            parts_at = next((t for t in range(common) if ways[0][t] != ways[1][t]), common)
            if a.family == b.family and 0 < parts_at < common:
                found.add(state_of(a.family, a.configuration, parts_at))
    return found


@given(trial_sets(), turns)
def test_executed_stages_are_each_trials_steps_without_gap_or_overlap(
    drawn: list[DrawnTrial], turns: list[int]
) -> None:
    spans = [stage_ends(stage) for stage in run(asked(drawn), turns)]
    for trial in drawn:
        goal = state_of(trial.family, trial.configuration, trial.furthest)
        own = sorted((s, e) for s, e in spans if e.is_on_way_to(goal))
        steps = [step for start, stop in own for step in range(start.step, stop.step)]
        assert steps == list(range(trial.furthest))


@given(trial_sets(), turns)
def test_every_distinct_step_is_executed_once(drawn: list[DrawnTrial], turns: list[int]) -> None:
    plan = asked(drawn)
    spans = [stage_ends(stage) for stage in run(plan, turns)]
    executed = Counter(state for span in spans for state in NaivePlan.span(*span))
    assert set(executed.values()) <= {1}
    assert len(executed) == plan.steps_unique == plan.steps_executed
    assert plan.steps_recomputed == 0
    assert plan.n_owed == 0


@given(trial_sets(), turns)
def test_paths_are_cut_as_the_tree_is(drawn: list[DrawnTrial], turns: list[int]) -> None:
    plan = asked(drawn)
    expected = derived(plan)
    done = run(plan, turns)
    assert sorted(stage.key for stage in done) == sorted(stage.key for stage in expected)
    by_key = {stage.key: stage for stage in expected}
    assert [stage for stage in done if stage != by_key[stage.key]] == []


@given(trial_sets(), turns)
def test_a_path_ends_at_the_first_open_request(drawn: list[DrawnTrial], turns: list[int]) -> None:
    plan = asked(drawn)
    waiting = {
        state_of(trial.family, trial.configuration, step)
        for trial in drawn
        for step, _ in trial.requests
    }
    path = run(plan, turns, stop_at_requests=True)
    ends = [stage_ends(stage)[1] for stage in path]
    assert not waiting & (set(ends[:-1]) | strictly_inside(path))
    assert [stage.start for stage in path[1:]] == [stage.stop for stage in path[:-1]]


@given(trial_sets())
def test_a_fork_of_live_trials_is_a_boundary(drawn: list[DrawnTrial]) -> None:
    assert not strictly_inside(derived(asked(drawn))) & forks(drawn)


@given(trial_sets())
def test_a_step_at_which_a_tuner_may_decide_is_a_boundary_and_evaluated(
    drawn: list[DrawnTrial],
) -> None:
    stages = derived(asked(drawn))
    decisions = {
        state_of(trial.family, trial.configuration, step)
        for trial in drawn
        for step in trial.decision_steps
    }
    assert not strictly_inside(stages) & decisions
    assert all(stage.evaluates for stage in stages if stage_ends(stage)[1] in decisions)


@given(trial_sets())
def test_nothing_else_is_a_boundary(drawn: list[DrawnTrial]) -> None:
    wanted = {
        state_of(trial.family, trial.configuration, step)
        for trial in drawn
        for step in (*trial.decision_steps, *[step for step, _ in trial.requests])
    }
    ends = {stage_ends(stage)[1] for stage in derived(asked(drawn))}
    assert ends <= wanted | forks(drawn)


@given(trial_sets(min_size=2), st.data())
def test_ended_trials_leave_no_trace(drawn: list[DrawnTrial], data: st.DataObject) -> None:
    """Their forks, decisions and requests cut nothing, as if they had never been."""
    ended = data.draw(st.sets(st.sampled_from(drawn), min_size=1))
    plan = asked(drawn)
    plan.end([plan.trials[trial.id] for trial in drawn if trial in ended])
    never = asked([trial for trial in drawn if trial not in ended])

    def content(stage: Stage) -> tuple[object, ...]:
        return (*stage_ends(stage), stage.report_steps, stage.evaluates)

    assert set(map(content, derived(plan))) == set(map(content, derived(never)))


@given(trial_sets())
def test_reports_are_no_cuts(drawn: list[DrawnTrial]) -> None:
    silent = added(drawn)
    for trial in drawn:
        for step, _ in trial.requests:
            silent.request(silent.trials[trial.id], step)
    assert boundaries(asked(drawn)) == boundaries(silent)


@given(trial_sets())
def test_every_report_is_made_by_one_stage(drawn: list[DrawnTrial]) -> None:
    made: Counter[State] = Counter()
    for stage in derived(asked(drawn)):
        start, stop = stage_ends(stage)
        assert list(stage.report_steps) == sorted(set(stage.report_steps))
        assert all(start.step < step < stop.step for step in stage.report_steps)
        made.update(stop.at(step) for step in stage.report_steps)
        made[stop] += stage.evaluates
    for trial in drawn:
        for step in trial.report_steps:
            assert made[state_of(trial.family, trial.configuration, step)] == 1


@given(trial_sets(), st.integers(0, 5))
def test_a_decision_that_was_heard_or_passed_is_no_cut(drawn: list[DrawnTrial], which: int) -> None:
    """A request beyond a decision step says that nothing is decided there."""
    trial = drawn[which % len(drawn)]
    plan = added([trial])
    planned = plan.trials[trial.id]
    plan.request(planned, trial.stop)
    run(plan, [0])
    assert planned.heard == trial.stop
    assert [vertex for vertex in plan.tree.vertices() if vertex.deciders] == []


def follow_nothing(_below: Sequence[Vertex]) -> None:
    return None


@given(trial_sets())
def test_a_path_may_end_at_every_fork(drawn: list[DrawnTrial]) -> None:
    """Then it has one stage, whatever follows."""
    plan = asked(drawn)
    for vertex in plan.tree.vertices():
        if is_ready(vertex):
            assert len(plan_path(vertex, follow_nothing)) == 1


@given(trial_sets(), st.integers(0, 9))
def test_a_stored_state_that_lacks_metrics_gets_an_evaluation_of_no_steps(
    drawn: list[DrawnTrial], back: Step
) -> None:
    trial = drawn[0]
    plan = added([trial])
    end = plan.tree.vertex(plan.trials[trial.id].node, max(1, trial.stop - back))
    plan.claim(end, 0, 1)
    plan.finish(end, 0, reached=end.step, executed_steps=end.step)
    plan.request(plan.trials[trial.id], end.step)
    (planned,) = plan_path(end, follow_nothing)
    assert (planned.stage.start, planned.stage.stop) == (end.step, end.step)
    assert planned.stage.start_key == planned.stage.key == end.key
    assert planned.stage.evaluates
