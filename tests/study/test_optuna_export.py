"""A result as a study of Optuna's."""

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import optuna
import pytest
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState

import dasktune as dt
from dasktune.errors import BackendError
from dasktune.simulator.world import StageRaises
from dasktune.study.commands import AskTrial, EndTrial
from dasktune.study.core import StudyCore
from dasktune.study.events import StudyStarted
from dasktune.study.result import Result, results_of
from dasktune.study.timeline import Timeline
from dasktune.trial import TrialStatus
from tests.worlds import small_study

SPACE = {
    "lr": dt.loguniform(1e-3, 1),
    "depth": dt.randint(1, 4),
    "optimizer": dt.choice({"sgd": {"momentum": dt.uniform(0, 1, step=0.5)}, "adam": {}}),
    "decay": dt.choice([0.1, dt.step_decay(0.1, factor=dt.choice([0.1, 0.5]), at=[2])]),
}


def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
    """Let only the rate matter for the accuracy, and only the depth for the loss."""
    values = configuration.at(0)
    rate, depth = values["lr"], values["depth"]
    assert isinstance(rate, float)
    assert isinstance(depth, int)
    return {"accuracy": 1 - rate + step / 1000, "loss": float(depth)}


def searched(**changes: Any) -> Result:  # noqa: ANN401
    given: dict[str, Any] = {
        "space": SPACE,
        "sampler": dt.Random(),
        "n_trials": 30,
        "tuner": dt.FullTraining(4, report_every=2),
    }
    return dt.simulate(small_study(**given | changes), dt.World(curve=curve, workers=2))


def test_each_trial_is_there_with_its_draw_values_and_curve() -> None:
    result = searched()
    study = result.to_optuna()

    assert study.study_name == result.study.name
    assert [trial.number for trial in study.trials] == list(range(30))
    for ours, theirs in zip(result.trials, study.trials, strict=True):
        assert theirs.state is TrialState.COMPLETE
        assert set(theirs.params) == set(ours.point)
        assert theirs.params["lr"] == ours.point["lr"]
        assert theirs.params["depth"] == ours.point["depth"]
        assert theirs.params["optimizer"] == ("sgd", "adam")[int(ours.point["optimizer"])]
        assert theirs.values == [ours.metrics["accuracy"]]
        assert theirs.intermediate_values == {r.step: r.metrics["accuracy"] for r in ours.reports}
        assert theirs.user_attrs["configuration"] == ours.configuration.text
        assert theirs.user_attrs["reason"] == ours.reason
        assert theirs.duration is not None


def test_both_agree_about_the_best_trial() -> None:
    for mode in ("max", "min"):
        result = searched(mode=mode)
        assert result.best is not None
        assert result.to_optuna().best_trial.number == result.best.number
        assert result.to_optuna().best_value == result.best.metrics["accuracy"]


def test_stopped_trials_are_pruned_and_keep_what_they_reported() -> None:
    result = searched(tuner=dt.SuccessiveHalving(rungs=[1, 2, 4], reduction_factor=3))
    states = {TrialStatus.COMPLETED: TrialState.COMPLETE, TrialStatus.STOPPED: TrialState.PRUNED}
    theirs = result.to_optuna().trials
    assert [trial.state for trial in theirs] == [states[trial.status] for trial in result.trials]
    assert {trial.state for trial in theirs} == set(states.values())
    assert [max(trial.intermediate_values) for trial in theirs] == [
        trial.steps_requested for trial in result.trials
    ]


def test_failed_and_diverged_trials_have_failed_with_their_reason() -> None:
    study = small_study(retries=0, max_failures=99)
    failing = dt.simulate(study, dt.World(faults=[StageRaises(fraction=0.6, seed=1)]))
    theirs = failing.to_optuna().trials
    failed = [trial for trial in failing.trials if trial.status is TrialStatus.FAILED]
    assert failed
    for trial in failed:
        assert theirs[trial.number].state is TrialState.FAIL
        assert theirs[trial.number].user_attrs["reason"] == trial.reason

    diverging = dt.simulate(study, dt.World(curve=lambda *_: {"accuracy": float("inf")}))
    assert {trial.state for trial in diverging.to_optuna().trials} == {TrialState.FAIL}


def test_trials_of_a_study_that_goes_on_are_waiting_or_running() -> None:
    core = StudyCore([small_study()])
    core.handle(StudyStarted(study=0), 0.0)
    (result,) = results_of(core, Timeline())
    assert {trial.state for trial in result.to_optuna().trials} == {TrialState.RUNNING}


