"""Every order in which a small stage tree can be executed, tried one after the other."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings

from dasktune.plan.owed import is_ready
from dasktune.plan.paths import PlannedStage, plan_path
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.search_plan import SearchPlan
from dasktune.trial import TrialId
from dasktune.units import Digest, Step
from tests.plan.naive import NaivePlan, stage_ends, state_of
from tests.strategies import DrawnTrial, added, trial_sets

N_WORKERS = 2

Path = tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A plan on its way: what runs, what was executed, who heard what."""

    plan: SearchPlan
    running: tuple[Path, ...] = ()
    executed: tuple[PlannedStage, ...] = ()
    heard: tuple[tuple[TrialId, Step], ...] = ()

    @property
    def identity(self) -> tuple[frozenset[Digest], frozenset[tuple[Digest, ...]]]:
        """Moments of one identity have the same future."""
        return (
            frozenset(planned.stage.key for planned in self.executed),
            frozenset(tuple([planned.stage.key for planned in path]) for path in self.running),
        )

    def copy(self) -> tuple["Moment", dict[int, Vertex]]:
        plan, vertices = self.plan.copy()
        running = tuple(
            tuple([PlannedStage(planned.stage, vertices[planned.end.serial]) for planned in path])
            for path in self.running
        )
        return replace(self, plan=plan, running=running), vertices


def all_paths(first: Vertex) -> Iterator[list[PlannedStage]]:
    """Yield the path of every choice of ways, and of every place to stop."""
    scripts: list[list[int]] = [[]]
    while scripts:
        script = scripts.pop()
        turns = iter(script)
        more: list[int] = []

        def follow(
            below: Sequence[Vertex], turns: Iterator[int] = turns, more: list[int] = more
        ) -> Vertex | None:
            turn = next(turns, None)
            if turn is None:
                more.extend(range(len(below)))
                return None
            return below[turn]

        yield plan_path(first, follow)
        scripts += [[*script, turn] for turn in more]


def ask(moment: Moment, asks: list[tuple[DrawnTrial, int]]) -> Moment:
    """Ask trials for their next steps, and on as long as the answers are known."""
    heard = list(moment.heard)
    for trial, place in asks:
        for number in range(place, len(trial.requests)):
            step, reports = trial.requests[number]
            answers = moment.plan.request(moment.plan.trials[trial.id], step, reports)
            heard += [(answer.trial.id, answer.step) for answer in answers]
            if not any(answer.step == step for answer in answers):
                break
    return replace(moment, heard=tuple(heard))


def finished(moment: Moment, which: int, drawn: list[DrawnTrial]) -> Moment:
    """Let the first stage of a running path end; who hears what it waited for is asked on."""
    moment, _ = moment.copy()
    plan = moment.plan
    planned, *rest = moment.running[which]
    stage, end = planned.stage, planned.end
    answers = []
    for step in stage.report_steps:
        answers += plan.measured(plan.tree.before(end.node, step), {})
    at = plan.finish(end, stage.start, reached=stage.stop, executed_steps=stage.n_steps)
    if stage.evaluates:
        answers += plan.measured(at, {})
    others = (*moment.running[:which], *moment.running[which + 1 :])
    moment = replace(
        moment,
        running=(*others, tuple(rest)) if rest else others,
        executed=(*moment.executed, planned),
        heard=(*moment.heard, *[(answer.trial.id, answer.step) for answer in answers]),
    )
    asks = []
    for answer in answers:
        trial = drawn[answer.trial.id.number]
        steps = [step for step, _ in trial.requests]
        if answer.step in steps:
            asks.append((trial, steps.index(answer.step) + 1))
    return ask(moment, asks)


def following(moment: Moment, drawn: list[DrawnTrial]) -> Iterator[Moment]:
    """Yield what can happen next: a path starts, or a running stage ends."""
    for which in range(len(moment.running)):
        yield finished(moment, which, drawn)
    if len(moment.running) == N_WORKERS:
        return
    for vertex in moment.plan.tree.vertices():
        if not is_ready(vertex):
            continue
        for path in all_paths(vertex):
            twin, vertices = moment.copy()
            mine = [PlannedStage(planned.stage, vertices[planned.end.serial]) for planned in path]
            number = len(twin.executed) * N_WORKERS + len(twin.running) + 1
            for planned in mine:
                assert planned.end.runner is None
                twin.plan.claim(planned.end, planned.stage.start, number)
            yield replace(twin, running=(*twin.running, tuple(mine)))


def ends(start: Moment, drawn: list[DrawnTrial]) -> Iterator[Moment]:
    """Yield each moment at which nothing runs and nothing is ready."""
    seen = {start.identity}
    pending = [start]
    while pending:
        moment = pending.pop()
        is_end = True
        for after in following(moment, drawn):
            is_end = False
            if after.identity not in seen:
                seen.add(after.identity)
                pending.append(after)
        if is_end:
            yield moment


def halving(trial: DrawnTrial) -> DrawnTrial:
    """Let the tuner decide at all steps it asks for; what is reported is known from the start."""
    steps = tuple([step for step, _ in trial.requests])
    first = tuple([(step, reports) for step, reports in trial.requests[:1]])
    later = tuple([(step, ()) for step in steps[1:]])
    return replace(trial, decision_steps=steps, requests=first + later)


@settings(max_examples=40)
@given(trial_sets(max_size=5))
def test_every_order_executes_each_distinct_step_once_and_answers_everybody(
    drawn: list[DrawnTrial],
) -> None:
    drawn = [halving(trial) for trial in drawn]
    start = ask(Moment(plan=added(drawn)), [(trial, 0) for trial in drawn])
    distinct = {
        state
        for trial in drawn
        for state in state_of(trial.family, trial.configuration, trial.furthest).up()[:-1]
    }
    wanted = sorted(
        (trial.id, step)
        for trial in drawn
        for step in (*trial.report_steps, *[step for step, _ in trial.requests])
    )
    n_ends = 0
    for end in ends(start, drawn):
        n_ends += 1
        executed: Counter[object] = Counter()
        for planned in end.executed:
            executed.update(NaivePlan.span(*stage_ends(planned.stage)))
        assert executed == Counter(distinct)
        assert sorted(end.heard) == wanted
        assert end.plan.n_owed == 0
        assert end.plan.steps_executed == end.plan.steps_unique == len(distinct)
        assert end.plan.steps_recomputed == 0
    assert n_ends == 1
