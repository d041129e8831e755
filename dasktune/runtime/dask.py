"""Run paths of stages as keyed tasks on the free slots of a Dask cluster.

Late binding: a path is sent when a slot is free, with nothing queued behind it. Its first task is
pinned to the slot's worker, the next follow by dependency; forks start from the store, not from a
future that would drag them to its worker. Keys are released, never cancelled: it strikes others.

Everything that happens on Dask's threads is put into one queue, and taken in on the driver's.
"""

import pickle
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future as Asked
from contextlib import ExitStack, suppress
from functools import partial
from queue import Empty
from time import monotonic
from typing import Any

from distributed import Client, Future

from dasktune.plan.stage import Stage
from dasktune.runtime.answers import events_of
from dasktune.runtime.link import Link, undone_by
from dasktune.runtime.others import Foreign, Others
from dasktune.runtime.payload import Payload, travelling_by_value
from dasktune.runtime.plugins import TrainingCode
from dasktune.runtime.sent import Answers, SentPath, answer_from_store, outcome_of, submit
from dasktune.runtime.task import Task, stop_path, want_state
from dasktune.runtime.timers import Timers
from dasktune.runtime.unheard import Unheard
from dasktune.runtime.watchdog import Rounds
from dasktune.runtime.workforce import Workforce
from dasktune.store.store import Store
from dasktune.study.commands import (
    Command,
    ReportDemand,
    ReturnWorker,
    RunPath,
    SetTimer,
    StopPath,
)
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    PathHeld,
    TimerFired,
    WorkerLeft,
)
from dasktune.units import Digest, Seconds, WorkerId

_LOOK_EVERY_S = 1.0
"""How often the driver looks after the scheduler and workers, whatever happens."""

_RELEASE_S = 0.05
"""How long nothing may happen before tasks that are done are released. Not at once: news of that
would go to the worker by the same line as its next task, which would then have to wait."""


