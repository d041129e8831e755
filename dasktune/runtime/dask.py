"""Run paths of stages as keyed tasks on the free slots of a Dask cluster.

Late binding: a path is sent when a slot is free, with nothing queued behind it. Its first task is
pinned to the slot's worker, the next follow by dependency; forks start from the store, not from a
future that would drag them to its worker. Keys are released, never cancelled: it strikes others.

Everything that happens on Dask's threads is put into one queue, and taken in on the driver's.
"""

import asyncio
import logging
import pickle
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future as Proof
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeAlias

from distributed import Client, Future

from dasktune.errors import BackendError
from dasktune.runtime.answers import events_of
from dasktune.runtime.others import Foreign, Others
from dasktune.runtime.payload import Payload, travelling_by_value
from dasktune.runtime.plugins import (
    OPERATION,
    Sharing,
    TrainingCode,
    is_alone,
    slot_resources,
)
from dasktune.runtime.sent import Answers, SentPath, answer_from_store, outcome_of, submit
from dasktune.runtime.task import Task, read_proof, stop_path, want_state
from dasktune.store.store import Store
from dasktune.study.commands import Command, ReportDemand, ReturnWorker, RunPath, StopPath
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    WorkerJoined,
    WorkerLeft,
    WorkerRecalled,
)
from dasktune.units import Digest, Seconds, WorkerId

logger = logging.getLogger(__name__)

_BATCHING_S = 0.001
"""How long messages may wait to go together; Dask's 10 ms would be most of handing out a path."""

_PATIENCE_S = 1.0
"""How long nothing may happen before the driver looks whether the scheduler is still there."""

