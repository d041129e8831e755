"""The loop between a core and whatever performs its commands."""

from collections.abc import Callable

from dasktune.study.commands import Command
from dasktune.study.core import StudyCore
from dasktune.study.events import Event, StudyStarted
from dasktune.study.ports import Backend
from dasktune.units import Seconds


def drive(
    core: StudyCore,
    backend: Backend,
    record: Callable[[Seconds, Event, tuple[Command, ...]], None],
) -> None:
    """Start the studies of a core that have not, and go on until no study does.

    What happened and what was decided is recorded before it is acted on.
    """

    def take(event: Event, now: Seconds) -> None:
        commands = core.handle(event, now)
        record(now, event, commands)
        for command in commands:
            backend.perform(command)

    for run in core.runs:
        if run.status is None:
            take(StudyStarted(study=run.index), core.now)
    while not core.is_over:
        take(*backend.next_event())
