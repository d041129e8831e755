"""Slow and obvious twins of tuners, which work everything out anew from what they were told."""

from collections.abc import Sequence
from math import inf

from dasktune.testing.moves import Answer
from dasktune.trial import Report, Request
from dasktune.tuners.rungs import Ties
from dasktune.units import Step

Told = tuple[float, object, int]
"""Score, branch and number of a trial that has finished a rung."""


def requested(answer: Answer) -> list[tuple[int, Step]]:
    """Which trials are asked for, and to which step."""
    assert all(isinstance(request, Request) for request in answer)
    return [(request.trial, request.step) for request in answer if isinstance(request, Request)]


def ranked(told: Sequence[Told], ties: Ties) -> list[int]:
    """All trials of a rung, best first, given who they are in the order in which they count."""
    places = []
    for at, (score, branch, trial) in enumerate(told):
        alike = sum((s, b) == (score, branch) for s, b, _ in told[:at])
        spreads = ties == "spread" and branch is not None
        places.append((-score, alike if spreads else 0, trial))
    return [trial for _, _, trial in sorted(places)]


class Rungs:
    """A bracket that promotes the best floor(n / eta) of those that have finished a rung."""

    def __init__(
        self, steps: Sequence[Step], factor: float, ties: Ties, fresh: Sequence[int]
    ) -> None:
        self.steps = steps
        self.factor = factor
        self.ties: Ties = ties
        self.told: list[list[Told]] = [[] for _ in steps]
        self.promoted: list[set[int]] = [set() for _ in steps]
        self.over: set[int] = set()
        self.waiting: dict[int, int] = {}
        self.fresh = list(fresh)

    def promotable(self) -> tuple[int, int] | None:
        """The best trial not promoted yet of the highest rung that promotes any, and its rung."""
        for rung in reversed(range(len(self.told) - 1)):
            n = int(len(self.told[rung]) / self.factor)
            for trial in ranked(self.told[rung], self.ties)[:n]:
                if trial not in self.promoted[rung] and trial not in self.over:
                    return trial, rung
        return None

    def promote(self, trial: int, rung: int) -> tuple[int, Step]:
        self.promoted[rung].add(trial)
        return self.wait(trial, rung + 1)

    def begin(self) -> tuple[int, Step]:
        return self.wait(self.fresh.pop(0), 0)

    def wait(self, trial: int, rung: int) -> tuple[int, Step]:
        self.waiting[trial] = rung
        return trial, self.steps[rung]

    def ask(self) -> tuple[int, Step] | None:
        """The next trial and its step: promoted, or new."""
        found = self.promotable()
        if found is not None:
            return self.promote(*found)
        return self.begin() if self.fresh else None

    def tell(self, report: Report) -> None:
        rung = self.waiting.pop(report.trial)
        self.told[rung].append((report.score, report.branch, report.trial))

    def end(self, trial: int) -> None:
        """Let a trial that was asked count last at its rung, one that was not at the first."""
        self.over.add(trial)
        if trial in self.waiting:
            self.told[self.waiting.pop(trial)].append((-inf, None, trial))
        elif trial in self.fresh:
            self.fresh.remove(trial)
            self.told[0].append((-inf, None, trial))


class Halved:
    """A bracket that waits for all trials of a rung, then lets the best floor(n / eta) go on."""

    def __init__(
        self, steps: Sequence[Step], factor: float, ties: Ties, trials: Sequence[int]
    ) -> None:
        self.steps = steps
        self.factor = factor
        self.ties: Ties = ties
        self.rung = 0
        self.on_rung = list(trials)
        self.told: dict[int, Told] = {}
        self.is_asked = False

    @property
    def is_over(self) -> bool:
        return self.rung == len(self.steps) or not self.on_rung

    def ask(self) -> list[tuple[int, Step]]:
        """All trials that begin the rung, once."""
        if self.is_asked:
            return []
        self.is_asked = True
        return [(t, self.steps[self.rung]) for t in self.on_rung if t not in self.told]

    def hear(self, trial: int, score: float, branch: object = None) -> None:
        """Take in a score, -inf of a trial that is over; end the rung if it is the last."""
        self.told[trial] = (score, branch, trial)
        if len(self.told) < len(self.on_rung):
            return
        usable = [t for t in self.on_rung if self.told[t][0] > -inf]
        by_number = [self.told[t] for t in sorted(usable)]
        n_best = max(1, int(len(self.on_rung) / self.factor))
        self.on_rung = sorted(ranked(by_number, self.ties)[:n_best])
        self.rung, self.told, self.is_asked = self.rung + 1, {}, False
