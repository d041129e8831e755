"""Say which numbers a hyper-parameter, or an argument of a schedule, may take.

Called by users (`uniform`, `loguniform`, `randint`, `logint`), by search spaces that draw from
domains, and by samplers that ask a domain for its bounds, its grid, or the value that belongs to a
number of [0, 1). Both bounds are inclusive. Never draws by itself: chance is an argument.

References:
    Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012, on
    drawing scale parameters uniformly in the logarithm.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final, overload

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import number, positive, whole
from dasktune.space.value import rounded, shown, unwrapped


class Drawn(ABC):
    """Something that takes a definite value only when a configuration is drawn."""

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The call that makes it."""

    @abstractmethod
    def corners(self) -> Iterator[object]:
        """Give extreme outcomes, so that what is built from them can be checked early."""

    @final
    def __repr__(self) -> str:
        return self.text


class Domain(Drawn):
    """A set of numbers of which one is drawn; for a choice they are the indices of its options."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int | None:
        """How many values there are; None where they are continuous."""

    @abstractmethod
    def from_unit(self, u: float) -> int | float:
        """Map a number of [0, 1) to a value, so that uniform numbers give fair values."""

    @abstractmethod
    def contains(self, value: object) -> bool:
        """Tell whether this is one of the canonical values, its type included."""

    @abstractmethod
    def grid(self) -> Sequence[int | float]:
        """Give all values in rising order, made when they are asked for.

        Raises:
            InvalidStudyError: If the domain is continuous.
        """

    @abstractmethod
    def admit(self, answer: object, where: str) -> int | float:
        """Give the canonical value that an answer from outside means.

        Args:
            answer: A sampler's suggestion, or what a journal gave back.
            where: Path of the parameter, for the error message.

        Raises:
            InvalidStudyError: If the answer is not in the domain.
        """


@final
@dataclass(frozen=True, slots=True, repr=False)
class Float(Domain):
    """Floats between two bounds: continuous, or at equal distances where `step` is given."""

    low: float
    high: float
    step: float | None = None
    """Distance of neighbours; None is continuous."""
    log: bool = False
    """Uniform in the logarithm."""
    _lattice: tuple[int, int, int] = field(default=(0, 0, 1), compare=False)
    """Value k is (first + k * stride) / scale in integers: -0.3 + 3 * 0.1 would miss 0."""

    @property
    def text(self) -> str:
        """The call that makes it."""
        step = "" if self.step is None else f", step={self.step!r}"
        return f"{'log' * self.log}uniform({self.low!r}, {self.high!r}{step})"

    @property
    def size(self) -> int | None:
        """How many values there are; None where they are continuous."""
        if self.low == self.high:
            return 1
        if self.step is None:
            return None
        return self._index(self.high) + 1

    def from_unit(self, u: float) -> float:
        """Map a number of [0, 1) to a value, so that uniform numbers give fair values."""
        _check_unit(u)
        if self.step is not None:
            n = self._index(self.high) + 1
            return self._nth(min(int(u * n), n - 1))
        if self.log:
            x = math.exp(math.log(self.low) * (1 - u) + math.log(self.high) * u)
        else:
            x = self.low * (1 - u) + self.high * u
        return min(max(rounded(x), self.low), self.high)

    def contains(self, value: object) -> bool:
        """Tell whether this is one of the canonical values, its type included."""
        if type(value) is not float or not self.low <= value <= self.high:
            return False
        return value == (rounded(value) if self.step is None else self._nth(self._index(value)))

    def grid(self) -> Sequence[float]:
        """Give all values in rising order, made when they are asked for."""
        n = self.size
        if n is None:
            raise InvalidStudyError(
                f"{self.text} is continuous and has no grid: give values as choice([...])"
                + ("" if self.log else ", or a step=")
            )
        return _Grid(self, n)

    def admit(self, answer: object, where: str) -> float:
        """Give the canonical value that an answer from outside means."""
        plain = unwrapped(answer)
        if isinstance(plain, float) or type(plain) is int:
            is_finite = math.isfinite(plain)
            if self.step is None or not is_finite:
                value, is_near = rounded(plain), is_finite
            else:
                value = self._nth(self._index(plain))
                is_near = abs(value - plain) <= self.step * 1e-9
            if is_near and self.low <= value <= self.high:
                return value
        raise InvalidStudyError(f"{where} must be in {self.text}, got {shown(answer)}")

    def corners(self) -> Iterator[object]:
        """Give the two bounds."""
        yield self.low
        yield self.high

    def _nth(self, k: int) -> float:
        if self.step is None:
            return self.low
        first, stride, scale = self._lattice
        return rounded((first + k * stride) / scale)

    def _index(self, value: float) -> int:
        return round((value - self.low) / self.step) if self.step else 0


@final
@dataclass(frozen=True, slots=True, repr=False)
class Int(Domain):
    """Integers between two bounds, at equal distances, each as likely or by its logarithm."""

    low: int
    high: int
    step: int = 1
    """Distance of neighbours."""
    log: bool = False
    """Value k is drawn with weight log((k + 1/2) / (k - 1/2)), about 1/k, also at the bounds."""

    @property
    def text(self) -> str:
        """The call that makes it."""
        step = "" if self.step == 1 else f", step={self.step}"
        return f"{'logint' if self.log else 'randint'}({self.low}, {self.high}{step})"

    @property
    def size(self) -> int:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def from_unit(self, u: float) -> int:
        """Map a number of [0, 1) to a value, so that uniform numbers give fair values."""
        _check_unit(u)
        if self.log:
            a, b = math.log(self.low - 0.5), math.log(self.high + 0.5)
            k = math.floor(math.exp(a * (1 - u) + b * u) + 0.5)
            return min(max(k, self.low), self.high)
        return self.low + self.step * min(int(u * self.size), self.size - 1)

    def contains(self, value: object) -> bool:
        """Tell whether this is one of the canonical values, its type included."""
        return type(value) is int and value in self.grid()

    def grid(self) -> range:
        """Give all values in rising order, made when they are asked for."""
        return range(self.low, self.high + 1, self.step)

    def admit(self, answer: object, where: str) -> int:
        """Give the canonical value that an answer from outside means."""
        plain = unwrapped(answer)
        if type(plain) is int and plain in self.grid():
            return plain
        raise InvalidStudyError(f"{where} must be in {self.text}, got {shown(answer)}")

    def corners(self) -> Iterator[object]:
        """Give the two bounds."""
        yield self.low
        yield self.high


@final
class _Grid(Sequence[float]):
    """The values of a stepped domain, each made when it is asked for."""

    __slots__ = ("_domain", "_n")

    def __init__(self, domain: Float, n: int) -> None:
        self._domain = domain
        self._n = n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        chosen = range(self._n)[index]
        if isinstance(chosen, range):
            return [self._domain._nth(k) for k in chosen]
        return self._domain._nth(chosen)


def uniform(low: float, high: float, step: float | None = None) -> Float:
    """Take any float between two bounds, or one of those at equal distances from `low`.

    Args:
        low: Smallest value.
        high: Largest value, itself possible.
        step: Distance of neighbours, which must divide `high - low`; None is continuous.

    Example:
        >>> list(uniform(0, 0.5, step=0.25).grid())
        [0.0, 0.25, 0.5]
    """
    low, high = rounded(number(low, "uniform: low")), rounded(number(high, "uniform: high"))
    _check_order(low, high, "uniform")
    if step is None:
        return Float(low, high)
    step = rounded(positive(step, "uniform: step"))
    first, last, stride = Fraction(repr(low)), Fraction(repr(high)), Fraction(repr(step))
    if (last - first) % stride:
        nearest = rounded(float(first + stride * round((last - first) / stride)))
        raise InvalidStudyError(
            f"uniform: step {step!r} does not divide the range from {low!r} to {high!r}: "
            f"the nearest right high is {nearest!r}"
        )
    scale = math.lcm(first.denominator, stride.denominator)
    return Float(low, high, step, _lattice=(int(first * scale), int(stride * scale), scale))


def loguniform(low: float, high: float) -> Float:
    """Take any float between two positive bounds, uniform in the logarithm."""
    low = rounded(positive(low, "loguniform: low"))
    high = rounded(number(high, "loguniform: high"))
    _check_order(low, high, "loguniform")
    return Float(low, high, log=True)


def randint(low: int, high: int, step: int = 1) -> Int:
    """Take an integer between two bounds, both possible, each as likely.

    Args:
        low: Smallest value.
        high: Largest value, itself possible.
        step: Distance of neighbours, which must divide `high - low`.
    """
    low, high = whole(low, "randint: low"), whole(high, "randint: high")
    _check_order(low, high, "randint")
    step = whole(step, "randint: step", least=1)
    if (high - low) % step:
        nearest = low + step * round(Fraction(high - low, step))
        raise InvalidStudyError(
            f"randint: step {step} does not divide the range from {low} to {high}: "
            f"the nearest right high is {nearest}"
        )
    return Int(low, high, step)


def logint(low: int, high: int) -> Int:
    """Take an integer between two positive bounds, both possible, uniform in the logarithm."""
    low, high = whole(low, "logint: low", least=1), whole(high, "logint: high")
    _check_order(low, high, "logint")
    return Int(low, high, log=True)


def _check_order(low: float, high: float, call: str) -> None:
    if low > high:
        raise InvalidStudyError(f"{call}: low must not exceed high, got {low!r} and {high!r}")


def _check_unit(u: float) -> None:
    if not 0 <= u < 1:
        raise InvalidStudyError(f"from_unit takes a number of [0, 1), got {u!r}")
