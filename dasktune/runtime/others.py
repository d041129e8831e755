"""Know what other drivers on the same cluster are running, and whether it covers what we want.

Two stages share their first steps while they lead to states of the same key. If somebody is on the
way to, or past, a state that we want, we wait for it instead of training it again, and ask for it
to be committed in passing where it lies inside the other's stage.
"""

import logging
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dasktune.plan.stage import Stage
from dasktune.study.commands import RunPath
from dasktune.units import Digest, Step, WorkerId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A path of another driver."""

    topic: str
    number: int
    worker: WorkerId
    stages: tuple[Stage, ...]

    def is_path(self, topic: str, number: int) -> bool:
        """Whether this is that path."""
        return self.topic == topic and self.number == number

    @staticmethod
    def plain(command: RunPath, stages: Iterable[bytes]) -> dict[str, object]:
        """Return what other drivers are told of the stages left of a path, each as bytes."""
        return {"worker": command.worker, "stages": list(stages)}


class Others:
    """What other drivers are running now, as far as it can be read here."""

    def __init__(self) -> None:
        self._paths: dict[tuple[str, int], Foreign] = {}
        self._unreadable: set[str] = set()
        self.are_there = False
        """Whether any other driver has been heard of."""

    def begin_anew(self) -> None:
        """Forget what was heard: who joins a scheduler is told all that others are running there.

        What ended while nobody could be heard is never said again.
        """
        self._paths.clear()
        self.are_there = False

    def hear(self, news: Mapping[str, Any]) -> None:
        """Take in that another driver runs a path, or that it has ended."""
        if news["kind"] == "running":
            self.begin(news["of"], news["path"], news["worker"], news["stages"])
        else:
            self.end(news["of"], news["path"])

    def begin(self, topic: str, number: int, worker: str, stages: Iterable[bytes]) -> None:
        """Hear that another driver runs a path; it replaces what was known of that path.

        Nothing is known of stages that cannot be read: they may hold functions of packages that are
        not installed here, or come from another version.
        """
        self.are_there = True
        try:
            # From a driver that this cluster lets run code on its workers anyway.
            read: tuple[Stage, ...] = tuple(map(pickle.loads, stages))
        except Exception as error:  # whatever another driver's code raises
            self._cannot_read(topic, number, error)
        else:
            self._paths[topic, number] = Foreign(topic, number, WorkerId(worker), read)

    def end(self, topic: str, number: int) -> None:
        """Hear that it has ended."""
        self._paths.pop((topic, number), None)

    def covering(self, stage: Stage) -> tuple[Foreign, Digest] | None:
        """Return who trains steps of a stage now, and the last state that is shared.

        What is before a foreign stage that begins inside ours is stored, or covered as well.
        """
        for foreign in list(self._paths.values()):
            try:
                shared = _shared_with(stage, foreign)
            except Exception as error:  # functions that were read may still lack what they call
                self._cannot_read(foreign.topic, foreign.number, error)
                continue
            if shared is not None:
                return foreign, stage.key_at(shared)
        return None

    def before(self, stages: Iterable[Stage]) -> tuple[int, Foreign | None]:
        """Return how many stages nobody else trains before the first that somebody does, and who.

        None: nobody trains any of them.
        """
        n_free = 0
        for stage in stages:
            covering = self.covering(stage)
            if covering is not None:
                return n_free, covering[0]
            n_free += 1
        return n_free, None

    def _cannot_read(self, topic: str, number: int, error: Exception) -> None:
        self.end(topic, number)
        if topic in self._unreadable:
            return
        self._unreadable.add(topic)
        logger.warning(
            "what driver %s is running cannot be read here (%s: %s), so steps that both want at "
            "the same time may be trained twice; drivers that share a cluster should have the same "
            "dasktune, and the packages that their schedules are written with",
            topic, type(error).__name__, error,
        )  # fmt: skip


def _shared_with(stage: Stage, foreign: Foreign) -> Step | None:
    """Return the last step that the first stage of a path to share any shares; None if none."""
    shared = (_shared_until(stage, other) for other in foreign.stages)
    return next((step for step in shared if step is not None), None)


def _shared_until(stage: Stage, other: Stage) -> Step | None:
    """Return the step up to which both stages train the same steps; None if they share none.

    Equal keys at a step mean equal histories up to it, so the steps can be searched by halves.
    """
    low, high = max(stage.start, other.start) + 1, min(stage.stop, other.stop)
    if stage.family != other.family or low > high or stage.key_at(low) != other.key_at(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if stage.key_at(middle) == other.key_at(middle):
            low = middle
        else:
            high = middle - 1
    return low
