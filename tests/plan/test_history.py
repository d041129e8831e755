from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from dasktune.plan.history import Comparison, changes, same_until, tokens_at
from dasktune.space import Configuration
from dasktune.units import Step
from tests.strategies import (
    HORIZON,
    close_configurations,
    configurations,
    differ_at,
    pairs_at,
)

steps = st.integers(0, HORIZON)


@given(configurations, steps)
def test_tokens_are_those_of_all_values_by_name(configuration: Configuration, step: Step) -> None:
    assert tokens_at(configuration, step) == pairs_at(configuration, step)


@given(configurations, configurations, steps)
def test_histories_part_at_the_first_step_with_another_value_or_name(
    a: Configuration, b: Configuration, stop: Step
) -> None:
    assert same_until(a, b, stop) == differ_at(a, b, stop)


@given(close_configurations, close_configurations, st.lists(steps, min_size=2, max_size=6))
def test_what_a_comparison_remembers_is_true_for_every_later_question(
    a: Configuration, b: Configuration, stops: list[Step]
) -> None:
    """The same pair is asked again, for fewer and for more steps."""
    comparison = Comparison()
    for stop in stops:
        assert comparison.same_until(a, b, stop) == differ_at(a, b, stop)


@given(st.lists(close_configurations, min_size=3, max_size=3), steps)
def test_a_comparison_does_not_mistake_one_pair_for_another(
    pool: list[Configuration], stop: Step
) -> None:
    comparison = Comparison()
    for a, b in permutations(pool, 2):
        assert comparison.same_until(a, b, stop) == differ_at(a, b, stop)


@given(configurations, steps, steps)
def test_changes_are_the_pairs_that_differ_from_the_step_before(
    configuration: Configuration, start: Step, stop: Step
) -> None:
    expected = []
    for step in range(start, stop):
        before = set(pairs_at(configuration, step - 1)) if step else set()
        changed = [pair for pair in pairs_at(configuration, step) if pair not in before]
        if changed:
            expected.append((step, changed))
    assert list(changes(configuration, start, stop)) == expected
