"""Whole studies of populations: what is shared, what is never trained twice, what can be replayed.

The worlds are simulated, or train a small walk in this process.
"""

from dataclasses import replace
from math import nan
from pathlib import Path
from random import Random as Generator
from random import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.plan.history import same_until
from dasktune.progress import Progress
from dasktune.space.schedule import Schedule
from dasktune.study.commands import AskTrial
from dasktune.study.header import write_header
from dasktune.study.recall import recall
from dasktune.study.result import Result, results_of
from dasktune.study.study import Study
from dasktune.study.timeline import Timeline, replay
from dasktune.trial import TrialStatus
from tests.plays import Play, Truth, rolled
from tests.test_progress import followed, random_world
from tests.worlds import SPACE, OneByOne, small_study

CONTINUOUS = {
    "lr": dt.loguniform(1e-3, 1.0),
    "momentum": dt.choice([0.9, dt.piecewise({0: 0.9, 5: dt.uniform(0.5, 0.99)})]),
    "batch_size": dt.choice([16, 32, 64]),
}


def tuner_of(rng: Generator, *, is_synchronous: bool | None = None) -> dt.PopulationBasedTraining:
    return dt.PopulationBasedTraining(
        max_steps=8,
        ready_steps=rng.choice([1, 2, 3, 8]),
        burn_in_steps=rng.choice([0, 0, 3]),
        exploit=rng.choice(["truncation", "tournament"]),
        quantile=rng.choice([0.2, 0.5]),
        resample_probability=rng.choice([0.0, 0.25, 1.0]),
        fixed=rng.choice([(), ("momentum",)]),
        is_synchronous=rng.random() < 0.5 if is_synchronous is None else is_synchronous,
    )


def study_of(rng: Generator, **changes: Any) -> Study:  # noqa: ANN401
    is_synchronous = changes.pop("is_synchronous", None)
    given = {
        "space": rng.choice([SPACE, CONTINUOUS]),
        "sampler": dt.Random(),
        "tuner": tuner_of(rng, is_synchronous=is_synchronous),
        "n_trials": rng.choice([1, 2, 5, 9, 12]),
        "seed": rng.randrange(100),
        "mode": rng.choice(["max", "min"]),
    }
    return small_study(**(given | changes))


seeds = st.integers(0, 10_000)
few = settings(max_examples=30, deadline=None)


def members_of(result: Result) -> list[list[int]]:
    """The trials that stood for each member, as the reasons say."""
    chains = [[trial.number] for trial in result.trials if trial.parent is None]
    for _, command in result.timeline.commands():
        if isinstance(command, AskTrial) and command.reason.startswith("replaces trial "):
            replaced = int(command.reason.split()[2].rstrip(","))
            next(c for c in chains if c[-1] == replaced).append(command.trial.number)
    return chains


@few
@given(seed=seeds, workers=st.sampled_from([1, 2, 5, 20]))
def test_every_member_is_trained_to_the_end_and_nothing_twice(seed: int, workers: int) -> None:
    study = study_of(Generator(seed))
    result = dt.simulate(study, dt.World(workers=workers, load_s=0.5, save_s=0.5))
    chains = members_of(result)
    assert sorted(number for chain in chains for number in chain) == list(range(len(result.trials)))
    for chain in chains:
        *replaced, last = [result.trials[number] for number in chain]
        assert last.status is TrialStatus.COMPLETED
        assert last.steps_requested == study.max_steps
        assert all(trial.status is TrialStatus.STOPPED for trial in replaced)
    if study.tuner.is_synchronous:  # type: ignore[attr-defined]
        assert result.steps_executed == result.steps_unique
        assert result.steps_recomputed == 0


@few
@given(seed=seeds)
def test_only_what_is_a_trials_own_is_trained_for_it(seed: int) -> None:
    study = study_of(Generator(seed), space=CONTINUOUS)
    result = dt.simulate(study, dt.World(workers=3))
    own = 0
    for trial in result.trials:
        before = [
            same_until(trial.configuration, other.configuration, other.steps_requested)
            for other in result.trials[: trial.number]
        ]
        own += max(0, trial.steps_requested - max(before, default=0))
        if trial.parent is not None:
            parent = result.trials[trial.parent]
            assert trial.branch_step in {report.step for report in parent.reports}
            shared = same_until(trial.configuration, parent.configuration, study.max_steps)
            assert shared >= trial.branch_step
    assert result.steps_unique == own


