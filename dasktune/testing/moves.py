"""What a study says to its tuner, one move at a time, so that it can be said again to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.tuner import TunerRun


@dataclass(frozen=True, slots=True)
class Ask:
    """The study asks the tuner."""


@dataclass(frozen=True, slots=True)
class End:
    """The study tells that a trial diverged, failed, or does not exist."""

    trial: int
    status: TrialStatus


Move: TypeAlias = Ask | Report | End
Answer: TypeAlias = Sequence[Request] | Sequence[Ending]


def answer(run: TunerRun, move: Move) -> Answer:
    """Return what a run says to a move."""
    match move:
        case Ask():
            return list(run.ask())
        case Report():
            return list(run.tell(move))
        case End(trial, status):
            return list(run.end(trial, status))


def answers(run: TunerRun, moves: Sequence[Move]) -> list[Answer]:
    """Return what a run says to one move after the other."""
    return [answer(run, move) for move in moves]
