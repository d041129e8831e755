from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dasktune.plan.stage_tree import StageTree
from dasktune.scheduling.bounds import (
    earliest_starts,
    least_worker_seconds,
    makespan_bounds,
    most_speedup,
    remaining_below,
    rungs_lower_s,
    sharing_pays,
)
from tests.oracles import Forest, best_makespan, bounds_of, path_makespan
from tests.scheduling.trees import forests, stage_tree_of

workers = st.integers(1, 4)

LATE_CROWD = Forest((3.0, 3.0, 1.0, 3.0), (None, 0, 0, 0))
"""One root with a crowd behind it: its second worker idles for three seconds."""


@given(forest=forests(12))
def test_starts_and_tails_are_sums_along_paths(forest: Forest) -> None:
    tree = stage_tree_of(forest)
    n = range(len(forest))
    assert earliest_starts(tree, forest.seconds) == [forest.above_s(i) for i in n]
    assert remaining_below(tree, forest.seconds) == [forest.tail_s(i) for i in n]


@given(forest=forests(12), n_workers=workers)
@example(forest=LATE_CROWD, n_workers=2)
def test_bounds_are_what_their_definitions_give(forest: Forest, n_workers: int) -> None:
    found = makespan_bounds(stage_tree_of(forest), forest.seconds, n_workers)
    expected = bounds_of(forest, n_workers)
    assert found.work_s == sum(forest.seconds)
    assert found.critical_path_s == expected.path
    assert found.lower_s == pytest.approx(expected.lower, rel=1e-12)
    assert found.upper_s == pytest.approx(expected.upper, rel=1e-12)


def test_a_narrow_start_costs_more_than_work_and_path_say() -> None:
    found = makespan_bounds(stage_tree_of(LATE_CROWD), LATE_CROWD.seconds, 2)
    assert max(found.work_s / 2, found.critical_path_s) == 6.0
    assert found.lower_s == 3.0 + 7.0 / 2
    assert best_makespan(LATE_CROWD, 2) == 7.0


@given(forest=forests(12), n_workers=workers)
def test_on_trees_the_head_says_all_that_the_tail_and_both_together_do(
    forest: Forest, n_workers: int
) -> None:
    bounds = bounds_of(forest, n_workers)
    assert bounds.tail <= max(bounds.mean, bounds.path) + 1e-9
    assert bounds.joint <= max(bounds.mean, bounds.path, bounds.head) + 1e-9


@settings(max_examples=60)
@given(forest=forests(6), n_workers=workers)
@example(forest=LATE_CROWD, n_workers=2)
def test_no_order_of_stages_beats_the_lower_bounds(forest: Forest, n_workers: int) -> None:
    best = best_makespan(forest, n_workers) + 1e-9
    found = makespan_bounds(stage_tree_of(forest), forest.seconds, n_workers)
    assert found.lower_s <= best
    assert best <= found.upper_s + 2e-9
    expected = bounds_of(forest, n_workers)
    for bound in (expected.mean, expected.path, expected.head, expected.tail, expected.joint):
        assert bound <= best


@given(forest=forests(12), n_workers=workers)
def test_whole_paths_by_their_length_stay_within_the_bounds(forest: Forest, n_workers: int) -> None:
    found = makespan_bounds(stage_tree_of(forest), forest.seconds, n_workers)
    makespan = path_makespan(forest, n_workers)
    assert found.lower_s - 1e-9 <= makespan <= found.upper_s + 1e-9


@given(forest=forests(12))
def test_one_worker_takes_all_seconds_and_a_crowd_the_longest_path(forest: Forest) -> None:
    tree = stage_tree_of(forest)
    alone = makespan_bounds(tree, forest.seconds, 1)
    assert alone.lower_s == alone.upper_s == alone.work_s
    assert makespan_bounds(tree, forest.seconds, 99).lower_s == alone.critical_path_s


@given(forest=forests(12))
def test_more_workers_never_raise_a_bound(forest: Forest) -> None:
    tree = stage_tree_of(forest)
    found = [makespan_bounds(tree, forest.seconds, n) for n in range(1, 6)]
    for few, many in pairwise(found):
        assert many.lower_s <= few.lower_s + 1e-9
        assert many.upper_s <= few.upper_s + 1e-9


def test_nothing_to_do_takes_no_time() -> None:
    found = makespan_bounds(StageTree(), (), 2)
    assert (found.lower_s, found.upper_s, found.work_s, found.critical_path_s) == (0, 0, 0, 0)
    assert least_worker_seconds(StageTree(), (), startup_s=1, load_s=1, save_s=1) == 0


@given(forest=forests(12))
def test_worker_seconds_count_each_chain_its_start_and_each_fork_its_save(forest: Forest) -> None:
    n_children = [len(forest.below[i]) for i in range(len(forest))]
    n_leaves, n_roots = n_children.count(0), len(forest.below[None])
    n_forks = sum(n > 1 for n in n_children)
    assert least_worker_seconds(
        stage_tree_of(forest), forest.seconds, startup_s=100, load_s=1000, save_s=10000
    ) == pytest.approx(
        sum(forest.seconds) + n_leaves * 100 + (n_leaves - n_roots) * 1000 + n_forks * 10000
    )


@given(
    n_branches=st.integers(1, 6), prefix_s=st.integers(0, 20), load_s=st.integers(0, 5),
    save_s=st.integers(0, 20),
)  # fmt: skip
def test_sharing_pays_if_and_only_if_it_costs_less_than_training_each_alone(
    n_branches: int, prefix_s: int, load_s: int, save_s: int
) -> None:
    alone = n_branches * prefix_s
    shared = prefix_s + save_s + (n_branches - 1) * load_s
    assert sharing_pays(n_branches, prefix_s, load_s=load_s, save_s=save_s) == (shared < alone)


@given(forest=forests(8), n_workers=workers)
def test_rungs_that_wait_for_one_another_add_their_bounds(forest: Forest, n_workers: int) -> None:
    bounds = makespan_bounds(stage_tree_of(forest), forest.seconds, n_workers)
    assert rungs_lower_s([bounds, bounds]) == 2 * bounds.lower_s
    assert rungs_lower_s([]) == 0


def test_no_more_is_gained_than_the_merge_rate_nor_than_the_critical_path_allows() -> None:
    assert most_speedup(2.0, trial_based_s=100.0, critical_path_s=10.0) == 2.0
    assert most_speedup(20.0, trial_based_s=100.0, critical_path_s=10.0) == 10.0
