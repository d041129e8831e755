"""What a driver keeps of a path that it has sent to Dask, and how its tasks are named and read."""

from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256

from distributed import Future

from dasktune.plan.stage import Stage
from dasktune.runtime.others import Foreign
from dasktune.runtime.stage import Outcome
from dasktune.study.commands import RunPath


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


def task_key(topic: str, stage: Stage) -> str:
    """Name a task by its driver, the state that it makes and the one that it starts from.

    Dask keeps the first result of a key while anybody holds it, and never looks at the arguments: a
    stage that was stopped and begins again from where it was must be another task, and so must the
    stage of another driver, which may have been stopped for reasons of its own.
    """
    digest = sha256(f"{topic}:{stage.start_key}:{stage.key}".encode()).hexdigest()
    kind = "train" if stage.n_steps else "eval"
    return f"dasktune_{kind}-{digest}"
