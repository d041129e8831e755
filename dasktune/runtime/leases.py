"""Decide which driver may use which worker, where several share a cluster.

Lives in the scheduler plugin; pure: told what happened, it answers with messages to drivers. A
driver leases workers while it has use for them. Free workers go to the wanting driver that has the
fewest, of those that can use them. A driver that wants and has at least two fewer than another, or
finds one idle elsewhere, is given one of theirs: they are asked to return it, at a step boundary if
it is busy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dasktune.runtime.offers import Resources

Message: TypeAlias = tuple[str, Mapping[str, Any]]
"""A driver's topic, and what it is told."""


@dataclass(slots=True)
class _Driver:
    topic: str
    client: str
    fits: Callable[[Resources], bool]
    wants: bool = True
    has_idle: bool = False
    workers: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Workers that it cannot use, whatever they offer."""
    n_recalled: int = 0
    """Workers that it was asked to return and has not."""

    @property
    def n_kept(self) -> int:
        return len(self.workers) - self.n_recalled


class Leases:
    """Who may use which worker."""

    def __init__(self) -> None:
        self._drivers: dict[str, _Driver] = {}
        self._workers: dict[str, Resources] = {}
        # Dask's own account is not asked: a worker's `used_resources` stay wrong once a task was
        # stolen, and how busy a worker seems is judged there by tasks of any length.
        self._free: dict[str, None] = {}  # in the order in which they became free

    @property
    def topics(self) -> list[str]:
        """The topics of all drivers, in the order in which they joined."""
        return list(self._drivers)

    def join(self, topic: str, client: str, fits: Callable[[Resources], bool]) -> list[Message]:
        """Let a driver take part; one that did already begins with nothing.

        Args:
            topic: Where it is told things.
            client: The Dask client that it lives and dies with.
            fits: Whether a worker with such resources is of use to it.
        """
        self._take_back(topic)
        self._drivers[topic] = _Driver(topic, client, fits)
        return self._settle()

    def leave(self, topic: str) -> list[Message]:
        """Take back all that a driver has."""
        self._take_back(topic)
        return self._settle()

    def _take_back(self, topic: str) -> None:
        driver = self._drivers.pop(topic, None)
        if driver is not None:
            self._free.update(dict.fromkeys(sorted(driver.workers & self._workers.keys())))

    def of_client(self, client: str) -> list[str]:
        """Return the topics of the drivers that live with a client."""
        return [driver.topic for driver in self._drivers.values() if driver.client == client]

    def demand(self, topic: str, *, wants: bool, has_idle: bool) -> list[Message]:
        """Hear whether a driver could use more workers, and whether one of its is idle."""
        driver = self._drivers.get(topic)
        if driver is None:
            return []
        driver.wants, driver.has_idle = wants, has_idle
        return self._settle()

    def returned(self, topic: str, worker: str | None) -> list[Message]:
        """Hear that a driver returns a worker that was asked for; None: it needs all it has."""
        driver = self._drivers.get(topic)
        if driver is None:
            return []
        driver.n_recalled = max(0, driver.n_recalled - 1)
        if worker is None:
            driver.has_idle = False
        elif worker in driver.workers:
            driver.workers.remove(worker)
            if worker in self._workers:  # it is not about to go
                self._free[worker] = None
        return self._settle()

    def refused(self, topic: str, worker: str) -> list[Message]:
        """Hear that a driver cannot use a worker that it was granted: others may be able to."""
        driver = self._drivers.get(topic)
        if driver is None or worker not in driver.workers:
            return []
        driver.workers.remove(worker)
        driver.refused.add(worker)
        if worker in self._workers:  # it is not about to go
            self._free[worker] = None
        return self._settle()

    def worker_joined(self, worker: str, resources: Resources) -> list[Message]:
        """Hear of a new worker, or that one is not about to go after all."""
        self._workers[worker] = resources
        if not any(worker in driver.workers for driver in self._drivers.values()):
            self._free[worker] = None
        return self._settle()

    def worker_leaving(self, worker: str) -> list[Message]:
        """Hear that a worker is about to go: who has it returns it, and nobody is given it."""
        self._workers.pop(worker, None)
        self._free.pop(worker, None)
        news = {"kind": "leaving", "worker": worker}
        return [(d.topic, news) for d in self._drivers.values() if worker in d.workers]

    def worker_left(self, worker: str) -> list[Message]:
        """Hear that a worker is gone."""
        self._workers.pop(worker, None)
        self._free.pop(worker, None)
        messages: list[Message] = []
        for driver in self._drivers.values():
            driver.refused.discard(worker)  # what comes under this name is another process
            if worker in driver.workers:
                driver.workers.remove(worker)
                # It may be the one that was recalled. If not, one more is, and that is all.
                driver.n_recalled = max(0, driver.n_recalled - 1)
                messages.append((driver.topic, {"kind": "gone", "worker": worker}))
        return messages + self._settle()

    def _settle(self) -> list[Message]:
        messages: list[Message] = []
        for worker in list(self._free):
            wanting = [d for d in self._drivers.values() if d.wants and self._fits(d, worker)]
            if wanting:
                driver = min(wanting, key=lambda d: len(d.workers))  # of equals the first to join
                del self._free[worker]
                driver.workers.add(worker)
                messages.append((driver.topic, {"kind": "granted", "worker": worker}))
        for driver in self._drivers.values():
            if driver.wants:
                messages += self._recall_for(driver)
        return messages

    def _recall_for(self, driver: _Driver) -> list[Message]:
        """Ask for one worker that it can use, unless one is on its way."""
        others = [d for d in self._drivers.values() if d is not driver and d.workers]
        if any(d.n_recalled for d in others):
            return []
        others = [d for d in others if self._of_use(d, driver)]
        idle = [d for d in others if d.has_idle and not d.wants]
        rich = [d for d in others if d.n_kept >= len(driver.workers) + 2]
        for holders, only_idle in ((idle, True), (rich, False)):
            if holders:
                holder = max(holders, key=lambda d: d.n_kept)
                holder.n_recalled += 1
                among = self._of_use(holder, driver)
                news = {"kind": "recall", "only_idle": only_idle, "among": among}
                return [(holder.topic, news)]
        return []

    def _of_use(self, holder: _Driver, driver: _Driver) -> list[str]:
        """Return the workers of one driver that another could use."""
        return sorted(worker for worker in holder.workers if self._fits(driver, worker))

    def _fits(self, driver: _Driver, worker: str) -> bool:
        return worker not in driver.refused and driver.fits(self._workers.get(worker, {}))
