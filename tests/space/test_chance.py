"""Numbers that are as good as random, and the same on every machine."""

from hypothesis import given
from hypothesis import strategies as st

from dasktune.space.chance import unit_of


@given(st.binary(max_size=20))
def test_numbers_are_in_the_unit_interval_and_repeatable(purpose: bytes) -> None:
    assert 0 <= unit_of(purpose) < 1
    assert unit_of(purpose) == unit_of(purpose)


def test_numbers_are_spread_evenly() -> None:
    counts = [0] * 10
    for i in range(10_000):
        counts[int(10 * unit_of(b"%d" % i))] += 1
    assert all(850 < count < 1150 for count in counts)  # five standard deviations of 30


def test_a_number_is_pinned_because_draws_of_earlier_studies_are_made_of_it() -> None:
    assert unit_of(b"0:0:0:lr") == 0.38768310694276764
