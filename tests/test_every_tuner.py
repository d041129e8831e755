"""Every tuner that we ship, broken off in mid-study, goes on as if nothing had happened.

In the simulator a timeline is cut anywhere, and other workers go on; on real training the driver is
killed again and again.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random as Generator
from typing import Any

import pytest

import dasktune as dt
from dasktune.simulator.backend import SimulatedBackend
from dasktune.study.commands import StudyStatus
from dasktune.study.drive import drive
from dasktune.study.events import Event
from dasktune.study.result import Result, results_of
from dasktune.study.timeline import replay
from dasktune.trial import TrialStatus
from dasktune.tuners.tuner import Tuner
from tests.every_tuner import SEARCHES, outcome
from tests.worlds import Nothing

ROOT = Path(__file__).parents[1]

every = pytest.mark.parametrize("name", SEARCHES)


def test_all_tuners_are_there() -> None:
    shipped = {
        value for value in vars(dt).values() if isinstance(value, type) and issubclass(value, Tuner)
    }
    assert {type(search.tuner) for search in SEARCHES.values()} == shipped


# --- simulated ------------------------------------------------------------------------------------


def curve(configuration: dt.Configuration, step: int) -> Mapping[str, float]:
    """Some number for each history, few of them NaN."""
    past = [sorted(configuration.at(t).items()) for t in range(step)]
    drawn = Generator(repr(past)).random()
    return {"loss": drawn if drawn > 0.05 else float("nan")}


WORLD = dt.World(workers=[1.0, 1.3, 1.7], load_s=0.1, save_s=0.2, curve=curve)


class Later(SimulatedBackend):
    """The same machines, joining a study that has run for a while."""

    def __init__(self, since_s: float) -> None:
        super().__init__(WORLD, ("loss",))
        self._since_s = since_s

    def next_event(self) -> tuple[Event, float]:
        event, at_s = super().next_event()
        return event, at_s + self._since_s


def resumed(study: dt.Study, lines: list[str]) -> Result:
    """Go on from the lines of a timeline with new workers."""
    core, timeline = replay([study], lines)
    drive(core, Later(core.now), timeline.record, resumes=True)
    return results_of(core, timeline)[0]


@every
def test_a_simulated_study_cut_anywhere_goes_on_to_its_end(name: str) -> None:
    search = SEARCHES[name]
    study = search.study(Nothing(), name)
    straight = dt.simulate(study, WORLD)
    lines = list(straight.timeline.lines())
    rng = Generator(name)
    for at in sorted(rng.sample(range(1, len(lines)), 6)):
        result = resumed(study, lines[:at])
        assert list(result.timeline.lines())[:at] == lines[:at]
        assert result.status is StudyStatus.COMPLETED
        assert all(trial.status.is_final for trial in result.trials)
        if search.is_synchronous:
            assert outcome(result) == outcome(straight), at


@every
def test_a_replayed_timeline_gives_the_result_that_it_gave(name: str) -> None:
    study = SEARCHES[name].study(Nothing(), name)
    straight = dt.simulate(study, WORLD)
    core, timeline = replay([study], list(straight.timeline.lines()))
    assert outcome(results_of(core, timeline)[0]) == outcome(straight)


# --- trained and killed ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """What a run left."""

    outcome: list[Any]
    status: str
    steps_executed: int
    steps_recomputed: int
    calls: Counter[str]
    """How often each step was trained, by the state that it began with and its values."""


def trained(folder: Path, name: str) -> Trained:
    told = json.loads((folder / f"{name}.json").read_text())
    _, executed, recomputed = told["steps"]
    calls = Counter((folder / f"{name}.steps").read_text().splitlines())
    return Trained(told["outcome"], told["status"], executed, recomputed, calls)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a process has trained every study, killed and undisturbed."""
    folder = tmp_path_factory.mktemp("every-tuner")
    done = subprocess.run(
        [sys.executable, "-m", "tests.every_tuner", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.torch
@every
def test_a_study_whose_driver_is_killed_again_and_again_trains_no_committed_step_twice(
    folder: Path, name: str
) -> None:
    killed, quiet = trained(folder / "killed", name), trained(folder / "quiet", name)
    journals = json.loads((folder / "killed" / f"{name}.journals").read_text())
    assert len(journals) > 2, "it was killed at least twice"

    # Only what the plan itself says that it trains again, as it does undisturbed.
    assert killed.steps_executed == killed.calls.total()
    assert killed.steps_recomputed == killed.calls.total() - len(killed.calls)
    assert killed.steps_recomputed <= quiet.steps_recomputed

    # What was drawn and decided before a death stays.
    for before, after in pairwise(journals):
        assert after[: len(before)] == before

    assert killed.status == "completed"
    assert len(killed.outcome) >= 8
    over = {status.value for status in TrialStatus if status.is_final}
    assert {status for _, status, _ in killed.outcome} <= over
    if SEARCHES[name].is_synchronous:
        assert killed.outcome == quiet.outcome
        assert killed.calls == quiet.calls
