"""One study on its way: its trials, its sampler's and its tuner's runs.

Called by the core only. Says what it decides as commands; the plan, the slots and other studies
are the core's.
"""

from collections.abc import Mapping, Sequence
from math import nan

from dasktune.errors import InvalidStudyError
from dasktune.plan.prefix_tree import PlannedTrial
from dasktune.plan.search_plan import Answer, SearchPlan
from dasktune.space.configuration import Configuration
from dasktune.space.milestones import milestones
from dasktune.space.search_space import Point
from dasktune.study.commands import (
    AskTrial,
    BranchTrial,
    Command,
    DrawTrial,
    EndStudy,
    EndTrial,
    SetTimer,
    StudyStatus,
)
from dasktune.study.drawing import Drawing
from dasktune.study.limits import Watch
from dasktune.study.scores import score_of
from dasktune.study.study import Study
from dasktune.study.trial_record import TrialRecord
from dasktune.trial import Branch, Ending, Report, Request, TrialId, TrialStatus
from dasktune.tuners.tuner import TunerContext, TunerRun
from dasktune.units import Seconds, Step


class StudyRun:
    """One study on its way."""

    def __init__(self, index: int, study: Study, plan: SearchPlan) -> None:
        self.index = index
        self.study = study
        self.status: StudyStatus | None = None
        self.reason = ""
        self.trials: list[TrialRecord] = []
        self.is_exhausted = False
        self._plan = plan
        self._drawing = Drawing(index, study)
        self._tuner = self._started_tuner(study.n_trials)
        # Draws that come late leave prefixes that are trained already, where states were kept.
        self._keep_steps: tuple[Step, ...] = ()
        if not study.sampler.draws_ahead:
            self._keep_steps = milestones(study.space, study.max_steps)
        self._watch = Watch(study.limits, target=score_of(study.limits.target, study.mode))
        self._deadline_s: Seconds | None = None
        self._may_ask = False
        self._n_waiting = 0
        self._n_failed = 0
        self._has_report = False
        self._ended: list[PlannedTrial] = []

    @property
    def is_running(self) -> bool:
        """Whether the study has begun and not ended."""
        return self.status is StudyStatus.RUNNING

    @property
    def has_ended(self) -> bool:
        """Whether the study has begun and ended."""
        return self.status is not None and not self.is_running

    @property
    def is_starved(self) -> bool:
        """Whether no trial waits for a report."""
        return self._n_waiting == 0

    @property
    def asks_on_demand(self) -> bool:
        """Whether the tuner is asked only when a worker would idle."""
        return self._tuner.asks_on_demand

    @property
    def may_ask(self) -> bool:
        """Whether asking the tuner could give a request."""
        return self._may_ask and self.is_running

    def _started_tuner(self, n_trials: int) -> TunerRun:
        study = self.study
        return study.tuner.start(
            TunerContext(n_trials=n_trials, seed=study.seed, draws_ahead=study.sampler.draws_ahead)
        )

    # --- drawing and asking -------------------------------------------------------------------

    def start(
        self,
        commands: list[Command],
        recorded: Mapping[TrialId, Point] | None,
        now: Seconds,
    ) -> None:
        """Begin; draw all trials if their draws do not depend on reports."""
        self.status = StudyStatus.RUNNING
        timeout_s = self.study.limits.timeout_s
        if timeout_s is not None:
            self._deadline_s = now + timeout_s
            self.set_timer(commands)
        if self.study.sampler.draws_ahead:
            while len(self.trials) < self.study.n_trials and self._draw(commands, recorded):
                pass
            if len(self.trials) < self.study.n_trials:
                self._tuner = self._started_tuner(len(self.trials))
        self._may_ask = True

    def set_timer(self, commands: list[Command]) -> None:
        """Ask to be woken at the deadline, if there is one and the study goes on."""
        if self._deadline_s is not None and self.is_running:
            commands.append(SetTimer(study=self.index, at_s=self._deadline_s))

    def woken(self, now: Seconds, commands: list[Command]) -> None:
        """End the study if its deadline has come."""
        if self._deadline_s is not None and self.is_running and now >= self._deadline_s:
            self._enough(f"the timeout of {self.study.limits.timeout_s:g} s is over", commands)

    def executed(self, steps: int, commands: list[Command]) -> None:
        """End the study if so many steps are enough."""
        if self.is_running:
            self._enough(self._watch.executed(steps), commands)

    def _draw(self, commands: list[Command], recorded: Mapping[TrialId, Point] | None) -> bool:
        number = len(self.trials)
        point = self._drawing.draw(number, self._new_steps, recorded)
        if point is None:
            self.is_exhausted = True
            return False
        self._add(point, self._drawing.configuration(point), None)
        commands.append(DrawTrial(trial=TrialId(self.index, number), point=point))
        return True

    def _branch(
        self, request: Request, branch: Branch, recorded: Mapping[TrialId, Point] | None
    ) -> BranchTrial:
        """Let a new trial follow another one and then go its own way."""
        self._check_branch(request, branch)
        parent = self.trials[branch.parent]
        point = self._drawing.branched(request.trial, branch, parent.point, recorded)
        after = self._drawing.configuration(point)
        self._add(point, parent.configuration.spliced(branch.step, after), branch)
        return BranchTrial(
            trial=TrialId(self.index, request.trial),
            point=point,
            parent=branch.parent,
            step=branch.step,
        )

    def _add(self, point: Point, configuration: Configuration, branch: Branch | None) -> None:
        trial = TrialId(self.index, len(self.trials))
        study = self.study
        planned = self._plan.add(
            trial,
            study.family,
            configuration,
            stop=study.max_steps,
            decision_steps=study.tuner.steps_of(trial.number),
            report_steps=study.tuner.report_steps,
            keep_steps=self._keep_steps,
        )
        self.trials.append(TrialRecord(trial, point, configuration, planned, branch))

    def _new_steps(self, configuration: Configuration, step: Step) -> int:
        return self._plan.new_steps(self.study.family, configuration, step)

    def ask(
        self, commands: list[Command], recorded: Mapping[TrialId, Point] | None
    ) -> Sequence[Answer]:
        """Ask the tuner; return what the plan knows already of what it asks for."""
        requests = self._tuner.ask()
        self._may_ask = bool(requests) and self._tuner.asks_on_demand
        answers: list[Answer] = []
        for request in requests:
            if request.branch is not None:
                commands.append(self._branch(request, request.branch, recorded))
            while request.trial >= len(self.trials) and self._draw(commands, recorded):
                pass
            if request.trial >= len(self.trials):  # the space is exhausted: there is no such trial
                self._obey(self._tuner.end(request.trial, TrialStatus.STOPPED), commands)
                continue
            record = self.trials[request.trial]
            self._check(request, record)
            record.status = TrialStatus.WAITING
            record.asked = request.step
            record.n_reports_due = len(request.report_steps)
            self._n_waiting += 1
            commands.append(AskTrial(trial=record.id, step=request.step, reason=request.reason))
            answers += self._plan.request(record.planned, request.step, request.report_steps)
        return answers

    def _check_branch(self, request: Request, branch: Branch) -> None:
        """Refuse a branch that no tuner may make."""
        if (
            request.trial == len(self.trials)
            and 0 <= branch.parent < request.trial
            and 0 < branch.step <= self.trials[branch.parent].asked
            and branch.step < request.step
        ):
            return
        raise InvalidStudyError(
            f"{self.study.tuner} wants trial {request.trial} to leave trial {branch.parent} at "
            f"step {branch.step} for step {request.step}, and there are {len(self.trials)} trials; "
            "a new trial has the next number, and leaves one that was trained up to there"
        )

    def _check(self, request: Request, record: TrialRecord) -> None:
        """Refuse a request that no tuner may make: a study would wait for its answer for ever."""
        status, last = record.status, self.study.max_steps
        if status.is_final or status is TrialStatus.WAITING:
            problem = f"is {status.value}"
        elif not record.asked < request.step <= last:
            problem = f"was asked to step {record.asked} before, of {last} at most"
        else:
            return
        raise InvalidStudyError(
            f"{self.study.tuner} asks for trial {request.trial} to step {request.step}, but it "
            f"{problem}; a tuner asks for a living trial, once for each later step"
        )

    # --- hearing ------------------------------------------------------------------------------

    def hear(self, answer: Answer, commands: list[Command]) -> None:
        """Let the trial of an answer, and the tuner, hear it."""
        record = self.trials[answer.trial.id.number]
        if record.status.is_final or not self.is_running:
            return
        if answer.metrics is None:
            failure = answer.failure or "no metrics"
            self._conclude(record, TrialStatus.FAILED, failure, commands)
            self._tell_end(record, commands)
            self._give_up_if_hopeless(failure, commands)
            return
        missing = [name for name in self.study.metrics if name not in answer.metrics]
        if missing:
            names = ", ".join(sorted(answer.metrics)) or "none"
            self.end(
                StudyStatus.FAILED,
                f"evaluate() gave no {missing[0]!r}; it gave: {names}",
                commands,
            )
            return
        scores = self.study.scores(answer.metrics)
        if None in scores:
            self._diverge(answer, commands)
            return
        is_in_passing = answer.step != record.asked
        if record.n_reports_due and not is_in_passing:
            record.held = answer  # the last report comes last, also where it is known first
            return
        record.n_reports_due -= is_in_passing
        self._report(record, answer, answer.metrics, commands)
        if record.held is not None and not record.n_reports_due:
            held, record.held = record.held, None
            self.hear(held, commands)

    def _report(
        self,
        record: TrialRecord,
        answer: Answer,
        metrics: Mapping[str, float],
        commands: list[Command],
    ) -> None:
        scores = tuple([score for score in self.study.scores(metrics) if score is not None])
        score = scores[self.study.metrics.index(self.study.metric)]
        following = self.study.tuner.next_decision(record.id.number, answer.step)
        report = Report(
            trial=record.id.number,
            step=answer.step,
            metrics=metrics,
            score=score,
            branch=None if following is None else self._plan.branch(record.planned, following),
            scores=scores,
        )
        record.reports.append(report)
        self._has_report = True
        if answer.step == record.asked:
            record.status = TrialStatus.PAUSED
            self._n_waiting -= 1
        self._may_ask = True
        self._drawing.tell(report, rests=record.status is TrialStatus.PAUSED)
        self._obey(self._tuner.tell(report), commands)
        self._enough(self._watch.reported(report.trial, score), commands)

    def _enough(self, reason: str | None, commands: list[Command]) -> None:
        if reason is not None and self.is_running:
            self.end(StudyStatus.COMPLETED, reason, commands)

    def _diverge(self, answer: Answer, commands: list[Command]) -> None:
        """End every trial that shares a state whose tuned metric is no finite number."""
        metrics = answer.metrics or {}
        scores = self.study.scores(metrics)
        name = next(n for n, s in zip(self.study.metrics, scores, strict=True) if s is None)
        value = metrics.get(name, nan)
        vertex = self._plan.tree.vertex(answer.trial.node, answer.step)
        reason = f"{name} is {value} at step {answer.step}"
        for planned in self._plan.live_below(vertex):
            record = self._record(planned)
            if record is not None and not record.status.is_final:
                self._conclude(record, TrialStatus.DIVERGED, reason, commands)
                self._tell_end(record, commands)

    def _record(self, planned: PlannedTrial) -> TrialRecord | None:
        return self.trials[planned.id.number] if planned.id.study == self.index else None

    def _tell_end(self, record: TrialRecord, commands: list[Command]) -> None:
        self._may_ask = True
        self._obey(self._tuner.end(record.id.number, record.status), commands)

    def _obey(self, endings: Sequence[Ending], commands: list[Command]) -> None:
        for ending in endings:
            record = self.trials[ending.trial]
            if record.status.is_final:
                continue
            if record.status is TrialStatus.WAITING:  # ended by what it reported in passing
                record.planned.stopped_at = max(report.step for report in record.reports)
            self._conclude(record, ending.status, ending.reason, commands)

    def _conclude(
        self, record: TrialRecord, status: TrialStatus, reason: str, commands: list[Command]
    ) -> None:
        self._n_waiting -= record.status is TrialStatus.WAITING
        self._n_failed += status is TrialStatus.FAILED
        record.status, record.reason = status, reason
        self._drawing.end(record.id.number, status)
        self._ended.append(record.planned)
        commands.append(EndTrial(trial=record.id, status=status, reason=reason))

    def release(self) -> None:
        """Let the plan forget, in one go, what the trials that have ended were waiting for."""
        if self._ended:
            ended, self._ended = self._ended, []
            self._plan.end(ended)

    # --- ending -------------------------------------------------------------------------------

    def _give_up_if_hopeless(self, failure: str, commands: list[Command]) -> None:
        if not self._has_report and self._n_failed >= self.study.max_failures and self.is_running:
            self.end(
                StudyStatus.FAILED,
                f"the first {self._n_failed} trials all failed: {failure}",
                commands,
            )

    def end_if_done(self, commands: list[Command]) -> None:
        """End the study if its tuner waits for nothing and asks for nothing."""
        if not self.is_running or self._may_ask or self._n_waiting:
            return
        n = len(self.trials)
        reason = f"all {n} trials are over"
        if self.is_exhausted:
            n_drawn = sum(record.branch is None for record in self.trials)
            reason = f"the space has only {n_drawn} configurations; all {n} trials are over"
        if self._n_failed == n > 0:
            self.end(StudyStatus.FAILED, f"all {n} trials failed", commands)
        else:
            self.end(StudyStatus.COMPLETED, reason, commands)

    def end(self, status: StudyStatus, reason: str, commands: list[Command]) -> None:
        """End the study and every trial that has not ended."""
        self.status, self.reason = status, reason
        for record in self.trials:
            if not record.status.is_final:
                began = record.status is not TrialStatus.DRAWN
                why = "never promoted" if began else "never asked to train"
                if status is StudyStatus.FAILED or record.status is TrialStatus.WAITING:
                    why = "the study ended"
                self._conclude(record, TrialStatus.STOPPED, why, commands)
        commands.append(EndStudy(study=self.index, status=status, reason=reason))

    def copy(self, plan: SearchPlan) -> "StudyRun":
        """Return a run that goes on from here by itself, on a copy of the plan."""
        twin = object.__new__(StudyRun)
        twin.__dict__.update(self.__dict__)
        twin._plan, twin._ended = plan, []
        twin.trials = [record.copy(plan.trials[record.id]) for record in self.trials]
        twin._drawing = self._drawing.copy()
        twin._watch = self._watch.copy()
        twin._tuner = self._tuner.copy()
        return twin
