"""Count how a run gets on, from its timeline and nothing else.

`Progress` is told each entry and keeps counts; `dasktune.display` shows them, and whoever
subscribes to the timeline may use it to learn which trial a metric belongs to. Pure: knows no clock
and no screen, and decides nothing.

Distinct steps are counted by the links of the keys: two histories share a step exactly while their
links are the same. One number is kept for each link, up to `_MOST_LINKS` of them; from then on new
histories count as sharing nothing, so that what is said to be saved is never too much.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from dasktune.plan.history import link_spans, tokens_at
from dasktune.plan.keys import Link, first_link, state_key
from dasktune.plan.stage import Stage
from dasktune.space.configuration import Configuration
from dasktune.study.commands import (
    AskTrial,
    BranchTrial,
    Command,
    DrawTrial,
    EndRun,
    EndStudy,
    EndTrial,
    ReturnWorker,
    RunPath,
    StudyStatus,
)
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    PathHeld,
    Resumed,
    StageFailed,
    StageFinished,
    StudyStarted,
    WorkerJoined,
    WorkerLeft,
)
from dasktune.study.study import Study
from dasktune.study.timeline import Entry
from dasktune.trial import TrialId, TrialStatus
from dasktune.trial_progress import Answered, Best, TrialProgress
from dasktune.units import Digest, Seconds, Step, WorkerId

_MOST_LINKS = 500_000
_GOES_ON = (None, StudyStatus.RUNNING)
"""Status of a study that has not ended; None: it has not begun."""


class Progress:
    """Counts of a run; told every entry of its timeline, in order, from the first."""

    def __init__(self, studies: Sequence[Study]) -> None:
        """Begin with nothing.

        Args:
            studies: Those of the run, in its order.
        """
        self.studies = tuple(studies)
        self.trials: dict[TrialId, TrialProgress] = {}
        """Those drawn, by study and number."""
        self.by_status: Counter[TrialStatus] = Counter()
        """How many trials stand how."""
        self.steps_requested = 0
        """Steps if every trial ran alone, each counted once at its furthest request."""
        self.steps_unique = 0
        """Distinct steps among them."""
        self.steps_done = 0
        """Distinct steps whose states were committed, or found in the store."""
        self.steps_executed = 0
        """Steps that workers trained, those done twice or lost included."""
        self.best: dict[str, Best] = {}
        """The best report of each study that has one, by the study's name."""
        self.study_status: dict[str, StudyStatus] = {}
        """How the studies stand that have begun, by name."""
        self.at_s: Seconds = 0.0
        """Time of the last entry."""
        self.is_stopping = False
        """Whether the user has asked to stop."""
        self.end_reason = ""
        """Why the run is over; empty while it goes on."""
        self.stall = ""
        """Why nothing runs, as far as it is known; empty while something does."""
        self._slots: dict[WorkerId, int] = {}
        self._paths: dict[int, tuple[WorkerId | None, deque[Stage]]] = {}
        self._waiting: dict[Digest, list[TrialProgress]] = {}
        self._measured: dict[Digest, Mapping[str, float]] = {}
        self._asked_until: dict[Link, Step] = {}
        self._done_until: dict[Link, Step] = {}
        self._has_abandoned = False
        self._began_s: dict[str, Seconds] = {}
        self._steps_heard = 0
        self._requested = [0 for _ in studies]  # as the outlook counts: branches from their steps

    # --- what can be read

    @property
    def n_busy(self) -> int:
        """Slots that run something."""
        return sum(worker is not None for worker, _ in self._paths.values())

    @property
    def n_slots(self) -> int:
        """Slots of all workers that are known."""
        return sum(self._slots.values())

    @property
    def steps_owed(self) -> int:
        """Distinct steps that trials wait for. O(their requests) once one ended while it waited."""
        if not self.by_status[TrialStatus.WAITING]:
            return 0
        if not self._has_abandoned:
            return max(0, self.steps_unique - self.steps_done)
        seen: dict[Link, Step] = {}
        owed = 0
        for trial in self.trials.values():
            if trial.status is TrialStatus.WAITING and trial.configuration is not None:
                for link, begin, end in self._history(trial, trial.configuration):
                    begin = max(begin, self._done_until.get(link, 0))  # noqa: PLW2901
                    owed += _cover(seen, link, begin, end)
        return owed

    @property
    def steps_saved(self) -> int:
        """Steps that sharing has spared: heard by trials, less those done.

        Exact at the end, if no trial ended on its way: what was done for it beyond is never heard.
        """
        return max(0, self._steps_heard - self.steps_done)

    @property
    def left_s(self) -> Seconds | None:
        """Seconds that the rest will take; None while nothing is known, or nothing more begins.

        Assumes that trials train as far as the tuner's outlook says, share as those asked so far
        do, find nothing more in the store, and get on as fast as until now. Limits of the studies
        end it earlier.
        """
        requested = sum(self._requested)
        if not self.steps_executed or not requested or self.end_reason or self.is_stopping:
            return None
        expected = sum(map(self._expected_steps, range(len(self.studies))))
        distinct = expected * self.steps_unique / requested
        left_s = max(0.0, distinct - self.steps_done) * self._step_s
        running = [s for s in self.studies if self.study_status.get(s.name) in _GOES_ON]
        return min(left_s, max(map(self._allowed_s, running), default=0.0))

    @property
    def _step_s(self) -> Seconds:
        """How long a trained step has taken, of all workers' time together."""
        return self.at_s / self.steps_executed

    def _allowed_s(self, study: Study) -> Seconds:
        """Return how long a study may go on by its limits."""
        timeout_s, most = study.limits.timeout_s, study.limits.max_steps_executed
        began_s = self._began_s.get(study.name, self.at_s)
        return min(
            inf if timeout_s is None else max(0.0, began_s + timeout_s - self.at_s),
            inf if most is None else max(0, most - self.steps_executed) * self._step_s,
        )

    def _expected_steps(self, index: int) -> int:
        """Return the steps that the trials of a study will have asked for in the end."""
        study, requested = self.studies[index], self._requested[index]
        if self.study_status.get(study.name) not in _GOES_ON:
            return requested
        size = study.space.size
        n_trials = study.n_trials if size is None else min(study.n_trials, size)
        before, expected = 0, 0
        steps = study.tuner.decision_steps
        for step, n_asked in zip(steps, study.tuner.outlook(n_trials), strict=True):
            before, expected = step, expected + n_asked * (step - before)
        return max(requested, expected)

    # --- what is told

    def take(self, entry: Entry) -> list[Answered]:
        """Take in an entry; return what trials have heard by it."""
        self.at_s = entry.at_s
        answered: list[Answered] = []
        self._event(entry.event, answered)
        for command in entry.commands:
            self._command(command, answered)
        return answered

    def _event(self, event: Event, answered: list[Answered]) -> None:
        match event:
            case StageFinished():
                self._finished(event, answered)
            case MetricsReported():
                stage = self._stage(event)
                if stage is not None:
                    key = stage.key_at(event.step)
                    self._metrics(key, stage, event.step, event.metrics, answered)
            case StageFailed():
                self.steps_executed += event.executed_steps
                self._paths.pop(event.path, None)
            case PathHeld():
                if event.path in self._paths:
                    self._paths[event.path] = (None, self._paths[event.path][1])
            case WorkerJoined():
                self._leave(event.worker)
                self._slots[event.worker] = event.n_slots
            case WorkerLeft():
                self._leave(event.worker)
            case StudyStarted():
                name = self.studies[event.study].name
                self.study_status[name], self._began_s[name] = StudyStatus.RUNNING, self.at_s
            case Interrupted():
                self.is_stopping = True
            case Resumed():
                self.is_stopping, self.end_reason = False, ""
                self._slots.clear()
                self._paths.clear()
            case _:
                pass

    def _command(self, command: Command, answered: list[Answered]) -> None:
        match command:
            case DrawTrial():
                self.trials[command.trial] = TrialProgress(command.trial, command.point)
                self.by_status[TrialStatus.DRAWN] += 1
            case BranchTrial():
                self._branch(command)
            case AskTrial():
                self._ask(self.trials[command.trial], command.step, answered)
            case EndTrial():
                trial = self.trials[command.trial]
                if trial.status is TrialStatus.WAITING:
                    self._has_abandoned = True
                    self._heard_in_passing(trial)
                self._change(trial, command.status)
                trial.reason = command.reason
            case RunPath():
                self._paths[command.path] = (command.worker, deque(command.stages))
            case ReturnWorker():
                self._leave(command.worker)
            case EndStudy():
                self.study_status[self.studies[command.study].name] = command.status
            case EndRun():
                self.end_reason = command.reason
            case _:
                pass

    def _branch(self, command: BranchTrial) -> None:
        """Let a trial follow another one, which was asked to train, and go its own way then."""
        trial = TrialProgress(command.trial, command.point)
        parent = self.trials[TrialId(command.trial.study, command.parent)].configuration
        assert parent is not None
        after = self.studies[command.trial.study].space.configuration(command.point)
        trial.configuration = parent.spliced(command.step, after)
        trial.began = command.step
        self.trials[command.trial] = trial
        self.by_status[TrialStatus.DRAWN] += 1

    def _ask(self, trial: TrialProgress, step: Step, answered: list[Answered]) -> None:
        study = self.studies[trial.id.study]
        if trial.configuration is None:
            trial.configuration = study.space.configuration(trial.point)
        if trial.link is None:
            trial.link = first_link(study.family, tokens_at(trial.configuration, 0))
        assert trial.link is not None
        for link, begin, end in link_spans(trial.link, trial.configuration, trial.asked, step):
            self.steps_unique += _cover(self._asked_until, link, begin, end)
            trial.link = link
        self.steps_requested += step - trial.asked
        self._requested[trial.id.study] += step - max(trial.asked, trial.began)
        trial.asked = step
        self._change(trial, TrialStatus.WAITING)
        key = state_key(trial.link, step)
        if key in self._measured:
            self._hear(trial, self._measured[key], answered)
        else:
            self._waiting.setdefault(key, []).append(trial)

    def _finished(self, event: StageFinished, answered: list[Answered]) -> None:
        self.steps_executed += event.executed_steps
        stage = self._stage(event)
        if stage is None:
            return
        link = stage.start_link
        spans = link_spans(link, stage.configuration, stage.start, event.reached)
        for link, begin, end in spans:
            self.steps_done += _cover(self._done_until, link, begin, end)
        worker, stages = self._paths[event.path]
        stages.popleft()
        if event.reached < stage.stop or not stages or worker is None:
            del self._paths[event.path]
        if event.metrics is not None:
            key = state_key(link, event.reached)
            self._metrics(key, stage, event.reached, event.metrics, answered)

    def _stage(self, event: StageFinished | MetricsReported) -> Stage | None:
        """Return the stage that a path is at; None if the path is not counted on any more."""
        _, stages = self._paths.get(event.path, (None, None))
        return stages[0] if stages and stages[0].key == event.stage else None

    def _metrics(
        self,
        key: Digest,
        stage: Stage,
        step: Step,
        metrics: Mapping[str, float],
        answered: list[Answered],
    ) -> None:
        if key in self._measured:
            return  # a state has one answer: the first
        self._measured[key] = metrics
        waiting = self._waiting.pop(key, [])
        for trial in waiting:
            if not trial.status.is_final:
                self._hear(trial, metrics, answered)
        if not waiting:  # in passing, for all who share the state; who listens isn't recorded
            sharing = [study for study in self.studies if study.family == stage.family]
            if len(sharing) == 1:
                self._compare(sharing[0], metrics, step, None)

    def _hear(
        self, trial: TrialProgress, metrics: Mapping[str, float], answered: list[Answered]
    ) -> None:
        study = self.studies[trial.id.study]
        self._steps_heard += trial.asked - trial.step
        trial.step, trial.metrics = trial.asked, metrics
        self._change(trial, TrialStatus.PAUSED)
        self._compare(study, metrics, trial.step, trial.id.number)
        answered.append(
            Answered(
                study=study.name, trial=trial.id.number, step=trial.step, metrics=dict(metrics)
            )
        )

    def _heard_in_passing(self, trial: TrialProgress) -> None:
        """Let a trial that ended on the way have heard what was measured on it."""
        due = self.studies[trial.id.study].tuner.report_steps
        if trial.configuration is None or not due:
            return
        for link, begin, end in self._history(trial, trial.configuration):
            # Only keys of steps that lie there: each is a digest, and there may be many spans.
            for step in due[bisect_right(due, max(begin, trial.step)) : bisect_right(due, end)]:
                metrics = self._measured.get(state_key(link, step))
                if metrics is not None:
                    self._steps_heard += step - trial.step
                    trial.step, trial.metrics = step, metrics

    def _compare(
        self, study: Study, metrics: Mapping[str, float], step: Step, number: int | None
    ) -> None:
        score = study.score(metrics) if study.metric in metrics else None
        if score is None:
            return
        best = self.best.get(study.name)
        if best is not None:
            before = best.value if study.mode == "max" else -best.value
            if (score, step) < (before, best.step):
                return
            if (
                (score, step) == (before, best.step)
                and best.trial is not None
                and (number is None or number > best.trial)
            ):
                return
        self.best[study.name] = Best(value=metrics[study.metric], step=step, trial=number)

    def _change(self, trial: TrialProgress, status: TrialStatus) -> None:
        self.by_status[trial.status] -= 1
        self.by_status[status] += 1
        trial.status = status

    def _leave(self, worker: WorkerId) -> None:
        if self._slots.pop(worker, None):
            self._paths = {n: path for n, path in self._paths.items() if path[0] != worker}

    def _history(
        self, trial: TrialProgress, configuration: Configuration
    ) -> Iterator[tuple[Link, Step, Step]]:
        link = first_link(self.studies[trial.id.study].family, tokens_at(configuration, 0))
        return link_spans(link, configuration, 0, trial.asked)


def _cover(until: dict[Link, Step], link: Link, begin: Step, end: Step) -> int:
    """Note that a link is covered from `begin` to `end`; return how many of these steps are new."""
    known = max(until.get(link, begin), begin)
    if end <= known:
        return 0
    if link in until or len(until) < _MOST_LINKS:
        until[link] = end
    return end - known
