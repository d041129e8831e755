"""The workers that a driver may use now, one slot each: granted, proven, about to go.

The scheduler plugin grants workers and tells when they leave. Where there is none, the scheduler is
asked every second who is there, and all who fit are used.
"""

import asyncio
import logging
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future as Asked
from typing import Any

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.runtime.link import Link
from dasktune.runtime.offers import Resources, fits, fitting, slot_resources, why_no_worker
from dasktune.runtime.proof import Proof
from dasktune.runtime.task import read_proof
from dasktune.store.store import Store
from dasktune.study.events import Event, WorkerJoined, WorkerRecalled
from dasktune.units import WorkerId

logger = logging.getLogger(__name__)

_AGAIN_AFTER_S = 1.0
"""How soon a worker that did not answer is asked again."""


class Workforce:
    """The workers that a driver may use."""

    def __init__(
        self,
        link: Link,
        store: Store,
        asked: Resources | None,
        tell: Callable[[Event], None],
        lose: Callable[[WorkerId], None],
    ) -> None:
        """Begin with none.

        Args:
            link: To the cluster.
            store: The driver's: workers prove that theirs is the same.
            asked: What a slot takes of a worker's resources; None: a GPU where there are any.
            tell: Told what the core must hear.
            lose: Told of workers that are gone.
        """
        self._link = link
        self._store_bytes = pickle.dumps(store)
        self._proof = Proof(store, link.topic)
        self._asked = asked
        self._tell = tell
        self._lose = lose
        self._takes: dict[WorkerId, Resources] = {}
        self._proving: set[WorkerId] = set()
        self._leaving: set[WorkerId] = set()
        self._left_out: dict[str, str] = {}  # why
        self._refusal: BackendError | None = None  # the last, if no worker was ever ready
        self._was_any_ready = False
        self._cluster: Mapping[str, Mapping[str, Any]] | None = None
        self._is_calling = False

    def takes(self, worker: WorkerId) -> Resources:
        """Return what a slot takes of a worker's resources."""
        return self._takes.get(worker, {})

    def known(self) -> list[WorkerId]:
        """Return the workers that are in use, or about to be."""
        return [*self._proving, *self._takes]

    def join(self) -> None:
        """Ask for workers, and leave for them what they are to read.

        Raises:
            BackendError: The store cannot be written to.
        """
        self._proof.write()
        asked = dict(self._asked) if self._asked is not None else None
        self._link.send("join", resources=asked)

    def look(self) -> None:
        """Ask who is there, where nobody tells or there is nobody; call it every second or so."""
        if (not self._link.has_leases or not self._takes) and not self._is_calling:
            self._is_calling = True
            self._link.ask(self._link.client.scheduler.identity(), self._called)

    def why_none(self) -> str | None:
        """Say why there is no worker, as far as that is known; None if there are some."""
        if self._link.is_cut_off:
            self._cluster = None  # what comes back is another one
            return "the Dask scheduler does not answer"
        if self._takes or self._cluster is None:
            return None
        return why_no_worker(self._asked, self._cluster, self._proving, self._left_out)

    # --- they come ----------------------------------------------------------------------------

    def granted(self, worker: WorkerId) -> None:
        """Let a worker prove that it is ready for this run; do not wait for it."""
        self._proving.add(worker)
        self._left_out.pop(worker, None)  # it may be another process by now
        self._link.ask(self._prove(worker), lambda proof: self._proved(worker, proof))

    async def _prove(self, worker: WorkerId) -> Resources | None:
        """Return the resources of a worker that is ready for this run; None if it is gone.

        One that is stopped, or hangs, may answer late: it is asked as long as it is there.

        Raises:
            BackendError: It cannot be used.
        """
        is_silent = False
        while True:
            cluster = (await self._link.client.scheduler.identity())["workers"]
            if worker not in cluster:
                return None
            await self._proof.make_sure()
            try:
                await self._ask_proof(worker)
            except OSError as error:
                if not is_silent:
                    logger.warning(
                        "worker %s does not answer (%s: %s); it is used once it does",
                        worker, type(error).__name__, error,
                    )  # fmt: skip
                is_silent = True
                await asyncio.sleep(_AGAIN_AFTER_S)
                continue
            return cluster[worker].get("resources") or {}

    async def _ask_proof(self, worker: WorkerId) -> None:
        try:
            await self._link.client._run(
                read_proof,
                self._store_bytes,
                self._link.topic,
                waits_for_code=self._link.has_code,
                workers=[worker],
            )
        except ImportError as error:
            raise BackendError(
                f"it cannot import what dasktune needs ({error}); install the same versions there "
                "as here"
            ) from error
        except InvalidStudyError as error:  # nothing there can open such a store
            raise BackendError(str(error)) from error
        except ValueError as error:  # the cluster refuses such questions: its stages will tell
            logger.debug("worker %s cannot be asked: %s", worker, error)
        except (OSError, BackendError):
            raise
        except Exception as error:  # whatever is wrong there is wrong with that worker only
            raise BackendError(f"it raised {type(error).__name__}: {error}") from error

    def _proved(self, worker: WorkerId, proof: Asked[Resources | None]) -> None:
        if worker not in self._proving:
            return
        self._proving.discard(worker)
        try:
            offered = proof.result()
        except BackendError as error:
            self._refuse(worker, error)
            return
        except OSError as error:  # of the scheduler, which is noticed elsewhere
            logger.debug("worker %s is not asked any more: %s", worker, error)
            return
        if offered is not None:
            self._was_any_ready = True
            self._takes[worker] = slot_resources(self._asked, offered)
            # One slot a process, whatever its threads: the global generators are the process's.
            self._tell(WorkerJoined(worker=worker))

    def _refuse(self, worker: WorkerId, error: BackendError) -> None:
        """Leave a worker to others, who may have use for it."""
        logger.warning("worker %s is left out: %s", worker, error)
        self._left_out[worker] = str(error)
        self._link.send("refused", worker=worker)
        self._refusal = error

    def _give_up_if_none_can_be_used(self, cluster: Mapping[str, Mapping[str, Any]]) -> None:
        """Say what is wrong with the workers if none was ever ready, and none is left to be asked.

        Once one was, nothing is wrong with the study: it waits, and `why_none` says for what.

        Args:
            cluster: Who is there now: one that has just come, or that another driver has, may do.

        Raises:
            BackendError: What the last of them said.
        """
        if self._refusal is None or self._was_any_ready or self._proving:
            return
        usable = fitting(self._asked, cluster)
        if usable and usable <= self._left_out.keys():
            raise self._refusal

    # --- they go ------------------------------------------------------------------------------

    def recalled(
        self, among: Collection[str], busy: Collection[WorkerId], *, only_idle: bool
    ) -> None:
        """Choose a worker to be returned to the scheduler, which has need of one.

        Args:
            among: Those that are of use elsewhere.
            busy: Those that run something.
            only_idle: Whether none that runs something is to be returned.
        """
        mine: Sequence[WorkerId] = [worker for worker in self._takes if worker in among]
        idle = [worker for worker in mine if worker not in busy]
        chosen = idle[:1] or ([] if only_idle else mine[-1:])
        if chosen:
            self._tell(WorkerRecalled(worker=chosen[0]))
        else:
            self._link.send("returned", worker=None)

    def leaving(self, worker: WorkerId) -> None:
        """Let what runs on a worker that is about to go end at its next step boundary."""
        if worker in self._takes:
            self._leaving.add(worker)
            self._tell(WorkerRecalled(worker=worker))
        elif worker in self._proving:
            self.returned(worker)

    def returned(self, worker: WorkerId) -> None:
        """Hear that nothing runs on a worker that was recalled: it is not used any more."""
        self._drop(worker)
        self._link.send("returned", worker=worker)

    def left(self, worker: WorkerId) -> bool | None:
        """Hear that a worker is gone; say whether it broke off. None: it was not in use."""
        died = worker not in self._leaving if worker in self._takes else None
        self._drop(worker)
        return died

    def excuse(self) -> None:
        """Let no worker that leaves now be one that has died: it may be there all the same."""
        self._leaving.update(self._takes)

    def leave_out(self, worker: WorkerId, why: str) -> None:
        """Never use a worker again, as long as it is there."""
        self._left_out[worker] = why

    def _drop(self, worker: WorkerId) -> None:
        self._takes.pop(worker, None)
        self._proving.discard(worker)
        self._leaving.discard(worker)

    # --- where nobody tells -------------------------------------------------------------------

    def _called(self, roll: Asked[Mapping[str, Any]]) -> None:
        self._is_calling = False
        if roll.cancelled() or roll.exception() is not None:
            return  # the scheduler is away, which is noticed elsewhere
        self._cluster = roll.result()["workers"]
        if not self._link.has_leases:
            self._compare(self._cluster)
        self._give_up_if_none_can_be_used(self._cluster)

    def _compare(self, cluster: Mapping[str, Mapping[str, Any]]) -> None:
        """Take in who is there now."""
        for worker in self.known():
            if worker not in cluster:
                self._lose(worker)
        for gone in self._left_out.keys() - cluster.keys():
            del self._left_out[gone]
        known = set(self.known())
        for address, facts in cluster.items():
            worker = WorkerId(address)
            is_ready = facts.get("status", "running") == "running"
            if worker in known:
                if not is_ready and worker not in self._leaving:
                    self.leaving(worker)
                continue
            is_new = is_ready and worker not in self._left_out
            if is_new and fits(self._asked, facts.get("resources") or {}):
                self.granted(worker)
