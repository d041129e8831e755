"""The loop between a core and whatever performs its commands."""

from collections.abc import Callable

from dasktune.study.collector import rare_full_collections
from dasktune.study.commands import Command
from dasktune.study.core import StudyCore
from dasktune.study.events import Event, Resumed, StudyStarted
from dasktune.study.ports import Backend
from dasktune.units import Seconds


def drive(
    core: StudyCore,
    backend: Backend,
    record: Callable[[Seconds, Event, tuple[Command, ...]], None],
    *,
    resumes: bool = False,
    settled: Callable[[], None] = lambda: None,
) -> None:
    """Start the studies of a core that have not, and go on until no study does.

    What happened and what was decided is recorded before it is acted on.

    Args:
        core: Fresh, or rebuilt from a timeline.
        backend: Performs the commands.
        record: Told each event, its time, and what was decided at it.
        resumes: Whether an earlier driver has left the core: its workers are not counted on.
        settled: Called once the commands of an event are performed: time for what need not be done
            before workers have something to do.
    """

    def take(event: Event, now: Seconds) -> None:
        commands = core.handle(event, now)
        record(now, event, commands)
        for command in commands:
            backend.perform(command)
        settled()

    with rare_full_collections():
        if resumes:
            take(Resumed(), core.now)
        for run in core.runs:
            if run.status is None:
                take(StudyStarted(study=run.index), core.now)
        while not core.is_over:
            take(*backend.next_event())
