"""A world that is played against a core, and doubts everything that it is told.

`Play` keeps its own slow, obvious account of what runs, what is stored and who has heard what. It
knows histories by the values of their steps, never by the keys and vertices of the code under test.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from math import inf, isfinite, nan
from random import Random as Generator
from typing import Any, cast

import dasktune as dt
from dasktune.plan.keys import Family
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.stage import Stage
from dasktune.scheduling.fifo import Fifo
from dasktune.scheduling.scheduler import Scheduler
from dasktune.study.commands import (
    AskTrial,
    BranchTrial,
    Command,
    DrawTrial,
    EndRun,
    EndStudy,
    EndTrial,
    ReportDemand,
    ReturnWorker,
    RunPath,
    StopPath,
)
from dasktune.study.core import StudyCore
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    PathHeld,
    Resumed,
    StageFailed,
    StageFinished,
    StateLost,
    StudyStarted,
    WorkerJoined,
    WorkerLeft,
    WorkerRecalled,
)
from dasktune.study.study import Study
from dasktune.study.study_run import StudyRun
from dasktune.study.timeline import Timeline, replay
from dasktune.study.trial_record import TrialRecord
from dasktune.trial import TrialId, TrialStatus
from dasktune.tuners.full import FullTraining
from dasktune.tuners.median_stopping import MedianStopping
from dasktune.units import Digest, Step, WorkerId
from tests.worlds import random_studies

METRICS = ("accuracy", "loss")
MAX_DEATHS = 3


# --- what is true of histories --------------------------------------------------------------------


@cache
def past(family: Family, configuration: dt.Configuration, step: Step) -> str:
    """Name a state by the values of all steps before it; at step 0 by those to come first."""
    values = repr(sorted(configuration.at(max(0, step - 1)).items()))
    before = f"{family}" if step == 0 else past(family, configuration, step - 1)
    return f"{step}:{sha256((before + values).encode()).hexdigest()[:16]}"


def stage_past(stage: Stage, step: Step) -> str:
    """Name a state on the way of a stage."""
    return past(stage.family, stage.configuration, step)


def trained_by(stage: Stage) -> list[str]:
    """Name the steps that a stage trains, each by the history that it ends."""
    return [stage_past(stage, step) for step in range(stage.start + 1, stage.stop + 1)]


def fraction(text: str) -> float:
    """Turn a text into a number in [0, 1)."""
    return int.from_bytes(sha256(text.encode()).digest()[:6]) / (1 << 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What `evaluate()` gives: a function of the history alone."""

    seed: int = 0
    odd_share: float = 0.0
    """Share of states whose accuracy is no finite number."""
    grid: int | None = None
    """Values are rounded to so many levels, which makes ties."""

    def metrics(self, state: str) -> dict[str, float]:
        """Give the metrics of a state."""
        given = {name: self._level(fraction(f"{name}{self.seed}{state}")) for name in METRICS}
        if fraction(f"odd{self.seed}{state}") < self.odd_share:
            odd = (nan, inf, -inf, cast("float", None))
            given["accuracy"] = odd[int(given["loss"] * 1e9) % 4]
        return given

    def _level(self, number: float) -> float:
        return number if self.grid is None else int(number * self.grid) / self.grid


def is_odd(metrics: Mapping[str, float], study: Study) -> bool:
    """Say whether a study's tuned metric is no finite number."""
    value: float | None = metrics[study.metric]
    return value is None or not isfinite(value)


def reports_of(run: StudyRun) -> dict[int, dict[Step, Mapping[str, float]]]:
    """Return all that each trial of a study reported."""
    return {
        trial.id.number: {report.step: report.metrics for report in trial.reports}
        for trial in run.trials
    }


# --- the world ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Running:
    """A path on its way, as the world sees it."""

    command: RunPath
    index: int = 0
    """Of the stage that it executes."""
    is_stopping: bool = False
    is_held: bool = False
    """Whether it waits for somebody else, without a slot."""

    @property
    def stage(self) -> Stage:
        """The stage that it executes."""
        return self.command.stages[self.index]


