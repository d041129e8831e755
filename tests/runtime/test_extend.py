"""Studies that change under their name are refused; `extend` goes on with them on purpose."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from distributed import Client

import dasktune as dt
from dasktune.errors import BackendError, InvalidStudyError
from dasktune.runner import extend, run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.events import StageFinished
from dasktune.study.recall import recall
from dasktune.study.result import Result
from dasktune.tuners.tuner import Tuner
from tests.runtime.trainables import Notes, Raises, Walk, study_of
from tests.worlds import SPACE, OwnTuner


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    folder = tmp_path / "walks"
    folder.mkdir()
    return Notes(folder)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def walk_study(notes: Notes, **changes: Any) -> dt.Study:  # noqa: ANN401
    # Every fork of the space is a rung, so that it is stored: else the way there is trained again.
    tuner = dt.SuccessiveHalving(rungs=[2, 3, 5, 6], reduction_factor=1.5)
    given: dict[str, Any] = {"sampler": dt.Random(), "n_trials": 4, "tuner": tuner}
    return study_of(Walk(str(notes.folder)), **(given | changes))


def outcomes(result: Result) -> list[Any]:
    return [(t.configuration, t.status, t.metrics, t.steps) for t in result.trials]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_trials": 6}, "n_trials of study was 4 and is 6"),
        ({"seed": 7}, "seed of study was 0 and is 7"),
        ({"tuner": dt.FullTraining(8)}, "rungs=(2, 3, 5, 6)"),
        ({"timeout": 60}, "timeout_s of study was None and is 60.0"),
        ({"space": SPACE | {"decay": 0.5}}, "decay"),
        ({"first": [{"lr": 0.1, "momentum": 0.9}]}, "first of study was"),
    ],
)
def test_a_study_that_changed_is_refused_with_the_difference(
    notes: Notes, store: Store, change: dict[str, Any], words: str
) -> None:
    before = run(walk_study(notes), store=store, workers=0)
    n_calls = len(notes.calls)
    with pytest.raises(InvalidStudyError, match="was begun otherwise") as refused:
        run(walk_study(notes, **change), store=store, workers=0)
    assert words in str(refused.value)
    assert "dasktune.extend" in str(refused.value)
    assert len(notes.calls) == n_calls
    assert outcomes(run(walk_study(notes), store=store, workers=0)) == outcomes(before)


@pytest.mark.parametrize(
    "change",
    [
        {"n_trials": 7},
        {"tuner": dt.FullTraining(8)},
        {"tuner": dt.ASHA(min_steps=3, max_steps=6, reduction_factor=2), "n_trials": 8},
        {"space": SPACE | {"momentum": dt.choice([0.8, *SPACE["momentum"].options])}},  # type: ignore[attr-defined]
    ],
    ids=["more trials", "more steps", "another tuner", "a larger space"],
)
def test_an_extended_study_keeps_its_trials_and_trains_only_what_is_new(
    notes: Notes, store: Store, change: dict[str, Any]
) -> None:
    before = run(walk_study(notes), store=store, workers=0)
    more = walk_study(notes, **change)
    after = extend(more, store=store, workers=0)

    assert after.status is StudyStatus.COMPLETED
    kept = [trial.configuration for trial in after.trials[: len(before.trials)]]
    assert kept == [trial.configuration for trial in before.trials]
    assert not notes.repeated, "no step was trained twice"
    assert len(notes.calls) == before.steps_executed + after.steps_executed
    for old, new in zip(before.trials, after.trials, strict=False):
        known = {report.step: report.metrics for report in old.reports}
        assert all(known.get(r.step, r.metrics) == r.metrics for r in new.reports)


def test_an_extended_study_answers_from_the_store(notes: Notes, store: Store) -> None:
    run(walk_study(notes), store=store, workers=0)
    more = walk_study(notes, n_trials=7)
    after = extend(more, store=store, workers=0)
    n_calls = len(notes.calls)
    assert outcomes(extend(more, store=store, workers=0)) == outcomes(after)
    assert outcomes(run(more, store=store, workers=0)) == outcomes(after)
    (recalled,) = recall(store.journal("study").lines())
    assert outcomes(recalled) == outcomes(after)
    assert len(notes.calls) == n_calls
    with pytest.raises(InvalidStudyError, match="was begun otherwise"):
        run(walk_study(notes), store=store, workers=0)


def test_an_extension_that_was_killed_goes_on_with_the_same_call(
    notes: Notes, store: Store
) -> None:
    run(walk_study(notes), store=store, workers=0)
    more = walk_study(notes, n_trials=8)

    def break_off(entry: Any) -> None:  # noqa: ANN401
        if isinstance(entry.event, StageFinished) and entry.event.executed_steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extend(more, store=store, workers=0, on_event=break_off)
    after = extend(more, store=store, workers=0)
    assert len(after.trials) == 8
    assert not notes.repeated
    assert after.status is StudyStatus.COMPLETED


def test_a_study_may_be_extended_again(notes: Notes, store: Store) -> None:
    run(walk_study(notes, n_trials=2), store=store, workers=0)
    for n in (4, 6):
        result = extend(walk_study(notes, n_trials=n), store=store, workers=0)
        assert len(result.trials) == n
    assert not notes.repeated
    straight = run(
        walk_study(notes, n_trials=6), store=Store(notes.folder.parent / "other"), workers=0
    )
    assert outcomes(straight) == outcomes(result)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_trials": 3}, "n_trials is 3; study has 4 trials already"),
        ({"space": SPACE | {"lr": 0.1}}, "the space lacks trial"),
    ],
)
def test_what_cannot_be_extended_is_refused(
    notes: Notes, store: Store, change: dict[str, Any], words: str
) -> None:
    before = run(walk_study(notes), store=store, workers=0)
    with pytest.raises(InvalidStudyError, match=words):
        extend(walk_study(notes, **change), store=store, workers=0)
    assert outcomes(run(walk_study(notes), store=store, workers=0)) == outcomes(before)


# --- functions of the step, and tuners, of the user's


def falling(rate: float) -> Callable[[int], float]:
    return lambda step: rate / (step + 1)


class Falling:
    """A schedule of the user's that says nothing of itself."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: int) -> float:
        return falling(self.rate)(step)