class DaskBackend:
    """The workers of a Dask cluster that this driver has leased, one slot each."""

    def __init__(  # noqa: PLR0913  (all keywords: where a run takes place)
        self,
        client: Client,
        *,
        topic: str,
        store: Store,
        payloads: Mapping[Digest, Payload],
        resources: Mapping[str, float] | None = None,
        mends_allocator: bool | None = None,
        since_s: Seconds = 0.0,
        looks_inside: bool = False,
    ) -> None:
        """Join a cluster, and ask for its workers.

        Args:
            client: Of a running cluster; never closed here.
            topic: Unique to this run.
            store: The same from every worker.
            payloads: Training code by fingerprint.
            resources: What a slot takes of a worker's; None: `{"GPU": 1}` where GPUs are offered.
            mends_allocator: Whether to mend workers' allocator; None: if no other client is there.
            since_s: Study time that has passed already, in earlier runs.
            looks_inside: Whether the store may hold states that this run did not make.
        """
        self._client = client
        self._topic = topic
        self._store_bytes = pickle.dumps(store)
        self._store = store
        self._payloads = payloads
        self._looks_inside = looks_inside
        self._mends_allocator = mends_allocator
        self._timers = Timers()
        self._unheard = Unheard(monotonic, since_s)
        self._tell = self._unheard.tell
        self._paths: dict[int, SentPath] = {}
        self._broken_off: set[Digest] = set()  # stages whose worker was lost: it may have committed
        self._link = Link(client, topic)
        self._workforce = Workforce(self._link, store, resources, self._tell, self._worker_gone)
        self._rounds = Rounds(self._link, self._hangs)
        self._look_s = monotonic()
        self._others = Others()
        self._answers = Answers()
        self.on_look: Callable[[], None] = lambda: None
        """Called every second or so on the driver's thread."""
        self._open = ExitStack()
        self._open.enter_context(travelling_by_value())
        with undone_by(self.close):  # nobody has this to close it yet
            self._join()

    def perform(self, command: Command) -> None:
        """Begin what a command wishes."""
        match command:
            case RunPath():
                if not self._unheard.excuses(command.worker):
                    path = SentPath(command, deque(command.stages))
                    self._paths[command.path] = path
                    self._begin(path)
            case StopPath():
                self._stop(command)
            case ReportDemand():
                self._link.send("demand", wants=command.wants, has_idle=command.has_idle)
            case SetTimer(study=study, at_s=at_s):
                fired = TimerFired(study=study)
                self._timers.set(
                    at_s - self._unheard.now_s,
                    lambda: self._link.news.put(lambda: self._tell(fired)),
                )
            case ReturnWorker():
                self._workforce.returned(command.worker)

    def next_event(self) -> tuple[Event, Seconds]:
        """Wait for the next event."""
        while True:
            if monotonic() >= self._look_s:
                self._look()
            if self._unheard:
                return self._unheard.next()
            self._link.flush()
            try:
                patience_s = _RELEASE_S if self._answers.are_new else _LOOK_EVERY_S
                self._link.news.get(timeout=patience_s)()
            except Empty:
                if self._answers.are_new:
                    self._answers.sweep()

    def why_waiting(self) -> str | None:
        """Say why no worker trains for this driver, as far as it is known here."""
        if self._paths:
            if all(path.waits_for is not None for path in self._paths.values()):
                return f"{len(self._paths)} paths wait for steps that another driver is training"
            return None
        return self._workforce.why_none()

    def inject(self, event: Event) -> None:
        """Let the core hear something that the driver found out by itself."""
        self._tell(event)

    def interrupt(self) -> None:
        """Let running stages end at their next step boundary; safe in a signal handler."""
        self._link.news.put(lambda: self._tell(Interrupted()))

    def close(self) -> None:
        """Let go of all tasks and of what was added to the cluster; the client stays open."""
        for path in list(self._paths.values()):
            self._forget(path)
        self._answers.sweep(everything=True)
        self._timers.close()
        with self._open:
            self._link.leave()

    # --- the cluster --------------------------------------------------------------------------

    def _join(self) -> None:
        mends = self._link.is_alone() if self._mends_allocator is None else self._mends_allocator
        self._link.join(TrainingCode(self._topic, self._payloads, mends=mends), self._hear)
        self._workforce.join()

    def _hear(self, news: Mapping[str, Any]) -> None:
        """Take in what the scheduler or a task has published for this driver."""
        match news["kind"]:
            case "report":
                self._tell(MetricsReported(**news["event"]))
            case "outcome":
                self._answers.put(news["path"], news["answer"])
                self._advance(news["path"])
            case "others":
                self._others.are_there = True
            case "announced":
                self._announced(news["path"])
            case "granted":
                self._workforce.granted(WorkerId(news["worker"]))
            case "recall":
                busy = {path.command.worker for path in self._running()}
                self._workforce.recalled(news["among"], busy, only_idle=news["only_idle"])
            case "leaving":
                self._workforce.leaving(WorkerId(news["worker"]))
            case "gone":
                self._worker_gone(WorkerId(news["worker"]))
            case "running" | "ended":
                self._others.hear(news)
                self._go_on_after(news["of"], news["path"])

    def _look_after_scheduler(self) -> None:
        """Make sure that the scheduler is there, and begin anew with one that has come back."""
        is_there = self._link.has_changed()
        if is_there is None:
            return
        with suppress(Empty):  # what came by the old line: nothing of it may be heard later
            while True:
                self._link.news.get_nowait()()
        self._workforce.excuse()  # nobody says what becomes of them
        for worker in self._workforce.known():
            self._worker_left(worker, "the Dask scheduler did not answer")
        if is_there:
            self._others.begin_anew()
            self._join()
            for path in [each for each in self._paths.values() if each.waits_for is not None]:
                self._answer_waiting(path)  # what it waits for may have ended unheard

    # --- workers ------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look after workers: that there are some, and that those that are busy get on."""
        self._look_s = monotonic() + _LOOK_EVERY_S
        self._look_after_scheduler()
        self._workforce.look()
        for number in list(self._paths):
            self._advance(number)  # news of what Dask gave up, or lost, do not come by themselves
        self._rounds.go({path.command.worker for path in self._paths.values() if path.pending})
        if not self._unheard:  # else the core does not know yet
            self.on_look()

    def _hangs(self, worker: WorkerId, why: str) -> None:
        self._workforce.leave_out(worker, f"it hung: {why}")
        self._worker_left(worker, f"it hung: {why}")

    def _worker_gone(self, worker: WorkerId) -> None:
        """Hear what a worker that is gone has still to say: its process may be ending in order."""
        if any(path.command.worker == worker and path.pending for path in self._paths.values()):
            self._link.ask(self._link.last_words(worker), partial(self._last_words_heard, worker))
        else:
            self._worker_left(worker)

    def _last_words_heard(self, worker: WorkerId, said: Asked[list[tuple[int, bytes]]]) -> None:
        has_failed = said.exception() is not None
        if has_failed:
            self._look_after_scheduler()  # one that ends in order says that its workers are gone
        words = [] if has_failed else said.result()
        if words:
            self._workforce.leaving(worker)
        for path, answer in words:
            self._answers.put(path, answer)
            self._advance(path)
        self._worker_left(worker)

    def _worker_left(self, worker: WorkerId, reason: str = "the worker is gone") -> None:
        died = self._workforce.left(worker)
        if died is None:
            return
        for path in list(self._paths.values()):
            if path.command.worker == worker and path.waits_for is None:
                self._broken_off.update(stage.key for stage, _ in path.pending)
                self._forget(path)
        self._tell(WorkerLeft(worker=worker, died=died, reason=reason))

    # --- paths --------------------------------------------------------------------------------

    def _begin(self, path: SentPath) -> None:
        """Announce what is left of a path; where there are other drivers, wait until they know."""
        self._announce(path)  # also when alone: who joins is told by the scheduler, at once
        if not self._others.are_there:
            self._submit(path, len(path.unsent))
        self._link.flush()

    def _announce(self, path: SentPath) -> None:
        left = [*(stage for stage, _ in path.pending), *path.unsent]
        running = Foreign.plain(path.command, map(path.as_bytes, left))
        asks = self._others.are_there
        path.n_announcing += asks
        self._link.send("running", path=path.command.path, running=running, asks=asks)

    def _announced(self, number: int) -> None:
        """Send a path up to where another driver has announced its steps before, or wait there."""
        path = self._paths.get(number)
        if path is None:
            return
        path.n_announcing -= 1
        if path.n_announcing or path.waits_for or path.pending or not path.unsent:
            return
        n_free, foreign = self._others.before(path.unsent)
        if foreign is None or n_free:
            self._submit(path, n_free)
            return
        self._hold(path, foreign)
        self._link.send("ended", path=number)  # it is not running after all
        for foreign, wanted in filter(None, map(self._others.covering, path.unsent)):
            # Also what is only needed later: the other may be past it by then.
            self._link.signal(foreign.worker, want_state, wanted)

    def _hold(self, path: SentPath, foreign: Foreign | None = None) -> None:
        """Let the slot of a path be idle; its next answer is its last."""
        path.waits_for = foreign
        self._tell(PathHeld(path=path.command.path))

    def _submit(self, path: SentPath, n: int) -> None:
        """Send the next stages of a path."""
        command = path.command
        previous: Future | None = None
        for stage in [path.unsent.popleft() for _ in range(n)]:
            resources = self._workforce.takes(command.worker)
            after = previous or command.worker
            previous = submit(self._client, path, stage, self._task(path, stage), after, resources)
            path.pending.append((stage, previous))

    def _task(self, path: SentPath, stage: Stage) -> Task:
        payload = self._payloads[Digest(stage.family.fingerprint)]
        may_be_stored = (
            self._looks_inside
            or self._others.are_there
            or not self._link.has_leases  # who else is there is not known
            or stage.key in self._broken_off
        )
        return Task(
            topic=self._topic,
            path=path.command.path,
            store=self._store_bytes,
            payload=payload.digest,
            code=None if self._link.has_code else payload,
            looks_inside=may_be_stored,
        )

    def _stop(self, command: StopPath) -> None:
        path = self._paths.get(command.path)
        if path is not None:
            path.is_stopping = True
            if not path.pending:
                self._answer_waiting(path)
                return
        self._link.signal(command.worker, stop_path, self._topic, command.path)

    def _advance(self, number: int) -> None:
        """Answer the stages of a path that are done, in their order: news of them may overtake."""
        path = self._paths.get(number)
        while path is not None and path.pending:
            stage, future = path.pending[0]
            outcome = self._answers.take(number, stage)
            if outcome is None and not path.is_overdue(future):
                return  # its news may still be on their way, behind reports in passing
            if outcome is None and self._client.status != "running":
                self._look_after_scheduler()  # which has taken its tasks with it
                return
            outcome = outcome or outcome_of(stage, future)
            path.pending.popleft()
            for event in events_of(number, stage, outcome):
                self._tell(event)
            is_through = outcome.error is None and outcome.reached == stage.stop
            if is_through and path.unsent and not path.pending:
                (self._answer_waiting if path.is_stopping else self._begin)(path)
            elif not is_through or not path.pending:
                self._forget(path)
            elif self._others.are_there:
                self._announce(path)  # no longer what is done
            self._answers.let_go(future)

    def _forget(self, path: SentPath) -> None:
        self._paths.pop(path.command.path, None)
        path.unsent.clear()
        for _, future in path.pending:
            future.release()
        path.pending.clear()
        if self._client.status == "running":
            self._link.send("ended", path=path.command.path)

    # --- what other drivers run ---------------------------------------------------------------

    def _go_on_after(self, topic: str, number: int) -> None:
        """Go on with the paths that waited for a path of another driver, which is through there."""
        for path in [each for each in self._paths.values() if each.waits_on(topic, number)]:
            covering = self._others.covering(path.unsent[0])
            if covering is None or not covering[0].is_path(topic, number):
                self._answer_waiting(path)

    def _answer_waiting(self, path: SentPath) -> None:
        """Tell what the store has by now of the stage that a path waits with; it ends there.

        The core hands out anew what is left: it may be covered by others again.
        """
        if path.waits_for is None:  # else the core would wait for the stages after this one
            self._hold(path)
        for event in answer_from_store(path.command.path, path.unsent[0], self._store):
            self._tell(event)
        self._forget(path)

    def _running(self) -> list[SentPath]:
        """Return the paths that have a slot."""
        return [path for path in self._paths.values() if path.waits_for is None]