@dataclass(slots=True)
class Account:
    """What the world knows of the states, independently of the core."""

    stored: set[str] = field(default_factory=set)
    """Committed states, by history."""
    keys: dict[Digest, str] = field(default_factory=dict)
    """What each key that the core ever named stands for."""
    said: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """Metrics that the core was told and had to take in, by history."""
    covered: set[str] = field(default_factory=set)
    """Steps of training that left a state, each by the history that it ends."""
    executed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)


class Play:
    """A world that does what a core wishes, well or badly, and checks every answer."""

    def __init__(
        self,
        studies: Sequence[Study],
        truth: Truth | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.studies = list(studies)
        self.truth = truth or Truth()
        self.scheduler = scheduler
        self.core = StudyCore(studies, scheduler)
        self.timeline = Timeline()
        self.account = Account()
        self.workers: dict[WorkerId, int] = {}
        self.recalled: set[WorkerId] = set()
        """Workers that are to be given back once they run nothing."""
        self.demand = ReportDemand(wants=True, has_idle=False)
        self.running: dict[int, Running] = {}
        self.ghosts: list[Running] = []
        """Paths that the core does not count on any more, whose workers may yet answer."""
        self.answered: list[StageFinished] = []
        self._reached: dict[tuple[int, Digest], str] = {}
        """The state that each answer was about, by path and stage."""
        self.odd: dict[int, set[str]] = {run.index: set() for run in self.core.runs}
        """States with an odd metric that a study has heard of."""
        self.odd_before: dict[TrialId, set[str]] = {}
        """Those of them that were known before a trial was drawn."""
        self.status: dict[TrialId, TrialStatus] = {}
        self.asked: dict[TrialId, list[Step]] = {}
        self.ways: dict[TrialId, list[str]] = {}
        """The states on the way of each trial, by step."""
        self.n_paths = 0
        self.is_draining = False
        self.is_over = False
        self.ended_studies: set[int] = set()

    # --- what may happen ----------------------------------------------------------------------

    def start(self, study: int) -> None:
        self._send(StudyStarted(study=study))

    def join(self, worker: str, n_slots: int = 1) -> None:
        self._forget(WorkerId(worker))
        self.workers[WorkerId(worker)] = n_slots
        self._send(WorkerJoined(worker=WorkerId(worker), n_slots=n_slots))

    def leave(self, worker: str, *, died: bool) -> None:
        for path in self._forget(WorkerId(worker)):
            if died:
                self.account.deaths[stage_past(path.stage, path.stage.stop)] += 1
        self._send(WorkerLeft(worker=WorkerId(worker), died=died, reason="test"))

    def recall(self, worker: str) -> None:
        if worker in self.workers:
            self.recalled.add(WorkerId(worker))
        self._send(WorkerRecalled(worker=WorkerId(worker)))

    def report(self, number: int, step: Step) -> None:
        """Tell the metrics of a step that a running stage passes."""
        path = self.running[number]
        state = stage_past(path.stage, step)
        metrics = self.account.said.setdefault(state, self.truth.metrics(state))
        self._send(MetricsReported(path=number, stage=path.stage.key, step=step, metrics=metrics))

    def finish(
        self, number: int, *, reached: Step | None = None, is_evaluated: bool | None = None
    ) -> None:
        """Commit the running stage's state, or an earlier one; the path goes on or has ended."""
        path = self.running[number]
        stage = path.stage
        at = stage.stop if reached is None else reached
        event = self._finished(path, at, is_evaluated=is_evaluated)
        if at < stage.stop or path.index == len(path.command.stages) - 1 or path.is_held:
            del self.running[number]
        else:
            path.index += 1
        self.answered.append(event)
        self._send(event)

    def hold(self, number: int) -> None:
        """Let somebody else train what a path would: it has no slot from here on."""
        self.running[number].is_held = True
        self._send(PathHeld(path=number))

    def finish_late(self, ghost: Running, reached: Step) -> None:
        """Commit a state on a worker that the core has given up."""
        event = self._finished(ghost, reached, is_evaluated=None)
        if reached < ghost.stage.stop or ghost.index == len(ghost.command.stages) - 1:
            self.ghosts.remove(ghost)
        else:
            ghost.index += 1
        self._send(event)

    def say_late(self, ghost: Running, *, is_failure: bool) -> None:
        """Report, or raise, on a worker that the core has given up: nobody listens."""
        stage, number = ghost.stage, ghost.command.path
        if is_failure:
            self.ghosts.remove(ghost)
            self._send(StageFailed(path=number, stage=stage.key, error="late", executed_steps=1))
            return
        for step in stage.report_steps[:1]:
            metrics = self.truth.metrics(stage_past(stage, step))
            self._send(MetricsReported(path=number, stage=stage.key, step=step, metrics=metrics))

    def repeatable(self) -> list[StageFinished]:
        """Return the answers whose state is still there."""
        stored, reached = self.account.stored, self._reached
        return [event for event in self.answered if reached[event.path, event.stage] in stored]

    def repeat(self, event: StageFinished) -> None:
        """Tell again what was told, as a driver does that cannot know whether it was heard."""
        self.account.executed += event.executed_steps
        self._send(event)

    def fail(self, number: int, executed_steps: int = 0) -> None:
        path = self.running.pop(number)
        self.account.executed += executed_steps
        self.account.failures[stage_past(path.stage, path.stage.stop)] += 1
        self._send(
            StageFailed(
                path=number,
                stage=path.stage.key,
                error="ValueError: test",
                traceback="Traceback: line 1",
                executed_steps=executed_steps,
            )
        )

    def lose(self, state: Digest) -> None:
        self.account.stored.discard(self.account.keys[state])
        self._send(StateLost(state=state))

    def interrupt(self, reason: str = "interrupted") -> None:
        self.is_draining = True
        self._send(Interrupted(reason=reason))

    def resume(self) -> None:
        for worker in list(self.workers):
            self._forget(worker)
        self.ghosts += self.running.values()  # those that were held
        self.running.clear()
        self.is_draining = self.is_over = False
        self._send(Resumed())

    def resume_from_lines(self) -> None:
        """Let the driver die and another one go on with what was written."""
        self.core, _ = replay(self.studies, list(self.timeline.lines()), self.scheduler)
        self.resume()

    def finish_all(self) -> None:
        """Let everything go well from here to the end."""
        for _ in range(2000):
            unstarted = [run.index for run in self.core.runs if run.status is None]
            if unstarted:
                self.start(unstarted[0])
            elif self.is_over and not self.is_draining:
                break
            elif not self.running and self.is_draining:
                self.resume()
            elif not self.workers:
                self.join("healer", 2)
            else:
                number = next(iter(self.running))
                steps = self.running[number].stage.report_steps
                for step in steps:
                    if number in self.running:
                        self.report(number, step)
                self.finish(number)
        assert self.is_over
        assert self.core.is_over
        for run in self.core.runs:
            assert run.has_ended
            assert all(trial.status.is_final for trial in run.trials)

    def _finished(
        self, path: Running, reached: Step, *, is_evaluated: bool | None
    ) -> StageFinished:
        stage, account = path.stage, self.account
        state = stage_past(stage, reached)
        if is_evaluated is None:
            is_evaluated = stage.evaluates and reached == stage.stop
        metrics = None
        if is_evaluated:
            metrics = account.said.setdefault(state, self.truth.metrics(state))
        self._reached[path.command.path, stage.key] = state
        account.executed += reached - stage.start
        account.covered.update(trained_by(stage)[: reached - stage.start])
        if reached > stage.start:
            account.stored.add(state)
        return StageFinished(
            path=path.command.path,
            stage=stage.key,
            reached=reached,
            metrics=metrics,
            executed_steps=reached - stage.start,
            seconds=1.0,
        )

    def _forget(self, worker: WorkerId) -> list[Running]:
        self.workers.pop(worker, None)
        self.recalled.discard(worker)
        lost = [path for path in self._with_slots() if path.command.worker == worker]
        for path in lost:
            del self.running[path.command.path]
        self.ghosts += lost
        return lost

    # --- what is checked ----------------------------------------------------------------------

    def _send(self, event: Event) -> None:
        now = self.core.now + 1.0
        commands = self.core.handle(event, now)
        self.timeline.record(now, event, commands)
        for command in commands:
            self._obey(command)
        self.check()
        self._check_stops(event)

    def _check_stops(self, event: Event) -> None:
        """Whatever somebody waits for goes on, and what nobody waits for is stopped."""
        wanted = self._wanted()
        stopped = {c.path for c in self.timeline.entries[-1].commands if isinstance(c, StopPath)}
        for number, path in self.running.items():
            ends = {stage_past(s, s.stop) for s in path.command.stages[path.index :]}
            owed = wanted.intersection(ends)
            if number in stopped and not isinstance(event, Interrupted | WorkerRecalled):
                assert not owed, "a path is stopped that somebody waits for"
            steps = {s for stage in path.command.stages[path.index :] for s in trained_by(stage)}
            if steps and steps.isdisjoint(wanted):
                assert path.is_stopping, "a path goes on that nobody waits for"

    def _wanted(self) -> set[str]:
        """Find what must be made: whatever is waited for, and the way there from what is stored."""
        wanted: set[str] = set()
        for run in self.core.runs:
            for trial in run.trials:
                if trial.status is not TrialStatus.WAITING:
                    continue
                way = self.ways[trial.id]
                for target in asked_steps(run, self.asked[trial.id]):
                    if way[target] in self.account.said:
                        continue
                    wanted.add(way[target])  # its metrics, even if it is stored
                    for state in reversed(way[1 : target + 1]):
                        if state in self.account.stored:
                            break
                        wanted.add(state)
        return wanted

    def _obey(self, command: Command) -> None:
        match command:
            case RunPath():
                self._run(command)
            case StopPath():
                path = self.running[command.path]
                assert not path.is_stopping, "a path is stopped at most once"
                assert (command.worker, command.slot) == (path.command.worker, path.command.slot)
                path.is_stopping = True
            case ReturnWorker():
                assert command.worker in self.recalled, "a worker is returned once, as asked"
                assert not any(path.command.worker == command.worker for path in self._with_slots())
                self.recalled.discard(command.worker)
                del self.workers[command.worker]
            case ReportDemand():
                assert command != self.demand, "only what has changed is said"
                self.demand = command
            case DrawTrial() | BranchTrial():
                if isinstance(command, BranchTrial):
                    self._check_branch(command)
                assert command.trial not in self.status
                self.status[command.trial] = TrialStatus.DRAWN
                run = self.core.runs[command.trial.study]
                self.ways[command.trial] = way_of(run, run.trials[command.trial.number])
                self._hear_odd_states(self.core.runs[command.trial.study])
                self.odd_before[command.trial] = set(self.odd[command.trial.study])
            case AskTrial():
                steps = self.asked.setdefault(command.trial, [])
                assert not self.status[command.trial].is_final, "what has ended is not asked"
                assert not steps or command.step > steps[-1], "a trial is never asked to go back"
                steps.append(command.step)
            case EndTrial():
                assert not self.status[command.trial].is_final, "a trial ends once"
                assert command.status.is_final
                assert command.reason
                self.status[command.trial] = command.status
            case EndStudy():
                assert command.study not in self.ended_studies, "a study ends once"
                self.ended_studies.add(command.study)
            case EndRun():
                assert not self.is_over, "the run ends once"
                assert not self.running, "the run ends when nothing runs"
                self.is_over = True

    def _check_branch(self, command: BranchTrial) -> None:
        """Check that a new trial goes the way of its parent, and begins where that has reported."""
        run = self.core.runs[command.trial.study]
        parent, made = run.trials[command.parent], run.trials[command.trial.number]
        assert command.step in {report.step for report in parent.reports}
        assert way_of(run, made)[: command.step + 1] == self.ways[parent.id][: command.step + 1]
        after = run.study.space.configuration(command.point)
        for step in range(command.step, run.study.max_steps):
            assert made.configuration.at(step) == after.at(step)

    def _run(self, command: RunPath) -> None:
        assert not self.is_draining, "a run that is interrupted starts nothing"
        assert not self.is_over
        assert command.path > self.n_paths, "numbers of paths are never used again"
        self.n_paths = command.path
        assert 0 <= command.slot < self.workers[command.worker]
        assert command.worker not in self.recalled, "no path begins on a recalled worker"
        assert (command.worker, command.slot) not in self._busy(), "a slot runs one path"
        assert command.reason
        first = command.stages[0]
        assert first.start == 0 or stage_past(first, first.start) in self.account.stored, (
            "a path starts from a state that is stored"
        )
        for before, after in zip(command.stages, command.stages[1:], strict=False):
            assert after.start_key == before.key, "each stage starts where the one before ends"
            assert stage_past(after, after.start) == stage_past(before, before.stop)
        for stage in command.stages:
            self._check_stage(stage)
        self.running[command.path] = Running(command)

    def _check_stage(self, stage: Stage) -> None:
        assert all(stage.start < step < stage.stop for step in stage.report_steps)
        assert list(stage.report_steps) == sorted(set(stage.report_steps))
        assert (stage.start_key is None) == (stage.start == 0)
        if stage.n_steps == 0:
            assert stage.evaluates
            assert stage.start_key == stage.key
        named = {stage.key: stage_past(stage, stage.stop)}
        if stage.start_key is not None:
            named[stage.start_key] = stage_past(stage, stage.start)
        for key, state in named.items():
            assert self.account.keys.setdefault(key, state) == state, "a key names one history"
        states = self.account.keys.values()
        assert len(set(states)) == len(states), "a history has one key"

    def _busy(self) -> set[tuple[WorkerId, int]]:
        return {(path.command.worker, path.command.slot) for path in self._with_slots()}

    def _with_slots(self) -> list[Running]:
        return [path for path in self.running.values() if not path.is_held]

    def check(self) -> None:
        """Check all that must hold between events."""
        self._check_slots()
        self._check_claims()
        self._check_idleness()
        self._check_counters()
        for run in self.core.runs:
            for trial in run.trials:
                self._check_trial(run, trial)
            self._check_odd_states(run)
            if run.has_ended:
                assert all(trial.status.is_final for trial in run.trials)
            assert run.has_ended == (run.index in self.ended_studies)

    def _check_slots(self) -> None:
        known = {worker: len(slots) for worker, slots in self.core.slots.by_worker.items()}
        assert known == self.workers
        assert self.core.n_running == len(self.running)
        assert self.core.slots.n_busy == len(self._with_slots())
        assert self.core.is_over == self.is_over

    def _check_claims(self) -> None:
        claimed: list[str] = []
        for path in self.running.values():
            for stage in path.command.stages[path.index :]:
                if stage.n_steps == 0:
                    claimed.append(f"evaluate {stage_past(stage, stage.stop)}")
                claimed += trained_by(stage)
        assert len(set(claimed)) == len(claimed), "two paths train the same step"

    def _check_idleness(self) -> None:
        core = self.core
        busy = self._busy()
        is_idle = any(
            (worker, slot) not in busy
            for worker, n_slots in self.workers.items()
            for slot in range(n_slots)
            if worker not in self.recalled
        )
        if is_idle and not self.is_draining:
            could_ask = [r.index for r in core.runs if r.asks_on_demand and r.may_ask]
            assert could_ask == [], "a slot is idle and a tuner was not asked"
        assert self.recalled <= {worker for worker, _ in busy}, "an idle worker is given back"
        is_of_use = bool(ready(core)) or any(r.asks_on_demand and r.may_ask for r in core.runs)
        assert self.demand.wants == (is_of_use and not self.is_draining)
        assert self.demand.has_idle == is_idle
        if is_idle and not self.is_draining and not self.is_over:
            assert ready(core) == [], "ready work waits beside an idle slot"
        if self.is_over or self.running:
            assert core.why_idle() is None
            return
        assert core.why_idle()
        if any(run.is_running for run in core.runs):
            assert not is_idle, f"a study cannot move: {core.why_idle()}"

    def _check_counters(self) -> None:
        plan, account = self.core.plan, self.account
        assert plan.steps_executed == account.executed
        assert plan.steps_recomputed == account.executed - len(account.covered)
        wanted: set[str] = set()
        for run in self.core.runs:
            for trial in run.trials:
                furthest = self.asked.get(trial.id, [0])[-1]
                wanted.update(self.ways[trial.id][1 : furthest + 1])
        assert plan.steps_unique == len(wanted)

    def _check_trial(self, run: StudyRun, trial: TrialRecord) -> None:
        told = self.status[trial.id]
        if told.is_final or (told is TrialStatus.DRAWN and trial.id not in self.asked):
            assert trial.status is told
        else:
            assert trial.status in (TrialStatus.WAITING, TrialStatus.PAUSED)
        said = {
            step: self.account.said[state]
            for step in asked_steps(run, self.asked.get(trial.id, []))
            if (state := self.ways[trial.id][step]) in self.account.said
        }
        reported = {report.step: report.metrics for report in trial.reports}
        assert len(reported) == len(trial.reports), "a report is heard once"
        for report in trial.reports:
            assert repr(dict(report.metrics)) == repr(said[report.step])  # NaN is not itself
            assert isfinite(report.score)
            sign = 1 if run.study.mode == "max" else -1
            assert report.score == sign * report.metrics[run.study.metric]
        if not trial.status.is_final:
            asked = self.asked.get(trial.id, [])
            is_waiting = not said.keys() >= set(asked_steps(run, asked))
            held = {asked[-1]} if is_waiting else set()  # the last report is heard last
            assert reported.keys() == said.keys() - held, "a waiting trial hears every report"
            assert (trial.status is TrialStatus.WAITING) == is_waiting
        if trial.status is TrialStatus.COMPLETED:
            assert reported.keys() >= set(asked_steps(run, self.asked[trial.id]))
        if trial.status is TrialStatus.FAILED:
            assert self._was_given_up(run, trial), "innocent trials are not blamed"

    def _was_given_up(self, run: StudyRun, trial: TrialRecord) -> bool:
        limit = max(r.study.retries for r in self.core.runs if r.study.family == run.study.family)
        account = self.account
        given_up = {s for s, n in account.failures.items() if n > limit}
        given_up |= {s for s, n in account.deaths.items() if n >= MAX_DEATHS}
        return not given_up.isdisjoint(self.ways[trial.id][: self.asked[trial.id][-1] + 1])

    def _check_odd_states(self, run: StudyRun) -> None:
        """Whoever shares a state with an odd metric that the study hears of has diverged."""
        own = self._hear_odd_states(run)
        odd = self.odd[run.index]
        for trial in run.trials:
            way = odd.intersection(self.ways[trial.id])
            assert way or trial.status is not TrialStatus.DIVERGED
            # A trial that was drawn later ends when it gets there itself.
            if own[trial.id] or way - self.odd_before[trial.id]:
                assert trial.status.is_final, "all trials that share the state diverge"

    def _hear_odd_states(self, run: StudyRun) -> dict[TrialId, set[str]]:
        own = {trial.id: self._odd_reports(run, trial) for trial in run.trials}
        self.odd[run.index].update(*own.values())
        return own

    def _odd_reports(self, run: StudyRun, trial: TrialRecord) -> set[str]:
        if trial.status is TrialStatus.STOPPED:
            return set()  # whoever hears of an odd state has diverged; later ones it never hears
        said = self.account.said
        return {
            state
            for step in asked_steps(run, self.asked.get(trial.id, []))
            if (state := self.ways[trial.id][step]) in said and is_odd(said[state], run.study)
        }


def way_of(run: StudyRun, trial: TrialRecord) -> list[str]:
    """Name all states on the way of a trial, by step."""
    family = run.study.family
    return [past(family, trial.configuration, step) for step in range(run.study.max_steps + 1)]


def asked_steps(run: StudyRun, steps: Iterable[Step]) -> list[Step]:
    """Return all steps at which a trial reports, given those that it was asked to train to."""
    found = list(steps)
    if found and isinstance(run.study.tuner, FullTraining | MedianStopping):
        found = [*run.study.tuner.report_steps, *found]
    return found


def ready(core: StudyCore) -> list[Vertex]:
    """Find what could start now by walking the whole plan and asking who waits."""
    order = core.plan.tree.vertices()
    needed: set[int] = set()
    for vertex in reversed(order):
        is_wanted = bool(vertex.waiting) or bool(vertex.listening)
        if is_wanted or any(
            child.serial in needed and not child.is_stored for child in vertex.children()
        ):
            needed.add(vertex.serial)
    return [
        vertex
        for vertex in order
        if vertex.runner is None
        and vertex.failure is None
        and (
            (vertex.is_stored and (vertex.waiting or vertex.listening))
            or (
                not vertex.is_stored
                and vertex.serial in needed
                and vertex.parent is not None
                and vertex.parent.is_stored
            )
        )
    ]


# --- a world that rolls dice ----------------------------------------------------------------------


def roll(play: Play, rng: Generator, *, trouble: float = 0.3) -> None:
    """Let one thing happen; `trouble` is the share of things that go wrong."""
    if rng.random() < trouble:
        rng.choice(_TROUBLES)(play, rng)
        return
    unstarted = [run.index for run in play.core.runs if run.status is None]
    if play.is_draining and not play.running:
        play.resume()
    elif unstarted and rng.random() < 0.5:
        play.start(rng.choice(unstarted))
    elif play.running and rng.random() < 0.9:
        number = rng.choice(list(play.running))
        steps = play.running[number].stage.report_steps
        if steps and rng.random() < 0.6:
            play.report(number, rng.choice(steps))
        else:
            play.finish(number)
    else:
        _join(play, rng)


def _join(play: Play, rng: Generator) -> None:
    play.join(rng.choice("abc"), rng.choice([1, 1, 2]))


def _leave(play: Play, rng: Generator) -> None:
    play.leave(rng.choice("abc"), died=rng.random() < 0.5)


def _recall(play: Play, rng: Generator) -> None:
    play.recall(rng.choice("abc"))


def _finish_early(play: Play, rng: Generator) -> None:
    if play.running:
        number = rng.choice(list(play.running))
        stage = play.running[number].stage
        play.finish(
            number,
            reached=rng.randint(stage.start, stage.stop),
            is_evaluated=rng.choice([True, False, None]),
        )


def _fail(play: Play, rng: Generator) -> None:
    if play.running:
        number = rng.choice(list(play.running))
        play.fail(number, rng.randint(0, play.running[number].stage.n_steps))


def _hold(play: Play, rng: Generator) -> None:
    if play.running:
        play.hold(rng.choice(list(play.running)))


def _lose(play: Play, rng: Generator) -> None:
    if play.account.keys:
        play.lose(rng.choice(list(play.account.keys)))


def _late(play: Play, rng: Generator) -> None:
    if play.ghosts:
        ghost = rng.choice(play.ghosts)
        stage = ghost.stage
        if rng.random() < 0.5:
            play.say_late(ghost, is_failure=rng.random() < 0.5)
        elif stage.n_steps:
            play.finish_late(ghost, rng.randint(stage.start + 1, stage.stop))
        elif stage_past(stage, stage.stop) in play.account.stored:
            play.finish_late(ghost, stage.stop)


def _repeat(play: Play, rng: Generator) -> None:
    if events := play.repeatable():
        play.repeat(rng.choice(events))


def _interrupt(play: Play, rng: Generator) -> None:
    if rng.random() < 0.3 and not play.is_draining:
        play.interrupt()
    elif rng.random() < 0.5:
        play.resume()
    elif rng.random() < 0.5:
        play.resume_from_lines()


_TROUBLES = (
    _leave, _recall, _finish_early, _fail, _hold, _lose, _late, _repeat, _interrupt, _join
)  # fmt: skip


def rolled(seed: int, n_events: int = 40, **changes: Any) -> Play:  # noqa: ANN401
    """Play a random world for a while; repeatable."""
    rng = Generator(seed)
    truth = Truth(seed=seed, odd_share=rng.choice([0.0, 0.15]), grid=rng.choice([None, 3]))
    scheduler = rng.choice([None, Fifo()])
    play = Play(changes.get("studies") or random_studies(rng), truth, scheduler)
    trouble = changes.get("trouble", 0.3)
    for _ in range(n_events):
        if play.is_over and not play.is_draining:
            break
        roll(play, rng, trouble=trouble)
    return play
