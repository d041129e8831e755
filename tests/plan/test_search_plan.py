from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dasktune.plan.merging import steps_requested
from dasktune.plan.owed import is_ready
from dasktune.plan.paths import plan_path
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.search_plan import Answer, SearchPlan
from dasktune.plan.stage import Stage
from dasktune.space import Configuration
from dasktune.trial import TrialId
from dasktune.units import Digest, Step
from tests.strategies import (
    FAMILIES,
    HORIZON,
    DrawnTrial,
    added,
    asked,
    configurations,
    trial_sets,
)

steps = st.integers(1, HORIZON)


def ready(plan: SearchPlan) -> list[Vertex]:
    return [vertex for vertex in plan.tree.vertices() if is_ready(vertex)]


def last(below: Sequence[Vertex]) -> Vertex:
    return below[-1]


def run(plan: SearchPlan, n_stages: int = 10**6) -> list[Stage]:
    """Execute stages one at a time; evaluate them at the end of each."""
    done: list[Stage] = []
    while len(done) < n_stages and (waiting := ready(plan)):
        planned = plan_path(waiting[0], last)[0]
        stage, end = planned.stage, planned.end
        plan.claim(end, stage.start, len(done) + 1)
        if stage.n_steps:
            plan.finish(end, stage.start, reached=stage.stop, executed_steps=stage.n_steps)
        else:
            plan.release(end, stage.start)
        for step in stage.report_steps:
            plan.measured(plan.tree.before(end.node, step), {"at": float(step)})
        if stage.evaluates:
            plan.measured(end, {"at": float(stage.stop)})
        done.append(stage)
    return done


def alone(*, n_trials: int = 1, stop: Step = HORIZON) -> SearchPlan:
    """Return a plan of trials that share everything."""
    plan = SearchPlan()
    configuration = Configuration.of({"lr": 0.1})
    for number in range(n_trials):
        plan.add(TrialId(0, number), FAMILIES[0], configuration, stop=stop, decision_steps=())
    return plan


def vertex_of(plan: SearchPlan, number: int, step: Step) -> Vertex:
    return plan.tree.vertex(plan.trials[TrialId(0, number)].node, step)


def told(answers: Sequence[Answer]) -> list[tuple[int, Step, bool]]:
    return [(answer.trial.id.number, answer.step, answer.metrics is not None) for answer in answers]


@given(trial_sets(), st.integers(0, 6))
def test_nothing_is_owed_once_all_trials_have_ended(drawn: list[DrawnTrial], n_stages: int) -> None:
    plan = asked(drawn)
    run(plan, n_stages)
    plan.end(plan.trials.values())
    assert ready(plan) == []
    assert plan.n_owed == 0
    assert all(vertex.deciders == 0 == vertex.n_live for vertex in plan.tree.vertices())


@given(trial_sets(), configurations, steps)
def test_asking_costs_the_new_steps_that_were_foretold(
    drawn: list[DrawnTrial], configuration: Configuration, step: Step
) -> None:
    plan = asked(drawn)
    before = plan.steps_unique
    foretold = plan.new_steps(FAMILIES[0], configuration, step)
    trial = plan.add(TrialId(9, 0), FAMILIES[0], configuration, stop=HORIZON, decision_steps=())
    assert plan.new_steps(FAMILIES[0], configuration, step) == foretold
    plan.request(trial, step)
    assert plan.steps_unique == before + foretold
    assert plan.new_steps(FAMILIES[0], configuration, step) == 0


@given(trial_sets())
def test_a_twin_of_a_trial_hears_everything_at_once(drawn: list[DrawnTrial]) -> None:
    """And no training comes of it."""
    plan = asked(drawn)
    run(plan)
    for trial in drawn:
        twin = TrialId(9, trial.id.number)
        plan.add(twin, trial.family, trial.configuration, stop=trial.stop, decision_steps=())
        for step, report_steps in trial.requests:
            answers = plan.request(plan.trials[twin], step, report_steps)
            assert [answer.step for answer in answers] == [*report_steps, step]
            assert all(answer.trial.id == twin for answer in answers)
            assert [answer.metrics for answer in answers] == [
                {"at": float(answer.step)} for answer in answers
            ]
    assert ready(plan) == []


@given(trial_sets())
def test_lengths_are_steps_unless_told_otherwise(drawn: list[DrawnTrial]) -> None:
    plan = asked(drawn)
    for vertex in ready(plan):
        below = [vertex]
        for at in below:
            below += [child for child in at.children() if child.is_owed]
        assert vertex.parent is not None
        assert vertex.length == max(at.step for at in below) - vertex.parent.step


