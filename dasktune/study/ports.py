"""What the world must supply: the user's training code, and something that performs commands.

Protocols only. Implementations live above this layer; one contract tests all of them.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from dasktune.space.value import Value
from dasktune.study.commands import Command
from dasktune.study.events import Event
from dasktune.units import Digest, Seconds, Step


@runtime_checkable
class Trainable(Protocol):
    """The user's training code. The engine owns the loop over steps."""

    def setup(self, hp: Mapping[str, Value], seed: int) -> None:
        """Build everything from the values of step 0 and the training seed."""

    def step(self, hp: Mapping[str, Value], t: Step) -> None:
        """Train one step with the values of step `t`."""

    def evaluate(self) -> Mapping[str, float]:
        """Return metrics by name; leave the state as it is."""

    def state_dict(self) -> object:
        """Return all that the steps to come depend on."""

    def load_state_dict(self, state: object) -> None:
        """Take back what `state_dict` returned."""


class States(Protocol):
    """Gives back what was committed."""

    def load(self, key: Digest) -> object | None:
        """Return a state; None if it is not stored, or cannot be read any more."""


class Backend(Protocol):
    """Performs commands, and tells what came of them."""

    def perform(self, command: Command) -> None:
        """Begin what a command wishes; do not wait for it. Decisions need nothing done."""

    def next_event(self) -> tuple[Event, Seconds]:
        """Wait for the next event; return it with the time at which it happened."""