def test_several_metrics_are_several_objectives_with_the_same_front() -> None:
    result = searched(metric=["accuracy", "loss"], mode=["max", "min"], rank_by="loss")
    study = result.to_optuna()
    assert study.metric_names == ["accuracy", "loss"]
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [trial.number for trial in study.best_trials] == [
        trial.number for trial in result.pareto_front
    ]


def test_a_duplicate_is_marked() -> None:
    same = {"lr": dt.choice([0.1, dt.piecewise({0: 0.1, 9: 0.2})])}
    study = dt.simulate(small_study(space=same), dt.World()).to_optuna()
    assert [trial.user_attrs.get("duplicate_of") for trial in study.trials] == [None, 0]


def test_a_trial_that_branched_off_has_the_draw_that_it_goes_on_with_and_its_origin() -> None:
    tuner = dt.PopulationBasedTraining(max_steps=6, ready_steps=2)
    space = {"lr": dt.loguniform(1e-3, 1), "depth": dt.randint(1, 4)}
    result = searched(space=space, n_trials=5, tuner=tuner)
    theirs = result.to_optuna().trials
    branched = [trial for trial in result.trials if trial.parent is not None]
    assert branched
    for ours in branched:
        found = theirs[ours.number]
        assert found.params == dict(ours.point) == ours.configuration.at(ours.branch_step)
        assert found.user_attrs["parent"] == ours.parent
        assert found.user_attrs["branch_step"] == ours.branch_step
    assert all("parent" not in theirs[number].user_attrs for number in range(5))


def test_trials_live_from_their_first_request_to_their_end_in_each_study_of_a_run() -> None:
    studies = [
        small_study(name="a", tuner=dt.SuccessiveHalving(rungs=[2, 8], reduction_factor=2)),
        small_study(name="b", n_trials=3, tuner=dt.FullTraining(4)),
    ]
    for index, result in enumerate(dt.simulate(studies, dt.World(workers=2))):
        asked: dict[int, float] = {}
        ended: dict[int, float] = {}
        for at_s, command in result.timeline.commands():
            if isinstance(command, AskTrial) and command.trial.study == index:
                asked.setdefault(command.trial.number, at_s)
            if isinstance(command, EndTrial) and command.trial.study == index:
                ended[command.trial.number] = at_s
        for trial in result.to_optuna().trials:
            assert trial.datetime_start is not None
            assert trial.datetime_complete is not None
            seconds = [
                (at - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001  (so are Optuna's)
                for at in (trial.datetime_start, trial.datetime_complete)
            ]
            assert seconds == [asked[trial.number], ended[trial.number]]
            assert seconds[0] < seconds[1]


def test_optuna_goes_on_from_there_by_itself() -> None:
    study = searched().to_optuna()
    asked = study.ask(study.trials[0].distributions)
    assert study.tell(asked, 0.5).number == 30


def test_importances_name_what_matters() -> None:
    for metric, path in (("accuracy", "lr"), ("loss", "depth")):
        result = searched(
            metric=["accuracy", "loss"], mode=["max", "min"], rank_by=metric, n_trials=60
        )
        shares = result.importances()
        assert next(iter(shares)) == path
        assert sum(shares.values()) == pytest.approx(1)
        assert set(shares) == {"lr", "depth", "optimizer", "decay"}


def test_any_of_optunas_evaluators_can_weigh() -> None:
    result = searched()
    shares = result.importances(FanovaImportanceEvaluator(seed=0))
    assert next(iter(shares)) == "lr"
    assert shares == get_param_importances(
        result.to_optuna(), evaluator=FanovaImportanceEvaluator(seed=0)
    )


def test_importances_of_too_few_trials_are_refused_in_a_sentence() -> None:
    with pytest.raises(BackendError, match="2 of 2 trials of study were completed; importances"):
        searched(n_trials=2).importances()


@pytest.mark.parametrize("name", ["optuna", "pandas"])
def test_a_library_that_is_not_installed_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = searched(n_trials=3)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BackendError, match=f"{name} is not installed: pip install"):
        _ = result.to_optuna() if name == "optuna" else result.to_dataframe()


def test_nothing_is_said_and_optunas_log_stays_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = optuna.logging.get_verbosity()
    searched().to_optuna()
    assert optuna.logging.get_verbosity() == before
    assert capsys.readouterr().err == ""
