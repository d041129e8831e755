"""Describe studies in the first line of their journal, and read them back without the user's code.

Written by the runner once, before the first entry; read by `recall`, for `explain` on the command
line, and by replay, to say what has changed since. Spaces and tuners are written as the calls that
make them (`notation`); reading executes nothing else of a journal.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, TypeAlias

from dasktune.errors import BackendError
from dasktune.plan.keys import Family
from dasktune.samplers.sampler import EarlierTrial, NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space.search_space import Point, SearchSpace
from dasktune.space.value import described
from dasktune.study.fingerprint import Fingerprint, difference
from dasktune.study.limits import Limits
from dasktune.study.notation import made_of, written
from dasktune.study.study import Study
from dasktune.units import Digest, Step

_Read: TypeAlias = Any
"""What a text, or a line of JSON, turns out to hold."""

_PLAIN = ("name", "n_trials", "seed", "training_seed", "retries", "max_failures")
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
_MOST_WORDS = 200
"""Characters of a difference that are repeated of each side."""


# --- writing


def write_header(studies: Sequence[Study]) -> str:
    """Return the studies of a journal as a line of JSON, without the newline."""
    entries = [_entry(study, study.max_steps) for study in studies]
    return json.dumps({"studies": entries}, separators=(",", ":"))


def _entry(study: Study, stop: Step) -> dict[str, object]:
    """Describe a study, functions of the step by their values at the steps below `stop`."""
    space = {name: written(part, stop) for name, part in study.space.definitions}
    fingerprint = {"digest": study.fingerprint.digest, "parts": study.fingerprint.parts}
    return {
        **{name: getattr(study, name) for name in _PLAIN},
        "metric": list(study.metrics),
        "mode": list(study.modes),
        "rank_by": study.metric,
        "limits": asdict(study.limits),
        "first": [dict(point) for point in study.first],
        "taken_over": [dict(point) for point in study.taken_over],
        "warm_start": _summed_up(study.warm_start),
        "space": space,
        "sampler": described(study.sampler),
        "draws_ahead": study.sampler.draws_ahead,
        "tuner": described(study.tuner),
        "max_steps": study.max_steps,
        "fingerprint": fingerprint,
    }


def _summed_up(trials: Sequence[EarlierTrial]) -> str:
    """Write earlier trials in so few words that only whether they are the same can be told."""
    known = [
        [dict(trial.point), trial.status.value, [(r.step, r.scores) for r in trial.reports]]
        for trial in trials
    ]
    digest = sha256(json.dumps(known).encode()).hexdigest()
    return f"{len(trials)} trials ({digest[:16]})" if trials else "no trials"


# --- reading


def is_header(line: str) -> bool:
    """Say whether a line of a journal describes its studies."""
    return line.startswith('{"studies":')


def read_header(line: str) -> list[Study]:
    """Return the studies of a journal; their training code is gone, all else is as it was.

    Raises:
        BackendError: They cannot be told from the line.
    """
    try:
        return [_study(entry) for entry in json.loads(line)["studies"]]
    except _UNREADABLE as error:
        raise BackendError(
            f"the studies of this journal cannot be told from its first line ({error}); where "
            "their code is, dasktune.run(study) gives their result from the store, and "
            "dasktune.explain(result) tells of it"
        ) from error


def taken_over_in(line: str) -> list[tuple[Point, ...]]:
    """Return for each study of a header the trials that it took over from an earlier timeline."""
    return [_points(entry.get("taken_over", ())) for entry in json.loads(line)["studies"]]


def families_in(line: str) -> list[Family]:
    """Return for each study of a header what has to be equal for states to be of use to it."""
    return [
        Family(
            fingerprint=entry["fingerprint"]["digest"],
            training_seed=entry["training_seed"],
        )
        for entry in json.loads(line)["studies"]
    ]


def _points(entries: Sequence[Mapping[str, int | float]]) -> tuple[Point, ...]:
    return tuple([Point.of(point) for point in entries])


def space_in(line: str, study: Study) -> tuple[SearchSpace, Step]:
    """Return the space that the only study of a header had, and how far its trials could go.

    Args:
        line: The header.
        study: As it is now: what stands in its space as it stood there is taken from it, with the
            user's own functions of the step.

    Raises:
        BackendError: It cannot be told from the line; the message says of which hyper-parameter.
    """
    (old,) = json.loads(line)["studies"]
    stop = Step(old.get("max_steps", study.max_steps))
    now = dict(study.space.definitions)
    found: dict[str, object] = {}
    for name, text in old["space"].items():
        if name in now and written(now[name], stop) == text:
            found[name] = now[name]
            continue
        try:
            found[name] = made_of(text)
        except _UNREADABLE as error:
            raise BackendError(f"what {name} was cannot be told ({error})") from error
    return SearchSpace(found), stop


def changes_since(line: str, studies: Sequence[Study]) -> tuple[str, ...]:
    """Say in words what is different in studies since their journal was begun, if that is known."""
    words: list[str] = []
    with suppress(*_UNREADABLE):
        for old, study in zip(json.loads(line)["studies"], studies, strict=False):
            # As JSON has it; functions that only go on further are no change of the space.
            stop = Step(old.get("max_steps", study.max_steps))
            new = json.loads(json.dumps(_entry(study, stop)))
            # What another version left out, or wrote as another kind of thing, cannot be compared.
            known = {
                key: new[key]
                for key in old.keys() & new.keys() - {"taken_over"}
                if type(new[key]) is type(old[key])
            }
            words += _differences({key: old[key] for key in known}, known, study.name)
    return tuple(words)


def _differences(old: Mapping[str, _Read], new: Mapping[str, _Read], study: str) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) == new.get(key):
            continue
        if key == "fingerprint":
            yield from difference(_fingerprint(old[key]), _fingerprint(new[key]))
        elif key in ("space", "limits"):
            yield from _differences(old[key], new[key], study)
        else:
            was, now = _excerpts(str(old.get(key)), str(new.get(key)))
            yield f"{key} of {study} was {was} and is {now}"


def _excerpts(a: str, b: str) -> tuple[str, str]:
    """Shorten two texts to where they differ: a function may be written with many values."""
    if max(len(a), len(b)) <= 2 * _MOST_WORDS:
        return a, b
    at = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    start = max(0, at - _MOST_WORDS // 2)
    first, second = (
        f"{'…' if start else ''}{text[start : start + _MOST_WORDS]}"
        f"{'…' if len(text) > start + _MOST_WORDS else ''}"
        for text in (a, b)
    )
    return first, second


def _fingerprint(entry: Mapping[str, _Read]) -> Fingerprint:
    parts = tuple((str(name), Digest(digest)) for name, digest in entry["parts"])
    return Fingerprint(digest=Digest(entry["digest"]), parts=parts)


def _study(entry: Mapping[str, _Read]) -> Study:
    sampler = entry["sampler"]
    try:
        sampler = made_of(sampler)
    except ValueError:  # the user's own; its draws are in the journal
        sampler = _Recorded(sampler, draws_ahead=bool(entry["draws_ahead"]))
    study = Study(
        _Gone(),
        space={name: made_of(text) for name, text in entry["space"].items()},
        sampler=sampler,
        tuner=made_of(entry["tuner"]),
        metric=entry["metric"],
        mode=entry["mode"],
        rank_by=entry["rank_by"],
        **{name: entry[name] for name in _PLAIN},
    )
    # What is known already need not be checked again, or cannot be told from a text.
    known: dict[str, object] = {
        "fingerprint": _fingerprint(entry["fingerprint"]),
        "limits": Limits(**entry["limits"]),
        "first": _points(entry["first"]),
        "taken_over": _points(entry["taken_over"]),
    }
    for name, value in known.items():
        object.__setattr__(study, name, value)
    return study


class _Gone:
    """Stands for training code that is not here."""

    def setup(self, hp: object, seed: int) -> None:  # noqa: ARG002
        raise BackendError(
            "the training code of this study is not here: its result was read from a store; "
            "load_state(trial) gives what the code's load_state_dict takes"
        )

    def step(self, hp: object, t: int) -> None: ...
    def evaluate(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> object: ...
    def load_state_dict(self, state: object) -> None: ...


@dataclass(frozen=True, slots=True, repr=False)
class _Recorded(Sampler):
    """Stands for a sampler of the user's: what it drew is recorded."""

    text: str
    draws_ahead: bool

    def __repr__(self) -> str:
        return self.text

    def start(self, context: SamplerContext) -> SamplerRun:  # noqa: ARG002
        return _RecordedRun()


class _RecordedRun(SamplerRun):
    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:  # noqa: ARG002
        return None

    def record(self, number: int, point: Point) -> None:
        pass

    def copy(self) -> "_RecordedRun":
        return self
