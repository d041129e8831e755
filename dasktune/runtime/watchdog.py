"""Tell workers that hang from those that are busy.

Dask has no limit of time for a task, and must not have one: a step may take minutes. So a worker
is said to hang only

* if its process does not answer: it is stopped, or thrashes, or a library holds the interpreter's
  lock; or
* if it answers, but a *step* takes much longer than the longest step of the same stage before it.

Much longer is five times, and at least a minute. The first step of a stage has nothing to be
compared with, and neither has what happens between steps (setup, loading, evaluation, commit): a
process that answers is believed to be busy with them. To close a trainable that nobody needs any
more while a stage waits for its place may take a minute: it may be another run's.

`Watchdog` decides, and is told the time; `Rounds` asks the workers, and restarts those that hang.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future as Asked
from dataclasses import dataclass
from functools import partial
from time import monotonic

from dasktune.runtime.link import Link
from dasktune.runtime.pulse import Signs, signs_of, stacks_of
from dasktune.units import Seconds, WorkerId

logger = logging.getLogger(__name__)

HANG_AFTER_S: Seconds = 60.0
"""How long no worker is said to hang, however short its steps are."""

_LONGER = 5.0
"""How many times longer than a step took before."""
_ASKED = 5.0
"""How often a worker is asked before it is said to hang."""
_SLEPT_S: Seconds = 5.0
"""A driver that has looked at nothing for so long has been stopped itself."""
_STACK_WITHIN_S, _RESTART_WITHIN_S = 5.0, 30.0


@dataclass(slots=True)
class _Seen:
    """What is known of a worker that has something to do."""

    heard_s: Seconds
    longest_s: Seconds = 0.0
    asked_s: Seconds | None = None
    """When it was first asked since it was heard of."""
    is_on_its_way: bool = False
    """Whether a question may be answered yet."""


class Watchdog:
    """Which workers are to be asked for signs of life, and which hang."""

    def __init__(self, after_s: Seconds | None = None) -> None:
        """Begin with no worker known.

        Args:
            after_s: How long no worker is said to hang; None: `HANG_AFTER_S`.
        """
        self._after_s = HANG_AFTER_S if after_s is None else after_s
        self._seen: dict[WorkerId, _Seen] = {}
        self._looked_s: Seconds | None = None

    def due(self, now: Seconds, busy: Collection[WorkerId]) -> list[WorkerId]:
        """Return the workers that are to be asked now: call it every second or so.

        Args:
            now: Seconds that only grow.
            busy: All workers that have something to do; the others are forgotten.
        """
        if self._looked_s is not None and now - self._looked_s > _SLEPT_S:
            for seen in self._seen.values():  # their answers may be there, and not heard yet
                seen.asked_s = None if seen.asked_s is None else now
        self._looked_s = now
        self._seen = {worker: self._seen.get(worker) or _Seen(now) for worker in busy}
        due = [
            worker
            for worker, seen in self._seen.items()
            if not seen.is_on_its_way
            and now - seen.heard_s >= self._limit_s(seen.longest_s) / _ASKED
        ]
        for worker in due:
            seen = self._seen[worker]
            seen.is_on_its_way = True
            seen.asked_s = now if seen.asked_s is None else seen.asked_s
        return due

    def answered(self, worker: WorkerId, now: Seconds, signs: Iterable[Signs]) -> str | None:
        """Hear the signs of life of all that a worker runs; say why it hangs, if it does."""
        seen = self._seen.get(worker)
        if seen is None:
            return None
        seen.heard_s, seen.asked_s, seen.is_on_its_way = now, None, False
        for in_step_s, longest_s in signs:
            seen.longest_s = max(seen.longest_s, longest_s or 0.0)
            if in_step_s is None or longest_s is None:
                continue
            if in_step_s > self._limit_s(longest_s):
                if not longest_s:
                    return (
                        f"the trainable that was there before is being closed since {in_step_s:.0f}"
                        " s, or a step takes so long after others that took no time"
                    )
                return (
                    f"a step has taken {in_step_s:.0f} s by now, and the longest before it in the "
                    f"same stage {longest_s:.3g} s"
                )
        return None

    def unanswered(self, worker: WorkerId) -> None:
        """Hear that a question did not get through: it is to be asked again."""
        if worker in self._seen:
            self._seen[worker].is_on_its_way = False

    def silent(self, now: Seconds) -> dict[WorkerId, str]:
        """Return the workers whose process has not answered for too long, and what to say of it."""
        return {
            worker: f"its process has not answered for {now - seen.asked_s:.0f} s"
            for worker, seen in self._seen.items()
            if seen.asked_s is not None and now - seen.asked_s > self._limit_s(seen.longest_s)
        }

    def _limit_s(self, longest_s: Seconds) -> Seconds:
        return max(_LONGER * longest_s, self._after_s)


class Rounds:
    """Asks workers for signs of life, and restarts those that hang."""

    def __init__(self, link: Link, lose: Callable[[WorkerId, str], None]) -> None:
        """Begin.

        Args:
            link: To the cluster.
            lose: Told of a worker that hangs, and why it is said to, before it is restarted.
        """
        self._link = link
        self._lose = lose
        self._watchdog = Watchdog()

    def go(self, busy: Collection[WorkerId]) -> None:
        """Look after all workers that have something to do; call it every second or so."""
        now = monotonic()
        client, topic = self._link.client, self._link.topic
        for worker in self._watchdog.due(now, busy):
            question = client._run(signs_of, topic, workers=[worker])
            self._link.ask(question, partial(self._hear, worker))
        for worker, why in self._watchdog.silent(now).items():
            self._end(worker, why, answers=False)

    def _hear(self, worker: WorkerId, answer: Asked[Mapping[str, Mapping[int, Signs]]]) -> None:
        error = answer.exception()
        if isinstance(error, OSError):
            self._watchdog.unanswered(worker)
            return
        # The question itself may be refused: then nothing is known but that somebody is there.
        signs = {} if error is not None else answer.result().get(worker, {})
        why = self._watchdog.answered(worker, monotonic(), signs.values())
        if why is not None:
            self._end(worker, why, answers=True)

    def _end(self, worker: WorkerId, why: str, *, answers: bool) -> None:
        logger.warning("worker %s hangs: %s; what it was running begins anew", worker, why)
        self._link.let(self._restart(worker, answers=answers))
        self._lose(worker, why)

    async def _restart(self, worker: WorkerId, *, answers: bool) -> None:
        """Log where the stages of a worker are, if it can still say so, and restart the worker.

        A worker without a nanny is closed: who started it has to start another one. A worker that
        others have given something to do is left alone.
        """
        if answers:
            logger.warning("worker %s hangs here:\n%s", worker, await self._stacks(worker))
        scheduler = self._link.client.scheduler
        try:
            processing: Mapping[str, Collection[object]]
            processing = await scheduler.processing(workers=[worker])
            if any(not str(key).startswith("dasktune") for key in processing.get(worker, ())):
                logger.warning("worker %s is left alone: other clients have work there", worker)
                return
            done = await scheduler.restart_workers(
                workers=[worker],
                timeout=_RESTART_WITHIN_S,
                wait_for_workers=False,
                on_error="return",
                stimulus_id=f"dasktune-hangs-{worker}",
            )
            logger.warning("worker %s is restarted: %s", worker, done.get(worker, "it was gone"))
        except (OSError, ValueError) as error:  # it is gone, or that is refused
            logger.warning("worker %s could not be restarted: %s", worker, error)

    async def _stacks(self, worker: WorkerId) -> str:
        question = self._link.client._run(stacks_of, self._link.topic, workers=[worker])
        try:
            async with asyncio.timeout(_STACK_WITHIN_S):
                stacks: Mapping[str, str] = await question
        except (OSError, ValueError):
            return "(it does not say)"
        return stacks.get(worker) or "(it runs no stage of this driver)"
