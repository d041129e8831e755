"""One configuration: a schedule for each hyper-parameter.

Called by samplers that propose it, trials that train it, and the makers of keys. Equal
configurations have equal schedules under equal names; different ones may still have the same
values for some steps, which is what `schedule.same_until` finds out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import whole
from dasktune.space.choice import define
from dasktune.space.schedule import Schedule
from dasktune.space.spliced import Splice
from dasktune.space.value import Value, shown
from dasktune.units import Step


@final
@dataclass(frozen=True, slots=True)
class Configuration:
    """Names of hyper-parameters with their schedules."""

    schedules: tuple[tuple[str, Schedule], ...]
    """Sorted by name, each name once; fixed values are constants."""

    def __post_init__(self) -> None:
        """Refuse what holds no schedules, such as the mapping that `of` takes."""
        given: object = self.schedules
        if not isinstance(given, tuple) or not all(map(_is_named, given)):
            raise InvalidStudyError(
                f"schedules is {shown(given)}; it must be a tuple of names with schedules, as "
                "Configuration.of({'lr': 0.1}) makes it"
            )

    @classmethod
    def of(cls, mapping: Mapping[str, object]) -> "Configuration":
        """Make a configuration of plain values, schedules and functions of the step.

        Example:
            >>> Configuration.of({"lr": 0.1, "batch_size": 64}).at(0)
            {'batch_size': 64, 'lr': 0.1}

        Raises:
            InvalidStudyError: Something is still to be drawn, or is no value.
        """
        given: object = mapping
        if not isinstance(given, Mapping):
            raise InvalidStudyError(
                f"a configuration is a mapping such as {{'lr': 0.1}}, got {shown(given)}"
            )
        schedules = []
        for name, value in mapping.items():
            definition = define(name, value)
            if not isinstance(definition, Schedule):
                raise InvalidStudyError(
                    f"{name} is {definition.text}, which is still to be drawn: a configuration "
                    "takes definite values and schedules; SearchSpace draws"
                )
            schedules.append((name, definition))
        return cls(tuple(sorted(schedules, key=lambda pair: pair[0])))

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple([name for name, _ in self.schedules])

    @property
    def text(self) -> dict[str, str]:
        """The call that makes each schedule; for a constant the `repr` of its value."""
        return {name: schedule.text for name, schedule in self.schedules}

    def spliced(self, at: Step, after: "Configuration") -> "Configuration":
        """Follow this configuration before a step, and another one from there on.

        Args:
            at: First step with the values of `after`, which are taken at the steps of training.
            after: A configuration of the same hyper-parameters.

        Raises:
            InvalidStudyError: If the two have different names.

        Example:
            >>> Configuration.of({"lr": 0.1}).spliced(5, Configuration.of({"lr": 0.2})).text
            {'lr': 'piecewise({0: 0.1, 5: 0.2})'}
        """
        if self.names != after.names:
            odd = sorted(set(self.names) ^ set(after.names))
            raise InvalidStudyError(
                f"splicing at step {at}: only one of the two configurations has {', '.join(odd)}: "
                "a hyper-parameter can't come or go in mid-training"
            )
        if whole(at, "spliced: at", least=0) == 0:
            return after
        pairs = zip(self.schedules, after.schedules, strict=True)
        return Configuration(
            tuple([(name, Splice.of((mine, other), (at,))) for (name, mine), (_, other) in pairs])
        )

    def at(self, step: int) -> dict[str, Value]:
        """Give the values during a step, by name."""
        return {name: schedule.at(step) for name, schedule in self.schedules}


def _is_named(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Schedule)  # noqa: PLR2004