def test_a_member_that_is_taken_over_at_once_shares_all_but_its_own_steps() -> None:
    study = small_study(
        space={"lr": dt.loguniform(1e-3, 1.0)},
        sampler=dt.Random(),
        tuner=dt.PopulationBasedTraining(max_steps=8, ready_steps=2, resample_probability=0),
        n_trials=10,
    )
    result = dt.simulate(study, dt.World(workers=4))
    branched = [trial for trial in result.trials if trial.parent is not None]
    assert len(branched) == 2 * 3  # a fifth of ten, at steps 2, 4 and 6
    assert result.steps_unique == result.steps_executed == 10 * 8
    assert result.steps_requested == sum(trial.steps_requested for trial in result.trials)


@few
@given(seed=seeds)
def test_a_synchronous_population_does_not_depend_on_the_workers(seed: int) -> None:
    study = study_of(Generator(seed), is_synchronous=True)
    alone, many = (dt.simulate(study, dt.World(workers=n)) for n in (1, (1.0, 0.3, 2.0)))
    assert told(alone) == told(many)


@few
@given(seed=seeds)
def test_the_best_configuration_is_an_ordinary_schedule(seed: int) -> None:
    study = study_of(Generator(seed))
    best = dt.simulate(study, dt.World(workers=2)).best
    assert best is not None
    again = dt.simulate(retrained(study, best.configuration, best.steps), dt.World())
    assert again.best is not None
    assert again.best.metrics == best.metrics
    assert all(isinstance(schedule, Schedule) for _, schedule in best.configuration.schedules)


def retrained(study: Study, configuration: dt.Configuration, steps: int) -> Study:
    """A study that trains one configuration alone, from step 0."""
    return Study(
        study.trainable,
        space=dict(configuration.schedules),
        tuner=dt.FullTraining(steps),
        metric=study.metric,
        mode=study.mode,
        n_trials=1,
        training_seed=study.training_seed,
        name="again",
    )


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_members_that_diverge_are_replaced_and_never_waited_for(*, is_synchronous: bool) -> None:
    def curve(configuration: dt.Configuration, step: int) -> dict[str, float]:
        rates = [float(configuration.at(t)["lr"]) for t in range(step)]  # type: ignore[arg-type]
        return {"accuracy": nan if max(rates) > 0.5 else sum(rates)}

    study = small_study(
        space={"lr": dt.choice([k / 10 for k in range(1, 11)])},
        sampler=dt.Grid(),
        tuner=dt.PopulationBasedTraining(
            max_steps=10, ready_steps=2, is_synchronous=is_synchronous
        ),
    )
    result = dt.simulate(study, dt.World(workers=3, curve=curve))
    diverged = [trial for trial in result.trials if trial.status is TrialStatus.DIVERGED]
    assert {trial.number for trial in diverged} >= set(range(5, 10))
    for trial in diverged:
        if trial.steps_requested < 10:
            reasons = [
                command.reason
                for _, command in result.timeline.commands()
                if isinstance(command, AskTrial)
            ]
            assert any(r.startswith(f"replaces trial {trial.number},") for r in reasons)
    assert result.best is not None
    assert result.best.steps == 10
    assert max(result.best.configuration.at(step)["lr"] for step in range(10)) == 0.5  # type: ignore[type-var]


def test_a_population_of_which_all_diverge_is_over() -> None:
    study = small_study(
        tuner=dt.PopulationBasedTraining(max_steps=8, ready_steps=2), n_trials=5, max_failures=9
    )
    result = dt.simulate(study, dt.World(curve=lambda configuration, step: {"accuracy": nan}))  # noqa: ARG005
    assert {trial.status for trial in result.trials} == {TrialStatus.DIVERGED}
    assert result.reason == "all 5 trials are over"


@pytest.mark.parametrize("sampler", [dt.Grid(), dt.Random(), OneByOne()])
@pytest.mark.parametrize("is_synchronous", [True, False])
def test_members_that_a_small_space_has_no_configurations_for_are_not_counted(
    sampler: dt.Random, *, is_synchronous: bool
) -> None:
    tuner = dt.PopulationBasedTraining(max_steps=8, ready_steps=2, is_synchronous=is_synchronous)
    study = small_study(sampler=sampler, tuner=tuner, n_trials=15)
    result = dt.simulate(study, dt.World(workers=2))
    drawn = [trial.number for trial in result.trials if trial.parent is None]
    assert drawn == list(range(10))
    n = len(result.trials)
    assert n > 10
    assert result.reason == f"the space has only 10 configurations; all {n} trials are over"


# --- what is written down -------------------------------------------------------------------------


