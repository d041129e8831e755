"""Know what other drivers on the same cluster are running, and whether it covers what we want.

Two stages share their first steps while they lead to states of the same key. If somebody is on the
way to, or past, a state that we want, we wait for it instead of training it again, and ask for it
to be committed in passing where it lies inside the other's stage.
"""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass

from dasktune.plan.stage import Stage
from dasktune.study.commands import RunPath
from dasktune.units import Digest, Step, WorkerId


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
    """What other drivers are running now."""

    def __init__(self) -> None:
        self._paths: dict[tuple[str, int], Foreign] = {}
        self.are_there = False
        """Whether any other driver has been heard of."""

    def begin(self, topic: str, number: int, worker: str, stages: Iterable[bytes]) -> None:
        """Hear that another driver runs a path."""
        self.are_there = True
        # From a driver that this cluster lets run code on its workers anyway.
        read: tuple[Stage, ...] = tuple(map(pickle.loads, stages))
        self._paths[topic, number] = Foreign(topic, number, WorkerId(worker), read)

    def end(self, topic: str, number: int) -> None:
        """Hear that it has ended."""
        self._paths.pop((topic, number), None)

    def covering(self, stage: Stage) -> tuple[Foreign, Digest] | None:
        """Return who trains steps of a stage now, and the last state that is shared.

        What is before a foreign stage that begins inside ours is stored, or covered as well.
        """
        for foreign in self._paths.values():
            for other in foreign.stages:
                shared = _shared_until(stage, other)
                if shared is not None:
                    return foreign, stage.key_at(shared)
        return None


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
