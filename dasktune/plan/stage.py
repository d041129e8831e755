"""The unit of execution as a value: which steps, from which state to which, and what is wanted.

Made by the search plan, carried by commands to a backend, read by `explain`.
"""

from dataclasses import dataclass

from dasktune.plan.history import changes
from dasktune.plan.keys import Family, Link, extended, state_key
from dasktune.space.configuration import Configuration
from dasktune.units import Digest, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Train from one state to a later one on the same history; zero steps only evaluate."""

    key: Digest
    """Names the state at `stop`; the state is committed under it."""
    start_key: Digest | None
    """Names the state at `start`, which is stored; None for a fresh one, where `start` is 0."""
    start_link: Link
    """Ends the chain of the history up to `start`; with the values after, it names later states."""
    start: Step
    """Steps done before."""
    stop: Step
    """Steps done after; at least `start`."""
    family: Family
    """The user's code and the training seed."""
    configuration: Configuration
    """Gives the values of the steps; speaks for every trial that shares the stage."""
    report_steps: tuple[Step, ...]
    """Steps inside (start, stop), ascending, whose metrics are reported in passing."""
    evaluates: bool
    """Whether the metrics of the state at `stop` are wanted."""

    @property
    def n_steps(self) -> int:
        """Steps of training."""
        return self.stop - self.start

    def key_at(self, step: Step) -> Digest:
        """Name the state at a step of the stage."""
        link = extended(self.start_link, changes(self.configuration, max(self.start, 1), step))
        return state_key(link, step)
