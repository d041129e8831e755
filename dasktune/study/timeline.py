"""The record of a run: every event with its time, and what the core decided at it.

The same line for line whenever seed and world are the same. Replaying it rebuilds the core, and
stops at the first decision that comes out differently.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dasktune.errors import BackendError
from dasktune.scheduling.scheduler import Scheduler
from dasktune.study.collector import rare_full_collections
from dasktune.study.commands import Command
from dasktune.study.core import StudyCore
from dasktune.study.events import Event
from dasktune.study.header import changes_since, is_header
from dasktune.study.journal import read_entry, say_the_same, write_entry
from dasktune.study.study import Study
from dasktune.units import Seconds


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and its consequences."""

    at_s: Seconds
    """When, in seconds since the first event."""
    event: Event
    """What happened."""
    commands: tuple[Command, ...]
    """What was decided at it, in order."""


@dataclass(slots=True)
class Timeline:
    """The entries of a run, in order."""

    entries: list[Entry] = field(default_factory=list)

    def record(self, at_s: Seconds, event: Event, commands: tuple[Command, ...]) -> None:
        """Append an entry."""
        self.entries.append(Entry(at_s, event, commands))

    def lines(self) -> Iterator[str]:
        """Yield each entry as a line of JSON, without the newline."""
        for entry in self.entries:
            yield write_entry(entry.at_s, entry.event, entry.commands)

    def commands(self) -> Iterator[tuple[Seconds, Command]]:
        """Yield every command with its time."""
        for entry in self.entries:
            for command in entry.commands:
                yield entry.at_s, command


def replay(
    studies: Sequence[Study], lines: Iterable[str], scheduler: Scheduler | None = None
) -> tuple[StudyCore, Timeline]:
    """Rebuild a core from the lines of its timeline; draws are fed to it, not made again.

    Args:
        studies: As they were given to the first core, in the same order.
        lines: The timeline, from its beginning; the first may describe the studies.
        scheduler: As it was given to the first core.

    Raises:
        BackendError: A line cannot be read, or the core decides otherwise than was recorded; the
            message names the first difference.
    """
    with rare_full_collections():
        return _replayed(StudyCore(studies, scheduler), studies, lines)


def _replayed(
    core: StudyCore, studies: Sequence[Study], lines: Iterable[str]
) -> tuple[StudyCore, Timeline]:
    timeline = Timeline()
    header = ""
    for number, line in enumerate(lines, start=1):
        if number == 1 and is_header(line):
            header = line
            continue
        try:
            at_s, event, points = read_entry(line)
            commands = core.handle(event, at_s, recorded=points)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError,
                BackendError) as error:  # fmt: skip
            raise BackendError(
                f"line {number} of the timeline cannot be: {error}{_changes(header, studies)}"
            ) from error
        decided = write_entry(at_s, event, commands)
        if not say_the_same(decided, line.rstrip("\n")):
            changes = _changes(header, studies)
            raise BackendError(_difference(number, line.rstrip("\n"), decided) + changes)
        timeline.record(at_s, event, commands)
    return core, timeline


def _difference(number: int, recorded: str, decided: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(recorded, decided, strict=False)) if a != b),
        min(len(recorded), len(decided)),
    )
    shown = slice(max(0, at - 40), at + 40)
    return (
        f"the timeline differs at line {number}, character {at}: recorded …{recorded[shown]}…, "
        f"decided now …{decided[shown]}…; a timeline only fits the studies that made it"
    )


def _changes(header: str, studies: Sequence[Study]) -> str:
    """Say what is different in the studies since the timeline was begun, as far as is known."""
    changes = changes_since(header, studies) if header else ()
    return f": {'; '.join(changes)}" if changes else ""
