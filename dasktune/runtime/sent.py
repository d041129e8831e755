"""What a driver keeps of a path that it has sent to Dask, and how its tasks are named and read."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from distributed import Client, Future

from dasktune.plan.stage import Stage
from dasktune.runtime.answers import events_of
from dasktune.runtime.known import known_of
from dasktune.runtime.others import Foreign
from dasktune.runtime.payload import by_value
from dasktune.runtime.stage import Outcome
from dasktune.runtime.task import Task, outcome_from, run_task
from dasktune.store.store import Store
from dasktune.study.commands import RunPath
from dasktune.study.events import Event, MetricsReported
from dasktune.units import Digest, WorkerId

HELD = 32
"""How many tasks that have answered are held; each would be a message to its worker by itself."""


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
    is_stopping: bool = False
    """Whether it is to stop at its next step boundary."""
    n_announcing: int = 0
    """Announcements that the scheduler has not passed on yet."""
    done: Future | None = None
    """The first pending future, if it was done at the last look and not heard of yet."""
    _as_bytes: dict[Digest, bytes] = field(default_factory=dict)

    def waits_on(self, topic: str, number: int) -> bool:
        """Say whether it waits for that path of another driver."""
        return self.waits_for is not None and self.waits_for.is_path(topic, number)

    def is_overdue(self, future: Future) -> bool:
        """Say whether a future is done, and was at the last look: its news would be there."""
        was_done = self.done is future
        self.done = future if future.done() else None
        return was_done and self.done is not None

    def as_bytes(self, stage: Stage) -> bytes:
        """Return a stage of the path as others are told of it and a worker gets it."""
        found = self._as_bytes.get(stage.key)
        if found is None:
            found = self._as_bytes[stage.key] = by_value(stage)
        return found


class Answers:
    """What tasks have published: it is there before Dask says that they are done."""

    def __init__(self) -> None:
        self._by_stage: dict[tuple[int, Digest], Outcome] = {}
        self._futures: list[Future] = []
        self.are_new = False
        """Whether there are futures that nobody has tried to release."""

    def put(self, path: int, answer: bytes) -> None:
        """Keep an answer until its turn comes."""
        outcome = outcome_from(answer)
        self._by_stage[path, outcome.key] = outcome

    def take(self, path: int, stage: Stage) -> Outcome | None:
        """Return the answer to a stage, if it is there."""
        return self._by_stage.pop((path, stage.key), None)

    def let_go(self, future: Future) -> None:
        """Release a future whose task has answered, once there are many or time for it."""
        self._futures.append(future)
        self.are_new = True
        if len(self._futures) >= HELD:
            self.sweep()

    def sweep(self, *, everything: bool = False) -> None:
        """Release the futures that are done; at the end all, as some never will be."""
        self.are_new = False
        futures, self._futures = self._futures, []
        for future in futures:
            if everything or future.done():
                future.release()
            else:
                self._futures.append(future)


def outcome_of(stage: Stage, future: Future) -> Outcome:
    """Return what came of a task; one that Dask gave up has done nothing that is known of."""
    if future.status == "finished":
        return outcome_from(future.result())
    error = future.exception() if future.status == "error" else None
    if error is None or type(error).__name__ == "KilledWorker":
        return Outcome(key=stage.key, reached=stage.start)
    return Outcome(key=stage.key, reached=stage.start, error=f"{type(error).__name__}: {error}")


def answer_from_store(path: int, stage: Stage, store: Store) -> Iterator[Event]:
    """Yield the answer to a stage that somebody else may have trained, or a part of it.

    Up to the last stored state on the way to which no report is missing: what comes after is left
    to a worker, who trains what is missing.
    """
    known = known_of(stage, store, looks_inside=True)
    reached = known.usable()
    for step, metrics in known.before(reached + 1).items():
        yield MetricsReported(path=path, stage=stage.key, step=step, metrics=metrics)
    if reached == stage.stop and not known.is_through:
        reached = stage.start  # stored without metrics: to be evaluated
    metrics_there = known.of_end if reached == stage.stop else None
    yield from events_of(
        path, stage, Outcome(key=stage.key, reached=reached, metrics=metrics_there)
    )


def submit(
    client: Client,
    path: SentPath,
    stage: Stage,
    task: Task,
    after: Future | WorkerId,
    resources: Mapping[str, float],
) -> Future:
    """Send one stage.

    Args:
        client: Of the cluster.
        path: That the stage is of.
        stage: Travels as bytes: the scheduler need not be able to read it.
        task: Where it belongs.
        after: The task of the stage before it, whose worker it follows; for the first stage of a
            path the worker that it is pinned to.
        resources: What it takes of a worker's resources.
    """
    # Dask fixes workers, resources, priority and retries of a key when it first sees it. Nothing
    # here has to change them later: what is tried again is another key, and nothing waits behind a
    # path, so that none needs a priority. There is no `allow_other_workers`: with a resource that
    # nobody offers it breaks the scheduler's bookkeeping (dask/distributed#4792), and it lets a
    # stage whose worker is gone run where the resource is not.
    is_first = isinstance(after, str)
    return client.submit(
        run_task,
        path.as_bytes(stage),
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
