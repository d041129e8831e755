"""Slow and obvious answers to compare with: histories as rows of values, trees, schedules by hand.

Nothing here uses the code that it judges: values come from formulas written out, trees from rows
compared value by value, schedules from trying all orders or from a clock of a few lines.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise, product
from typing import TypeAlias

Row: TypeAlias = tuple[object, ...]
"""The values of all hyper-parameters during one step, sorted by name."""
History: TypeAlias = tuple[Row, ...]
"""The rows of all steps of a trial."""


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jumps:
    """The value `v`, then each value from its step on."""

    v: float
    later: tuple[tuple[int, float], ...] = ()

    def value(self, t: int) -> float:
        return [v for step, v in ((0, self.v), *self.later) if step <= t][-1]


@dataclass(frozen=True)
class Drops:
    """`v`, multiplied by a factor at each of some steps."""

    v: float
    factor: float
    at: tuple[int, ...]

    def value(self, t: int) -> float:
        return self.v * self.factor ** sum(step <= t for step in self.at)


@dataclass(frozen=True)
class Shrinks:
    """`v * rate**t`."""

    v: float
    rate: float

    def value(self, t: int) -> float:
        return self.v * self.rate**t


@dataclass(frozen=True)
class HalfWaves:
    """Half a cosine from `v` to 0 in `period` steps, and again if it repeats."""

    v: float
    period: int
    repeats: bool = False

    def value(self, t: int) -> float:
        done = t % self.period if self.repeats else min(t, self.period)
        return self.v * (1 + math.cos(math.pi * done / self.period)) / 2


@dataclass(frozen=True)
class Falls:
    """A line from `v` to 0 in `n` steps."""

    v: float
    n: int

    def value(self, t: int) -> float:
        return self.v * (1 - t / self.n)


@dataclass(frozen=True)
class InverseTime:
    """`v / (1 + decay * t)`."""

    v: float
    decay: float

    def value(self, t: int) -> float:
        return self.v / (1 + self.decay * t)


@dataclass(frozen=True)
class Ramp:
    """A line to the first value of `then` in `n` steps, and then that.

    It meets the value at its last step, or, if `is_early` is not set, one step after it.
    """

    n: int
    then: "Rule"
    is_early: bool = True

    def value(self, t: int) -> float:
        if t >= self.n:
            return self.then.value(t - self.n)
        return self.then.value(0) * (t + 1) / (self.n if self.is_early else self.n + 1)


Rule: TypeAlias = Jumps | Drops | Shrinks | HalfWaves | Falls | InverseTime | Ramp
Rules: TypeAlias = Mapping[str, Sequence[Rule]]


def values_at(rule: Rule, t: int) -> float:
    """The value of a rule to 12 significant digits; integers stay."""
    v = rule.value(t)
    return v if isinstance(v, int) else float(f"{v:.12g}")


def grid_of(space: Rules, stop: int) -> list[History]:
    """All histories of a space, names sorted, the last name's rule changing fastest."""
    columns = [
        [tuple(values_at(rule, t) for t in range(stop)) for rule in space[name]]
        for name in sorted(space)
    ]
    return [tuple(zip(*chosen, strict=True)) for chosen in product(*columns)]


def n_distinct(histories: Iterable[History]) -> int:
    """Distinct steps: histories cut after every step, each cut counted once."""
    trie: dict[object, object] = {}
    n = 0
    for history in histories:
        at = trie
        for row in history:
            if row not in at:
                at[row] = {}
                n += 1
            at = at[row]  # type: ignore[assignment]
    return n


def grid_merge_rate(space: Rules, stop: int) -> float:
    """The closed form for a full grid: T n / sum over t of the products of distinct beginnings."""
    n_trials = math.prod(len(rules) for rules in space.values())
    distinct = 0
    for t in range(stop):
        distinct += math.prod(
            len({tuple(values_at(rule, u) for u in range(t + 1)) for rule in rules})
            for rules in space.values()
        )
    return n_trials * stop / distinct


def score_of(history: History) -> float:
    """A number in [0, 1) that looks drawn and depends on the history only."""
    return int.from_bytes(sha256(repr(history).encode()).digest()[:6]) / (1 << 48)


# --- halving --------------------------------------------------------------------------------------


