"""Prove for a user's Trainable, in a few steps, what every run of dasktune rests on.

Called by the command line, and by people before a long study. Trains a few steps in this process,
again with its state kept and loaded at every step, with evaluation in between, and once in another
process: everything must come out the same, bit for bit. Each finding is a sentence with the cure.

1. *Repeatable*: two runs from fresh give the same states, in another process too.
2. *Kept*: the codec takes the state.
3. *Not forgotten*: a fresh instance that loads a state goes on as the one that gave it.
4. *Looking changes nothing*: neither `state_dict()` nor `evaluate()` changes what is trained.
5. *Metrics*: names with numbers, all the tuned ones among them, that the state alone decides.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import cast

from dasktune.errors import InvalidStudyError, StageError
from dasktune.runtime.difference import (
    Difference,
    differing_attributes,
    differing_paths,
    first_difference,
    is_generator,
)
from dasktune.runtime.generators import shielded_generators
from dasktune.runtime.noticing import noticed_draws, same_threads
from dasktune.runtime.payload import pack
from dasktune.runtime.refusal import refuse_what_cannot_travel
from dasktune.runtime.rehearsal import (
    AloneError,
    Finding,
    FoundError,
    Rehearsal,
    asked,
    elsewhere,
)
from dasktune.runtime.stage import evaluated
from dasktune.space.arguments import whole
from dasktune.space.configuration import Configuration
from dasktune.store.codec import decode
from dasktune.study.core import StudyCore
from dasktune.study.events import StudyStarted
from dasktune.study.ports import Trainable
from dasktune.study.study import Study, refuse_no_trainable
from dasktune.units import Seconds, Step

_LEAST_PATIENCE_S = 600.0
"""For another run in a process of its own; this one may have its data already."""

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
    unchecked: tuple[str, ...] = ()
    """What could not be looked at here, each with the reason."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        head = f"{self.name}, {self.n_steps} step{'s' if self.n_steps > 1 else ''}:"
        if not self.findings:
            head += (
                " training split at any step gives the same bits, and evaluate() leaves the state "
                "as it is"
            )
        found = [f"  {one.about}: {one.text}" for one in self.findings]
        return "\n".join([head, *found, *(f"  {text}" for text in self.unchecked)])


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
    refuse_no_trainable(trainable)
    metrics: tuple[str, ...] = ()
    seed = 0
    if isinstance(given, Study):
        metrics, seed, configuration = given.metrics, given.training_seed, _first(given)
    else:
        configuration = given if isinstance(given, Configuration) else Configuration.of(given)
    unchecked: list[str] = []
    findings: list[Finding] = []
    try:
        refuse_what_cannot_travel(trainable)
        payload = pack(cast("Trainable", trainable))
    except InvalidStudyError as error:
        findings.append(Finding(about="sending", text=str(error)))
    else:
        rehearsal = Rehearsal(
            payload=payload, configuration=configuration, seed=seed, n_steps=steps
        )
        with shielded_generators(), same_threads():
            findings += _findings(rehearsal, metrics, unchecked)
    return CheckReport(
        name=type(trainable).__qualname__,
        n_steps=steps,
        findings=tuple(findings),
        unchecked=tuple(unchecked),
    )


def _first(study: Study) -> Configuration:
    core = StudyCore([study])
    core.handle(StudyStarted(study=0), 0.0)
    for record in core.runs[0].trials:
        return record.configuration
    raise InvalidStudyError(f"study {study.name} draws no trial: check it with a configuration")


def _findings(
    rehearsal: Rehearsal, metrics: tuple[str, ...], unchecked: list[str]
) -> Iterator[Finding]:
    try:
        run = yield from _repeating(rehearsal)
    except FoundError as error:
        yield error.finding
        return
    noise = frozenset[str]() if run is None else run.noise
    looks: list[Callable[[], Iterator[Finding]]]
    looks = [lambda: _evaluation(rehearsal, metrics, noise)]
    if run is not None:  # what differs anyway shows nothing by differing
        looks += [
            lambda: _undisturbed(rehearsal, noise),
            lambda: _looking(rehearsal),
            lambda: _splitting(rehearsal, noise),
            lambda: _elsewhere(rehearsal, run, unchecked),
        ]
    for look in looks:
        try:
            yield from look()
        except FoundError as error:
            yield error.finding


# --- 1, 2: repeatable and kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run that came out the same twice in this process."""

    last: bytes
    """Its last state."""
    seconds: Seconds
    """How long it took, at least."""
    noise: frozenset[str]
    """Paths of attributes that were not the same all the same, such as the time of day: no state
    depends on them."""


def _repeating(rehearsal: Rehearsal) -> Generator[Finding, None, _Run | None]:
    began_s = perf_counter()
    with rehearsal.fresh() as one, rehearsal.fresh() as two:
        for step in range(rehearsal.n_steps + 1):
            if step:
                rehearsal.advance(one, step - 1)
                rehearsal.advance(two, step - 1)
            last = rehearsal.state(one)
            found = _between(last, rehearsal.state(two))
            if found:
                guilty = [
                    str(each) for each in differing_attributes(one, two) if is_generator(each)
                ]
                when = "after setup()" if step == 0 else f"after step {step - 1}"
                cause = f", and so does {' and '.join(guilty)}" if guilty else ""
                yield Finding(
                    about="repeating",
                    text=f"{found} differs between two runs {when}{cause}: {_REPEATABLE}",
                )
                return None
        noise = differing_paths(one, two)
    return _Run(last=last, seconds=perf_counter() - began_s, noise=noise)


def _elsewhere(rehearsal: Rehearsal, run: _Run, unchecked: list[str]) -> Iterator[Finding]:
    try:
        other = elsewhere(rehearsal, max(_LEAST_PATIENCE_S, 10.0 * run.seconds))
    except AloneError as error:
        unchecked.append(f"not compared with another process: {error}")
        return
    found = _between(run.last, other)
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


