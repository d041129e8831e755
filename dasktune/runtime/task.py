"""The body of a Dask task: a stage, run in a worker process.

The Dask scheduler unpickles what a graph names, so this module imports light, and all that is the
user's travels as bytes. One `Workplace` a process keeps the model in memory from one stage to the
next; stages take turns there.
"""

import asyncio
import ctypes
import importlib
import logging
import os
import pickle
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from distributed import Status, Worker, get_worker

from dasktune.runtime.generators import keep_libraries_off
from dasktune.runtime.payload import Payload, early_imports
from dasktune.runtime.pulse import LAST_WORDS, beating
from dasktune.runtime.stage import Hooks, Order, Outcome, Workplace, run_stage
from dasktune.runtime.turns import Turns
from dasktune.units import Digest, Step

if TYPE_CHECKING:
    from dasktune.plan.stage import Stage
    from dasktune.store.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a driver sends besides the stage."""

    topic: str
    """Names the driver's run: reports in passing are published under it."""
    path: int
    """Number of the path."""
    store: bytes
    """The store, pickled: the same place for every worker."""
    payload: Digest
    """Which training code; `PAYLOADS` has it."""
    code: Payload | None = None
    """The training code itself, where workers could not be given it beforehand."""
    looks_inside: bool
    """Whether states inside a stage may have been stored by somebody else."""


PAYLOADS: dict[tuple[str, Digest], Payload] = {}
"""Training code that this process was given, by topic and digest: each run takes its own away."""

TOPICS: set[str] = set()
"""Runs whose training code this process has been given."""

STOPPED: set[tuple[str, int]] = set()
"""Paths, by topic and number, that are to stop at their next step boundary."""

WANTED: set[Digest] = set()
"""States that some other driver wants committed, should a stage pass them."""

_CODE_WITHIN_S = 300.0
_LOOK_EVERY_S = 0.02


def run_task(stage_bytes: bytes, task: Task, previous: bytes | None) -> bytes:
    """Run a stage on a worker; return what came of it, as bytes: Dask measures all it is given.

    Args:
        stage_bytes: The stage, pickled by the driver.
        task: Where it belongs.
        previous: What came of the stage before it on its path; None for the first. If that one did
            not get through, this one is not begun.
    """
    stage: Stage = pickle.loads(stage_bytes)
    before = outcome_from(previous) if previous is not None else None
    if before is not None and (before.error is not None or before.reached != stage.start):
        return _as_bytes(Outcome(key=stage.key, reached=stage.start))
    worker = get_worker()
    key = worker.get_current_task()

    def report(step: Step, metrics: Mapping[str, float]) -> None:
        news = {"path": task.path, "stage": stage.key, "step": step, "metrics": dict(metrics)}
        worker.log_event(task.topic, {"kind": "report", "event": news})

    def should_stop() -> bool:
        known = worker.state.tasks.get(key)
        return (
            (task.topic, task.path) in STOPPED
            or worker.status.name != "running"
            or known is None
            or known.state == "cancelled"  # the driver is gone, or has given the path up
        )

    if task.code is not None:
        keep_dask_off()
        TOPICS.add(task.topic)
    payload = task.code or PAYLOADS[task.topic, task.payload]
    order = Order(stage=stage, payload=payload, looks_inside=task.looks_inside)
    with beating(task.topic, task.path) as pulse:
        hooks = Hooks(report=report, should_stop=should_stop, wanted=WANTED, pulse=pulse)
        with TURNS.taken(task.topic, task.store, pulse, should_stop) as workplace:
            if workplace is None:
                outcome = Outcome(key=stage.key, reached=stage.start)
            else:
                outcome = run_stage(order, workplace, hooks)
            # Else there is nobody who would start another process: this one is better than none.
            ends = outcome.is_broken and worker.nanny is not None
            TURNS.are_over |= ends
        if ends:
            worker.loop.add_callback(_begin_to_end, worker)  # before it can be given anything more
        # Published as well: news reach the driver several times faster than results of tasks, and
        # from a worker that is closing they are all that does.
        answer = _as_bytes(outcome)
        if ends or worker.status.name != "running":
            LAST_WORDS[task.topic, task.path] = answer
        worker.log_event(task.topic, {"kind": "outcome", "path": task.path, "answer": answer})
    return answer


async def stop_path(topic: str, path: int) -> None:
    """Let a path that runs in this process stop at its next step boundary.

    A coroutine, as all that a driver sends to a worker without waiting for it.
    """
    STOPPED.add((topic, path))


