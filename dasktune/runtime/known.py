"""What the store knows of a stage before anybody trains it: states on its way, and metrics.

A report needs no state of its own: the record of any later state of the same history keeps those
that were passed on the way (`Record.passed`). An earlier run may have cut the history elsewhere, so
the states inside a stage are looked at as well, from its end towards its start, until nothing more
could be learned. What is left to do follows: the steps at which something is missing, and for each
the latest stored state to begin with.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import nan

from dasktune.plan.history import changes
from dasktune.plan.keys import extended, state_key
from dasktune.plan.stage import Stage
from dasktune.store.record import Record
from dasktune.store.store import Store
from dasktune.units import Digest, Step


@dataclass(slots=True)
class Known:
    """What is known of one stage; grows while the stage runs."""

    stage: Stage
    states: dict[Step, Digest] = field(default_factory=dict)
    """Stored states after the start, those that were looked for, by step."""
    metrics: dict[Step, dict[str, float]] = field(default_factory=dict)
    """Metrics of report steps and of the end, those that are known, by step."""

    @property
    def of_end(self) -> Mapping[str, float] | None:
        """Metrics of the state at the end, if they are wanted and known."""
        return self.metrics.get(self.stage.stop) if self.stage.evaluates else None

    @property
    def is_through(self) -> bool:
        """Whether the state at the end is stored, with metrics if they are wanted."""
        stop = self.stage.stop
        return stop in self.states and (stop in self.metrics or not self.stage.evaluates)

    def targets(self) -> list[Step]:
        """Return the steps, ascending, at which a state or metrics are missing."""
        missing = [step for step in self.stage.report_steps if step not in self.metrics]
        return missing if self.is_through else [*missing, self.stage.stop]

    def latest(self, step: Step) -> Step:
        """Return the step of the last stored state up to a step; the start if there is none."""
        return max((at for at in self.states if at <= step), default=self.stage.start)

    def usable(self) -> Step:
        """Return the step of the last stored state on the way to which no report is missing."""
        missing = self.targets()
        return self.latest(missing[0] if missing else self.stage.stop)

    def key(self, step: Step) -> Digest | None:
        """Name a state of the stage; None for a fresh one."""
        if step == self.stage.start:
            return self.stage.start_key
        if step == self.stage.stop:
            return self.stage.key
        return self.states.get(step) or self.stage.key_at(step)

    def before(self, step: Step) -> dict[Step, dict[str, float]]:
        """Return what is known of the report steps before a step."""
        steps, metrics = self.stage.report_steps, self.metrics
        return {at: metrics[at] for at in steps if at < step and at in metrics}

    def take_in(self, record: Record) -> None:
        """Learn from the record of a state of the stage."""
        self.states[record.step] = record.key
        for step in (*self.stage.report_steps, self.stage.stop):
            metrics = record.metrics if step == record.step else record.passed.get(step)
            if metrics is not None:
                self.metrics.setdefault(step, floats(metrics))


def known_of(stage: Stage, store: Store, *, looks_inside: bool) -> Known:
    """Return what the store knows of a stage.

    Args:
        stage: Its end is looked up in any case.
        store: At most one record is read for each step.
        looks_inside: Whether somebody else may have stored states inside the stage; who has stored
            the end may have stored others.
    """
    known = Known(stage)
    end = store.record(stage.key)
    if end is not None:
        known.take_in(end)
    elif not looks_inside:
        return known
    if _has_more(known, stage.stop):
        for step, key in reversed(list(_inside(stage))):
            record = store.record(key)
            if record is not None:
                known.take_in(record)
            if not _has_more(known, step):
                break
    return known


def _has_more(known: Known, step: Step) -> bool:
    """Say whether states before one that was just looked up could be of use."""
    if step not in known.states:
        return True
    return any(at < step and at not in known.metrics for at in known.stage.report_steps)


def _inside(stage: Stage) -> Iterator[tuple[Step, Digest]]:
    """Yield the states between start and stop with their keys, at one link for each change."""
    link, first = stage.start_link, max(stage.start, 1)
    changed = dict(changes(stage.configuration, first, max(stage.stop - 1, first)))
    for step in range(stage.start + 1, stage.stop):
        if step - 1 in changed:
            link = extended(link, [(step - 1, changed[step - 1])])
        yield step, state_key(link, step)


def floats(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return stored metrics as they were given: what was no number is one again."""
    return {name: nan if value is None else value for name, value in metrics.items()}
