"""Run one stage where it was sent: look up, restore, train, report, commit.

The same body for the serial backend and for a Dask task; imports nothing heavy. A `Workplace` is
what a process keeps between stages: the store, and the trainable that still holds the last state.

Exactness: a stage that is not warm gets a fresh instance, `setup` with the values of step 0, and
the stored state; before each step the global generators are seeded from (training seed, step).
So where a history is cut, and who trains which part, leaves no trace in the states.

Only what the store does not know is trained (`runtime.known`). Metrics of report steps that were
passed are kept in the record of the state that the stage commits, so that a later stage, also of
another study, tells them without training: they are told in order in any case, each with the
metrics of the first time. Where some are missing, their steps are trained again from the latest
stored state before each of them, and what follows goes on from the next stored one.
"""

import time
import traceback
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dasktune.errors import StageError
from dasktune.plan.stage import Stage
from dasktune.runtime.broken import breaks_process
from dasktune.runtime.generators import SETUP, seed_generators, shielded_generators
from dasktune.runtime.known import Known, floats, known_of
from dasktune.runtime.payload import Payload, unpack
from dasktune.runtime.pulse import Pulse
from dasktune.store.medium import StoreFullError
from dasktune.store.store import Store
from dasktune.study.ports import Trainable
from dasktune.study.training_code import training_code
from dasktune.units import Digest, Seconds, Step

KNOBS = {"threads": 1}
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
    another one now. Where its end is stored, they are looked for in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a stage asks and tells while it runs."""

    report: Callable[[Step, Mapping[str, float]], None]
    """Told the metrics of report steps in order, whether they are taken now or were before."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked before each step; True ends the stage there, with a commit."""
    wanted: Set[Digest] = frozenset()
    """States that somebody else wants, should the stage pass them: they are committed, with their
    metrics. Looked at after each step; it may grow meanwhile."""
    pulse: Pulse = field(default_factory=Pulse)
    """Told when a step begins and ends, so that others can tell that the stage gets on."""


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
    """Steps trained here, also if nothing came of them."""
    seconds: Seconds = 0.0
    """From taking the order to the commit."""
    error: str | None = None
    """The exception in one line, if there was one: then nothing was committed."""
    traceback: str = ""
    """Where it came from."""
    is_broken: bool = False
    """Whether the error leaves the process unable to train: its GPU is lost to it."""
    is_full: bool = False
    """Whether the error is that the store has no room: nothing is wrong with the stage."""
    lost: Digest | None = None
    """Key of a stored state that the stage needed, and that is gone or cannot be read."""


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
    known = known_of(stage, workplace.store, looks_inside=order.looks_inside)
    passage = _Passage(order, workplace, hooks, known)
    if not known.targets():
        passage.tell(stage.stop)
        return Outcome(key=stage.key, reached=stage.stop, metrics=known.of_end)
    try:
        outcome = passage.run()
    except Exception as error:  # the user's code may raise anything; the others go on
        failed = Outcome(
            key=stage.key,
            reached=stage.start,
            executed_steps=passage.n_executed,
            error=f"{type(error).__name__}: {error}",
            is_broken=breaks_process(error),
            is_full=isinstance(error, StoreFullError),
            traceback=traceback.format_exc(),
            seconds=time.perf_counter() - began_s,
        )
        with suppress(Exception):  # what comes of closing it then would hide the first error
            workplace.drop()
        return failed
    return replace(outcome, seconds=time.perf_counter() - began_s)