async def want_state(key: Digest) -> None:
    """Let a stage that passes a state in this process commit it."""
    WANTED.add(key)


async def read_proof(store: bytes, topic: str, *, waits_for_code: bool) -> None:
    """Make sure that this process is ready for a run: it reads what the driver wrote in the store.

    Args:
        store: The store, pickled.
        topic: Names the driver's run, and what it wrote.
        waits_for_code: Whether the training code is on its way to all workers.

    Raises:
        BackendError: It does not.
        TimeoutError: The training code does not come.
    """
    async with asyncio.timeout(_CODE_WITHIN_S):
        while waits_for_code and topic not in TOPICS:
            await asyncio.sleep(_LOOK_EVERY_S)
    await asyncio.to_thread(_import_early, topic)
    opened: Store = pickle.loads(store)  # from our own driver
    opened.read_proof(topic)


def _import_early(topic: str) -> None:
    """Import what a run will need, before it is given a stage: while other workers do as well."""
    codes = [code for (of, _), code in list(PAYLOADS.items()) if of == topic]
    for name in early_imports(codes):
        with suppress(ImportError):  # the first stage will say so
            importlib.import_module(name)


def _opened(store: bytes) -> Workplace:
    opened: Store = pickle.loads(store)
    return Workplace(store=opened, facts=facts_of_process())


TURNS = Turns(_opened, TOPICS)
"""Of the stages that this process is given."""


_FIELDS = tuple(field.name for field in fields(Outcome))


def _as_bytes(outcome: Outcome) -> bytes:
    return pickle.dumps({name: getattr(outcome, name) for name in _FIELDS})


def outcome_from(answer: bytes) -> Outcome:
    """Return what came of a stage, as `run_task` has returned or published it."""
    return Outcome(**pickle.loads(answer))


def keep_dask_off() -> None:
    """Keep what a Dask worker does on other threads from drawing numbers that training would."""
    keep_libraries_off("dask", "distributed", "tornado")


# --- the process ----------------------------------------------------------------------------------

_TRIM_BYTES = 1 << 30
_MMAP_BYTES = (1 << 30, 1 << 25)
"""Some versions of glibc take no more than the second."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_mended: list[bool] = []


def mend_allocator() -> bool:
    """Let glibc keep the memory that a training loop frees and takes again at every step.

    Dask starts workers with a trim threshold of 64 KiB: each step then returns its buffers to the
    kernel and faults them in again, which makes training on a CPU several times slower. It is a
    system parameter: results do not change. Linux with glibc only; once a process.

    Returns:
        Whether the process has been mended.
    """
    if not _mended:
        _mended.append(sys.platform == "linux" and _set_thresholds())
    return _mended[0]


def _set_thresholds() -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)) and any(
        mallopt(_M_MMAP_THRESHOLD, size) for size in _MMAP_BYTES
    )


def facts_of_process() -> dict[str, object]:
    """Return what is recorded beside each state: versions, knobs, and where it was made."""
    facts: dict[str, object] = {
        "python": sys.version.split()[0],
        "pid": os.getpid(),
        "allocator_mended": bool(_mended and _mended[0]),
        "trim_threshold": os.environ.get("MALLOC_TRIM_THRESHOLD_", "glibc's"),
    }
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if module is not None:
            facts[name] = str(module.__version__)
    return facts


# --- its end --------------------------------------------------------------------------------------

_MOVE_WITHIN_S = 5.0
_END_WITHIN_S = 60.0


def _begin_to_end(worker: Worker) -> None:
    """Let a worker whose process cannot train any more be replaced by its nanny.

    It says at once that it is about to go, so that nobody gives it a stage; what other clients keep
    in it is moved to other workers where there are some.
    """
    logger.warning("this process has lost its GPU and ends; its nanny starts another one")
    if worker.status in (Status.running, Status.paused):  # else it is about to go already
        worker.status = Status.closing_gracefully
        worker.loop.add_callback(_end, worker)


async def _end(worker: Worker) -> None:
    # A process that has lost its GPU may hang where it should end.
    timer = threading.Timer(_END_WITHIN_S, os._exit, [1])
    timer.daemon = True
    timer.start()
    with suppress(Exception):  # the scheduler may refuse, or be gone: then it ends all the same
        async with asyncio.timeout(_MOVE_WITHIN_S):
            await worker.scheduler.retire_workers(
                workers=[worker.address],
                close_workers=False,
                remove=False,
                stimulus_id=f"dasktune-broken-{worker.address}",
            )
    await worker.close(nanny=False, reason="dasktune-broken")
