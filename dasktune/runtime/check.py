"""Prove for a user's Trainable, in a few steps, what every run of dasktune rests on.

Called by the command line, and by people before a long study. Trains a few steps in this process,
again with its state kept and loaded at every step, with evaluation in between, and once in another
process: everything must come out the same, bit for bit. Each finding is a sentence with the cure.

1. *Repeatable*: two runs from fresh give the same states, in another process too.
2. *Kept*: the codec takes the state.
3. *Not forgotten*: a fresh instance that loads a state goes on as the one that gave it.
4. *Looking changes nothing*: neither `state_dict()` nor `evaluate()` changes what is trained.
5. *Metrics*: a mapping of names to numbers, the tuned one among them, that the state alone decides.
"""

import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from dasktune.errors import InvalidStudyError, StageError
from dasktune.runtime.difference import (
    Difference,
    differing_attributes,
    first_difference,
    is_generator,
)
from dasktune.runtime.generators import shielded_generators
from dasktune.runtime.payload import pack
from dasktune.runtime.refusal import refuse_what_cannot_travel
from dasktune.runtime.rehearsal import Finding, FoundError, Rehearsal, asked, elsewhere
from dasktune.runtime.stage import evaluated
from dasktune.space.arguments import whole
from dasktune.space.configuration import Configuration
from dasktune.store.codec import decode, encode
from dasktune.study.core import StudyCore
from dasktune.study.events import StudyStarted
from dasktune.study.ports import Trainable
from dasktune.study.study import Study
from dasktune.units import Step

