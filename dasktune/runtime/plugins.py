"""What dasktune adds to a Dask cluster while drivers use it.

The scheduler plugin leases workers to drivers, and lets each know what the others are running. The
worker plugin gives each process the training code, and the signals that are meant for it. Neither
changes anything for other clients; both run in Dask's event loops, so they never wait or raise.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Client, Scheduler, SchedulerPlugin, Worker, WorkerPlugin

from dasktune.runtime.generators import keep_libraries_off
from dasktune.runtime.leases import Leases, Message, Resources
from dasktune.runtime.payload import Payload
from dasktune.runtime.task import PAYLOADS, mend_allocator
from dasktune.units import Digest

logger = logging.getLogger(__name__)

OPERATION = "dasktune"
"""What drivers send to the scheduler is under this name."""


class Sharing(SchedulerPlugin):  # type: ignore[misc]  # distributed has no types
    """Lease workers to drivers, and pass news between them."""

    name = "dasktune-sharing-1"
    idempotent = True

    def start(self, scheduler: Scheduler) -> None:
        """Listen to drivers, and count the workers that there are."""
        self._scheduler = scheduler
        self._leases = Leases()
        self._running: dict[str, dict[int, Mapping[str, Any]]] = {}
        for address, state in scheduler.workers.items():
            self._leases.worker_joined(address, dict(state.resources))
        scheduler.stream_handlers[OPERATION] = self._hear

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Offer a new worker."""
        self._tell(self._leases.worker_joined(worker, dict(scheduler.workers[worker].resources)))

    def remove_worker(self, scheduler: Scheduler, worker: str, **_facts: object) -> None:  # noqa: ARG002
        """Tell who had it that a worker is gone."""
        self._tell(self._leases.worker_left(worker))

    def remove_client(self, scheduler: Scheduler, client: str) -> None:  # noqa: ARG002
        """Take back what the drivers of a client that is gone had."""
        for topic in self._leases.of_client(client):
            self._leave(topic)

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
            case "running" if topic in self._running:
                self._running[topic][facts["path"]] = facts["running"]
                self._pass_on(topic, {"kind": "running", "path": facts["path"], **facts["running"]})
                # All that others announced before has been passed on to this driver by now.
                self._tell([(topic, {"kind": "announced", "path": facts["path"]})])
            case "ended" if topic in self._running:
                self._running[topic].pop(facts["path"], None)
                self._pass_on(topic, {"kind": "ended", "path": facts["path"]})

    def _join(self, client: str, topic: str, resources: Resources | None) -> None:
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


class _Fits:
    """Whether a worker offers what a slot asks for; None asks for a GPU where there are any."""

    def __init__(self, asked: Resources | None) -> None:
        self._asked = asked

    def __call__(self, offered: Resources) -> bool:
        return all(
            offered.get(name, 0) >= amount
            for name, amount in slot_resources(self._asked, offered).items()
        )


def slot_resources(asked: Resources | None, offered: Resources) -> Resources:
    """Return what a slot takes of a worker's resources; by default a GPU if it has one."""
    if asked is not None:
        return asked
    return {"GPU": 1.0} if "GPU" in offered else {}


def is_alone(client: Client) -> bool:
    """Say whether a client is the only one that its cluster has now."""
    return client.run_on_scheduler(_n_clients) <= 1  # type: ignore[no-any-return]


def _n_clients(dask_scheduler: Scheduler) -> int:
    return sum(key != "fire-and-forget" for key in dask_scheduler.clients)


class TrainingCode(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Give each worker process, late ones too, the training code of a run."""

    def __init__(self, name: str, payloads: Mapping[Digest, Payload], *, mends: bool) -> None:
        """Hold what workers need.

        Args:
            name: Unique to the run.
            payloads: Training code by its digest.
            mends: Whether to mend the allocator of the process.
        """
        self.name = name
        self._payloads = dict(payloads)
        self._mends = mends

    def setup(self, worker: Worker) -> None:  # noqa: ARG002
        """Put the training code where tasks look for it."""
        keep_libraries_off("dask", "distributed", "tornado")
        PAYLOADS.update({(self.name, key): payload for key, payload in self._payloads.items()})
        if self._mends:
            mend_allocator()

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002
        """Forget it."""
        for digest in self._payloads:
            PAYLOADS.pop((self.name, digest), None)