@few
@given(seed=seeds)
def test_a_journal_replays_and_tells_the_same_story_without_the_code(seed: int) -> None:
    study = study_of(Generator(seed))
    result = dt.simulate(study, dt.World(workers=2))
    lines = list(result.timeline.lines())
    core, timeline = replay([study], lines)
    assert list(timeline.lines()) == lines
    assert results_of(core, timeline)[0].trials == result.trials
    header = write_header([study])
    (recalled,) = recall([header, *lines])
    assert told(recalled) == told(result)
    for subject in (recalled, result):
        branched = [trial for trial in subject.trials if trial.parent is not None]
        assert all(
            f"  follows trial {trial.parent} up to step {trial.branch_step}\n"
            in dt.explain(subject, trial=trial.number)
            for trial in branched
        )
    assert dt.explain(recalled) == dt.explain(result)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_check_holds_and_the_study_ends(seed: int) -> None:
    rng = Generator(seed)
    studies = [study_of(rng, name=f"study-{n}") for n in range(rng.choice([1, 1, 2]))]
    play = rolled(seed, n_events=80, studies=studies, trouble=rng.choice([0.0, 0.2, 0.5]))
    play.finish_all()


@pytest.mark.parametrize("seed", range(10))
def test_a_driver_that_dies_again_and_again_decides_what_it_would_have_decided(seed: int) -> None:
    rng = Generator(seed)
    study = study_of(rng, is_synchronous=True)
    quiet = Play([study], Truth(seed=seed))
    quiet.start(0)
    quiet.join("a", 2)
    quiet.finish_all()
    dying = Play([study], Truth(seed=seed))
    dying.start(0)
    while not dying.is_over:
        if rng.random() < 0.4:
            dying.resume_from_lines()
        elif not dying.workers or not dying.running:
            dying.join(rng.choice("ab"), rng.choice([1, 2]))
        else:
            dying.finish(rng.choice(list(dying.running)))
    assert trials_of(dying) == trials_of(quiet)


def trials_of(play: Play) -> list[Any]:
    return told(results_of(play.core, Timeline())[0])


def told(result: Result) -> list[Any]:
    """All of the trials but how long they took."""
    return [
        (t.configuration, t.parent, t.branch_step, t.status, t.reason, t.metrics, t.steps)
        for t in result.trials
    ]


@pytest.mark.parametrize("seed", range(40))
def test_progress_counts_branches_as_the_core_does(seed: int) -> None:
    rng = Generator(seed)
    progress, core, _ = followed([study_of(rng, retries=0)], random_world(rng))
    for record in core.runs[0].trials:
        assert progress.trials[record.id].configuration == record.configuration
    assert progress.left_s is None


def test_the_remaining_time_of_a_population_is_that_of_its_members() -> None:
    # Ten members of 8 steps, a step a second, on one worker: 80 s in all, less what is done.
    study = small_study(
        space={"lr": dt.loguniform(1e-3, 1.0)},
        sampler=dt.Random(),
        tuner=dt.PopulationBasedTraining(max_steps=8, ready_steps=2, resample_probability=0),
        n_trials=10,
    )
    result = dt.simulate(study, dt.World())
    progress = Progress([study])
    for entry in result.timeline.entries[:-1]:
        progress.take(entry)
        if progress.steps_done:
            assert progress.left_s == pytest.approx(80 - progress.steps_done)


# --- with a store ---------------------------------------------------------------------------------


class Walk:
    """A noisy walk that depends on every rate, and notes each step that it takes in a file."""

    def __init__(self, folder: Path) -> None:
        self.notes = str(folder / "notes")

    def setup(self, hp: dict[str, float], seed: int) -> None:  # noqa: ARG002
        self.at = float(seed)

    def step(self, hp: dict[str, float], t: int) -> None:
        with Path(self.notes).open("a") as notes:
            notes.write(f"{t}\n")
        self.at = self.at * 0.9 + hp["lr"] * random()

    def evaluate(self) -> dict[str, float]:
        return {"accuracy": self.at}

    def state_dict(self) -> dict[str, float]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.at = state["at"]

    def n_steps(self) -> int:
        return len(Path(self.notes).read_text().splitlines())


def walk_of(walk: Walk, rng: Generator, **changes: Any) -> Study:  # noqa: ANN401
    tuner = replace(tuner_of(rng, **changes), fixed=())
    space = {"lr": dt.loguniform(1e-3, 1.0)}
    return study_of(rng, trainable=walk, space=space, tuner=tuner, name="walk")


