"""Run one stage where it was sent: look up, restore, train, report, commit.

The same body for the serial backend and for a Dask task; imports nothing heavy. A `Workplace` is
what a process keeps between stages: the store, and the trainable that still holds the last state.

Exactness: a stage that is not warm gets a fresh instance, `setup` with the values of step 0, and
the stored state; before each step the global generators are seeded from (training seed, step).
So where a history is cut, and who trains which part, leaves no trace in the states.
"""

import time
import traceback
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from math import nan

from dasktune.errors import StageError
from dasktune.plan.stage import Stage
from dasktune.runtime.generators import SETUP, seed_generators, shielded_generators
from dasktune.runtime.payload import Payload, unpack
from dasktune.store.medium import StoreFullError
from dasktune.store.record import Record
from dasktune.store.store import Store
from dasktune.study.ports import Trainable
from dasktune.units import Digest, Seconds, Step

_KNOBS = {"threads": 1}
"""System parameters that could change a result, the same everywhere: how sums are rounded depends
on the number of threads, which a process may have by chance of how it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A stage as plain data: what a worker needs to know, and nothing of the user's but values."""

    stage: Stage
    payload: Payload
    """The training code."""
    looks_inside: bool = False
    """Whether states inside the stage may have been stored by somebody else: an earlier driver, or
    another one now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a stage asks and tells while it runs."""

    report: Callable[[Step, Mapping[str, float]], None]
    """Told the metrics of report steps."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked before each step; True ends the stage there, with a commit."""
    wanted: Set[Digest] = frozenset()
    """States that somebody else wants, should the stage pass them: they are committed, with their
    metrics. Looked at after each step; it may grow meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a stage."""

    key: Digest
    """Key of the stage."""
    reached: Step
    """Step of the committed state."""
    metrics: Mapping[str, float] | None = None
    """Metrics of the committed state, if they were taken."""
    executed_steps: int = 0
    """Steps trained here."""
    seconds: Seconds = 0.0
    """From taking the order to the commit."""
    error: str | None = None
    """The exception in one line, if there was one: then nothing was committed."""
    traceback: str = ""
    """Where it came from."""
    is_full: bool = False
    """Whether the error is that the store has no room: nothing is wrong with the stage."""
    lost: Digest | None = None
    """Key of the state that the stage should have begun with and that cannot be read."""


@dataclass(slots=True)
class Workplace:
    """What a process keeps between stages."""

    store: Store
    facts: Mapping[str, object] = field(default_factory=dict)
    """Recorded beside each state: knobs, versions, where it was made."""
    trainable: Trainable | None = None
    """Holds the state `warm`."""
    warm: tuple[Digest, Digest | None, int] | None = None
    """Payload, key of the state (None: fresh) and training seed of what `trainable` holds."""

    def drop(self) -> None:
        """Forget the trainable: what it holds is not known any more."""
        close = getattr(self.trainable, "close", None)
        self.trainable = self.warm = None
        if callable(close):
            close()


def run_stage(order: Order, workplace: Workplace, hooks: Hooks) -> Outcome:
    """Run a stage; say what came of it, also when the user's code raises."""
    began_s = time.perf_counter()
    stage = order.stage
    found = _found(stage, workplace.store)
    if found is not None:
        return found
    try:
        outcome = _train(order, workplace, hooks)
    except Exception as error:  # the user's code may raise anything; the others go on
        workplace.drop()
        return Outcome(
            key=stage.key,
            reached=stage.start,
            error=f"{type(error).__name__}: {error}",
            is_full=isinstance(error, StoreFullError),
            traceback=traceback.format_exc(),
            seconds=time.perf_counter() - began_s,
        )
    return _timed(outcome, time.perf_counter() - began_s)


def _found(stage: Stage, store: Store) -> Outcome | None:
    """Answer from the store, if somebody has been here before."""
    record = store.record(stage.key)
    if record is None or (stage.evaluates and record.metrics is None) or stage.report_steps:
        return None
    metrics = floats(record.metrics) if stage.evaluates else None
    return Outcome(key=stage.key, reached=stage.stop, metrics=metrics)


def _train(order: Order, workplace: Workplace, hooks: Hooks) -> Outcome:
    stage = order.stage
    if stage.key_at(stage.stop) != stage.key:
        raise StageError(
            f"the schedules up to step {stage.stop} do not give the values here that they gave "
            "where the study was described; a schedule must depend on the step alone"
        )
    start, start_key = _nearest(order, workplace.store)
    trainable = _holding(order, workplace, start_key)
    if trainable is None:
        return Outcome(key=stage.key, reached=stage.start, lost=start_key)
    began_s = time.perf_counter()
    reached = _run_steps(order, workplace, trainable, start, hooks)
    metrics = None
    if reached == stage.stop and stage.evaluates:
        metrics = evaluated(trainable)
    key = stage.key if reached == stage.stop else stage.key_at(reached)
    if reached > start:
        facts = {**workplace.facts, "seconds": time.perf_counter() - began_s}
        state = trainable.state_dict()
        record = workplace.store.commit(key, reached, state, metrics=metrics, facts=facts)
        if metrics is not None and record.metrics is not None:
            metrics = floats(record.metrics)  # of the attempt that stands, if there was another
    elif metrics is not None and start_key is not None:
        workplace.store.add_metrics(key, metrics)
    return Outcome(key=stage.key, reached=reached, metrics=metrics, executed_steps=reached - start)


