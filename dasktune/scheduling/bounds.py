"""Bound the makespan of a stage tree on N identical workers, from below and above.

For tests, previews and the dashboard: how far a schedule is from what no schedule can beat.

References:
    [1] Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17(2), 1969:
        a schedule that leaves no worker idle while a stage is ready takes at most
        W / N + (1 - 1 / N) CP.

The head and tail bounds count what can be done early and late at most: in the first s seconds no
more than A(s) = sum of min(w, max(0, s - est)), where est is the time of all ancestors; in the last
s seconds no more than B(s), with the longest path below in its place. The rest keeps N workers busy
at best.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dasktune.plan.stage_tree import StageTree
from dasktune.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanBounds:
    """What is known of the makespan of a stage tree before it runs."""

    work_s: Seconds
    """W: seconds of all stages together."""
    critical_path_s: Seconds
    """CP: seconds of the longest chain of stages."""
    lower_s: Seconds
    """No schedule is shorter: the largest of W / N, CP, head, tail and joint bounds."""
    upper_s: Seconds
    """No schedule that never idles is longer (Graham)."""


def makespan_bounds(
    tree: StageTree, durations: Sequence[Seconds], n_workers: int
) -> MakespanBounds:
    """Bound the makespan of a tree whose stages take the given seconds. O(stages squared)."""
    starts = earliest_starts(tree, durations)
    tails = remaining_below(tree, durations)
    work = sum(durations)
    path = max((tails[i] + durations[i] for i in range(len(durations))), default=0.0)
    moments = sorted({*starts, *(s + w for s, w in zip(starts, durations, strict=True)), 0.0})
    ends = sorted({*tails, *(t + w for t, w in zip(tails, durations, strict=True)), 0.0})
    early = [(s, _doable(s, starts, durations)) for s in moments]
    late = [(s, _doable(s, tails, durations)) for s in ends]
    lower = max(work / n_workers, path)
    lower = max([lower, *(s + (work - done) / n_workers for s, done in early)])
    lower = max([lower, *(s + (work - done) / n_workers for s, done in late)])
    joint = [
        s1 + s2 + (work - a - b) / n_workers
        for s1, a in early
        for s2, b in late
        if s1 + s2 <= lower
    ]
    return MakespanBounds(
        work_s=work,
        critical_path_s=path,
        lower_s=max([lower, *joint]),
        upper_s=work / n_workers + (1 - 1 / n_workers) * path,
    )


def earliest_starts(tree: StageTree, durations: Sequence[Seconds]) -> list[Seconds]:
    """Return for each stage the seconds of all stages above it."""
    starts: list[Seconds] = []
    for entry in tree.stages:  # parents come first
        parent = entry.parent
        starts.append(0.0 if parent is None else starts[parent] + durations[parent])
    return starts


def remaining_below(tree: StageTree, durations: Sequence[Seconds]) -> list[Seconds]:
    """Return for each stage the seconds of the longest path strictly below it."""
    tails = [0.0] * len(tree.stages)
    for index in range(len(tree.stages) - 1, -1, -1):
        parent = tree.stages[index].parent
        if parent is not None:
            tails[parent] = max(tails[parent], tails[index] + durations[index])
    return tails


def least_worker_seconds(
    tree: StageTree,
    durations: Sequence[Seconds],
    *,
    startup_s: Seconds = 0.0,
    load_s: Seconds = 0.0,
    save_s: Seconds = 0.0,
    evaluate_s: Seconds = 0.0,
) -> Seconds:
    """Return worker-seconds that no schedule can undercut, if no state is forked in memory.

    A schedule cuts the tree into chains, each on one worker; every leaf ends one chain. Every chain
    pays `startup_s`, those that do not begin at a fresh state `load_s`, every fork is saved once
    and every wanted state evaluated once.

    Args:
        tree: The stages.
        durations: Seconds of training of each.
        startup_s: Seconds of setting a trainable up.
        load_s: Seconds of loading a state.
        save_s: Seconds of committing a state.
        evaluate_s: Seconds of taking metrics.
    """
    below = tree.children()
    n_leaves = sum(not children for children in below)
    n_forks = sum(len(children) > 1 for children in below)
    n_fresh = sum(tree.stages[root].stage.start_key is None for root in tree.roots())
    n_reports = sum(s.stage.evaluates + len(s.stage.report_steps) for s in tree.stages)
    return (
        sum(durations)
        + n_leaves * startup_s
        + max(0, n_leaves - n_fresh) * load_s
        + n_forks * save_s
        + n_reports * evaluate_s
    )


def sharing_pays(
    n_branches: int, prefix_s: Seconds, *, load_s: Seconds = 0.0, save_s: Seconds = 0.0
) -> bool:
    """Say whether training a prefix once costs less than once for each branch.

    It does if (k - 1)(w - load) > save: one branch goes on with the state in memory.
    """
    return (n_branches - 1) * (prefix_s - load_s) > save_s


def most_speedup(merge_rate: float, trial_based_s: Seconds, critical_path_s: Seconds) -> float:
    """Return what sharing can gain at most over trial-based execution on the same workers.

    Args:
        merge_rate: Requested over distinct steps, as the tuner really asked.
        trial_based_s: Makespan without sharing on these workers.
        critical_path_s: Longest chain of stages: more workers do not help beyond it.
    """
    return min(merge_rate, trial_based_s / critical_path_s)


def rungs_lower_s(rungs: Iterable[MakespanBounds]) -> Seconds:
    """Return the lower bound of synchronous halving: rungs wait for one another, so theirs add."""
    return sum(bounds.lower_s for bounds in rungs)


def _doable(s: Seconds, offsets: Sequence[Seconds], durations: Sequence[Seconds]) -> Seconds:
    return sum(min(w, max(0.0, s - at)) for at, w in zip(offsets, durations, strict=True))
