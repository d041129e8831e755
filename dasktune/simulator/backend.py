"""Perform a core's commands on simulated machines, under the kernel's clock.

The third twin of the backends: it answers every command as the Dask and the serial one do, with
events that come at computed instead of measured times.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TypeAlias

from dasktune.errors import BackendError
from dasktune.plan.stage import Stage
from dasktune.simulator.kernel import Kernel
from dasktune.simulator.world import StageRaises, StateVanishes, WorkerDies, World
from dasktune.study.commands import Command, RunPath, SetTimer, StopPath
from dasktune.study.events import (
    Event,
    MetricsReported,
    StageFailed,
    StageFinished,
    StateLost,
    TimerFired,
    WorkerJoined,
    WorkerLeft,
)
from dasktune.units import Digest, Seconds, Step, WorkerId


@dataclass(slots=True, eq=False)
class _Running:
    """A path on its way on a simulated worker."""

    command: RunPath
    speed: float
    stages: Iterator[Stage]
    stage: Stage
    began_s: Seconds = 0.0
    """When the stage was handed to the worker."""
    first_step_s: Seconds = 0.0
    """When its first step began: after setup and loading."""
    is_stopping: bool = False
    """Told to stop in the last step of a stage: it ends between that one and the next."""
    is_over: bool = False


_PathAction: TypeAlias = Callable[[_Running], None]


class SimulatedBackend:
    """Machines of a world, as a backend."""

    def __init__(self, world: World, metric_names: tuple[str, ...]) -> None:
        """Let the workers of a world join, and its faults happen, at their times.

        Args:
            world: The machines.
            metric_names: What to score under where the world has no curve.
        """
        self._world = world
        self._names = metric_names
        self._kernel = Kernel()
        self._events: deque[tuple[Event, Seconds]] = deque()
        self._paths: dict[int, _Running] = {}
        self._speeds: dict[WorkerId, float] = {}
        self._last_committed: Digest | None = None
        self._raises = [fault for fault in world.faults if isinstance(fault, StageRaises)]
        self._n_attempts: dict[Digest, int] = {}
        for index, at_s in enumerate(world.join_times):
            self._kernel.schedule(at_s, partial(self._join, index))
        for fault in world.faults:
            if isinstance(fault, WorkerDies):
                self._kernel.schedule(fault.at_s, partial(self._die, fault))
            elif isinstance(fault, StateVanishes):
                self._kernel.schedule(fault.at_s, self._vanish)

    def perform(self, command: Command) -> None:
        """Begin what a command wishes."""
        if isinstance(command, RunPath):
            self._run(command)
        elif isinstance(command, StopPath):
            self._stop(command)
        elif isinstance(command, SetTimer):
            fired = TimerFired(study=command.study)
            delay_s = max(0.0, command.at_s - self._kernel.now)
            self._kernel.schedule(delay_s, partial(self._tell, fired))

    def next_event(self) -> tuple[Event, Seconds]:
        """Advance the clock to the next event."""
        while not self._events:
            if not self._kernel.advance():
                raise BackendError(
                    "nothing is left to happen in the simulated world and the study is not over; "
                    "let at least one worker live, or come back"
                )
        return self._events.popleft()

    def _tell(self, event: Event) -> None:
        self._events.append((event, self._kernel.now))

    # --- machines -----------------------------------------------------------------------------

    def _join(self, index: int) -> None:
        worker = WorkerId(f"worker-{index}")
        if worker not in self._speeds:
            self._speeds[worker] = self._world.speeds[index]
            self._tell(WorkerJoined(worker=worker))

    def _die(self, fault: WorkerDies) -> None:
        worker = WorkerId(f"worker-{fault.worker}")
        if self._speeds.pop(worker, None) is None:
            return
        for number, path in list(self._paths.items()):
            if path.command.worker == worker:
                path.is_over = True
                del self._paths[number]
        self._tell(WorkerLeft(worker=worker, died=True, reason="simulated death"))
        if fault.back_after_s is not None:
            self._kernel.schedule(fault.back_after_s, partial(self._join, fault.worker))

    def _vanish(self) -> None:
        if self._last_committed is not None:
            self._tell(StateLost(state=self._last_committed))

    # --- paths --------------------------------------------------------------------------------

    def _run(self, command: RunPath) -> None:
        stages = iter(command.stages)
        path = _Running(command, self._speeds[command.worker], stages, next(stages))
        self._paths[command.path] = path
        world = self._world
        delay_s = 0.0
        if not command.is_warm:
            delay_s = world.startup_s + (world.load_s if path.stage.start_key else 0.0)
        self._begin(path, delay_s)

    def _begin(self, path: _Running, delay_s: Seconds) -> None:
        """Schedule the next thing that a stage tells: a report, its end or an error."""
        path.began_s = self._kernel.now
        path.first_step_s = path.began_s + delay_s
        if self._does_raise(path.stage):
            self._at(
                path, self._until(path, path.stage.start + path.stage.n_steps // 2), self._fail
            )
            return
        for step in path.stage.report_steps:
            self._at(path, self._until(path, step), partial(self._report, step=step))
        self._at(path, self._duration(path, path.stage.stop), self._finish)

    def _at(self, path: _Running, delay_s: Seconds, action: _PathAction) -> None:
        stage = path.stage

        def act() -> None:
            if not path.is_over and path.stage is stage:
                action(path)

        self._kernel.schedule(delay_s, act)

    def _until(self, path: _Running, step: Step) -> Seconds:
        """Return the seconds from handing out a stage to the end of a step, reports included."""
        stage, world = path.stage, self._world
        reports = sum(at <= step for at in stage.report_steps)
        train_s = world.train_s(stage.configuration, stage.start, step) / path.speed
        return path.first_step_s - path.began_s + train_s + reports * world.evaluate_s

    def _duration(self, path: _Running, reached: Step) -> Seconds:
        """Return the seconds from handing out a stage to the commit of the state at `reached`."""
        stage = path.stage
        evaluate_s = self._world.evaluate_s if reached == stage.stop and stage.evaluates else 0.0
        save_s = self._world.save_s if reached > stage.start else 0.0
        return self._until(path, reached) + evaluate_s + save_s

    def _finish(self, path: _Running) -> None:
        stage = path.stage
        metrics = self._metrics(stage, stage.stop) if stage.evaluates else None
        self._commit(path, stage.stop, metrics)
        following = next(path.stages, None)
        if following is None:
            self._end(path)
            return
        path.stage = following
        if path.is_stopping:
            self._commit(path, following.start, None)
            self._end(path)
        else:
            self._begin(path, 0.0)

    def _commit(self, path: _Running, reached: Step, metrics: Mapping[str, float] | None) -> None:
        stage = path.stage
        if reached == stage.stop and stage.n_steps:
            self._last_committed = stage.key
        self._tell(
            StageFinished(
                path=path.command.path,
                stage=stage.key,
                reached=reached,
                metrics=metrics,
                executed_steps=reached - stage.start,
                seconds=self._kernel.now - path.began_s,
            )
        )

    def _report(self, path: _Running, step: Step) -> None:
        self._tell(
            MetricsReported(
                path=path.command.path,
                stage=path.stage.key,
                step=step,
                metrics=self._metrics(path.stage, step),
            )
        )

    def _fail(self, path: _Running) -> None:
        stage = path.stage
        self._tell(
            StageFailed(
                path=path.command.path,
                stage=stage.key,
                error="RuntimeError: simulated error",
                executed_steps=stage.n_steps // 2,
            )
        )
        self._end(path)

    def _stop(self, command: StopPath) -> None:
        """Commit at the first step boundary from now on."""
        path = self._paths.get(command.path)
        if path is None:
            return
        stage = path.stage
        elapsed_s = self._kernel.now - path.began_s
        reached = next(
            (s for s in range(stage.start, stage.stop) if self._until(path, s) >= elapsed_s),
            None,
        )
        if reached is None:
            path.is_stopping = True  # it is in its last step, or saving
            return
        delay_s = 0.0
        if reached > stage.start:
            delay_s = max(0.0, self._duration(path, reached) - elapsed_s)

        def commit(path: _Running) -> None:
            self._commit(path, reached, None)
            self._end(path)

        self._at(path, delay_s, commit)

    def _end(self, path: _Running) -> None:
        path.is_over = True
        self._paths.pop(path.command.path, None)

    # --- what stages give ---------------------------------------------------------------------

    def _does_raise(self, stage: Stage) -> bool:
        if not self._raises:
            return False
        attempt = self._n_attempts[stage.key] = self._n_attempts.get(stage.key, 0) + 1
        return any(
            _fraction(f"{fault.seed}:{attempt}:{stage.key}") < fault.fraction
            for fault in self._raises
        )

    def _metrics(self, stage: Stage, step: Step) -> Mapping[str, float]:
        if self._world.curve is not None:
            return self._world.curve(stage.configuration, step)
        key = stage.key if step == stage.stop else stage.key_at(step)
        return dict.fromkeys(self._names, _fraction(key))


def _fraction(text: str) -> float:
    return (int.from_bytes(sha256(text.encode()).digest()[:7]) >> 3) / (1 << 53)
