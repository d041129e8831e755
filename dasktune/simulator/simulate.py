"""Run a study on simulated machines: the same decisions, none of the waiting."""

from collections.abc import Sequence
from typing import overload

from dasktune.errors import InvalidStudyError
from dasktune.scheduling.scheduler import Scheduler
from dasktune.simulator.backend import SimulatedBackend
from dasktune.simulator.world import World
from dasktune.space.value import shown
from dasktune.study.core import StudyCore
from dasktune.study.drive import drive
from dasktune.study.given import studies_in
from dasktune.study.result import Result, results_of
from dasktune.study.study import Study
from dasktune.study.timeline import Timeline


@overload
def simulate(study: Study, world: World, *, scheduler: Scheduler | None = None) -> Result: ...
@overload
def simulate(
    study: Sequence[Study], world: World, *, scheduler: Scheduler | None = None
) -> list[Result]: ...
def simulate(
    study: Study | Sequence[Study], world: World, *, scheduler: Scheduler | None = None
) -> Result | list[Result]:
    """Run one study, or several on one plan, under a virtual clock.

    The user's training code is not called: the world says how long steps take and what they score.

    Args:
        study: One study, or a sequence that shares steps and workers.
        world: The machines.
        scheduler: Which stage runs where; by default critical path first.

    Returns:
        What `run` returns: a result, or a list of them for a sequence.

    Raises:
        InvalidStudyError: An argument is not what it must be.
        BackendError: All workers are gone for good before the study is over.
    """
    studies = studies_in(study, "simulate()")
    if not isinstance(world, World):
        raise InvalidStudyError(
            f"world is {shown(world)}; it must be one, such as dasktune.World(workers=4)"
        )
    if scheduler is not None and not isinstance(scheduler, Scheduler):
        raise InvalidStudyError(
            f"scheduler is {shown(scheduler)}; it must be one, such as CriticalPathFirst()"
        )
    core = StudyCore(studies, scheduler)
    timeline = Timeline()
    names = tuple(sorted({name for one in studies for name in one.metrics}))
    drive(core, SimulatedBackend(world, names), timeline.record)
    results = results_of(core, timeline)
    return results[0] if isinstance(study, Study) else results
