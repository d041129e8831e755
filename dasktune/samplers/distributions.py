"""Say our domains in Optuna's words: one distribution for each place of a space.

Called by whatever hands draws to Optuna or takes them from it. A choice becomes a categorical
distribution of the texts of its options, so that people can read Optuna's plots; ranges stay
ranges, with their step and scale. Numbers of our points go there and come back unchanged.
"""

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from dasktune.errors import InvalidStudyError
from dasktune.space.choice import Branch, Choice
from dasktune.space.domain import Domain, Drawn, Float, Int
from dasktune.space.schedule import Constant, Schedule
from dasktune.space.search_space import SearchSpace
from dasktune.space.value import shown


def distributions_of(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution for each place that can exist, by path."""
    return {path: distribution_of(domain) for path, domain in space.parameters()}


def distribution_of(domain: Domain) -> BaseDistribution:
    """Return Optuna's distribution with the same values, equally spaced or by their logarithm.

    Raises:
        InvalidStudyError: It is a kind of domain that Optuna has no word for.
    """
    match domain:
        case Choice():
            return CategoricalDistribution(categories_of(domain))
        case Float():
            return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
        case Int():
            return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
        case _:
            raise InvalidStudyError(
                f"{domain.text} has no counterpart in Optuna, which knows choices, floats and "
                "integers"
            )


def categories_of(choice: Choice) -> tuple[str, ...]:
    """Return a text for each option: a string as it is, the rest as written.

    All are different: where two options read alike, every text begins with its index.
    """
    texts = [_label(option) for option in choice.options]
    if len(set(texts)) == len(texts):
        return tuple(texts)
    return tuple([f"{i}: {text}" for i, text in enumerate(texts)])


def suggested(number: float, distribution: BaseDistribution) -> int | float | str:
    """Return what Optuna calls a number of a point: for a choice the text of the option."""
    if isinstance(distribution, CategoricalDistribution):
        return str(distribution.choices[int(number)])
    return number


def drawn(value: object, distribution: BaseDistribution) -> int | float:
    """Return the number of a point that Optuna means: for a choice the index of the option.

    The domain has to admit it still: Optuna's floats have more digits than ours.

    Raises:
        InvalidStudyError: It is not among the options, or no number.
    """
    if isinstance(distribution, CategoricalDistribution):
        if value in distribution.choices:
            return distribution.choices.index(value)
    elif isinstance(value, int | float):
        return value
    raise InvalidStudyError(f"Optuna suggests {shown(value)}, which is not in {distribution}")


def _label(option: Schedule | Drawn | Branch) -> str:
    schedule = option.schedule if isinstance(option, Branch) else option
    if isinstance(schedule, Constant) and isinstance(schedule.v, str):
        return schedule.v
    return schedule.text