_REPEATABLE = (
    "draw from the global generators, which are seeded before each step, or seed your own from "
    "the seed of setup(); depend neither on time, nor on id(), nor on the order of a set"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What came of a check."""

    name: str
    """The class that was checked."""
    n_steps: int
    """Steps that it was trained."""
    findings: tuple[Finding, ...]
    """In the order in which they were found; what depends on a finding was not looked at."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        head = f"{self.name}, {self.n_steps} steps"
        if not self.findings:
            return (
                f"{head}: training split at any step gives the same bits, and evaluate() "
                "leaves the state as it is"
            )
        return "\n".join([f"{head}:", *(f"  {one.about}: {one.text}" for one in self.findings)])


def check(
    trainable: object,
    given: Study | Configuration | Mapping[str, object],
    *,
    steps: int = 3,
) -> CheckReport:
    """Train a few steps in several ways, and say where they differ.

    Args:
        trainable: As a study takes it.
        given: A configuration to train with, or a study, whose first one is taken.
        steps: How many, at least 1; 2 or more find what is forgotten.

    Raises:
        InvalidStudyError: An argument does not fit.
    """
    whole(steps, "steps", 1)
    metric, seed = None, 0
    if isinstance(given, Study):
        metric, seed, configuration = given.metric, given.training_seed, _first(given)
    else:
        configuration = given if isinstance(given, Configuration) else Configuration.of(given)
    with shielded_generators(), ExitStack() as stack:
        rehearsal = Rehearsal(stack, configuration, seed, steps)
        findings = tuple(_findings(cast("Trainable", trainable), rehearsal, metric))
    return CheckReport(name=type(trainable).__qualname__, n_steps=steps, findings=findings)


def _first(study: Study) -> Configuration:
    core = StudyCore([study])
    core.handle(StudyStarted(study=0), 0.0)
    for record in core.runs[0].trials:
        return record.configuration
    raise InvalidStudyError(f"study {study.name} draws no trial: check it with a configuration")


def _findings(trainable: Trainable, rehearsal: Rehearsal, metric: str | None) -> Iterator[Finding]:
    try:
        refuse_what_cannot_travel(trainable)
        rehearsal.payload = pack(trainable)
    except InvalidStudyError as error:
        yield Finding(about="sending", text=str(error))
        return
    looks: list[Callable[[], Iterator[Finding]]] = [
        lambda: _evaluation(rehearsal, metric),
        lambda: _undisturbed(rehearsal),
        lambda: _looking(rehearsal),
        lambda: _splitting(rehearsal),
    ]
    try:
        for finding in _repeating(rehearsal):
            del looks[1:]  # what differs anyway shows nothing by differing
            yield finding
    except FoundError as error:
        yield error.finding
        return
    for look in looks:
        try:
            yield from look()
        except FoundError as error:
            yield error.finding


# --- 1, 2: repeatable and kept


def _repeating(rehearsal: Rehearsal) -> Iterator[Finding]:
    one, two = rehearsal.fresh(), rehearsal.fresh()
    for step in range(rehearsal.n_steps + 1):
        if step:
            rehearsal.advance(one, step - 1)
            rehearsal.advance(two, step - 1)
        found = _between(rehearsal.state(one), rehearsal.state(two))
        attributes = differing_attributes(one, two)
        if found:
            when = "after setup()" if step == 0 else f"after step {step - 1}"
            guilty = [str(each) for each in attributes if is_generator(each)]
            cause = f", and so does {' and '.join(guilty)}" if guilty else ""
            yield Finding(
                about="repeating",
                text=f"{found} differs between two runs {when}{cause}: {_REPEATABLE}",
            )
            return
    other = elsewhere(rehearsal)
    if other is None:
        return
    found = _between(rehearsal.state(one), other)
    if found:
        yield Finding(
            about="repeating",
            text=f"{found} differs between two runs in two processes: {_REPEATABLE}",
        )


def _between(one: bytes, two: bytes) -> Difference | None:
    if one == two:
        return None
    return first_difference(decode(one), decode(two), "state") or Difference("state", "the order")


# --- 3: not forgotten


def _splitting(rehearsal: Rehearsal) -> Iterator[Finding]:
    whole_run = rehearsal.fresh()
    for step in range(rehearsal.n_steps):
        state = rehearsal.state(whole_run)
        split = rehearsal.loaded(state)
        found = _between(state, rehearsal.state(split))
        if found:
            yield Finding(
                about="splitting",
                text=f"{found} is lost between state_dict() and load_state_dict(), at step {step}: "
                "load_state_dict() must take back all that state_dict() gives",
            )
            return
        forgotten = differing_attributes(whole_run, split)
        rehearsal.advance(whole_run, step)
        rehearsal.advance(split, step)
        found = _between(rehearsal.state(whole_run), rehearsal.state(split))
        if found:
            yield Finding(about="splitting", text=_forgotten(found, step, forgotten))
            return


def _forgotten(found: Difference, step: Step, attributes: list[Difference]) -> str:
    names = ", ".join(each.path for each in attributes) or "something that state_dict() lacks"
    cure = "let state_dict() return it and load_state_dict() take it back"
    if any(is_generator(each) for each in attributes):
        cure = f"draw from the global generators, which are seeded before each step, or {cure}"
    return (
        f"forgets state: {names}; with the state of step {step} loaded into a fresh instance, "
        f"{found} comes out otherwise after that step: {cure}"
    )


# --- 4, 5: looking, evaluating, metrics


def _looking(rehearsal: Rehearsal) -> Iterator[Finding]:
    seen, unseen = rehearsal.fresh(), rehearsal.fresh()
    for step in range(rehearsal.n_steps):
        rehearsal.state(seen)
        rehearsal.advance(seen, step)
        rehearsal.advance(unseen, step)
    found = _between(rehearsal.state(seen), rehearsal.state(unseen))
    if found:
        yield Finding(
            about="looking",
            text=f"{found} comes out otherwise if state_dict() is called in between: state_dict() "
            "must change nothing",
        )


def _evaluation(rehearsal: Rehearsal, metric: str | None) -> Iterator[Finding]:
    instance = rehearsal.fresh()
    for step in range(rehearsal.n_steps):
        rehearsal.advance(instance, step)
        before = rehearsal.state(instance)
        moved: list[str] = []
        with _noticed(moved):
            answer = asked("evaluate()", instance.evaluate)
        problems = [
            *_of_state(before, rehearsal.state(instance), moved),
            *_of_metrics(answer, instance, metric),
        ]
        if not problems:
            problems = [*_of_loaded(instance, rehearsal.loaded(before))]
        yield from problems
        if problems:
            return


def _undisturbed(rehearsal: Rehearsal) -> Iterator[Finding]:
    seen, unseen = rehearsal.fresh(), rehearsal.fresh()
    for step in range(rehearsal.n_steps):
        rehearsal.advance(seen, step)
        rehearsal.advance(unseen, step)
        found = _between(rehearsal.state(seen), rehearsal.state(unseen))
        if found:
            yield Finding(
                about="evaluating",
                text=f"{found} comes out otherwise after step {step} if evaluate() was called "
                "before it: evaluate() must leave everything as it was (such as the training mode "
                "of a module)",
            )
            return
        with shielded_generators():
            asked("evaluate()", seen.evaluate)
        if rehearsal.state(seen) != rehearsal.state(unseen):
            return  # a change of the state itself is a finding already


def _of_loaded(trained: Trainable, loaded: Trainable) -> Iterator[Finding]:
    here, there = _metrics(trained), _metrics(loaded)
    if here != there:
        yield Finding(
            about="metrics",
            text=f"evaluate() gives {here} where the state was trained and {there} where it was "
            "loaded: metrics must depend on the state alone",
        )


def _of_state(before: bytes, after: bytes, moved: list[str]) -> Iterator[Finding]:
    found = _between(before, after)
    if found:
        yield Finding(
            about="evaluating",
            text=f"evaluate() changes {found}: let it work on a copy, or put back what it changes",
        )
    if moved:
        yield Finding(
            about="evaluating",
            text=f"evaluate() draws from the global generator of {' and of '.join(moved)}, so its "
            "metrics depend on chance: let it draw from one that it seeds itself each time",
        )


def _of_metrics(answer: object, instance: Trainable, metric: str | None) -> Iterator[Finding]:
    try:
        metrics = evaluated(instance)
    except StageError as error:
        yield Finding(about="metrics", text=str(error))
        return
    except Exception as error:  # the second time
        yield Finding(about="evaluating", text=f"evaluate() raised {error!r} when called again")
        return
    if isinstance(answer, Mapping) and metric is not None and metric not in metrics:
        names = ", ".join(sorted(metrics)) or "none"
        yield Finding(
            about="metrics",
            text=f"evaluate() gave no {metric!r}, which the study tunes; it gave: {names}",
        )


def _metrics(instance: Trainable) -> dict[str, str]:
    """Return metrics as text, in which NaN is itself."""
    return {name: repr(value) for name, value in sorted(evaluated(instance).items())}


@contextmanager
def _noticed(moved: list[str]) -> Iterator[None]:
    """Put into a list the libraries whose global generator is not as it was; put it back."""
    with shielded_generators():
        before = _global_states()
        yield
        after = _global_states()
        moved += [name for name, state in after.items() if state != before.get(name, state)]


def _global_states() -> dict[str, bytes]:
    states: dict[str, bytes] = {"Python": pickle.dumps(random.getstate())}
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = pickle.dumps(numpy.random.get_state())
    if torch is not None:
        states["torch"] = encode(torch.get_rng_state())
    return states
