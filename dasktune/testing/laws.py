"""What all laws have in common: how they are tried, what they compare, what they draw from."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest

from hypothesis import HealthCheck, settings

SCORES = (-3.5, -1.0, 0.0, 1.0, 2.25)
"""So few that trials often tie, and of both signs."""

# A law is one function for all classes that inherit it, which Hypothesis warns of. No deadline:
# it would measure the machine.
tried = settings(
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
"""How a law is tried that costs little."""
tried_in_studies = settings(tried, max_examples=15)
"""How a law is tried that runs whole studies."""


def same(found: object, expected: object, what: str) -> None:
    """Demand that two things are equal.

    Args:
        found: What there is.
        expected: What there should be.
        what: The law, in words.

    Raises:
        AssertionError: They are not; the message shows both, of lists where they first differ.
    """
    if found == expected:
        return
    if isinstance(found, list) and isinstance(expected, list):
        pairs = enumerate(zip_longest(found, expected, fillvalue="nothing"))
        at, found, expected = next((i, a, b) for i, (a, b) in pairs if a != b)
        what += f"; the first difference is at {at}"
    raise AssertionError(f"{what}\n   found: {found!r}\nexpected: {expected!r}")


@contextmanager
def no_global_chance(seed: int) -> Iterator[None]:
    """Seed Python's global generator, and demand that nobody draws from it.

    Raises:
        AssertionError: Somebody did.
    """
    before = random.getstate()
    random.seed(seed)
    seeded = random.getstate()
    try:
        yield
        assert random.getstate() == seeded, (
            "it draws from the global generator of `random`: chance must come from the seed in "
            "the context, or a resumed study decides otherwise than it did before"
        )
    finally:
        random.setstate(before)