@given(trial_sets())
def test_a_state_is_measured_once(drawn: list[DrawnTrial]) -> None:
    """What is said of it later changes nothing and answers nobody."""
    plan = asked(drawn)
    run(plan)
    known = {v.serial: v.metrics for v in plan.tree.vertices() if v.metrics is not None}
    for vertex in plan.tree.vertices():
        if vertex.metrics is not None:
            assert plan.measured(vertex, {"at": -1.0}) == []
    assert {v.serial: v.metrics for v in plan.tree.vertices() if v.metrics is not None} == known


@given(trial_sets(), st.integers(0, 9))
def test_a_late_commit_is_not_trained_again_and_not_called_recomputed(
    drawn: list[DrawnTrial], which: int
) -> None:
    """But reports in passing that were missed are, as far as the last of them."""
    plan = asked(drawn)
    for planned in [plan_path(vertex, last)[0] for vertex in ready(plan)][which : which + 1]:
        stage = planned.stage
        plan.claim(planned.end, stage.start, 1)
        plan.release(planned.end, stage.start)  # the worker was lost
        assert plan.found(stage.key, stage.stop, stage.n_steps) is planned.end
        late = stage.report_steps
        run(plan)
        assert plan.steps_executed - plan.steps_recomputed == plan.steps_unique
        assert plan.steps_recomputed == max(late, default=stage.start) - stage.start
        assert plan.n_owed == 0


@given(trial_sets(max_size=3), st.lists(steps, max_size=3))
def test_executed_less_recomputed_steps_are_the_distinct_ones(
    drawn: list[DrawnTrial], later: list[Step]
) -> None:
    """Also where somebody asks late for a state that was passed without being stored."""
    plan = asked(drawn)
    run(plan)
    for number, step in enumerate(later):
        trial = drawn[number % len(drawn)]
        twin = plan.add(
            TrialId(9, number), trial.family, trial.configuration, stop=HORIZON, decision_steps=()
        )
        plan.request(twin, step)
        run(plan)
        assert plan.steps_executed - plan.steps_recomputed == plan.steps_unique


@given(trial_sets(), st.integers(0, 9))
def test_only_what_lies_below_the_last_stored_state_is_trained_again(
    drawn: list[DrawnTrial], which: int
) -> None:
    """A state that is lost is made again for those who need it, and nothing else is."""
    plan = asked(drawn)
    run(plan, 1)
    stored = [vertex for vertex in plan.tree.vertices() if vertex.is_stored and vertex.step]
    for vertex in stored[which : which + 1]:
        n_before = plan.steps_executed
        assert plan.lose(vertex.key) == []
        again = any(child.is_owed for child in vertex.children())
        run(plan)
        assert plan.steps_recomputed == (vertex.step if again else 0)
        assert plan.steps_executed - n_before >= plan.steps_recomputed


def test_a_state_that_was_never_claimed_is_neither_found_nor_lost() -> None:
    plan = alone()
    plan.request(plan.trials[TrialId(0, 0)], 3)
    assert plan.found(Digest("0" * 64), 3, 3) is None
    assert plan.lose(Digest("0" * 64)) == []
    assert plan.steps_executed == 0
    assert plan.n_owed == 1


def test_a_fresh_state_cannot_be_lost() -> None:
    plan = alone()
    plan.request(plan.trials[TrialId(0, 0)], 3)
    (first,) = ready(plan)
    plan.claim(first, 0, 1)
    plan.finish(first, 0, reached=0, executed_steps=0)
    root = next(plan.tree.roots())
    assert plan.lose(root.key) == []
    assert root.is_stored


def stored_and_evaluating(plan: SearchPlan, step: Step) -> Vertex:
    """Let a state be stored without metrics, wanted by trial 0, and evaluated by path 2."""
    end = vertex_of(plan, 0, step)
    plan.claim(end, 0, 1)
    plan.finish(end, 0, reached=step, executed_steps=step)
    plan.request(plan.trials[TrialId(0, 0)], step)
    plan.claim(end, step, 2)
    return end


@given(st.integers(2, HORIZON - 1), st.booleans(), st.data())
def test_an_evaluation_does_not_hold_up_the_training_above_it(
    step: Step, is_copy: bool, data: st.DataObject
) -> None:
    plan = alone(n_trials=2)
    stored_and_evaluating(plan, step)
    if is_copy:
        plan, _ = plan.copy()
    above = data.draw(st.integers(1, step - 1))
    plan.request(plan.trials[TrialId(0, 1)], above)
    assert ready(plan) == [vertex_of(plan, 1, above)]


@given(st.integers(1, HORIZON - 1))
def test_a_state_whose_evaluation_failed_can_be_lost_and_made_again(step: Step) -> None:
    plan = alone(n_trials=2)
    end = stored_and_evaluating(plan, step)
    plan.request(plan.trials[TrialId(0, 1)], HORIZON)
    plan.release(end, step)
    plan.fail(end, "boom")
    plan.end([plan.trials[TrialId(0, 0)]])
    assert plan.lose(end.key) == []
    run(plan)
    assert plan.trials[TrialId(0, 1)].heard == HORIZON


