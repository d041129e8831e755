"""The one state machine: told events with their time, it answers with commands.

Joins tuners, samplers, search plan and scheduler, for one study or several on one plan. It never
asks for the time, waits, draws from a global generator or touches a file, so the Dask backend, the
serial one and the simulator drive the same code, and a recorded timeline replays to the same state.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import assert_never

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.plan.owed import is_needed
from dasktune.plan.prefix_tree import Vertex
from dasktune.plan.search_plan import Answer, SearchPlan
from dasktune.scheduling.critical_path_first import CriticalPathFirst
from dasktune.scheduling.dispatch import assign_next
from dasktune.scheduling.ready_queue import ReadyQueue
from dasktune.scheduling.scheduler import Scheduler
from dasktune.scheduling.slots import Slots
from dasktune.space.search_space import Point
from dasktune.study.collector import rare_full_collections
from dasktune.study.commands import Command, EndRun, ReportDemand, ReturnWorker
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
    TimerFired,
    WorkerJoined,
    WorkerLeft,
    WorkerRecalled,
)
from dasktune.study.in_flight import InFlight
from dasktune.study.study import Study
from dasktune.study.study_run import StudyRun
from dasktune.trial import TrialId
from dasktune.units import Seconds

_MAX_DEATHS = 3
"""Workers that may die while executing one stage before it is given up."""


class StudyCore:
    """The state of one or several studies that share a plan and workers."""

    def __init__(self, studies: Sequence[Study], scheduler: Scheduler | None = None) -> None:
        """Begin with nothing drawn; studies count from their `StudyStarted`."""
        names = [study.name for study in studies]
        if not names or len(set(names)) < len(names):
            raise InvalidStudyError(
                f"the names of the studies are {names}; there must be at least one, all different"
            )
        self.plan = SearchPlan()
        self.scheduler = scheduler or CriticalPathFirst()
        self.runs = [StudyRun(index, study, self.plan) for index, study in enumerate(studies)]
        self.slots = Slots()
        self.now: Seconds = 0.0
        self.worker_seconds: Seconds = 0.0
        """Seconds that workers said they were busy."""
        self._queue = ReadyQueue(self.plan, self.scheduler)
        self._in_flight = InFlight(self.plan, self.slots)
        self._doubtful: set[int] = set()  # paths of which some stage lost its reason
        self._demand = ReportDemand(wants=True, has_idle=False)
        self._answers: deque[Answer] = deque()
        self._commands: list[Command] = []
        self._recorded: Mapping[TrialId, Point] | None = None
        self._next_on_demand = 0
        self._is_draining = False
        self._why_draining = ""
        self._has_ended = False

    def handle(
        self, event: Event, now: Seconds, recorded: Mapping[TrialId, Point] | None = None
    ) -> tuple[Command, ...]:
        """Take in one event; return what is to be done and what was decided, in order.

        Args:
            event: What happened.
            now: When, in seconds since the first event; not before the last event's time.
            recorded: The draws that were made at this event, when a timeline is replayed; None
                lets the samplers make them.

        Raises:
            BackendError: The event cannot be: its stage is not running, or its worker not known.
        """
        if now < self.now:
            raise BackendError(f"the event {event!r} is at {now} s; it is {self.now} s already")
        self.now = now
        self._commands = []
        self._recorded = recorded
        self._take_in(event)
        self._settle()
        return tuple(self._commands)

    @property
    def is_over(self) -> bool:
        """Whether no study goes on and no stage is running."""
        return self._has_ended

    @property
    def why_stopped(self) -> str | None:
        """Why the run was stopped before its studies were over; None if it was not."""
        return self._why_draining if self._is_draining else None

    @property
    def n_running(self) -> int:
        """Number of paths that are running."""
        return len(self._in_flight.paths)

    def why_idle(self) -> str | None:
        """Say why no stage is running although the run is not over; None if there is no need to."""
        if self.n_running or self._has_ended:
            return None
        if self._is_draining:
            return f"the run was stopped: {self._why_draining}"
        if not any(run.is_running for run in self.runs):
            return "no study has started"
        n_ready = self._queue.n_ready()
        if not len(self.slots):
            return f"{n_ready} stages are ready and no worker has joined"
        return f"{n_ready} stages are ready, {len(self.slots)} slots are known, none can take them"

    def fork(self) -> "StudyCore":
        """Return a core that goes on from here by itself; values are shared, state is not."""
        with rare_full_collections():
            return self._copy()

    def _copy(self) -> "StudyCore":
        twin = object.__new__(StudyCore)
        twin.__dict__.update(self.__dict__)
        twin.plan, vertices = self.plan.copy()
        twin.runs = [run.copy(twin.plan) for run in self.runs]
        twin.slots = self.slots.copy(vertices)
        twin._queue = self._queue.copy(twin.plan, vertices)
        twin._in_flight = self._in_flight.copy(twin.plan, twin.slots, vertices)
        twin._doubtful = self._doubtful.copy()
        twin._answers = deque()
        twin._commands = []
        return twin

    # --- events -------------------------------------------------------------------------------

    def _take_in(self, event: Event) -> None:  # noqa: PLR0912  (one for each kind of event)
        match event:
            case StageFinished():
                self._stage_finished(event)
            case MetricsReported():
                self._metrics_reported(event)
            case StageFailed():
                self._stage_failed(event)
            case PathHeld():
                if event.path in self._in_flight.paths:
                    self._in_flight.hold(self._in_flight.paths[event.path])
            case WorkerJoined():
                self._worker_joined(event)
            case WorkerLeft():
                self._worker_left(event)
            case WorkerRecalled():
                self._worker_recalled(event)
            case StateLost():
                self._answers += self.plan.lose(event.state)
            case StudyStarted():
                self._study_started(event)
            case TimerFired():
                self.runs[event.study].woken(self.now, self._commands)
            case Interrupted():
                self._interrupted(event.reason)
            case Resumed():
                self._resumed()
            case _:
                assert_never(event)

    def _interrupted(self, reason: str) -> None:
        self._is_draining = True
        self._why_draining = reason
        for path in self._in_flight.paths.values():
            self._commands += self._in_flight.stop(path, reason)

    def _resumed(self) -> None:
        self._is_draining = self._has_ended = False
        for worker in list(self.slots.by_worker):
            self._worker_left(WorkerLeft(worker=worker, died=False))
        for path in list(self._in_flight.paths.values()):  # nobody will answer those that are held
            self._in_flight.drop(path)
        for run in self.runs:
            run.set_timer(self._commands)

    def _study_started(self, event: StudyStarted) -> None:
        if not 0 <= event.study < len(self.runs) or self.runs[event.study].status is not None:
            raise BackendError(f"study {event.study} cannot start: unknown, or started before")
        self.runs[event.study].start(self._commands, self._recorded, self.now)

    def _worker_joined(self, event: WorkerJoined) -> None:
        if event.n_slots < 1:
            raise BackendError(f"{event!r} cannot be: a worker has at least one slot")
        self._worker_left(WorkerLeft(worker=event.worker, died=False))  # it may have restarted
        self.slots.join(event.worker, event.n_slots)

    def _worker_recalled(self, event: WorkerRecalled) -> None:
        for slot in self.slots.recall(event.worker):
            if slot.path is not None:
                path = self._in_flight.paths[slot.path]
                self._commands += self._in_flight.stop(path, "the worker is needed elsewhere")

    def _worker_left(self, event: WorkerLeft) -> None:
        for slot in self.slots.leave(event.worker):
            if slot.path is None:
                continue
            path = self._in_flight.paths[slot.path]
            stage, end = path.stages[0]
            self._in_flight.drop(path)
            if event.died:
                end.deaths += 1
                if end.deaths >= _MAX_DEATHS:
                    self._give_up(
                        end,
                        f"steps {stage.start} to {stage.stop} killed {end.deaths} workers: "
                        f"{event.reason or 'no cause is known'}",
                    )

    def _metrics_reported(self, event: MetricsReported) -> None:
        path = self._in_flight.at(event)
        if path is None:
            return
        _, end = path.stages[0]
        vertex = self.plan.tree.before(end.node, event.step)
        if vertex.step != event.step:
            raise BackendError(f"{event!r} is not at a report step of its stage")
        self._answers += self.plan.measured(vertex, event.metrics)

    def _stage_finished(self, event: StageFinished) -> None:
        self.worker_seconds += event.seconds
        path = self._in_flight.at(event)
        if path is None:
            self._finished_late(event)
            return
        stage, end = path.stages[0]
        if not stage.start <= event.reached <= stage.stop:
            raise BackendError(f"{event!r} is not between steps {stage.start} and {stage.stop}")
        path.stages.popleft()
        if event.reached > stage.start:
            vertex = self.plan.finish(
                end, stage.start, reached=event.reached, executed_steps=event.executed_steps
            )
        else:  # evaluated, or stopped before its first step: nothing new was stored
            self.plan.release(end, stage.start)
            self.plan.wasted(event.executed_steps)
            vertex = self.plan.tree.vertex(end.node, stage.start)
        if event.metrics is not None:
            self._answers += self.plan.measured(vertex, event.metrics)
        if event.reached < stage.stop or not path.stages or path.is_held:
            self._in_flight.end(path, vertex)
        else:
            path.slot.warm = vertex

    def _finished_late(self, event: StageFinished) -> None:
        """Keep what a worker that was given up has committed after all: it is as good as any."""
        vertex = self.plan.found(event.stage, event.reached, event.executed_steps)
        if vertex is not None and event.metrics is not None:
            self._answers += self.plan.measured(vertex, event.metrics)

    def _stage_failed(self, event: StageFailed) -> None:
        self.worker_seconds += event.seconds
        path = self._in_flight.at(event)
        if path is None:
            return
        stage, end = path.stages[0]
        self._in_flight.end(path, None)
        self.plan.wasted(event.executed_steps)
        end.attempts += 1
        limit = max(
            (run.study.retries for run in self.runs if run.study.family == stage.family), default=0
        )
        if end.attempts > limit:
            text = event.traceback or event.error
            self._give_up(end, f"{event.error}\n{text}" if event.traceback else text)

    def _give_up(self, end: Vertex, failure: str) -> None:
        self._answers += self.plan.fail(end, failure)

    # --- decisions ----------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let everybody hear what is new, ask for more, and hand out work, until nothing moves."""
        for run in self.runs:
            run.executed(self.plan.steps_executed, self._commands)
        while True:
            while self._answers:
                answer = self._answers.popleft()
                self.runs[answer.trial.id.study].hear(answer, self._commands)
            if self._is_draining:
                break
            self._ask_ahead()
            if self._answers:
                continue
            self._release()
            self._return_recalled()
            self._dispatch()
            if not self._ask_on_demand():
                break
        self._end_what_is_over()

    def _end_what_is_over(self) -> None:
        if not self._is_draining:
            for run in self.runs:
                run.end_if_done(self._commands)
        self._release()
        self._stop_what_nobody_wants()
        self._return_recalled()
        self._report_demand()
        if self.n_running or self._has_ended:
            return
        if self._is_draining:
            self._end_run(f"{self._why_draining}; the same call goes on from here")
        elif all(run.has_ended for run in self.runs):
            self._end_run("all studies have ended")

    def _stop_what_nobody_wants(self) -> None:
        """Stop the paths of which no stage that is left is needed, now or after later events."""
        self._doubtful.update(self.plan.owed.take_unwanted())
        for number in sorted(self._doubtful):
            path = self._in_flight.paths.get(number)
            if path is not None and any(is_needed(end) for _, end in path.stages):
                continue
            self._doubtful.discard(number)
            if path is not None:
                self._commands += self._in_flight.stop(path, "no trial waits for it any more")

    def _return_recalled(self) -> None:
        for worker in self.slots.take_returned():
            self._commands.append(ReturnWorker(worker=worker))

    def _report_demand(self) -> None:
        """Say whether another worker would be of use, if that has changed."""
        # Always asked, so that the queue hears of this event now: a mere question would reorder it.
        has_ready = self._queue.first() is not None
        wants = not self._is_draining and (
            has_ready or any(run.asks_on_demand and run.may_ask for run in self.runs)
        )
        demand = ReportDemand(wants=wants, has_idle=self.slots.has_idle)
        if demand != self._demand:
            self._demand = demand
            self._commands.append(demand)

    def _release(self) -> None:
        for run in self.runs:
            run.release()

    def _end_run(self, reason: str) -> None:
        self._has_ended = True
        self._commands.append(EndRun(reason=reason))

    def _ask_ahead(self) -> None:
        for run in self.runs:
            if run.may_ask and not run.asks_on_demand:
                self._answers += run.ask(self._commands, self._recorded)

    def _ask_on_demand(self) -> bool:
        """Ask one tuner for a little, if a slot would idle or it waits for nothing."""
        n = len(self.runs)
        for offset in range(n):
            run = self.runs[(self._next_on_demand + offset) % n]
            if run.asks_on_demand and run.may_ask and (self.slots.has_idle or run.is_starved):
                self._next_on_demand = (run.index + 1) % n
                self._answers += run.ask(self._commands, self._recorded)
                return True
        return False

    def _dispatch(self) -> None:
        while True:
            assignment = assign_next(self._queue, self.slots, self.scheduler)
            if assignment is None:
                return
            self._commands.append(self._in_flight.begin(assignment))
