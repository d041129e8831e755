import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.simulator.world import StageRaises
from tests.worlds import small_study

PARTING = {"lr": dt.choice([dt.constant(0.1), dt.step_decay(0.1, factor=0.1, at=[3])])}


def grid(tuner: dt.FullTraining | dt.SuccessiveHalving, name: str = "one") -> dt.Study:
    return small_study(space=PARTING, sampler=dt.Grid(), tuner=tuner, name=name)


def test_a_study_is_explained_before_it_runs_by_its_rungs_and_what_can_be_shared() -> None:
    tuner = dt.SuccessiveHalving(rungs=[2, 6], reduction_factor=2)
    lines = dt.explain(grid(tuner)).splitlines()
    assert "2 trials of 2 configurations" in lines[0]
    assert "steps 0 to 2: 2 trials, 4 steps" in lines[2]
    assert "2 of 4 steps would be distinct" in lines[2]
    assert "steps 2 to 6: 1 trials, 4 steps" in lines[3]
    assert "9 of 12 steps would be distinct" in lines[3]


def test_a_range_at_step_0_is_said_to_make_sharing_impossible() -> None:
    apart = small_study(
        space={"lr": dt.uniform(0.1, 1)},
        sampler=dt.Random(),
        n_trials=3,
        tuner=dt.FullTraining(2),
    )
    assert "no two trials can share a step: lr" in dt.explain(apart)
    assert "no two trials" not in dt.explain(grid(dt.FullTraining(6)))


def test_each_stage_of_a_trial_is_explained_with_its_reason_and_whom_it_served() -> None:
    result = dt.simulate(grid(dt.FullTraining(6)), dt.World())
    text = dt.explain(result, trial=1)
    assert re.search(r"steps 0 to 3 on worker-0: trained; longest.*shared with 1: 0\n", text)
    assert re.search(r"steps 3 to 6 on worker-0: trained; longest.*for this trial alone\n", text)
    assert "asked to train to step 6: full training" in text


def test_a_stopped_trial_is_explained_by_its_rank() -> None:
    tuner = dt.SuccessiveHalving(rungs=[4, 6], reduction_factor=2)
    result = dt.simulate(grid(tuner), dt.World())
    (stopped,) = [trial for trial in result.trials if trial.status.value == "stopped"]
    assert "rank 2" in dt.explain(result, trial=stopped.number)


def test_a_stage_that_raised_is_explained_as_failed() -> None:
    result = dt.simulate(grid(dt.FullTraining(6)), dt.World(faults=[StageRaises(fraction=1.0)]))
    assert "failed: RuntimeError: simulated error" in dt.explain(result, trial=0)


class Brittle:
    """Trains, until the rate has fallen."""

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:
        del hp, seed
        self.x = 1.0

    def step(self, hp: Mapping[str, Any], t: int) -> None:
        if hp["lr"] < 0.05:
            raise ArithmeticError(f"too slow at step {t}")
        self.x -= hp["lr"]

    def evaluate(self) -> dict[str, float]:
        return {"loss": self.x}

    def state_dict(self) -> dict[str, float]:
        return {"x": self.x}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.x = state["x"]


def test_a_trial_that_raised_has_its_traceback_in_the_result_and_in_words(tmp_path: Path) -> None:
    study = dt.Study(
        Brittle(),
        space=PARTING,
        sampler=dt.Grid(),
        tuner=dt.FullTraining(6),
        metric="loss",
        mode="min",
        name="brittle",
    )
    result = dt.run(study, store=tmp_path, workers=0)

    whole, failed = result.trials
    assert (whole.status.value, failed.status.value) == ("completed", "failed")
    source, first = inspect.getsourcelines(Brittle.step)
    raising = next(i for i, line in enumerate(source) if "raise" in line)
    place = f'  File "{__file__}", line {first + raising}, in step\n    {source[raising].strip()}\n'
    error = "ArithmeticError: too slow at step 3"
    assert failed.reason.startswith(f"{error}\nTraceback (most recent call last):\n")
    assert place in failed.reason
    assert failed.reason.rstrip().endswith(error)

    told = dt.explain(result, trial=1)
    assert told.startswith(f"trial 1 of brittle: failed, {failed.reason}")
    attempts = re.findall(r"steps 3 to 6 on .*: failed: (.*?); ", told)
    assert attempts == [error] * (1 + study.retries)
    assert "Traceback" not in dt.explain(result, trial=0)


def test_two_trials_are_told_apart_at_the_step_at_which_they_part() -> None:
    result = dt.simulate(grid(dt.FullTraining(6)), dt.World())
    text = dt.explain(result, trial=0, other=1)
    assert "share steps 0 to 2: at step 3 lr is" in text


def test_trials_of_another_study_are_named_with_it() -> None:
    tuner = dt.FullTraining(6)
    results = dt.simulate([grid(tuner, "one"), grid(tuner, "two")], dt.World())
    assert "two/0" in dt.explain(results, trial=0, study="one")


@pytest.mark.parametrize("trial", [-1, 2])
def test_a_trial_that_is_not_there_is_refused(trial: int) -> None:
    result = dt.simulate(grid(dt.FullTraining(6)), dt.World())
    with pytest.raises(InvalidStudyError, match=f"trial is {trial}; the study has trials 0 to 1"):
        dt.explain(result, trial=trial)


def test_a_step_counts_the_trials_that_were_asked_to_stop_there() -> None:
    """Trials of later brackets train past the first rung of the first one."""
    study = small_study(
        sampler=dt.Random(),
        n_trials=7,
        tuner=dt.Hyperband(min_steps=2, max_steps=8, reduction_factor=2),
    )
    result = dt.simulate(study, dt.World())

    counts = re.findall(r"step (\d+): (\d+) trials asked, (\d+) reported", dt.explain(result))

    reported = {
        step: sum(any(r.step == step for r in one.reports) for one in result.trials)
        for step in study.tuner.decision_steps
    }
    assert [(int(step), int(told)) for step, _, told in counts] == list(reported.items())
    assert all(asked == told for _, asked, told in counts)


def test_a_study_that_did_not_run_has_no_trials_to_explain() -> None:
    with pytest.raises(InvalidStudyError, match="trial is 3; a study has no trials before it runs"):
        dt.explain(grid(dt.FullTraining(6)), trial=3)
