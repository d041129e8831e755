"""Run stages in this process, one at a time: for debugging, and for comparing with.

No cluster, no thread: a breakpoint or an exception in the user's code is where the user looks for
it. Obeys the same contract as the Dask backend and the simulator.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

from dasktune.errors import BackendError
from dasktune.plan.stage import Stage
from dasktune.runtime.answers import events_of
from dasktune.runtime.payload import Payload
from dasktune.runtime.stage import Hooks, Order, Workplace, run_stage
from dasktune.runtime.unheard import Unheard
from dasktune.study.commands import Command, RunPath, SetTimer, StopPath
from dasktune.study.events import Event, Interrupted, MetricsReported, TimerFired, WorkerJoined
from dasktune.units import Digest, Seconds, Step, WorkerId

_WORKER = WorkerId("serial")


class SerialBackend:
    """One slot, in this process."""

    def __init__(
        self,
        workplace: Workplace,
        payloads: Mapping[Digest, Payload],
        *,
        clock: Callable[[], Seconds] = time.monotonic,
        since_s: Seconds = 0.0,
        looks_inside: bool = False,
    ) -> None:
        """Begin with the worker's joining.

        Args:
            workplace: The store, and what the process keeps.
            payloads: Training code by fingerprint.
            clock: Seconds that only grow.
            since_s: Study time that has passed already, in earlier runs.
            looks_inside: Whether the store may hold states that this run did not make.
        """
        self._workplace = workplace
        self._payloads = payloads
        self._unheard = Unheard(clock, since_s)
        self._tell = self._unheard.tell
        self._looks_inside = looks_inside
        self._path: int = 0
        self._stages: deque[Stage] = deque()
        self._is_stopping = False
        self._timers: list[SetTimer] = []
        self._tell(WorkerJoined(worker=_WORKER))

    def perform(self, command: Command) -> None:
        """Begin what a command wishes."""
        if isinstance(command, RunPath):
            self._path, self._is_stopping = command.path, False
            self._stages.extend(command.stages)
        elif isinstance(command, StopPath):
            self._is_stopping = True
        elif isinstance(command, SetTimer):
            self._timers.append(command)

    def next_event(self) -> tuple[Event, Seconds]:
        """Return what happened, or make something happen: run the next stage to its end."""
        while not self._unheard:
            self._fire_timers()
            if self._unheard:
                break
            if not self._stages:
                raise BackendError("nothing is running and nothing is to come")
            self._run_one(self._stages.popleft())
        return self._unheard.next()

    def inject(self, event: Event) -> None:
        """Let the core hear something that the driver found out by itself."""
        self._tell(event)

    def interrupt(self) -> None:
        """Let the running stage end at its next step boundary; safe in a signal handler."""
        self._is_stopping = True
        self._tell(Interrupted())

    def close(self) -> None:
        """Let the trainable go."""
        self._workplace.drop()

    def _run_one(self, stage: Stage) -> None:
        path = self._path

        def report(step: Step, metrics: Mapping[str, float]) -> None:
            self._tell(MetricsReported(path=path, stage=stage.key, step=step, metrics=metrics))

        order = Order(
            stage=stage,
            payload=self._payloads[Digest(stage.family.fingerprint)],
            looks_inside=self._looks_inside,
        )
        hooks = Hooks(
            report=report, should_stop=lambda: self._is_stopping or bool(self._due_timers())
        )
        outcome = run_stage(order, self._workplace, hooks)
        self._fire_timers()  # first: what they end is not gone on with
        for event in events_of(path, stage, outcome):
            self._tell(event)
        if outcome.error is not None or outcome.reached < stage.stop:
            self._stages.clear()

    def _due_timers(self) -> list[SetTimer]:
        return [timer for timer in self._timers if timer.at_s <= self._unheard.now_s]

    def _fire_timers(self) -> None:
        for timer in self._due_timers():
            self._timers.remove(timer)
            self._tell(TimerFired(study=timer.study))