class _Passage:
    """A stage on its way from one step at which something is missing to the next."""

    def __init__(self, order: Order, workplace: Workplace, hooks: Hooks, known: Known) -> None:
        self._order = order
        self._stage = order.stage
        self._workplace = workplace
        self._hooks = hooks
        self._known = known
        self._at = order.stage.start  # step of the state that is held
        self._trainable: Trainable | None = None
        self._lost: Digest | None = None
        self._n_told = 0
        self.n_executed = 0
        """Steps trained, those of no use included."""
        self._has_taken = False  # metrics that no record has
        self._since_s = 0.0  # when the training of what is held began

    def run(self) -> Outcome:
        """Make what is missing, as far as it gets; commit it."""
        stage = self._stage
        if stage.key_at(stage.stop) != stage.key:
            raise StageError(
                f"the schedules up to step {stage.stop} do not give the values here that they "
                "gave where the study was described; a schedule must depend on the step alone"
            )
        is_through = all(map(self._reach, self._known.targets()))
        reached = stage.stop if is_through else self._at
        if self._lost is None:
            if is_through:
                self.tell(stage.stop)
            self._keep(reached)
        if self._lost is not None:
            return Outcome(
                key=stage.key,
                reached=stage.start,
                executed_steps=self.n_executed,
                lost=self._lost,
            )
        return Outcome(
            key=stage.key,
            reached=reached,
            metrics=self._known.of_end if is_through else None,
            executed_steps=self.n_executed,
        )

    def tell(self, step: Step) -> None:
        """Tell the metrics of all report steps up to a step that were not told yet."""
        due = self._stage.report_steps
        while self._n_told < len(due) and due[self._n_told] <= step:
            at = due[self._n_told]
            self._hooks.report(at, self._known.metrics[at])
            self._n_told += 1

    def _reach(self, target: Step) -> bool:
        """Come to a step where something is missing, and take its metrics; False if stopped."""
        begin = self._known.latest(target)
        if self._trainable is None or begin > self._at:
            self.tell(min(begin, target - 1))
            key = self._known.key(begin)
            self._trainable = None  # one lives at a time
            self._trainable = _holding(self._order, self._workplace, key)
            if self._trainable is None:
                self._lost = key
                return False
            self._at, self._since_s = begin, time.perf_counter()
        if not self._train(self._trainable, target):
            return False
        if target < self._stage.stop:
            metrics = self._take(self._trainable)
            if target == begin and not self._add(self._known.states[begin], metrics):
                return False
            self.tell(target)
        elif self._stage.evaluates:
            self._take(self._trainable)
        return True

    def _take(self, trainable: Trainable) -> Mapping[str, float]:
        """Return the metrics of what is held."""
        known = self._known.metrics.get(self._at)
        if known is None:
            known = self._known.metrics[self._at] = evaluated(trainable)
            self._has_taken = True
        return known

    def _train(self, trainable: Trainable, target: Step) -> bool:
        """Train to a step; False if it had to stop at a step boundary before."""
        stage, hooks, workplace = self._stage, self._hooks, self._workplace
        seed = stage.family.training_seed
        start, at = self._at, self._at
        warm, workplace.warm = workplace.warm, None  # in between it holds no state that has a name
        while at < target and not hooks.should_stop():
            seed_generators(seed, at)
            hooks.pulse.begin()
            trainable.step(stage.configuration.at(at), at)
            hooks.pulse.end()
            at += 1
            self._at = at
            self.n_executed += 1
            if at < target:
                self.tell(at)
            if hooks.wanted and at < stage.stop and stage.key_at(at) in hooks.wanted:
                self._commit_in_passing(trainable)
        if warm is not None:
            workplace.warm = (warm[0], warm[1] if at == start else stage.key_at(at), seed)
        return at == target

    def _commit_in_passing(self, trainable: Trainable) -> None:
        metrics = self._take(trainable)
        self._workplace.store.commit(
            self._stage.key_at(self._at),
            self._at,
            trainable.state_dict(),
            metrics=metrics,
            facts=self._workplace.facts,
            passed=self._known.before(self._at),
        )

    def _keep(self, reached: Step) -> None:
        """Commit the state that was reached, or add to its record what is new."""
        stage, known, store = self._stage, self._known, self._workplace.store
        key, metrics = known.key(reached), known.metrics.get(reached)
        if reached > stage.start and reached not in known.states:
            assert key is not None
            assert self._trainable is not None
            seconds = time.perf_counter() - self._since_s
            record = store.commit(
                key,
                reached,
                self._trainable.state_dict(),
                metrics=metrics,
                facts={**self._workplace.facts, "seconds": seconds},
                passed=known.before(reached),
            )
            if metrics is not None and record.metrics is not None:
                known.metrics[reached] = floats(record.metrics)  # of the attempt that stands
        elif key is not None and self._has_taken:
            self._add(key, metrics, known.before(reached))

    def _add(
        self,
        key: Digest,
        metrics: Mapping[str, float] | None,
        passed: Mapping[Step, Mapping[str, float]] | None = None,
    ) -> bool:
        """Add to the record of a stored state; False if another driver has evicted it meanwhile."""
        if self._workplace.store.add_metrics(key, metrics, passed) is None:
            self._lost = key
        return self._lost is None


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
        apply_system(KNOBS)
    seed_generators(seed, SETUP)
    with training_code(stage.family.fingerprint):
        trainable.setup(stage.configuration.at(0), seed)
    if key is not None:
        trainable.load_state_dict(state)
    workplace.trainable, workplace.warm = trainable, wanted
    return trainable


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
