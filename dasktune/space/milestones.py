"""Find the steps at which the configurations of a space are likely to part.

For studies whose draws come late: a fork that is not known when its prefix is trained can only
begin at a state that was kept, so states are kept where forks are likely.
"""

from collections import Counter

from dasktune.space.chance import unit_of
from dasktune.space.domain import Domain
from dasktune.space.search_space import SearchSpace
from dasktune.space.tree import Suggest
from dasktune.units import Step

_N_DRAWS = 64
"""Configurations looked at: enough to meet each of a handful of options."""
_MOST_CHANGES = 8
"""A schedule that changes more often has no steps that stand out: a cosine, a decay by step."""
_MOST_STEPS = 8
"""Steps returned, the commonest: each costs a commit on the way of every trial."""


def milestones(space: SearchSpace, stop: Step) -> tuple[Step, ...]:
    """Return the steps in (0, stop), rising, at which schedules of a space change rarely but do.

    Example:
        >>> from dasktune.space import choice, piecewise
        >>> milestones(SearchSpace({"lr": choice([0.1, piecewise({0: 0.1, 6: 0.01})])}), 18)
        (6,)
    """
    found: Counter[Step] = Counter()
    for number in range(_N_DRAWS):
        _, configuration = space.draw(_suggest(number))
        for _, schedule in configuration.schedules:
            steps = []
            for step, _ in schedule.changes(1, stop):
                steps.append(step)
                if len(steps) > _MOST_CHANGES:
                    break
            else:
                found.update(steps)
    commonest = sorted(found, key=lambda step: (-found[step], step))[:_MOST_STEPS]
    return tuple(sorted(commonest))


def _suggest(number: int) -> Suggest:
    def suggest(path: str, domain: Domain) -> int | float:
        return domain.from_unit(unit_of(f"milestones:{number}:{path}".encode()))

    return suggest