FULL = dt.FullTraining(6)

EXTENDED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "the same space": (
        lambda: dt.choice([falling(0.1), falling(0.2), 0.1]),
        lambda: dt.choice([falling(0.1), falling(0.2), 0.1]),
    ),
    "a larger space": (
        lambda: dt.choice([falling(0.1), falling(0.2)]),
        lambda: dt.choice([0.3, falling(0.2), 0.4, falling(0.1)]),
    ),
    "inside schedules": (
        lambda: dt.choice([dt.warmup(dt.choice([1, 2]), falling(0.1)),
                           dt.join([0.1, falling(0.2)], at=[2])]),
        lambda: dt.choice([0.5, dt.warmup(dt.choice([1, 2, 3]), falling(0.1)),
                           dt.join([0.1, falling(0.2)], at=[2])]),
    ),
    "options with sub-spaces": (
        lambda: dt.choice({0.1: {"decay": dt.choice([falling(0.1), falling(0.2)])}, 0.2: {}}),
        lambda: dt.choice({0.1: {"decay": dt.choice([0.3, falling(0.2), falling(0.1)])}, 0.2: {}}),
    ),
    "objects": (
        lambda: dt.choice([Falling(0.1), partial(lambda rate, step: rate / (step + 2), 0.1)]),
        lambda: dt.choice([0.2, Falling(0.1),
                           partial(lambda rate, step: rate / (step + 2), 0.1)]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXTENDED)
@pytest.mark.parametrize("tuner", [FULL, OwnTuner(6)], ids=["ours", "mine"])
def test_a_study_with_functions_of_the_step_is_extended(
    notes: Notes, store: Store, case: str, tuner: Tuner
) -> None:
    spaces = [{"lr": made(), "momentum": dt.choice([0.9, 0.8])} for made in EXTENDED[case]]
    longer = OwnTuner(8) if isinstance(tuner, OwnTuner) else dt.FullTraining(8)
    before = run(walk_study(notes, space=spaces[0], tuner=tuner, n_trials=3), store=store,
                 workers=0)  # fmt: skip
    more = walk_study(notes, space=spaces[1], tuner=longer, n_trials=4)
    after = extend(more, store=store, workers=0)

    assert len(after.trials) == 4
    for old, new in zip(before.trials, after.trials, strict=False):
        assert [old.configuration.at(step) for step in range(6)] == [
            new.configuration.at(step) for step in range(6)
        ]
    assert not notes.repeated, "no step was trained twice"
    assert outcomes(run(more, store=store, workers=0)) == outcomes(after)


def test_a_study_made_anew_goes_on(notes: Notes, store: Store) -> None:
    def made() -> dt.Study:
        space = {"lr": dt.choice([falling(0.1), Falling(0.2)]), "momentum": 0.9}
        return walk_study(notes, space=space, tuner=OwnTuner(6), n_trials=2)

    before = run(made(), store=store, workers=0)
    assert outcomes_by_value(run(made(), store=store, workers=0)) == outcomes_by_value(before)


def outcomes_by_value(result: Result) -> list[Any]:
    return [([t.configuration.at(step) for step in range(6)], t.metrics) for t in result.trials]


def test_a_function_that_cannot_be_written_is_found_where_it_was(
    notes: Notes, store: Store
) -> None:
    def short(step: int) -> float:  # has no answer where nobody asks
        return [0.1, 0.2, 0.3][step]

    joined = dt.join([short, 0.1], at=[3])
    space = {"lr": joined, "momentum": dt.choice([0.9, 0.8])}
    run(walk_study(notes, space=space, tuner=FULL, n_trials=1), store=store, workers=0)
    wider = space | {"momentum": dt.choice([0.7, 0.9, 0.8])}
    result = extend(walk_study(notes, space=wider, tuner=FULL, n_trials=3), store=store, workers=0)
    assert len(result.trials) == 3
    assert not notes.repeated
    changed = wider | {"lr": dt.choice([0.2, joined])}
    words = (
        r"lr was cannot be told \(the values of the function .*short are not written.*leave that"
    )
    with pytest.raises(InvalidStudyError, match=words):
        extend(walk_study(notes, space=changed, tuner=FULL, n_trials=4), store=store, workers=0)


def test_a_function_with_other_values_is_another_one(notes: Notes, store: Store) -> None:
    def space(rate: float) -> dict[str, object]:
        return {"lr": dt.choice([0.1, falling(rate)]), "momentum": 0.9}

    sampler = dt.Grid()
    run(walk_study(notes, space=space(0.1), tuner=FULL, sampler=sampler, n_trials=2),
        store=store, workers=0)  # fmt: skip
    with pytest.raises(InvalidStudyError, match=r"the space lacks trial 1, .*its functions of the "
                       r"step must give what they gave in the first 6 steps"):  # fmt: skip
        extend(walk_study(notes, space=space(0.2), tuner=FULL, sampler=sampler, n_trials=2),
               store=store, workers=0)  # fmt: skip


def test_a_changed_study_with_a_tuner_of_the_users_is_refused_in_one_sentence(
    notes: Notes, store: Store
) -> None:
    run(walk_study(notes, tuner=OwnTuner(6), n_trials=1), store=store, workers=0)
    with pytest.raises(InvalidStudyError, match=r"max_steps of study was 6 and is 8.*dasktune"):
        run(walk_study(notes, tuner=OwnTuner(8), n_trials=1), store=store, workers=0)
    with pytest.raises(BackendError, match=r"dasktune\.run\(study\) gives their result"):
        dt.load_result("study", store=store)


@pytest.mark.parametrize("loads", [False, True], ids=["result", "loaded result"])
def test_earlier_trials_with_functions_of_the_step_are_learned_from(
    notes: Notes, store: Store, *, loads: bool
) -> None:
    def made(**changes: Any) -> dt.Study:  # noqa: ANN401
        space = {"lr": dt.choice([falling(0.1), falling(0.2), 0.1]), "momentum": 0.9}
        return walk_study(notes, space=space, tuner=FULL, sampler=dt.Grid(), **changes)

    result = run(made(n_trials=3), store=store, workers=0)
    if loads:
        result = dt.load_result("study", store=store)

    later = made(n_trials=3, name="later", warm_start=[result])

    assert [dict(trial.point) for trial in later.warm_start] == [{"lr": 0}, {"lr": 1}, {"lr": 2}]


def test_a_study_with_other_code_is_not_extended(notes: Notes, store: Store) -> None:
    run(walk_study(notes), store=store, workers=0)
    other = study_of(Raises(str(notes.folder)), sampler=dt.Random(), n_trials=6)
    with pytest.raises(InvalidStudyError, match="nothing that it trained would be of use"):
        extend(other, store=store, workers=0)


def test_a_study_that_is_not_there_is_not_extended(notes: Notes, store: Store) -> None:
    with pytest.raises(InvalidStudyError, match=r"there is no study 'study' .* to extend"):
        extend(walk_study(notes), store=store, workers=0)


def test_an_extension_tries_next_what_first_names_and_was_not_tried(
    notes: Notes, store: Store
) -> None:
    names = [{"lr": lr, "momentum": m} for lr in (0.1, 0.2) for m in (0.0, 0.9)]
    space = {"lr": dt.choice([0.1, 0.2]), "momentum": dt.choice([0.0, 0.9])}
    run(walk_study(notes, space=space, n_trials=2, first=names[:2]), store=store, workers=0)
    more = walk_study(notes, space=space, n_trials=3, first=names[1:3])

    result = extend(more, store=store, workers=0)

    assert [trial.configuration.at(0) for trial in result.trials] == names[:3]
    assert outcomes(extend(more, store=store, workers=0)) == outcomes(result)
    few = walk_study(notes, space=space, n_trials=3, first=names[2:])
    with pytest.raises(InvalidStudyError, match="has 3 trials already, and first gives 1 more"):
        extend(few, store=store, workers=0)


def test_first_trials_are_those_that_were_given(notes: Notes, store: Store) -> None:
    first = [{"lr": dt.step_decay(0.1, factor=0.1, at=[3]), "momentum": 0.9}]
    result = run(walk_study(notes, first=first), store=store, workers=0)
    assert result.trials[0].configuration == dt.Configuration.of(first[0])
    drawn = [trial.configuration for trial in result.trials]
    assert len(set(drawn)) == len(drawn), "the sampler does not draw it again"
    again = run(walk_study(notes, first=first), store=store, workers=0)
    assert outcomes(again) == outcomes(result)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ([{"lr": 0.1}], "momentum"),
        ([{"lr": 0.3, "momentum": 0.9}], "lr"),
        ([{"lr": 0.1, "momentum": 0.9, "decay": 1}], "decay"),
        ({"lr": 0.1, "momentum": 0.9}, "first is"),
        ([{"lr": 0.1, "momentum": 0.9}] * 5, "n_trials is 4"),
    ],
)
def test_first_trials_outside_the_space_are_refused(notes: Notes, first: Any, words: str) -> None:  # noqa: ANN401
    with pytest.raises(InvalidStudyError, match=words):
        walk_study(notes, first=first)


def test_workers_beside_a_client_are_refused_as_by_run(notes: Notes, store: Store) -> None:
    client: Any = create_autospec(Client, instance=True, asynchronous=False, status="running")
    for verb in (run, extend):
        with pytest.raises(InvalidStudyError, match="a client is given too"):
            verb(walk_study(notes), store=store, client=client, workers=2)
