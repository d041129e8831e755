"""The body of a Dask task: a stage, run in a worker process.

The Dask scheduler unpickles what a graph names, so this module imports light, and all that is the
user's travels as bytes. One `Workplace` a process and store keeps the model in memory from one
stage to the next.
"""

import ctypes
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed import get_worker

from dasktune.runtime.payload import Payload
from dasktune.runtime.stage import Hooks, Order, Outcome, Workplace, run_stage
from dasktune.units import Digest, Step

if TYPE_CHECKING:
    from dasktune.plan.stage import Stage
    from dasktune.store.store import Store


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
    looks_inside: bool
    """Whether states inside a stage may have been stored by somebody else."""


PAYLOADS: dict[tuple[str, Digest], Payload] = {}
"""Training code that this process was given, by topic and digest: each run takes its own away."""

STOPPED: set[tuple[str, int]] = set()
"""Paths, by topic and number, that are to stop at their next step boundary."""

WANTED: set[Digest] = set()
"""States that some other driver wants committed, should a stage pass them."""

_WORKPLACES: dict[bytes, Workplace] = {}


def run_task(stage_bytes: bytes, task: Task, previous: Mapping[str, Any] | None) -> dict[str, Any]:
    """Run a stage on a worker; return what came of it as plain data.

    Args:
        stage_bytes: The stage, pickled by the driver.
        task: Where it belongs.
        previous: What came of the stage before it on its path; None for the first. If that one did
            not get through, this one is not begun.
    """
    stage: Stage = pickle.loads(stage_bytes)
    if previous is not None and not previous["is_through"]:
        return {**_plain(Outcome(key=stage.key, reached=stage.start)), "is_through": False}
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

    payload = PAYLOADS[task.topic, task.payload]
    order = Order(stage=stage, payload=payload, looks_inside=task.looks_inside)
    hooks = Hooks(report=report, should_stop=should_stop, wanted=WANTED)
    outcome = run_stage(order, _workplace(task.store), hooks)
    # Published as well: news reach the driver several times faster than results of tasks.
    answer = _plain(outcome)
    worker.log_event(task.topic, {"kind": "outcome", "path": task.path, "answer": answer})
    return {**answer, "is_through": outcome.error is None and outcome.reached == stage.stop}


async def stop_path(topic: str, path: int) -> None:
    """Let a path that runs in this process stop at its next step boundary.

    A coroutine, as all that a driver sends to a worker without waiting for it.
    """
    STOPPED.add((topic, path))


async def want_state(key: Digest) -> None:
    """Let a stage that passes a state in this process commit it."""
    WANTED.add(key)


def read_proof(store: bytes, token: str) -> None:
    """Make sure that this process reads in the store what the driver wrote there.

    Raises:
        BackendError: It does not.
    """
    opened: Store = pickle.loads(store)  # from our own driver
    opened.read_proof(token)


def _workplace(store: bytes) -> Workplace:
    if store not in _WORKPLACES:
        opened: Store = pickle.loads(store)
        _WORKPLACES[store] = Workplace(store=opened, facts=facts_of_process())
    return _WORKPLACES[store]


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "key": outcome.key,
        "reached": outcome.reached,
        "metrics": dict(outcome.metrics) if outcome.metrics is not None else None,
        "executed_steps": outcome.executed_steps,
        "seconds": outcome.seconds,
        "error": outcome.error,
        "traceback": outcome.traceback,
        "is_full": outcome.is_full,
        "lost": outcome.lost,
    }


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