def _nearest(order: Order, store: Store) -> tuple[Step, Digest | None]:
    """Return the last stored state of the stage, its own start if there is no later one."""
    stage = order.stage
    if order.looks_inside and not stage.report_steps:
        record = latest_stored(stage, store)
        if record is not None:
            return record.step, record.key
    return stage.start, stage.start_key


def latest_stored(stage: Stage, store: Store) -> Record | None:
    """Return the record of the last state after the stage's start that is stored, if any."""
    for step in range(stage.stop, stage.start, -1):
        record = store.record(stage.key_at(step))
        if record is not None:
            return record
    return None


def _holding(order: Order, workplace: Workplace, key: Digest | None) -> Trainable | None:
    """Return a trainable that holds a state, a fresh one for None; None if it cannot be read."""
    stage, payload = order.stage, order.payload
    seed = stage.family.training_seed
    wanted = (payload.digest, key, seed)
    if workplace.trainable is not None and workplace.warm == wanted:
        return workplace.trainable
    workplace.drop()
    state = None
    if key is not None:
        state = workplace.store.load(key)
        if state is None:
            return None
    trainable = unpack(payload)
    apply_system = getattr(trainable, "apply_system", None)
    if callable(apply_system):
        apply_system(_KNOBS)
    seed_generators(seed, SETUP)
    trainable.setup(stage.configuration.at(0), seed)
    if key is not None:
        trainable.load_state_dict(state)
    workplace.trainable, workplace.warm = trainable, wanted
    return trainable


def _run_steps(
    order: Order, workplace: Workplace, trainable: Trainable, start: Step, hooks: Hooks
) -> Step:
    """Train to the end of the stage, or to the step before which it must stop."""
    stage = order.stage
    seed = stage.family.training_seed
    reports = set(stage.report_steps)
    warm, workplace.warm = workplace.warm, None  # in between it holds no state that has a name
    reached = start
    while reached < stage.stop and not hooks.should_stop():
        seed_generators(seed, reached)
        trainable.step(stage.configuration.at(reached), reached)
        reached += 1
        if reached in reports:
            hooks.report(reached, evaluated(trainable))
        if hooks.wanted and reached < stage.stop and stage.key_at(reached) in hooks.wanted:
            _commit_in_passing(stage, workplace, trainable, reached)
    if warm is not None:
        key = warm[1] if reached == start else stage.key_at(reached)
        workplace.warm = (warm[0], key, seed)
    return reached


def _commit_in_passing(
    stage: Stage, workplace: Workplace, trainable: Trainable, reached: Step
) -> None:
    metrics = evaluated(trainable)
    workplace.store.commit(
        stage.key_at(reached),
        reached,
        trainable.state_dict(),
        metrics=metrics,
        facts=workplace.facts,
    )


def floats(metrics: Mapping[str, float | None] | None) -> dict[str, float] | None:
    """Return stored metrics as they were given: what was no number is one again."""
    if metrics is None:
        return None
    return {name: nan if value is None else value for name, value in metrics.items()}


def evaluated(trainable: Trainable) -> dict[str, float]:
    """Take the metrics of what a trainable holds; the global generators do not move.

    Raises:
        StageError: `evaluate()` did not return a mapping of names to numbers.
    """
    with shielded_generators():
        answer = trainable.evaluate()
    if not isinstance(answer, Mapping):
        raise StageError(
            f"evaluate() returned {answer!r}; it must return a mapping of names to numbers, "
            "such as {'accuracy': 0.9}"
        )
    return {str(name): _number(name, value) for name, value in answer.items()}


def _number(name: object, value: object) -> float:
    if value is None:
        return float("nan")  # no figure: the trial counts as diverged
    item = getattr(value, "item", None)
    plain = item() if callable(item) else value
    if not isinstance(plain, int | float):
        raise StageError(f"evaluate() gave {name}: {value!r}; a metric must be a number")
    return float(plain)


def _timed(outcome: Outcome, seconds: Seconds) -> Outcome:
    return Outcome(
        key=outcome.key,
        reached=outcome.reached,
        metrics=outcome.metrics,
        executed_steps=outcome.executed_steps,
        seconds=seconds,
        lost=outcome.lost,
    )
