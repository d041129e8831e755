"""Whatever is called with a first argument of the wrong type says so in one sentence."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import InvalidStudyError
from tests.worlds import Nothing, small_study

MORE: Mapping[str, Mapping[str, object]] = {
    "ASHA": {"max_steps": 9},
    "AsyncHyperband": {"max_steps": 9},
    "Hyperband": {"max_steps": 9},
    "PopulationBasedTraining": {"ready_steps": 2},
    "Study": {"space": {"lr": 0.1}, "tuner": dt.FullTraining(3), "metric": "loss", "mode": "min"},
    "SuccessiveHalving": {"max_steps": 9},
    "check": {"given": {"lr": 0.1}},
    "cosine": {"steps": 3},
    "cosine_restarts": {"period": 3},
    "cyclic": {"high": 0.2, "half_period": 3},
    "exponential": {"rate": 0.9},
    "extend": {"workers": 0},
    "join": {"at": [3]},
    "linear": {"end": 0.2, "steps": 3},
    "logint": {"high": 9},
    "loguniform": {"high": 9.0},
    "polynomial": {"end": 0.2, "steps": 3, "power": 2},
    "randint": {"high": 9},
    "run": {"workers": 0},
    "simulate": {"world": dt.World()},
    "splice": {"at": [3]},
    "step_decay": {"factor": 0.1, "at": [3]},
    "uniform": {"high": 9.0},
    "warmup": {"then": 0.1},
}
"""What has to be given besides the first argument, where anything has."""

WRONG: tuple[object, ...] = (None, 3, ["x"], "no such thing", Nothing)

NUMBERS = [
    "ASHA",
    "AsyncHyperband",
    "FullTraining",
    "Hyperband",
    "MedianStopping",
    "PopulationBasedTraining",
    "World",
    "constant",
    "cosine",
    "cosine_restarts",
    "cyclic",
    "exponential",
    "linear",
    "logint",
    "loguniform",
    "polynomial",
    "randint",
    "step_decay",
    "uniform",
    "warmup",
]
"""What takes a number."""

RIGHT: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(NUMBERS, (3,)),
    "Optuna": (None, Nothing),
    "Store": ("no such thing",),
    "SuccessiveHalving": (None,),
    "choice": (["x"],),
    "constant": (None, 3, ["x"], "no such thing"),
    "join": (["x"],),
    "splice": (["x"],),
}
"""Which of what is wrong elsewhere is right here, or of the right type at least."""

CALLABLES = [
    name
    for name in dt.__all__
    if not (isinstance(thing := getattr(dt, name), type) and issubclass(thing, BaseException))
    and inspect.signature(thing).parameters
]


@pytest.mark.parametrize("name", CALLABLES)
def test_a_wrong_first_argument_is_refused_in_one_sentence_with_its_value(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called = getattr(dt, name)
    first = next(iter(inspect.signature(called).parameters))
    for value in [one for one in WRONG if one not in RIGHT.get(name, ())]:
        with pytest.raises(InvalidStudyError) as refused:
            called(**{first: value, **MORE.get(name, {})})
        assert any(each in str(refused.value) for each in shown(value)), refused.value
        assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir()), "something was begun all the same"


def shown(value: object) -> list[str]:
    """Return what may stand for a value in a message; for a list also its item."""
    if isinstance(value, type):
        return [value.__qualname__]
    return [repr(value), repr(value[0])] if isinstance(value, list) else [repr(value)]


def test_every_public_callable_is_tried() -> None:
    assert set(MORE) | set(RIGHT) <= set(CALLABLES)
    assert {"run", "simulate", "explain", "check", "load_result", "Store"} <= set(CALLABLES)


# --- the arguments after it -----------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [3, "x", [], dt.World])
def test_simulated_machines_and_schedulers_of_other_types_are_refused(wrong: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidStudyError, match=r"world is .*dasktune\.World"):
        dt.simulate(small_study(), wrong)
    with pytest.raises(InvalidStudyError, match=r"scheduler is .*CriticalPathFirst"):
        dt.simulate(small_study(), dt.World(), scheduler=wrong)


@pytest.mark.parametrize("several", [[], [small_study(), 3], [[small_study()]]])
def test_studies_among_other_things_are_no_studies(several: Any) -> None:  # noqa: ANN401
    with pytest.raises(InvalidStudyError, match="a study, or a list of studies"):
        dt.simulate(several, dt.World())
    with pytest.raises(InvalidStudyError, match="a study, or a list of studies"):
        dt.run(several, workers=0)


def test_what_was_not_run_has_no_results_to_explain() -> None:
    result = dt.simulate(small_study(), dt.World())
    wrong: Any
    for wrong in ([small_study()], [result, None], []):
        with pytest.raises(InvalidStudyError, match="a study, a result, or all results of one run"):
            dt.explain(wrong)
    for wrong in ("x", 1.0, [0]):
        with pytest.raises(InvalidStudyError, match="trial must be an integer"):
            dt.explain(result, trial=wrong)
        with pytest.raises(InvalidStudyError, match="trial must be an integer"):
            dt.explain(result, trial=0, other=wrong)


@pytest.mark.parametrize("wrong", ["x", [], True, -1, float("nan")])
def test_a_store_of_another_size_than_a_number_is_refused(wrong: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(InvalidStudyError, match=r"limit_bytes is .* number of bytes"):
        dt.Store(tmp_path, limit_bytes=wrong)


@pytest.mark.parametrize("wrong", ["x", ["key"], 3])
def test_storage_options_without_names_are_refused(wrong: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with pytest.raises(InvalidStudyError, match=r"storage_options is .* mapping such as"):
        dt.Store(tmp_path, storage_options=wrong)
