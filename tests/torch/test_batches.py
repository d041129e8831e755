"""Which samples make which batch."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import StageError
from dasktune.torch.batches import Position, evaluation_batches, training_batches

pytestmark = pytest.mark.torch

START = Position(epoch=0, sample=0)


def epoch_order(n: int, batch_size: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    batches, _ = training_batches(
        n,
        Position(epoch=epoch, sample=0),
        training_seed=seed,
        batch_size=batch_size,
        n_batches=None,
        drop_last=False,
    )
    return [sample for batch in batches for sample in batch.samples]


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3), st.integers(0, 3))
def test_the_order_of_an_epoch_does_not_depend_on_the_batch_size(
    n: int, batch_size: int, seed: int, epoch: int
) -> None:
    order = epoch_order(n, batch_size, seed=seed, epoch=epoch)

    assert order == epoch_order(n, 1, seed=seed, epoch=epoch)
    assert sorted(order) == list(range(n))


def test_orders_of_epochs_and_of_seeds_differ() -> None:
    orders = {
        tuple(epoch_order(30, 7, seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)
    }

    assert len(orders) == 4


def test_the_order_of_an_epoch_is_pinned() -> None:
    assert epoch_order(8, 8) == [4, 1, 5, 6, 2, 0, 7, 3]


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=12))
def test_steps_of_few_batches_go_through_the_epochs_sample_by_sample(
    n: int, steps: list[tuple[int, int]]
) -> None:
    position, seen = START, []
    for batch_size, n_batches in steps:
        batches, position = training_batches(
            n,
            position,
            training_seed=0,
            batch_size=batch_size,
            n_batches=n_batches,
            drop_last=False,
        )
        assert len(batches) == n_batches
        assert all(1 <= len(batch.samples) <= batch_size for batch in batches)
        seen += [sample for batch in batches for sample in batch.samples]
        assert position.epoch * n + position.sample == len(seen)
        assert position.sample < n

    orders = [
        sample for epoch in range(position.epoch + 1) for sample in epoch_order(n, n, epoch=epoch)
    ]
    assert seen == orders[: len(seen)]


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 5))
def test_a_batch_has_its_own_seed_that_does_not_depend_on_the_cut(
    n: int, batch_size: int, n_batches: int
) -> None:
    def choose(begin: Position, count: int) -> tuple[list[object], Position]:
        batches, position = training_batches(
            n, begin, training_seed=0, batch_size=batch_size, n_batches=count, drop_last=False
        )
        return list(batches), position

    whole, behind = choose(START, 2 * n_batches)
    first, middle = choose(START, n_batches)
    second, end = choose(middle, n_batches)

    assert (first + second, end) == (whole, behind)
    assert len({batch.seed for batch in whole}) == len(whole)  # type: ignore[attr-defined]


@given(st.integers(4, 20), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=12))
def test_drop_last_leaves_only_full_batches(n: int, steps: list[tuple[int, int]]) -> None:
    position = START
    for batch_size, n_batches in steps:
        batches, position = training_batches(
            n, position, training_seed=0, batch_size=batch_size, n_batches=n_batches, drop_last=True
        )
        assert [len(batch.samples) for batch in batches] == [batch_size] * n_batches


def test_an_epoch_with_drop_last_ends_where_no_full_batch_is_left() -> None:
    batches, position = training_batches(
        10, START, training_seed=0, batch_size=4, n_batches=None, drop_last=True
    )

    assert [len(batch.samples) for batch in batches] == [4, 4]
    assert position == Position(epoch=1, sample=0)


def test_a_batch_larger_than_the_data_is_refused_with_drop_last() -> None:
    with pytest.raises(StageError, match=r"batch_size is 5 and the training data has 4 samples"):
        training_batches(4, START, training_seed=0, batch_size=5, n_batches=1, drop_last=True)


@given(st.integers(1, 40), st.integers(1, 50))
def test_evaluation_takes_each_sample_once_in_order(n: int, batch_size: int) -> None:
    samples = [sample for batch in evaluation_batches(n, batch_size) for sample in batch.samples]

    assert samples == list(range(n))
    assert Counter(samples).most_common(1)[0][1] == 1