@pytest.mark.parametrize("seed", range(6))
def test_the_best_is_trained_alone_to_the_same_state_or_found_in_the_store(
    tmp_path: Path, seed: int
) -> None:
    walk = Walk(tmp_path)
    study = walk_of(walk, Generator(seed))
    result = dt.run(study, store=tmp_path / "store", workers=0)
    best = result.best
    assert best is not None
    alone = retrained(study, best.configuration, best.steps)
    trained = dt.run(alone, store=tmp_path / "other", workers=0)
    assert trained.best is not None
    assert trained.steps_executed == best.steps
    assert trained.load_state(trained.best) == result.load_state(best)
    n_steps = walk.n_steps()
    found = dt.run(alone, store=tmp_path / "store", workers=0)
    assert found.best is not None
    assert found.best.metrics == best.metrics
    assert found.steps_executed == 0
    assert walk.n_steps() == n_steps


@pytest.mark.parametrize("seed", range(8))
def test_a_driver_that_dies_at_any_line_goes_on_and_trains_nothing_that_is_stored(
    tmp_path: Path, seed: int
) -> None:
    rng, walk = Generator(seed), Walk(tmp_path)
    study = walk_of(walk, rng, is_synchronous=True)
    quiet = dt.run(study, store=tmp_path, workers=0)
    assert walk.n_steps() == quiet.steps_unique == quiet.steps_executed
    journal = tmp_path / "timelines" / "walk.jsonl"
    for _ in range(3):
        written = journal.read_bytes()
        journal.write_bytes(written[: rng.randrange(len(written))])
        again = dt.run(study, store=tmp_path, workers=0)
        assert told(again) == told(quiet)
    assert walk.n_steps() == quiet.steps_unique


@pytest.mark.parametrize("seed", range(4))
def test_an_asynchronous_population_whose_driver_dies_still_trains_every_member(
    tmp_path: Path, seed: int
) -> None:
    rng = Generator(seed)
    study = walk_of(Walk(tmp_path), rng, is_synchronous=False)
    dt.run(study, store=tmp_path, workers=0)
    journal = tmp_path / "timelines" / "walk.jsonl"
    written = journal.read_bytes()
    journal.write_bytes(written[: rng.randrange(len(written))])
    result = dt.run(study, store=tmp_path, workers=0)
    ends = [result.trials[chain[-1]] for chain in members_of(result)]
    assert len(ends) == study.n_trials
    assert {trial.status for trial in ends} == {TrialStatus.COMPLETED}


def test_names_to_be_fixed_that_the_space_does_not_have_are_refused_with_the_study() -> None:
    tuner = dt.PopulationBasedTraining(max_steps=8, ready_steps=2, fixed=["lr", "size"])  # type: ignore[arg-type]
    with pytest.raises(dt.InvalidStudyError, match="fixed has size, which is no hyper-parameter"):
        small_study(tuner=tuner)


def test_members_of_a_continuous_space_are_not_said_to_share_nothing() -> None:
    tuner = dt.PopulationBasedTraining(max_steps=8, ready_steps=2)
    said = dt.explain(small_study(space=CONTINUOUS, sampler=dt.Random(), tuner=tuner, n_trials=3))
    assert "steps 0 to 2: 3 trials, 6 steps" in said
    assert "no two trials can share a step" not in said


@few
@given(seed=seeds)
@example(seed=388)  # three follow one, whose only number has two factors
def test_members_that_follow_one_trial_from_the_same_step_differ(seed: int) -> None:
    study = small_study(
        space={"lr": dt.loguniform(1e-3, 1.0)},
        sampler=dt.Random(),
        tuner=dt.PopulationBasedTraining(max_steps=6, ready_steps=1, quantile=0.5),
        n_trials=8,
        seed=seed,
    )
    result = dt.simulate(study, dt.World())
    assert len({trial.configuration for trial in result.trials}) == len(result.trials)


@pytest.mark.parametrize("seed", range(10))
def test_a_fork_of_the_core_decides_equally_and_by_itself(seed: int) -> None:
    rng = Generator(seed)
    play = Play([study_of(rng, n_trials=9)], Truth(seed=seed, odd_share=0.05))
    play.start(0)
    play.join("a", 2)
    forks = []
    while not play.is_over:
        forks.append((len(play.timeline.entries), play.core.fork()))
        play.finish(rng.choice(list(play.running)))
    for at, fork in forks[::3]:
        for entry in play.timeline.entries[at:]:
            assert fork.handle(entry.event, entry.at_s) == entry.commands
