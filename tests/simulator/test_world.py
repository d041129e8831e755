"""A world refuses what no machine can be, where it is described."""

from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.simulator.world import Fault, StageRaises, StateVanishes, WorkerDies, World
from tests.worlds import small_study

SECONDS = ["step_s", "startup_s", "load_s", "save_s", "evaluate_s", "join_s"]


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("wrong", [-1, -0.001, nan, inf, None, "1", True, 1j])
def test_seconds_are_finite_numbers_from_zero_on(name: str, wrong: object) -> None:
    given: dict[str, Any] = {name: wrong}
    with pytest.raises(InvalidStudyError, match=name):
        World(**given)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"workers": 0}, "workers must be at least 1, got 0"),
    ({"workers": -2}, "workers must be at least 1, got -2"),
    ({"workers": 2.5}, r"workers must be an integer such as 3, got 2\.5"),
    ({"workers": True}, "workers must be an integer such as 3, got True"),
    ({"workers": None}, "workers must be an integer such as 3, got None"),
    ({"workers": []}, r"workers is \[\]; there must be at least one"),
    ({"workers": [1.0, 0.0]}, r"speed of a worker must be above 0.*got 0\.0"),
    ({"workers": [-1.0]}, r"speed of a worker must be above 0.*got -1\.0"),
    ({"workers": [nan]}, "speed of a worker must be a finite number.*got nan"),
    ({"workers": [inf]}, "speed of a worker must be a finite number.*got inf"),
    ({"workers": [None]}, "speed of a worker must be a finite number.*got None"),
    ({"workers": "ab"}, "workers is 'ab'; it must be how many there are, or the speed of each"),
    ({"workers": 2, "join_s": [0.0]}, "join_s has 1 times; it must have one for each of 2"),
    ({"workers": 1, "join_s": []}, "join_s has 0 times; it must have one for each of 1"),
    ({"workers": 2, "join_s": [0.0, -1.0]}, r"join_s is -1\.0; it must be a number of seconds"),
    ({"curve": 3}, "curve is 3; it must be a function of a configuration and a step"),
    ({"faults": WorkerDies(worker=0, at_s=1)}, "faults is WorkerDies.*; it must be a list"),
    ({"faults": 3}, "faults is 3; it must be a list of faults"),
    ({"faults": ["fire"]}, "a fault is 'fire'; it must be a WorkerDies, StageRaises or"),
    (
        {"workers": 2, "faults": [WorkerDies(worker=2, at_s=1.0)]},
        "is about worker 2; the last of 2 workers is 1",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_nonsense_is_refused_with_its_value_and_a_cure(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidStudyError, match=message):
        World(**given)


FAULTS: list[tuple[type[Fault], dict[str, Any], str]] = [
    (WorkerDies, {"worker": -1, "at_s": 1.0}, "worker must be at least 0, got -1"),
    (WorkerDies, {"worker": 0.0, "at_s": 1.0}, r"worker must be an integer such as 3, got 0\.0"),
    (WorkerDies, {"worker": 0, "at_s": -1.0}, r"at_s is -1\.0; it must be a number of seconds"),
    (WorkerDies, {"worker": 0, "at_s": inf}, "at_s .*inf"),
    (WorkerDies, {"worker": 0, "at_s": 1, "back_after_s": -1}, "back_after_s is -1; it must be"),
    (StageRaises, {"fraction": 1.5}, r"fraction is 1\.5; it must be a number between 0 and 1"),
    (StageRaises, {"fraction": -0.1}, r"fraction is -0\.1; it must be a number between 0 and 1"),
    (StageRaises, {"fraction": nan}, "fraction .*nan"),
    (StageRaises, {"fraction": "half"}, "fraction .*'half'"),
    (StageRaises, {"fraction": 0.5, "seed": 0.5}, r"seed must be an integer such as 3, got 0\.5"),
    (StateVanishes, {"at_s": -2}, "at_s is -2; it must be a number of seconds"),
    (StateVanishes, {"at_s": None}, "at_s .*None"),
]


@pytest.mark.parametrize(("kind", "given", "message"), FAULTS)
def test_a_fault_that_cannot_be_is_refused_where_it_is_made(
    kind: type[Fault], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidStudyError, match=message):
        kind(**given)


@pytest.mark.parametrize("wrong", [-1.0, nan, inf, None, "1"])
def test_a_function_that_gives_no_seconds_is_refused_when_it_does(wrong: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidStudyError, match="what step_s gives"):
        dt.simulate(small_study(), World(step_s=lambda _: wrong))


@pytest.mark.parametrize("name", [field.name for field in fields(World)])
def test_nothing_of_a_world_can_be_changed(name: str) -> None:
    world = World()
    with pytest.raises(FrozenInstanceError):
        setattr(world, name, getattr(world, name))


def test_one_number_stands_for_all_workers() -> None:
    world = World(workers=3, join_s=2.0)
    assert world.speeds == (1.0, 1.0, 1.0)
    assert world.join_times == (2.0, 2.0, 2.0)
    assert World(workers=[1.0, 2.0], join_s=[0.0, 5.0]).speeds == (1.0, 2.0)


def test_training_takes_the_sum_of_its_steps() -> None:
    configuration = dt.Configuration.of({"lr": dt.piecewise({0: 1.0, 2: 10.0})})
    assert World(step_s=2).train_s(configuration, 1, 4) == 6

    def by_rate(hp: Any) -> float:  # noqa: ANN401
        rate: float = hp["lr"]
        return rate

    assert World(step_s=by_rate).train_s(configuration, 1, 4) == 21.0
    assert World(step_s=by_rate).train_s(configuration, 3, 3) == 0
