"""A journal says what its studies were, and they can be read back without their code."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random as Generator
from typing import Any

import pytest
from hypothesis import given

import dasktune as dt
from dasktune.errors import BackendError
from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space import Point, SearchSpace
from dasktune.space.schedule import same_until
from dasktune.study.header import changes_since, is_header, read_header, write_header
from dasktune.study.recall import recall
from dasktune.study.result import Result
from dasktune.study.study import Study
from dasktune.study.timeline import replay
from tests.space.strategies import finite_spaces
from tests.worlds import Nothing, random_studies, small_study

STEPS = 12


def journal_of(studies: list[Study], world: dt.World | None = None) -> list[str]:
    results = dt.simulate(studies, world or dt.World(workers=2))
    return [write_header(studies), *results[0].timeline.lines()]


def outcome(result: Result) -> tuple[object, ...]:
    trials = [(one.number, one.status, one.reason, one.reports) for one in result.trials]
    return (result.status, result.reason, trials, result.steps_unique, result.steps_executed,
            result.merge_rate)  # fmt: skip


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
