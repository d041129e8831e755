"""A journal says what its studies were, and they can be read back without their code."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random as Generator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given

import dasktune as dt
from dasktune.errors import BackendError
from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space import Point, SearchSpace
from dasktune.space.schedule import same_until
from dasktune.study.header import (
    changes_since,
    is_header,
    read_header,
    taken_over_in,
    write_header,
)
from dasktune.study.recall import recall
from dasktune.study.result import Result
from dasktune.study.study import Study
from dasktune.study.timeline import replay
from dasktune.trial import Report, TrialStatus
from tests.space.strategies import finite_spaces
from tests.worlds import Nothing, OwnTuner, random_studies, small_study

STEPS = 12


def journal_of(studies: list[Study], world: dt.World | None = None) -> list[str]:
    results = dt.simulate(studies, world or dt.World(workers=2))
    return [write_header(studies), *results[0].timeline.lines()]


def outcome(result: Result) -> tuple[object, ...]:
    trials = [(one.number, one.status, one.reason, one.reports) for one in result.trials]
    return (result.status, result.reason, trials, result.steps_unique, result.steps_executed,
            result.merge_rate)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mine(Sampler):
    """A sampler of the user's own."""

    def start(self, context: SamplerContext) -> SamplerRun:
        return MineRun(context.space)


class MineRun(SamplerRun):
    def __init__(self, space: SearchSpace) -> None:
        self.space = space

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        del new_steps, attempt
        return list(self.space.points())[number]

    def record(self, number: int, point: Point) -> None:
        pass

    def copy(self) -> "MineRun":
        return self


# --- spaces


@given(definitions=finite_spaces)
def test_spaces_come_back_with_the_same_points_and_values(definitions: SearchSpace) -> None:
    study = small_study(space=definitions, tuner=dt.FullTraining(STEPS), n_trials=1)

    (back,) = read_header(write_header([study]))

    assert back.space.size == study.space.size
    for _, (one, two) in zip(range(20), zip(definitions.points(), back.space.points(), strict=True),
                             strict=False):  # fmt: skip
        assert one == two
        mine, other = definitions.configuration(one), back.space.configuration(two)
        assert mine.names == other.names
        for (_, a), (_, b) in zip(mine.schedules, other.schedules, strict=True):
            assert same_until(a, b, STEPS) == STEPS


def ramp(step: int) -> float:
    return 0.1 * (step + 1)


def test_functions_of_the_step_keep_their_name_and_values() -> None:
    space = {"lr": dt.choice([ramp, dt.warmup(2, ramp), dt.join([0.1, ramp], at=[3]), 0.1]),
             "size": dt.warmup(dt.choice([1, 2]), ramp)}  # fmt: skip
    (back,) = read_header(write_header([small_study(space=space)]))

    first = back.space.configuration({"lr": 0, "size.n": 1})

    assert first.text == {"lr": "ramp", "size": "warmup(2, ramp)"}
    assert [first.at(step)["lr"] for step in range(3)] == [0.1, 0.2, 0.3]


def at_each(rate: Any, step: int) -> float:  # noqa: ANN401
    return float(rate * (step + 1))


class Ramp:
    """A schedule of the user's that says nothing of itself."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: int) -> float:
        return at_each(self.rate, step)


@dataclass(frozen=True)
class Line:
    """A schedule of the user's that has a text, with an address in it."""

    rate: float
    then: Callable[[float, int], float] = at_each

    def __call__(self, step: int) -> float:
        return self.then(self.rate, step)


class MineSilently(Mine):
    """A sampler of the user's that says nothing of itself."""

    __repr__ = object.__repr__