@given(st.integers(1, HORIZON - 1))
def test_a_path_does_not_take_over_what_another_runs(step: Step) -> None:
    """The state at which the other began was lost meanwhile, and is wanted again."""
    plan = alone(n_trials=2)
    plan.request(plan.trials[TrialId(0, 0)], HORIZON)
    middle = vertex_of(plan, 0, step)
    plan.claim(middle, 0, 1)
    plan.finish(middle, 0, reached=step, executed_steps=step)
    below = vertex_of(plan, 0, HORIZON)
    plan.claim(below, step, 1)
    plan.lose(middle.key)
    assert ready(plan) == [middle]
    assert [planned.end for planned in plan_path(middle, last)] == [middle]


@given(st.integers(1, HORIZON - 1))
def test_an_evaluation_that_fails_fails_those_who_want_it_now_or_later(step: Step) -> None:
    """Training goes on from the state all the same."""
    plan = alone(n_trials=3)
    end = stored_and_evaluating(plan, step)
    plan.request(plan.trials[TrialId(0, 1)], HORIZON)
    plan.release(end, step)
    assert told(plan.fail(end, "boom")) == [(0, step, False)]
    plan.end([plan.trials[TrialId(0, 0)]])
    assert told(plan.request(plan.trials[TrialId(0, 2)], step)) == [(2, step, False)]
    plan.end([plan.trials[TrialId(0, 2)]])
    (stage,) = run(plan)
    assert (stage.start, stage.stop) == (step, HORIZON)
    assert plan.trials[TrialId(0, 1)].heard == HORIZON


@given(st.integers(2, HORIZON), st.data())
def test_a_way_given_up_fails_those_who_need_it_now_or_later(
    step: Step, data: st.DataObject
) -> None:
    """A request, or a report in passing; a shorter way may be tried."""
    plan = alone(n_trials=4)
    plan.request(plan.trials[TrialId(0, 0)], step)
    plan.request(plan.trials[TrialId(0, 1)], HORIZON, [at for at in [step] if at < HORIZON])
    end = vertex_of(plan, 0, step)
    assert told(plan.fail(end, "boom")) == [(0, step, False), (1, step, False)]
    assert ready(plan) == []
    plan.end([plan.trials[TrialId(0, number)] for number in (0, 1)])
    later = data.draw(st.integers(step, HORIZON))
    reports = [at for at in [step] if at < later]
    answers = plan.request(plan.trials[TrialId(0, 2)], later, reports)
    assert told(answers) == [(2, step, False)]
    plan.end([plan.trials[TrialId(0, 2)]])
    assert plan.n_owed == 0
    shorter = data.draw(st.integers(1, step - 1))
    assert plan.request(plan.trials[TrialId(0, 3)], shorter) == []
    assert ready(plan) == [vertex_of(plan, 3, shorter)]


@given(st.integers(1, HORIZON - 1), st.data())
def test_losing_the_state_beyond_a_way_given_up_fails_those_who_start_from_it(
    step: Step, data: st.DataObject
) -> None:
    """Otherwise they would wait for ever."""
    plan = alone(n_trials=2)
    given_up = data.draw(st.integers(1, step))
    below = vertex_of(plan, 0, step + 1)
    plan.claim(below, 0, 1)
    plan.finish(below, 0, reached=step + 1, executed_steps=step + 1)
    end = vertex_of(plan, 0, given_up)
    plan.request(plan.trials[TrialId(0, 0)], given_up)
    assert told(plan.fail(end, "boom")) == [(0, given_up, False)]
    plan.request(plan.trials[TrialId(0, 1)], step + 1)
    assert told(plan.lose(below.key)) == [(1, step + 1, False)]


@given(st.integers(2, HORIZON), st.data())
def test_an_ended_trial_is_owed_no_report_below_what_it_heard(
    step: Step, data: st.DataObject
) -> None:
    """Its request can be answered, by others' work, before its reports are."""
    plan = alone(n_trials=2)
    plan.request(plan.trials[TrialId(0, 0)], step)
    run(plan)
    report = data.draw(st.integers(1, step - 1))
    answers = plan.request(plan.trials[TrialId(0, 1)], step, [report])
    assert told(answers) == [(1, step, True)]
    assert ready(plan) == [vertex_of(plan, 1, report)]
    plan.end([plan.trials[TrialId(0, 1)]])
    assert ready(plan) == []


@given(trial_sets(), st.integers(0, 9))
def test_added_trials_owe_nothing_until_they_are_asked(drawn: list[DrawnTrial], which: int) -> None:
    plan = added(drawn)
    assert ready(plan) == []
    assert (plan.n_owed, plan.steps_unique, steps_requested(plan)) == (0, 0, 0)
    trial = drawn[which % len(drawn)]
    plan.request(plan.trials[trial.id], trial.stop)
    assert len(ready(plan)) == 1
