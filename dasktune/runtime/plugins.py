"""What dasktune adds to a Dask cluster.

The scheduler plugin leases workers to drivers, and lets each know what the others are running. The
worker plugin gives each process the training code of a run, and takes it and the model away when
the run leaves, or its client is gone. Both run in Dask's event loops, so they never block or raise.

Three things stay when the last driver has left, none of which changes a result of other clients:
the scheduler plugin, which then has nothing to do (another driver may just be about to join);
Dask's own draws in workers, which come from a generator of their own; and allocators that were
mended, which keep memory that they would have returned.

Where worker plugins are refused, the driver asks the processes to forget its run instead. If it
cannot, being dead or not allowed to ask, then each keeps the name of the run, and its model until a
stage of another run takes the place.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distributed import Scheduler, SchedulerPlugin, Worker, WorkerPlugin
from distributed.comm import connect
from distributed.core import send_recv
from distributed.protocol.pickle import dumps

from dasktune.runtime.leases import Leases, Message
from dasktune.runtime.offers import Resources, fits
from dasktune.runtime.payload import Payload
from dasktune.runtime.pulse import ended, heard, last_words
from dasktune.runtime.task import (
    PAYLOADS,
    STOPPED,
    TOPICS,
    TURNS,
    WANTED,
    keep_dask_off,
    mend_allocator,
)
from dasktune.units import Digest

logger = logging.getLogger(__name__)

PROTOCOL = 3
"""Version of what drivers and the scheduler plugin say to each other: raised with each change. A
scheduler outlives versions of dasktune, and each must find a plugin that understands it."""

OPERATION = f"dasktune-{PROTOCOL}"
"""What drivers send to the scheduler is under this name."""

_REACHED_WITHIN_S = 0.5
"""How long a process that is still there may take to accept a connection."""


class Sharing(SchedulerPlugin):  # type: ignore[misc]  # distributed has no types
    """Lease workers to drivers, and pass news between them."""

    name = f"dasktune-sharing-{PROTOCOL}"
    idempotent = True

    def __init__(self) -> None:
        """Begin with no drivers."""
        # Not in `start`: what a driver of another version sends unpickles to this class without
        # coming here, and must not start.
        self._leases = Leases()
        self._running: dict[str, dict[int, Mapping[str, Any]]] = {}
        self._taking_away: set[asyncio.Task[None]] = set()

    def __reduce__(self) -> tuple[Callable[[int], "Sharing"], tuple[int]]:
        """Travel by version: the scheduler makes a plugin of the class that it has imported."""
        return sharing, (PROTOCOL,)

    def start(self, scheduler: Scheduler) -> None:
        """Listen to drivers, and count the workers that there are."""
        leases = self._leases
        self._scheduler = scheduler
        for address, state in scheduler.workers.items():
            if state.status.name == "running":  # else it is about to be, which is said, or to go
                leases.worker_joined(address, dict(state.resources))
        scheduler.stream_handlers[OPERATION] = self._hear

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Offer a new worker."""
        self._tell(self._leases.worker_joined(worker, dict(scheduler.workers[worker].resources)))

    def remove_worker(self, scheduler: Scheduler, worker: str, **_facts: object) -> None:  # noqa: ARG002
        """Tell who had it that a worker is gone."""
        self._tell(self._leases.worker_left(worker))

    def log_event(self, topic: str, msg: object) -> None:
        """Tell who has a worker that it is about to go: it drains, was told to end, or paused.

        Dask logs each change of a worker's status under the worker's address.
        """
        if not isinstance(msg, Mapping) or msg.get("action") != "worker-status-change":
            return
        state = self._scheduler.workers.get(topic)
        if state is None:
            return
        if state.status.name == "running":
            self._tell(self._leases.worker_joined(topic, dict(state.resources)))
        else:
            self._tell(self._leases.worker_leaving(topic))

    def add_client(self, scheduler: Scheduler, client: str) -> None:
        """Release the stages that a client sent by a line that it has lost, and knows no more.

        One that is back before its old line is found to be gone begins with no wishes here, and
        Dask never looks at the old ones again.
        """
        if not self._leases.of_client(client):
            return
        state = scheduler.clients[client]
        orphans = [
            task
            for task in scheduler.tasks.values()
            if state in (task.who_wants or ()) and str(task.key).startswith("dasktune_")
        ]
        state.wants_what.update(orphans)
        scheduler.client_releases_keys([task.key for task in orphans], client)

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Take back what the drivers of a client that is gone had."""
        for topic in self._leases.of_client(client):
            self._leave(topic)
            if topic in scheduler.worker_plugins:  # who leaves in order takes it away itself
                taking = asyncio.get_running_loop().create_task(_take_code(scheduler, topic))
                self._taking_away.add(taking)
                taking.add_done_callback(self._taking_away.discard)

    def _hear(self, client: str, verb: str, topic: str, **facts: Any) -> None:  # noqa: ANN401
        """Take in what a driver sends; distributed adds the client that it came from."""
        match verb:
            case "join":
                self._join(client, topic, facts["resources"])
            case "leave":
                self._leave(topic)
            case "demand":
                self._tell(self._leases.demand(topic, **facts))
            case "returned":
                self._tell(self._leases.returned(topic, facts["worker"]))
            case "refused":
                self._tell(self._leases.refused(topic, facts["worker"]))
            case "running" if topic in self._running:
                self._running[topic][facts["path"]] = facts["running"]
                self._pass_on(topic, {"kind": "running", "path": facts["path"], **facts["running"]})
                if facts["asks"]:
                    # All that others announced before has been passed on to this driver by now.
                    self._tell([(topic, {"kind": "announced", "path": facts["path"]})])
            case "ended" if topic in self._running:
                self._running[topic].pop(facts["path"], None)
                self._pass_on(topic, {"kind": "ended", "path": facts["path"]})

    def _join(self, client: str, topic: str, resources: Resources | None) -> None:
        if topic in self._running:  # it has lost its line, which nobody has noticed here
            self._leave(topic)
        if self._leases.topics:
            self._tell((other, {"kind": "others"}) for other in [topic, *self._leases.topics])
        for other, paths in self._running.items():
            for path, running in paths.items():
                news = {"kind": "running", "of": other, "path": path, **running}
                self._tell([(topic, news)])
        self._running[topic] = {}
        self._tell(self._leases.join(topic, client, _Fits(resources)))

    def _leave(self, topic: str) -> None:
        for path in self._running.pop(topic, {}):
            self._pass_on(topic, {"kind": "ended", "path": path})
        self._tell(self._leases.leave(topic))

    def _pass_on(self, topic: str, news: Mapping[str, Any]) -> None:
        """Tell all drivers but one."""
        self._tell(
            (other, {"of": topic, **news}) for other in self._leases.topics if other != topic
        )

    def _tell(self, messages: Iterable[Message]) -> None:
        for topic, message in messages:
            self._scheduler.log_event(topic, dict(message))


async def _take_code(scheduler: Scheduler, topic: str) -> None:
    """Take the training code of a run whose client is gone away from all workers."""
    try:
        await scheduler.unregister_worker_plugin(None, topic)
    except Exception as error:  # workers that are going themselves
        logger.debug("some worker keeps the training code", exc_info=error)


class _Fits:
    """Whether a worker offers what a slot asks for; None asks for a GPU where there are any."""

    def __init__(self, asked: Resources | None) -> None:
        self._asked = asked

    def __call__(self, offered: Resources) -> bool:
        return fits(self._asked, offered)


def n_clients(dask_scheduler: Scheduler) -> int:
    """Return how many clients a cluster has now; run on its scheduler."""
    return sum(key != "fire-and-forget" for key in dask_scheduler.clients)


async def ask_last_words(
    worker: str, topic: str, dask_scheduler: Scheduler
) -> list[tuple[int, bytes]]:
    """Ask a worker that the scheduler has lost what came of its stages; run on the scheduler.

    A process without a nanny that is told to end breaks its line to the scheduler at once, and
    commits at its next step boundary all the same.

    Args:
        worker: Its address.
        topic: Names the run.
        dask_scheduler: Given by Dask.

    Raises:
        OSError: There is nobody.
    """
    comm = await connect(worker, timeout=_REACHED_WITHIN_S, **dask_scheduler.connection_args)
    try:
        answer = await send_recv(
            comm, op="run", function=dumps(last_words), args=dumps((topic,)), wait=True
        )
    finally:
        comm.abort()
    return list(answer["result"]) if answer["status"] == "OK" else []


def sharing(protocol: int) -> Sharing:
    """Return a new plugin, where a driver's is unpickled.

    Args:
        protocol: The driver's version.

    Raises:
        RuntimeError: It is another one here.
    """
    if protocol != PROTOCOL:
        raise RuntimeError(
            f"its dasktune speaks version {PROTOCOL} and the driver {protocol} of what they say to "
            "each other: restart the scheduler with the driver's dasktune"
        )
    return Sharing()


class TrainingCode(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Give each worker process, late ones too, the training code of a run."""

    def __init__(self, name: str, payloads: Mapping[Digest, Payload], *, mends: bool) -> None:
        """Hold what workers need.

        Args:
            name: Unique to the run.
            payloads: Training code, by whatever names it elsewhere.
            mends: Whether to mend the allocator of the process.
        """
        self.name = name
        self._payloads = {payload.digest: payload for payload in payloads.values()}
        self._mends = mends

    def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Put the training code where tasks look for it."""
        keep_dask_off()
        PAYLOADS.update({(self.name, key): payload for key, payload in self._payloads.items()})
        TOPICS.add(self.name)
        if self._mends:
            mend_allocator()

    async def teardown(self, worker: Worker) -> None:
        """Forget it; on a worker that is told to end only after its stage has committed.

        Dask closes the line to the scheduler right after. A stage notices at its next step that its
        worker is closing; what it has committed is told to the driver while it still can be, and
        the next attempt begins there.
        """
        if worker.status.name != "running":
            await ended(self.name)
            await heard(self.name)
        await forget_run(self.name)


async def forget_run(topic: str) -> None:
    """Forget in this process what it was given and told for a run, and close what is of no use."""
    TOPICS.discard(topic)
    for given in [each for each in PAYLOADS if each[0] == topic]:
        del PAYLOADS[given]
    STOPPED.difference_update([each for each in STOPPED if each[0] == topic])
    if not TOPICS:  # nobody is left to want anything
        WANTED.clear()
    await TURNS.left()