SCHEDULES: dict[str, tuple[Callable[[], Any], str]] = {
    "partial": (lambda: partial(at_each, 0.1), "partial(at_each, 0.1)"),
    "partial by name": (
        lambda: partial(at_each, rate=Ramp(1)),
        "partial(at_each, rate=Ramp)",
    ),
    "partial of a partial": (
        lambda: partial(partial(at_each), Ramp(1).__call__),
        "partial(at_each, Ramp.__call__)",
    ),
    "method": (lambda: Ramp(0.1).__call__, "Ramp.__call__"),
    "instance": (lambda: Ramp(0.1), "Ramp"),
    "instance with a text": (lambda: Line(0.1), "Line(rate=0.1, then=<function at_each>)"),
    "lambda": (lambda: lambda step: 0.1 * step, "<lambda>"),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_functions_of_the_step_have_one_name_in_every_process(case: str) -> None:
    made, name = SCHEDULES[case]

    text = dt.Configuration.of({"lr": made()}).text["lr"]

    assert text.endswith(name)
    assert "0x" not in text


@pytest.mark.parametrize(
    "made",
    [
        lambda: small_study(space={"lr": dt.choice([Ramp(0.1), 0.1])}),
        lambda: small_study(space={"lr": dt.warmup(dt.choice([1, 2]), partial(at_each, 0.1))}),
        lambda: small_study(space={"lr": dt.join([Line(0.1), 0.1], at=[dt.choice([3])])}),
        lambda: small_study(sampler=MineSilently(), n_trials=3),
        lambda: small_study(sampler=dt.PrefixAware(MineSilently()), n_trials=3),
        lambda: small_study(tuner=OwnTuner()),
    ],
)
def test_a_study_made_anew_is_no_change(made: Callable[[], Study]) -> None:
    one, other = made(), made()  # at another address, as in another process

    assert "0x" not in one.space.definitions[0][1].text
    assert write_header([one]) == write_header([other])
    assert "0x" not in write_header([one])
    assert changes_since(write_header([one]), [other]) == ()


def test_another_sampler_or_tuner_of_the_users_is_a_change() -> None:
    line = write_header([small_study(sampler=MineSilently(), tuner=OwnTuner(), n_trials=3)])

    other = small_study(sampler=Mine(), tuner=OwnTuner(9), n_trials=3)

    assert changes_since(line, [other]) == (
        "max_steps of study was 8 and is 9",
        "sampler of study was MineSilently and is Mine()",
    )


def test_a_function_with_other_values_is_a_change_told_in_few_words() -> None:
    def made(last: float, max_steps: int = 900) -> Study:
        def curve(step: int) -> float:
            return step / 1000 if step < 800 else last

        return small_study(space={"lr": curve}, tuner=dt.FullTraining(max_steps), n_trials=1)

    line = write_header([made(1.0)])

    assert changes_since(line, [made(1.0)]) == ()
    [words] = changes_since(line, [made(2.0)])
    assert "800: 1.0" in words
    assert "800: 2.0" in words
    assert len(words) < 600
    [words] = changes_since(line, [made(1.0, 1000)])[:-1]
    assert words.startswith("max_steps of study was 900"), "the function is what it was"


def test_functions_with_many_values_are_told_apart_by_a_digest() -> None:
    def made(last: float) -> Study:
        def curve(step: int) -> float:
            return step if step < 20_000 else last

        return small_study(space={"lr": curve}, tuner=dt.FullTraining(20_001), n_trials=1)

    line = write_header([made(1.0)])

    assert len(line) < 3_000
    assert changes_since(line, [made(1.0)]) == ()
    assert len(changes_since(line, [made(2.0)])) == 1


def test_a_function_that_does_not_answer_all_steps_is_only_named() -> None:
    def short(step: int) -> float:
        return [0.1, 0.2, 0.3][step]

    line = write_header([small_study(space={"lr": dt.choice([short, 0.1])})])

    with pytest.raises(BackendError, match=r"values of the function .*short are not written"):
        read_header(line)


@pytest.mark.parametrize(
    "value", [None, True, "a'b", '"', (1, (2.5, "x")), -3, 1e-300, float("inf"), -0.5, 10**20]
)
def test_values_of_every_kind_come_back(value: Any) -> None:  # noqa: ANN401
    (back,) = read_header(write_header([small_study(space={"x": dt.choice([value, "other"])})]))

    found = back.space.configuration({"x": 0}).at(0)["x"]

    assert (found, type(found)) == (value, type(value))


def test_what_a_study_is_comes_back() -> None:
    study = small_study(
        tuner=dt.ASHA(min_steps=1, max_steps=8, ties="spread"),
        name="odd.name-1",
        metric='a "metric"\n',
        n_trials=3,
        seed=4,
        training_seed=5,
        retries=6,
        max_failures=7,
    )

    line = write_header([study])
    (back,) = read_header(line)

    assert "\n" not in line
    assert is_header(line)
    assert write_header([back]) == line
    assert back.family == study.family
    assert back.tuner == study.tuner


# --- journals


@pytest.mark.parametrize("seed", range(20))
def test_a_journal_tells_the_results_of_its_run(seed: int) -> None:
    studies = random_studies(Generator(seed))
    if any("OneByOne" in repr(study.sampler) for study in studies):
        studies = [small_study(sampler=dt.Random(), n_trials=4, seed=seed)]
    results = dt.simulate(studies, dt.World(workers=2))

    found = recall([write_header(studies), *results[0].timeline.lines()])

    assert [outcome(one) for one in found] == [outcome(one) for one in results]
    for one, two in zip(found, results, strict=True):
        assert dt.explain(found, study=one.study.name, trial=0) == dt.explain(
            results, study=two.study.name, trial=0
        )
        assert dt.explain(one) == dt.explain(two)


def test_draws_of_a_foreign_sampler_are_taken_from_the_journal() -> None:
    studies = [small_study(sampler=Mine(), n_trials=3)]
    results = dt.simulate(studies, dt.World())

    found = recall([write_header(studies), *results[0].timeline.lines()])

    assert outcome(found[0]) == outcome(results[0])
    assert dt.explain(found, trial=2) == dt.explain(results, trial=2)
    assert "drawn by Mine()" in dt.explain(found[0])


def test_a_journal_that_goes_on_is_told_up_to_where_it_is() -> None:
    lines = journal_of([small_study()])

    (found,) = recall(lines[: len(lines) // 2])

    assert found.status is not None
    assert found.status.value == "running"


def test_replay_takes_journals_with_and_without_header() -> None:
    study = small_study()
    lines = journal_of([study])

    with_header, _ = replay([study], lines)
    without, _ = replay([study], lines[1:])

    assert with_header.now == without.now
    assert replay([study], lines[:1])[1].entries == []


def test_a_journal_without_header_says_where_to_ask() -> None:
    for lines in ([], journal_of([small_study()])[1:]):
        with pytest.raises(BackendError, match=r"dasktune\.explain\(result\)"):
            recall(lines)


# --- what has changed

CHANGES: dict[str, tuple[Callable[[], Study], str]] = {
    "tuner": (
        lambda: small_study(tuner=dt.FullTraining(7)),
        "tuner of study was FullTraining(max_steps=8, report_every=None) and is "
        "FullTraining(max_steps=7, report_every=None)",
    ),
    "n_trials": (lambda: small_study(n_trials=9), "n_trials of study was 10 and is 9"),
    "space": (
        lambda: small_study(space={"lr": dt.choice([0.1, 0.2])}, n_trials=10),
        "lr of study was choice([0.1, step_decay",
    ),
    "attribute": (lambda: small_study(trainable=Nothing(2)), "trainable.version changed"),
}


def _earlier(score: float) -> Any:  # noqa: ANN401
    """Return what stands for a result: one trial of the study's space."""
    configuration = small_study().space.configuration(next(iter(small_study().space.points())))
    report = Report(trial=0, step=8, metrics={"accuracy": score}, score=score)
    trial = SimpleNamespace(
        configuration=configuration, reports=(report,), status=TrialStatus.COMPLETED
    )
    return SimpleNamespace(trials=[trial])


def test_other_earlier_trials_are_a_change_even_if_they_are_as_many() -> None:
    begun = write_header([small_study()])
    [words] = changes_since(begun, [small_study(warm_start=[_earlier(0.5)])])
    assert words.startswith("warm_start of study was no trials and is 1 trials (")

    begun = write_header([small_study(warm_start=[_earlier(0.5)])])

    assert changes_since(begun, [small_study(warm_start=[_earlier(0.5)])]) == ()
    [words] = changes_since(begun, [small_study(warm_start=[_earlier(0.6)])])
    assert words.startswith("warm_start of study was 1 trials (")


def test_what_another_version_wrote_otherwise_or_did_not_write_is_no_change() -> None:
    described = json.loads(write_header([small_study()]))
    described["studies"][0]["warm_start"] = 0  # how many they were
    described["studies"][0]["colour"] = "red"
    del described["studies"][0]["max_failures"], described["studies"][0]["taken_over"]
    line = json.dumps(described, separators=(",", ":"))

    assert changes_since(line, [small_study()]) == ()
    [words] = changes_since(line, [small_study(n_trials=9)])
    assert words == "n_trials of study was 10 and is 9"
    assert taken_over_in(line) == [()]


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_study_is_told_what_has_changed(case: str) -> None:
    made, words = CHANGES[case]
    lines = journal_of([small_study()])

    with pytest.raises(BackendError) as caught:
        replay([made()], lines)

    assert words in str(caught.value)
    assert words in "; ".join(changes_since(lines[0], [made()]))
    assert changes_since(lines[0], [small_study()]) == ()


# --- what others may have written

ENEMIES = [
    "__import__('os').system('true')",
    "dt.choice([1])",
    "choice.__class__",
    "simulate(1)",
    "explain(1)",
    "run(1)",
    "Study(1)",
    "World()",
    "choice(*[1])",
    "choice(**{'options': [1]})",
    "[x for x in (1,)]",
    "(lambda: 1)()",
    "open('/tmp/x', 'w')",
    "f'{1}'",
    "1 +",
    "(" * 500,
    "9" * 5000,
]


@pytest.mark.parametrize("text", ENEMIES)
def test_only_constructors_of_spaces_are_called(text: str) -> None:
    described = json.loads(write_header([small_study()]))
    described["studies"][0]["space"]["lr"] = text

    with pytest.raises(BackendError, match="cannot be told"):
        read_header(json.dumps(described))


@pytest.mark.parametrize("name", ["simulate", "explain", "World", "Study", "BackendError"])
def test_what_makes_no_space_is_not_even_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    original = getattr(dt, name)
    fake = type(name, (original,), {"__init__": lambda *_: called.append(name)}) if isinstance(
        original, type) else lambda *_: called.append(name)  # fmt: skip
    monkeypatch.setattr(dt, name, fake)
    described = json.loads(write_header([small_study()]))
    described["studies"][0]["space"]["lr"] = f"{name}(1)"

    with pytest.raises(BackendError, match="cannot be told"):
        read_header(json.dumps(described))
    assert called == []


@pytest.mark.parametrize("line", ['{"studies":', '{"studies":1}', '{"studies":[{}]}',
                                  '{"studies":[1]}', '{"studies":[{"sampler":1}]}'])  # fmt: skip
def test_damaged_headers_are_refused(line: str) -> None:
    with pytest.raises(BackendError, match="cannot be told"):
        read_header(line)
    assert len(changes_since(line, [small_study()])) <= 1