_News: TypeAlias = Callable[[], None]
"""Something that happened on another thread, to be taken in on the driver's."""


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
        self._resources = resources
        self._looks_inside = looks_inside
        self._zero_s = monotonic() - since_s
        self._news: SimpleQueue[_News] = SimpleQueue()
        self._events: deque[tuple[Event, Seconds]] = deque()
        self._paths: dict[int, SentPath] = {}
        self._workers: dict[WorkerId, Mapping[str, float]] = {}
        self._proving: set[WorkerId] = set()
        self._others = Others()
        self._answers = Answers()
        self._is_cut_off = False
        self._open = ExitStack()
        self._open.enter_context(travelling_by_value())
        self._join(mends_allocator)

    def perform(self, command: Command) -> None:
        """Begin what a command wishes."""
        match command:
            case RunPath():
                path = SentPath(command, deque(command.stages))
                self._paths[command.path] = path
                self._begin(path)
            case StopPath():
                self._stop(command)
            case ReportDemand():
                self._send("demand", wants=command.wants, has_idle=command.has_idle)
            case ReturnWorker():
                self._workers.pop(command.worker, None)
                self._send("returned", worker=command.worker)

    def next_event(self) -> tuple[Event, Seconds]:
        """Wait for the next event."""
        while not self._events:
            try:
                self._news.get(timeout=_PATIENCE_S)()
            except Empty:
                self._look_after_scheduler()
        return self._events.popleft()

    def inject(self, event: Event) -> None:
        """Let the core hear something that the driver found out by itself."""
        self._tell(event)

    def interrupt(self) -> None:
        """Let running stages end at their next step boundary; safe in a signal handler."""
        self._news.put(lambda: self._tell(Interrupted()))

    def close(self) -> None:
        """Let go of all tasks and of what was added to the cluster; the client stays open."""
        for path in list(self._paths.values()):
            self._forget(path)
        self._answers.sweep(everything=True)
        if self._client.status == "running":
            self._send("leave")
            self._client.unsubscribe_topic(self._topic)
            self._client.unregister_worker_plugin(self._topic)
        self._open.close()

    def _tell(self, event: Event) -> None:
        self._events.append((event, monotonic() - self._zero_s))

    # --- the cluster --------------------------------------------------------------------------

    def _join(self, mends_allocator: bool | None) -> None:
        client = self._client
        batching_s = client.scheduler_comm.interval
        client.scheduler_comm.interval = _BATCHING_S
        self._open.callback(setattr, client.scheduler_comm, "interval", batching_s)
        mends = is_alone(client) if mends_allocator is None else mends_allocator
        by_digest = {payload.digest: payload for payload in self._payloads.values()}
        client.register_plugin(TrainingCode(self._topic, by_digest, mends=mends))
        client.register_plugin(Sharing())
        client.subscribe_topic(
            self._topic, lambda event: self._news.put(lambda: self._hear(event[1]))
        )
        self._store.write_proof(self._topic)
        asked = dict(self._resources) if self._resources is not None else None
        self._send("join", resources=asked)

    def _send(self, verb: str, **facts: Any) -> None:  # noqa: ANN401  (whatever msgpack takes)
        message = {"op": OPERATION, "verb": verb, "topic": self._topic, **facts}
        self._client.loop.add_callback(self._client._send_to_scheduler_safe, message)

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
                self._granted(WorkerId(news["worker"]))
            case "recall":
                self._recall(news["among"], only_idle=news["only_idle"])
            case "gone":
                self._worker_left(WorkerId(news["worker"]))
            case "running":
                self._others.begin(news["of"], news["path"], news["worker"], news["stages"])
                self._go_on_after(news["of"], news["path"])
            case "ended":
                self._others.end(news["of"], news["path"])
                self._go_on_after(news["of"], news["path"])

    def _look_after_scheduler(self) -> None:
        """Nothing has happened for a while: make sure that something still can."""
        status = self._client.status
        if status == "running":
            if self._is_cut_off:
                logger.warning("the Dask scheduler answers again; the study goes on")
                self._is_cut_off = False
                self._join(mends_allocator=None)
            return
        if not self._is_cut_off:
            self._is_cut_off = True
            logger.warning("the Dask scheduler does not answer; waiting for it to come back")
            for worker in [*self._proving, *self._workers]:
                self._worker_left(worker)
        if status == "closed":
            raise BackendError(
                "the Dask scheduler is gone and did not come back; nothing committed is lost: "
                "start a cluster and make the same call again"
            )

    # --- workers ------------------------------------------------------------------------------

    def _granted(self, worker: WorkerId) -> None:
        """Let a worker prove that it reads what this driver wrote; do not wait for it."""
        self._proving.add(worker)
        proof = asyncio.run_coroutine_threadsafe(
            self._proof_of(worker), self._client.loop.asyncio_loop
        )
        proof.add_done_callback(lambda _: self._news.put(lambda: self._proved(worker, proof)))

    async def _proof_of(self, worker: WorkerId) -> Mapping[str, float] | None:
        """Return the resources of a worker that shares the store; None if it is gone."""
        offered = (await self._client.scheduler.identity())["workers"].get(worker)
        if offered is None:
            return None
        await self._client._run(read_proof, self._store_bytes, self._topic, workers=[worker])
        return offered.get("resources") or {}

    def _proved(self, worker: WorkerId, proof: Proof[Mapping[str, float] | None]) -> None:
        if worker not in self._proving:
            return
        self._proving.discard(worker)
        try:
            offered = proof.result()
        except BackendError as error:
            logger.warning("worker %s is left out: %s", worker, error)
            if not self._workers:
                raise
            return
        except OSError as error:  # it is gone, or going
            logger.warning("worker %s is left out, since it does not answer: %s", worker, error)
            return
        if offered is not None:
            self._workers[worker] = slot_resources(self._resources, offered)
            # One slot a process, whatever its threads: the global generators are the process's.
            self._tell(WorkerJoined(worker=worker))

    def _recall(self, among: Sequence[str], *, only_idle: bool) -> None:
        busy = {path.command.worker for path in self._paths.values()}
        mine = [worker for worker in self._workers if worker in among]
        idle = [worker for worker in mine if worker not in busy]
        chosen = idle[:1] or ([] if only_idle else mine[-1:])
        if chosen:
            self._tell(WorkerRecalled(worker=chosen[0]))
        else:
            self._send("returned", worker=None)

    def _worker_left(self, worker: WorkerId) -> None:
        self._proving.discard(worker)
        if self._workers.pop(worker, None) is None:
            return
        for path in list(self._paths.values()):
            if path.command.worker == worker:
                self._forget(path)
        self._tell(WorkerLeft(worker=worker, died=True, reason="the worker is gone"))

    # --- paths --------------------------------------------------------------------------------

    def _begin(self, path: SentPath) -> None:
        """Announce what is left of a path; where there are other drivers, wait until they know."""
        self._announce(path)  # also when alone: who joins is told by the scheduler, at once
        if not self._others.are_there:
            self._submit(path, len(path.unsent))

    def _announce(self, path: SentPath) -> None:
        left = [*(stage for stage, _ in path.pending), *path.unsent]
        running = Foreign.plain(path.command, left)
        path.n_announcing += 1
        self._send("running", path=path.command.path, running=running)

    def _announced(self, number: int) -> None:
        """Send a path up to where another driver has announced its steps before, or wait there."""
        path = self._paths.get(number)
        if path is None:
            return
        path.n_announcing -= 1
        if path.n_announcing or path.waits_for or path.pending or not path.unsent:
            return
        n_free, covering = 0, None
        for stage in path.unsent:
            covering = self._others.covering(stage)
            if covering is not None:
                break
            n_free += 1
        if covering is None or n_free:
            self._submit(path, n_free)
            return
        path.waits_for, _ = covering
        self._send("ended", path=number)  # it is not running after all
        for foreign, wanted in filter(None, map(self._others.covering, path.unsent)):
            # Also what is only needed later: the other may be past it by then.
            self._signal(foreign.worker, want_state, wanted)

    def _submit(self, path: SentPath, n: int) -> None:
        """Send the next stages of a path."""
        command = path.command
        previous: Future | None = None
        for stage in [path.unsent.popleft() for _ in range(n)]:
            payload = self._payloads[Digest(stage.family.fingerprint)]
            task = Task(
                topic=self._topic,
                path=command.path,
                store=self._store_bytes,
                payload=payload.digest,
                looks_inside=self._looks_inside or self._others.are_there,
            )
            resources = self._workers.get(command.worker, {})
            previous = submit(self._client, stage, task, previous or command.worker, resources)
            path.pending.append((stage, previous))
        for _, future in path.pending:
            future.add_done_callback(
                lambda _future: self._news.put(lambda: self._advance(command.path))
            )

    def _signal(self, worker: WorkerId, signal: Callable[..., object], *facts: object) -> None:
        self._client.run(signal, *facts, workers=[worker], wait=False, on_error="ignore")

    def _stop(self, command: StopPath) -> None:
        path = self._paths.get(command.path)
        if path is not None and path.unsent and not path.pending:
            self._answer_waiting(path, is_stopping=True)
            return
        self._signal(command.worker, stop_path, self._topic, command.path)

    def _advance(self, number: int) -> None:
        """Answer the stages of a path that are done, in their order: news of them may overtake."""
        path = self._paths.get(number)
        while path is not None and path.pending:
            stage, future = path.pending[0]
            outcome = self._answers.take(number, stage)
            if outcome is None and not future.done():
                return
            if outcome is None and self._client.status != "running":
                self._look_after_scheduler()  # which has taken its tasks with it
                return
            outcome = outcome or outcome_of(stage, future)
            path.pending.popleft()
            for event in events_of(number, stage, outcome):
                self._tell(event)
            is_through = outcome.error is None and outcome.reached == stage.stop
            if is_through and path.unsent and not path.pending:
                self._begin(path)
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
            self._send("ended", path=path.command.path)

    # --- what other drivers run ---------------------------------------------------------------

    def _go_on_after(self, topic: str, number: int) -> None:
        """Go on with the paths that waited for a path of another driver, which is through there."""
        for path in list(self._paths.values()):
            if path.waits_for is None or not path.waits_for.is_path(topic, number):
                continue
            covering = self._others.covering(path.unsent[0])
            if covering is None or not covering[0].is_path(topic, number):
                self._answer_waiting(path, is_stopping=False)

    def _answer_waiting(self, path: SentPath, *, is_stopping: bool) -> None:
        """Tell what the store has by now of the stage that a path waits with, and go on."""
        stage = path.unsent.popleft()
        event = answer_from_store(path.command.path, stage, self._store)
        is_through = event.reached == stage.stop
        self._tell(event)
        path.waits_for = None
        if is_through and path.unsent and not is_stopping:
            self._begin(path)
        elif is_through and path.unsent:
            self._answer_waiting(path, is_stopping=True)
        else:  # the core hands out anew what is left: it may be covered by others again
            self._forget(path)
