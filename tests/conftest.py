"""What every test may use: repeatable Hypothesis runs and a seeded generator."""

import random

import pytest
from hypothesis import HealthCheck, settings

# One profile everywhere: a test that fails in CI fails at the desk, with the same examples, as long
# as the code is the same: Hypothesis takes constants of the package for examples as well. No
# deadline and no check for slow draws, since both measure the machine and not the code.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")


@pytest.fixture
def rng() -> random.Random:
    """A generator that starts anew, the same, in every test."""
    return random.Random(0)
