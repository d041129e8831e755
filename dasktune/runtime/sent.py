"""What a driver keeps of a path that it has sent to Dask, and how its tasks are named and read."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import cloudpickle
from distributed import Client, Future

from dasktune.plan.stage import Stage
from dasktune.runtime.others import Foreign
from dasktune.runtime.stage import Outcome, floats, latest_stored
from dasktune.runtime.task import Task, run_task
from dasktune.store.store import Store
from dasktune.study.commands import RunPath
from dasktune.study.events import StageFinished
from dasktune.units import WorkerId


@dataclass(slots=True)
class SentPath:
    """A path that was handed out and not answered to its end."""

    command: RunPath
    unsent: deque[Stage]
    """Stages that were not sent yet: all that are left while it waits for another driver."""
    pending: deque[tuple[Stage, Future]] = field(default_factory=deque)
    """Stages that were sent and not answered, with their futures."""
    waits_for: Foreign | None = None
    """What another driver is running that covers the first steps that are left."""
    n_announcing: int = 0
    """Announcements that the scheduler has not passed on yet."""


class Answers:
    """What tasks have published: it is there before Dask says that they are done."""

    def __init__(self) -> None:
        self._by_stage: dict[tuple[int, str], Mapping[str, Any]] = {}
        self._futures: list[Future] = []

    def put(self, path: int, answer: Mapping[str, Any]) -> None:
        """Keep an answer until its turn comes."""
        self._by_stage[path, answer["key"]] = answer

    def take(self, path: int, stage: Stage) -> Outcome | None:
        """Return the answer to a stage, if it is there."""
        answer = self._by_stage.pop((path, stage.key), None)
        return None if answer is None else Outcome(**answer)

    def let_go(self, future: Future) -> None:
        """Release a future whose task has answered, once Dask knows that it is done."""
        self._futures.append(future)
        self.sweep()

    def sweep(self, *, everything: bool = False) -> None:
        """Release the futures that are done; at the end all, as some never will be."""
        futures, self._futures = self._futures, []
        for future in futures:
            if everything or future.done():
                future.release()
            else:
                self._futures.append(future)


def outcome_of(stage: Stage, future: Future) -> Outcome:
    """Return what came of a task; one that Dask gave up has done nothing that is known of."""
    if future.status == "finished":
        answer = dict(future.result())
        answer.pop("is_through")
        return Outcome(**answer)
    error = future.exception() if future.status == "error" else None
    if error is None or type(error).__name__ == "KilledWorker":
        return Outcome(key=stage.key, reached=stage.start)
    return Outcome(key=stage.key, reached=stage.start, error=f"{type(error).__name__}: {error}")


def answer_from_store(path: int, stage: Stage, store: Store) -> StageFinished:
    """Return the answer to a stage that somebody else may have trained, or a part of it."""
    found = latest_stored(stage, store)
    is_through = found is not None and found.key == stage.key
    metrics = floats(found.metrics) if found is not None and is_through else None
    if is_through and stage.evaluates and metrics is None:
        found = None  # stored without metrics: to be evaluated
    return StageFinished(
        path=path,
        stage=stage.key,
        reached=stage.start if found is None else found.step,
        metrics=metrics if stage.evaluates else None,
        executed_steps=0,
    )


def submit(
    client: Client,
    stage: Stage,
    task: Task,
    after: Future | WorkerId,
    resources: Mapping[str, float],
) -> Future:
    """Send one stage.

    Args:
        client: Of the cluster.
        stage: Travels as bytes: the scheduler need not be able to read it.
        task: Where it belongs.
        after: The task of the stage before it, whose worker it follows; for the first stage of a
            path the worker that it is pinned to.
        resources: What it takes of a worker's resources.
    """
    is_first = isinstance(after, str)
    return client.submit(
        run_task,
        cloudpickle.dumps(stage),
        task,
        None if is_first else after,
        key=task_key(task.topic, task.path, stage),
        workers=[after] if is_first else None,
        resources=dict(resources) or None,
        pure=False,
    )


def task_key(topic: str, path: int, stage: Stage) -> str:
    """Name a task by its driver, its path and the state that it makes.

    Dask keeps the first result of a key while anybody holds it, and never looks at the arguments: a
    stage that raised and is tried again, or was stopped and begins again from where it was, must be
    another task, and so must the stage of another driver, which may have been stopped for reasons
    of its own.
    """
    digest = sha256(f"{topic}:{path}:{stage.key}".encode()).hexdigest()
    kind = "train" if stage.n_steps else "eval"
    return f"dasktune_{kind}-{digest}"