def _splitting(rehearsal: Rehearsal, noise: frozenset[str]) -> Iterator[Finding]:
    with rehearsal.fresh() as whole_run:
        for step in range(rehearsal.n_steps):
            found = _split(rehearsal, whole_run, step, noise)
            if found:
                yield Finding(about="splitting", text=found)
                return


def _split(rehearsal: Rehearsal, whole_run: Trainable, step: Step, noise: frozenset[str]) -> str:
    """Let a fresh instance train a step beside one that trained from the start; say what differs.

    A function by itself, so that no more than one fresh instance lives at a time.
    """
    state = rehearsal.state(whole_run)
    with rehearsal.fresh(state) as split:
        found = _between(state, rehearsal.state(split))
        if found:
            return (
                f"{found} is lost between state_dict() and load_state_dict(), at step {step}: "
                "load_state_dict() must take back all that state_dict() gives"
            )
        forgotten = differing_attributes(whole_run, split, besides=noise)
        rehearsal.advance(whole_run, step)
        rehearsal.advance(split, step)
        found = _between(rehearsal.state(whole_run), rehearsal.state(split))
    return _forgotten(found, step, forgotten) if found else ""


def _forgotten(found: Difference, step: Step, attributes: list[Difference]) -> str:
    names = _listed(attributes) or "something that state_dict() lacks"
    cure = "let state_dict() return it and load_state_dict() take it back"
    if any(is_generator(each) for each in attributes):
        cure = f"draw from the global generators, which are seeded before each step, or {cure}"
    return (
        f"forgets state: {names}; with the state of step {step} loaded into a fresh instance, "
        f"{found} comes out otherwise after that step: {cure}"
    )


def _listed(attributes: list[Difference]) -> str:
    return ", ".join(each.path for each in attributes)


# --- 4, 5: looking, evaluating, metrics


def _looking(rehearsal: Rehearsal) -> Iterator[Finding]:
    found = _between(rehearsal.trained(looks=True), rehearsal.trained(looks=False))
    if found:
        yield Finding(
            about="looking",
            text=f"{found} comes out otherwise if state_dict() is called in between: state_dict() "
            "must change nothing",
        )


def _evaluation(
    rehearsal: Rehearsal, wanted: tuple[str, ...], noise: frozenset[str]
) -> Iterator[Finding]:
    with rehearsal.fresh() as instance:
        for step in range(rehearsal.n_steps):
            rehearsal.advance(instance, step)
            before = rehearsal.state(instance)
            moved: list[str] = []
            with noticed_draws(moved):
                answer = asked("evaluate()", instance.evaluate)
            problems = [
                *_of_state(before, rehearsal.state(instance), moved),
                *_of_metrics(answer, instance, wanted),
            ]
            if not problems:
                problems = [*_of_loaded(rehearsal, instance, before, noise)]
            yield from problems
            if problems:
                return


def _undisturbed(rehearsal: Rehearsal, noise: frozenset[str]) -> Iterator[Finding]:
    with rehearsal.fresh() as seen, rehearsal.fresh() as unseen:
        left: list[Difference] = []
        for step in range(rehearsal.n_steps):
            rehearsal.advance(seen, step)
            rehearsal.advance(unseen, step)
            found = _between(rehearsal.state(seen), rehearsal.state(unseen))
            if found:
                yield Finding(about="evaluating", text=_disturbed(found, step, left))
                return
            with shielded_generators():
                asked("evaluate()", seen.evaluate)
            left = differing_attributes(seen, unseen, besides=noise)
            if rehearsal.state(seen) != rehearsal.state(unseen):
                return  # a change of the state itself is a finding already


def _disturbed(found: Difference, step: Step, left: list[Difference]) -> str:
    if left:
        return (
            f"evaluate() changes {_listed(left)}, so that {found} comes out otherwise after step "
            f"{step}: let it put back what it changes (such as the training mode of a module)"
        )
    return (
        f"{found} comes out otherwise after step {step} if evaluate() was called before it: "
        "evaluate() must leave everything as it was (such as the training mode of a module)"
    )


def _of_loaded(
    rehearsal: Rehearsal, trained: Trainable, state: bytes, noise: frozenset[str]
) -> Iterator[Finding]:
    with rehearsal.fresh(state) as loaded:
        here, there = _metrics(trained), _metrics(loaded)
        others = []
        if here != there:
            others = differing_attributes(trained, loaded, besides=noise)
    if here != there:
        cause = f", and {_listed(others)} is not the same there" if others else ""
        yield Finding(
            about="metrics",
            text=f"evaluate() gives {here} where the state was trained and {there} where it was "
            f"loaded{cause}: metrics must depend on the state alone",
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


def _of_metrics(answer: object, instance: Trainable, wanted: tuple[str, ...]) -> Iterator[Finding]:
    try:
        metrics = evaluated(instance)
    except StageError as error:
        yield Finding(about="metrics", text=str(error))
        return
    except Exception as error:  # the second time
        yield Finding(about="evaluating", text=f"evaluate() raised {error!r} when called again")
        return
    missing = [name for name in wanted if name not in metrics]
    if isinstance(answer, Mapping) and missing:
        names = ", ".join(sorted(metrics)) or "none"
        yield Finding(
            about="metrics",
            text=f"evaluate() gave no {' and no '.join(map(repr, missing))}, which the study "
            f"tunes; it gave: {names}",
        )


def _metrics(instance: Trainable) -> dict[str, str]:
    """Return metrics as text, in which NaN is itself."""
    return {name: repr(value) for name, value in sorted(evaluated(instance).items())}
