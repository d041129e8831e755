"""A study refuses what does not fit when it is made, and is never changed afterwards."""

from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.space.search_space import SearchSpace
from tests.worlds import SPACE, Nothing, small_study

CONTINUOUS = {"lr": dt.uniform(0.0, 1.0)}


class HalfDone:
    def setup(self, hp: object, seed: int) -> None:
        pass

    step = None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"metric": ""}, r"metric is ''; it must be the name of a result of evaluate\(\)"),
    ({"metric": None}, "metric is None; it must be the name"),
    ({"metric": 3}, "metric is 3; it must be the name"),
    ({"mode": "maximum"}, "mode is 'maximum'; it must be 'max' or 'min'"),
    ({"mode": None}, "mode is None; it must be 'max' or 'min'"),
    ({"mode": ["max"]}, r"mode is \['max'\]; it must be 'max' or 'min'"),
    ({"name": ""}, "name is ''; it must be letters, digits"),
    ({"name": "a/b"}, "name is 'a/b'; it must be letters, digits"),
    ({"name": "../up"}, "name is '../up'; .* first a letter or digit"),
    ({"name": ".hidden"}, "name is '.hidden'; .* first a letter or digit"),
    ({"name": "line\n"}, r"name is 'line\\n'; it must be letters, digits"),
    ({"name": 7}, "name is 7; it must be letters, digits"),
    ({"n_trials": 0}, "n_trials must be at least 1, got 0"),
    ({"n_trials": -3}, "n_trials must be at least 1, got -3"),
    ({"n_trials": 2.0}, r"n_trials must be an integer such as 3, got 2\.0"),
    ({"n_trials": True}, "n_trials must be an integer such as 3, got True"),
    ({"n_trials": "9"}, "n_trials must be an integer such as 3, got '9'"),
    ({"sampler": dt.Random(), "n_trials": None}, "n_trials is None; say how many trials"),
    ({"space": CONTINUOUS, "n_trials": None}, "lr is drawn from .*continuous: a grid needs"),
    ({"space": CONTINUOUS, "n_trials": 5}, "lr is drawn from .*continuous: a grid needs"),
    ({"space": {}}, "a search space is a mapping with at least one"),
    ({"space": [("lr", 0.1)]}, "a search space is a mapping with at least one"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"seed": None}, "seed must be an integer such as 3, got None"),
    ({"seed": 1.5}, r"seed must be an integer such as 3, got 1\.5"),
    ({"training_seed": -1}, "training_seed must be at least 0, got -1"),
    ({"training_seed": "0"}, "training_seed must be an integer such as 3, got '0'"),
    ({"retries": -1}, "retries must be at least 0, got -1"),
    ({"retries": inf}, "retries must be an integer such as 3, got inf"),
    ({"max_failures": 0}, "max_failures must be at least 1, got 0"),
    ({"sampler": dt.Grid}, r"sampler is .*Grid.*; it must be an instance, not the class"),
    ({"sampler": "grid"}, r"sampler is 'grid'; it must be one, such as dasktune\.Random\(\)"),
    ({"sampler": dt.FullTraining(3)}, "sampler is FullTraining.*; it must be one, such as"),
    ({"tuner": dt.FullTraining}, "tuner is .*; it must be an instance, not the class"),
    ({"tuner": None}, r"tuner is None; it must be one, such as dasktune\.FullTraining"),
    ({"tuner": dt.Grid()}, "tuner is Grid.*; it must be one, such as"),
    ({"trainable": Nothing}, r"trainable is the class Nothing; give an instance: Nothing\(\)"),
    ({"trainable": None}, "trainable None has no method setup, step, evaluate, state_dict"),
    ({"first": [1]}, r"a configuration is a mapping such as \{'lr': 0.1\}, got 1"),
    ({"first": None}, r"first is None; it must be a list of mappings"),
    ({"warm_start": None}, "warm_start is None; it must be a list of results, such as"),
    ({"warm_start": "fashion"}, "warm_start is 'fashion'; it must be a list of results"),
    ({"warm_start": 3}, "warm_start is 3; it must be a list of results"),
    ({"warm_start": [3]}, "warm_start holds 3; it must be a list of results"),
    ({"warm_start": ["fashion"]}, "warm_start holds 'fashion'; it must be a list of results"),
    ({"trainable": HalfDone()}, "has no method step, evaluate, state_dict, load_state_dict"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_does_not_fit_is_refused_with_its_value_and_a_cure(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidStudyError, match=message):
        small_study(**changes)


def test_one_result_is_no_list_of_earlier_ones() -> None:
    result: Any = dt.simulate(small_study(), dt.World())
    with pytest.raises(InvalidStudyError, match=r"warm_start is one Result; it must be a list of"):
        small_study(warm_start=result)
    with pytest.raises(
        InvalidStudyError, match=r"warm_start holds TrialResult.*; it must be a list"
    ):
        small_study(warm_start=result.trials)


@pytest.mark.parametrize("name", ["metric", "mode", "tuner", "space"])
def test_what_every_study_must_say_has_no_default(name: str) -> None:
    given: dict[str, Any] = {
        "space": SPACE,
        "tuner": dt.FullTraining(3),
        "metric": "accuracy",
        "mode": "max",
        "n_trials": 1,
    }
    del given[name]
    with pytest.raises(TypeError, match=name):
        dt.Study(Nothing(), **given)


@pytest.mark.parametrize("name", [field.name for field in fields(dt.Study)])
def test_nothing_of_a_study_can_be_changed(name: str) -> None:
    study = small_study()
    with pytest.raises(FrozenInstanceError):
        setattr(study, name, getattr(study, name))
    with pytest.raises((FrozenInstanceError, TypeError, AttributeError)):
        study.colour = "red"  # type: ignore[attr-defined]


def test_changing_the_mapping_of_the_space_afterwards_changes_nothing() -> None:
    given = dict(SPACE)
    study = small_study(space=given)
    given["dropout"] = dt.choice([0.1, 0.2])
    given.pop("lr")

    assert study.space == SearchSpace(SPACE)


def test_a_search_space_may_be_given_as_it_is() -> None:
    space = SearchSpace(SPACE)
    assert small_study(space=space).space is space


def test_grid_search_takes_the_whole_space_unless_told_otherwise() -> None:
    assert small_study(n_trials=None).n_trials == 10
    assert small_study(n_trials=4).n_trials == 4
    assert small_study(n_trials=99).n_trials == 99
    assert len(dt.simulate(small_study(), dt.World(workers=3)).trials) == 10
    assert len(dt.simulate(small_study(n_trials=4), dt.World(workers=3)).trials) == 4


def test_the_sampler_is_random_unless_told_otherwise() -> None:
    study = small_study(sampler=None, n_trials=3)
    assert study.sampler == dt.Random()


@pytest.mark.parametrize(
    ("value", "is_usable"),
    [(0.5, True), (0, True), (True, True), (-1e308, True)]
    + [(odd, False) for odd in (nan, inf, -inf, None, "0.5", [0.5], 1j, 10**400)],
    ids=lambda value: repr(value)[:9],
)
@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_score_is_the_metric_with_greater_as_better_and_none_if_it_is_no_finite_number(
    value: Any,  # noqa: ANN401
    *,
    is_usable: bool,
    mode: str,
) -> None:
    study = small_study(mode=mode)
    expected = (value if mode == "max" else -value) if is_usable else None
    assert study.score({"accuracy": value, "loss": nan}) == expected


def test_seeds_of_draws_are_not_in_the_family_and_all_that_training_depends_on_is() -> None:
    study = small_study()
    same = [small_study(seed=7), small_study(name="other", metric="loss", mode="min", retries=0)]
    assert {one.family for one in same} == {study.family}
    other = [small_study(training_seed=1), small_study(trainable=Nothing(version=2))]
    assert len({study.family, *(one.family for one in other)}) == 3


@pytest.mark.parametrize(
    ("tuner", "furthest"),
    [
        (dt.FullTraining(7, report_every=2), 7),
        (dt.SuccessiveHalving(rungs=[2, 5]), 5),
        (dt.ASHA(min_steps=1, max_steps=6), 6),
    ],
)
def test_the_furthest_step_is_the_last_at_which_the_tuner_decides(
    tuner: object, furthest: int
) -> None:
    assert small_study(tuner=tuner).max_steps == furthest
