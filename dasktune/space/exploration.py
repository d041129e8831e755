"""Find a point near another one, for a trial that goes on from where a better one stands.

Called by the study when a tuner of populations lets one trial take over another's state. What can't
change in mid-training stays: which hyper-parameters there are, and what the user wants fixed. All
chance is hashed from the salt and the place, so that a replay finds the same point.

References:
    Jaderberg et al., "Population Based Training of Neural Networks", arXiv:1711.09846, 2017,
    section 3 on `explore`, and section 4.1 on its two forms, of which either is taken here for each
    number by chance: perturb by a factor of 0.8 or 1.2, or resample from the prior.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import final

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import number, positive
from dasktune.space.chance import unit_of
from dasktune.space.choice import Branch, Choice
from dasktune.space.domain import Domain, Float, Int
from dasktune.space.search_space import Point, SearchSpace
from dasktune.space.tree import Suggest
from dasktune.space.value import rounded, shown

_MOST_TRIES = 64
"""Varied points that a template may refuse before the point is left as it is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """How a point is varied: each number perturbed, or drawn anew."""

    factors: tuple[float, ...] = (0.8, 1.2)
    """A number is multiplied by one of these, each as likely; all above 0."""
    resample_probability: float = 0.25
    """Probability, from 0 to 1, that a number is drawn anew from its domain instead."""
    fixed: tuple[str, ...] = ()
    """Names of hyper-parameters that are never changed."""

    def __post_init__(self) -> None:
        factors: object = self.factors
        if not isinstance(factors, list | tuple) or not factors:
            raise InvalidStudyError(
                f"factors must be numbers such as (0.8, 1.2), got {shown(factors)}"
            )
        floats = tuple([float(positive(each, f"factors[{i}]")) for i, each in enumerate(factors)])
        probability = number(self.resample_probability, "resample_probability")
        if not 0 <= probability <= 1:
            raise InvalidStudyError(
                f"resample_probability must be from 0 to 1, got {shown(self.resample_probability)}"
            )
        fixed: object = self.fixed
        if not isinstance(fixed, list | tuple) or not all(isinstance(name, str) for name in fixed):
            raise InvalidStudyError(
                f"fixed must be names of hyper-parameters such as ('batch_size',), "
                f"got {shown(fixed)}"
            )
        object.__setattr__(self, "factors", floats)
        object.__setattr__(self, "resample_probability", float(probability))
        object.__setattr__(self, "fixed", tuple(fixed))

    def check(self, space: SearchSpace) -> None:
        """Refuse names to be fixed that a space doesn't have.

        Raises:
            InvalidStudyError: Naming them, and those there are.
        """
        unknown = sorted(set(self.fixed) - set(space.names))
        if unknown:
            raise InvalidStudyError(
                f"fixed has {', '.join(unknown)}, which is no hyper-parameter of the space: "
                f"there are {', '.join(space.names)}"
            )

    def explore(self, space: SearchSpace, point: Point, salt: str) -> Point:
        """Give a point near another one, with the same hyper-parameters.

        A number is multiplied by a factor and clipped into its domain; where values have distances
        it moves by at least one of them; zero, which no factor moves, is drawn anew. A choice moves
        to the option before or after. Options with sub-spaces are kept. Numbers that exist only
        with a newly chosen option are drawn.

        Args:
            space: Where the point was drawn.
            point: Not changed.
            salt: Points with other salts vary independently.

        Raises:
            InvalidStudyError: If the point is not of the space, or `fixed` has an unknown name.
        """
        self.check(space)
        space.configuration(point)
        for attempt in range(_MOST_TRIES):
            try:
                return space.draw(self._variation(space, point, f"{salt}:{attempt}"))[0]
            except InvalidStudyError:  # numbers that a template refuses together
                continue
        return point

    def _variation(self, space: SearchSpace, point: Point, salt: str) -> Suggest:
        numbers = dict(point)
        owners = space.owners()

        def suggest(path: str, domain: Domain) -> int | float:
            known = numbers.get(path)
            if known is None:
                return domain.from_unit(_unit(salt, path, "new"))
            if owners[path] in self.fixed or _has_sub_spaces(domain):
                return known
            return self._varied(known, path, domain, salt)

        return suggest

    def _varied(self, known: int | float, path: str, domain: Domain, salt: str) -> int | float:
        is_stuck = known == 0 and not isinstance(domain, Choice)
        if is_stuck or _unit(salt, path, "resample") < self.resample_probability:
            return domain.from_unit(_unit(salt, path, "new"))
        u = _unit(salt, path, "move")
        if isinstance(domain, Choice):
            return _neighbour(int(known), len(domain.options), u)
        factor = self.factors[int(u * len(self.factors))]
        return _multiplied(known, factor, domain)


def _unit(salt: str, path: str, purpose: str) -> float:
    # The length keeps a salt that looks like a path from standing for another pair of both.
    return unit_of(f"explore:{len(salt)}:{salt}:{purpose}:{path}".encode())


def _has_sub_spaces(domain: object) -> bool:
    """Tell whether hyper-parameters come and go with the options of a choice."""
    return isinstance(domain, Branch) or (
        isinstance(domain, Choice) and any(map(_has_sub_spaces, domain.options))
    )


def _neighbour(index: int, n: int, u: float) -> int:
    """Give the index before or after, each as likely; the only one of them at an end."""
    moved = [each for each in (index - 1, index + 1) if 0 <= each < n]
    return moved[int(u * len(moved))] if moved else index


def _multiplied(known: int | float, factor: float, domain: Domain) -> int | float:
    product = known * factor
    match domain:
        case Float(step=None, low=low, high=high):
            return min(max(rounded(product), low), high)
        case Float() | Int():
            return _on_grid(known, product, domain)
    raise AssertionError(f"{domain!r} is no domain of numbers")


def _on_grid(known: int | float, product: float, domain: Float | Int) -> int | float:
    """Give the value next to a product; another one than before if the bounds allow."""
    before = _index(known, domain)
    after = _index(min(max(product, domain.low), domain.high), domain)
    if after == before:
        after += (product > known) - (product < known)
    last = _index(domain.high, domain)
    return domain.grid()[min(max(after, 0), last)]


def _index(value: int | float, domain: Float | Int) -> int:
    # Fractions, because integers of a domain may be longer than a float's digits.
    return round((Fraction(value) - Fraction(domain.low)) / Fraction(domain.step or 1))