def halved(
    histories: Sequence[History],
    rungs: Sequence[int],
    reduction_factor: int,
    score: Callable[[History], float],
    *,
    is_spread: bool = False,
) -> list[list[int]]:
    """Numbers of the trials that train to each rung under synchronous successive halving."""
    alive = [list(range(len(histories)))]
    for rung, following in pairwise(rungs):
        known: dict[History, float] = {}
        seen: Counter[History] = Counter()
        ranked = []
        for i in alive[-1]:
            start = histories[i][:rung]
            if start not in known:
                known[start] = score(start)
            ahead = histories[i][:following]
            ranked.append((-known[start], seen[ahead] if is_spread else 0, i))
            seen[ahead] += 1
        n = max(1, len(ranked) // reduction_factor)
        alive.append(sorted(i for _, _, i in sorted(ranked)[:n]))
    return alive


# --- trees ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forest:
    """Stages with their seconds, and which stage each one continues; parents come first."""

    seconds: tuple[float, ...]
    parents: tuple[int | None, ...]

    @cached_property
    def below(self) -> dict[int | None, list[int]]:
        """The stages that continue each one; those that start afresh under None."""
        below: dict[int | None, list[int]] = {stage: [] for stage in (None, *range(len(self)))}
        for stage, parent in enumerate(self.parents):
            below[parent].append(stage)
        return below

    def __len__(self) -> int:
        return len(self.seconds)

    def above_s(self, stage: int) -> float:
        """Seconds of all stages above one."""
        parent = self.parents[stage]
        return 0.0 if parent is None else self.above_s(parent) + self.seconds[parent]

    def tail_s(self, stage: int) -> float:
        """Seconds of the longest path strictly below a stage."""
        return max((self.seconds[i] + self.tail_s(i) for i in self.below[stage]), default=0.0)


def forest_of(
    histories: Iterable[History],
    start: int = 0,
    step_s: Callable[[Row], float] = lambda _: 1.0,
) -> Forest:
    """The stages of histories from a step on, cut where histories part or end."""
    seconds: list[float] = []
    parents: list[int | None] = []

    def grow(group: Sequence[History], at: int, parent: int | None) -> None:
        """Append the stage that a group shares from `at` on, and what hangs below it."""
        stop = at + 1
        while len({history[stop : stop + 1] for history in group}) == 1 and group[0][stop:]:
            stop += 1
        seconds.append(sum(step_s(row) for row in group[0][at:stop]))
        parents.append(parent)
        me = len(seconds) - 1
        for following in _parted([h for h in group if len(h) > stop], stop):
            grow(following, stop, me)

    resumed: dict[History, dict[History, None]] = {}
    for history in histories:
        if len(history) > start:
            resumed.setdefault(history[:start], {})[history] = None
    for distinct in resumed.values():
        for group in _parted(distinct, start):
            grow(group, start, None)
    return Forest(tuple(seconds), tuple(parents))


def _parted(group: Iterable[History], at: int) -> list[list[History]]:
    parts: dict[Row, list[History]] = {}
    for history in group:
        parts.setdefault(history[at], []).append(history)
    return list(parts.values())


# --- bounds and schedules -------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """What no schedule of a forest can undercut, by five arguments, and Graham's upper bound."""

    mean: float
    path: float
    head: float
    tail: float
    joint: float
    upper: float

    @property
    def lower(self) -> float:
        return max(self.mean, self.path, self.head, self.tail, self.joint)


def bounds_of(forest: Forest, n_workers: int) -> Bounds:
    """Bound the makespan from below and above, one bound at a time."""
    stages = range(len(forest))
    work = sum(forest.seconds)
    above = [forest.above_s(i) for i in stages]
    tails = [forest.tail_s(i) for i in stages]
    path = max((tails[i] + forest.seconds[i] for i in stages), default=0.0)

    def early(s: float) -> float:
        return sum(min(forest.seconds[i], max(0.0, s - above[i])) for i in stages)

    def late(s: float) -> float:
        return sum(min(forest.seconds[i], max(0.0, s - tails[i])) for i in stages)

    begins = {0.0, *above, *(above[i] + forest.seconds[i] for i in stages)}
    ends = {0.0, *tails, *(tails[i] + forest.seconds[i] for i in stages)}
    head = max(s + (work - early(s)) / n_workers for s in begins)
    tail = max(s + (work - late(s)) / n_workers for s in ends)
    proven = max(work / n_workers, path, head, tail)
    joint = max(
        s1 + s2 + (work - early(s1) - late(s2)) / n_workers
        for s1 in begins
        for s2 in ends
        if s1 + s2 <= proven
    )
    upper = work / n_workers + (1 - 1 / n_workers) * path
    return Bounds(work / n_workers, path, head, tail, joint, upper)


def best_makespan(forest: Forest, n_workers: int) -> float:
    """The shortest makespan there is: every order of stages, each as early as its turn allows.

    Some order is that of the starts of an optimal schedule, and placing stages in this order, each
    on the worker that is free first, starts none of them later than that schedule does.
    """
    best = sum(forest.seconds)

    def place(ends: dict[int, float], free: tuple[float, ...], now: float) -> None:
        nonlocal best
        if now >= best:
            return
        if len(ends) == len(forest):
            best = now
            return
        for i, parent in enumerate(forest.parents):
            if i not in ends and (parent is None or parent in ends):
                first, *others = free
                end = max(first, 0.0 if parent is None else ends[parent]) + forest.seconds[i]
                place({**ends, i: end}, tuple(sorted([end, *others])), max(now, end))

    place({}, (0.0,) * n_workers, 0.0)
    return best


def path_makespan(forest: Forest, n_workers: int) -> float:
    """The makespan if an idle worker takes the longest whole path, on workers of speed 1.

    What becomes ready or idle at one moment does so before anything is handed out.
    """
    length = [forest.seconds[i] + forest.tail_s(i) for i in range(len(forest))]
    ready = [(-length[i], i) for i in forest.below[None]]
    heapify(ready)
    coming: list[tuple[float, int]] = []  # a stage becomes ready, or -1: a worker becomes idle
    n_idle, now = n_workers, 0.0
    while ready or coming:
        while ready and n_idle:
            _, at = heappop(ready)
            n_idle -= 1
            end = now
            while True:
                end += forest.seconds[at]
                below = sorted(forest.below[at], key=lambda i: -length[i])
                for child in below[1:]:
                    heappush(coming, (end, child))
                if not below:
                    break
                at = below[0]
            heappush(coming, (end, -1))
        if coming:
            now = coming[0][0]
            while coming and coming[0][0] == now:
                _, stage = heappop(coming)
                if stage < 0:
                    n_idle += 1
                else:
                    heappush(ready, (-length[stage], stage))
    return now


def list_makespan(seconds: Iterable[float], n_workers: int) -> float:
    """The makespan of independent trials, the longest first."""
    ends = [0.0] * n_workers
    for each in sorted(seconds, reverse=True):
        heapreplace(ends, ends[0] + each)
    return max(ends)
