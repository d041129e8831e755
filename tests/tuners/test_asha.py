from math import nan
from random import Random as Generator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.testing import TunerContract
from dasktune.testing.moves import Ask, End
from dasktune.testing.play import Play
from dasktune.trial import Report, TrialStatus
from dasktune.tuners.rungs import Ties
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from tests.scheduling.untrained import Untrained
from tests.tuners.naive import Rungs, requested

rules: st.SearchStrategy[Ties] = st.sampled_from(["number", "spread"])


@st.composite
def ashas(draw: st.DrawFn) -> dt.ASHA:
    least = draw(st.integers(1, 4))
    return dt.ASHA(
        min_steps=least,
        max_steps=draw(st.integers(least, 40)),
        reduction_factor=draw(st.sampled_from([1.5, 2, 3, 4, 100])),
        ties=draw(rules),
    )


class TestAshaIsATuner(TunerContract):
    leaves_paused = True

    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return ashas()


@given(
    tuner=ashas(),
    n=st.integers(0, 14),
    bad=st.sampled_from([0.0, 0.1, 0.4]),
    rng=st.randoms(use_true_random=False),
)
def test_each_ask_gives_the_best_promotable_of_the_highest_rung_or_a_new_trial(
    tuner: dt.ASHA, n: int, bad: float, rng: Generator
) -> None:
    played = Play(tuner, n, rng, bad=bad).go()
    rungs = Rungs(tuner.decision_steps, tuner.reduction_factor, tuner.ties, range(n))
    for move, answer in zip(played.moves, played.answers, strict=True):
        match move:
            case Ask():
                expected = rungs.ask()
                assert requested(answer) == ([] if expected is None else [expected])
            case Report():
                rungs.tell(move)
            case End(trial):
                rungs.end(trial)


@given(tuner=ashas(), n=st.integers(0, 99))
def test_the_outlook_is_that_of_the_synchronous_twin(tuner: dt.ASHA, n: int) -> None:
    twin = dt.SuccessiveHalving(rungs=tuner.decision_steps, reduction_factor=tuner.reduction_factor)
    assert tuner.outlook(n) == twin.outlook(n)


def started(factor: float, n_trials: int) -> TunerRun:
    tuner = dt.ASHA(min_steps=1, max_steps=4, reduction_factor=factor)
    return tuner.start(TunerContext(n_trials=n_trials, seed=0))


def asked(run: TunerRun) -> list[tuple[int, int]]:
    return requested(run.ask())


def tell(run: TunerRun, trial: int, score: float, step: int = 1) -> None:
    run.tell(Report(trial=trial, step=step, metrics={}, score=score, branch=trial))


def test_early_winners_can_be_overtaken_so_that_more_than_the_best_part_goes_on() -> None:
    run = started(2, 4)
    assert [asked(run) for _ in range(4)] == [[(0, 1)], [(1, 1)], [(2, 1)], [(3, 1)]]
    tell(run, 0, 1.0)
    tell(run, 1, 0.0)
    assert asked(run) == [(0, 2)]
    tell(run, 2, 2.0)
    tell(run, 3, 3.0)
    assert [asked(run) for _ in range(3)] == [[(3, 2)], [(2, 2)], []]


def test_a_paused_trial_is_promoted_when_its_rung_has_grown() -> None:
    run = started(2, 4)
    for _ in range(4):
        run.ask()
    tell(run, 0, 1.0)
    tell(run, 1, 0.5)
    assert [asked(run), asked(run)] == [[(0, 2)], []]
    tell(run, 2, 0.0)
    assert asked(run) == []
    tell(run, 3, -1.0)
    assert [asked(run), asked(run)] == [[(1, 2)], []]


def test_the_highest_rung_goes_first() -> None:
    run = started(2, 6)
    for _ in range(4):
        run.ask()
    tell(run, 0, 4.0)
    tell(run, 1, 3.0)
    assert asked(run) == [(0, 2)]
    tell(run, 2, 2.0)
    tell(run, 3, 1.0)
    assert asked(run) == [(1, 2)]
    tell(run, 0, 0.0, step=2)
    tell(run, 1, 1.0, step=2)
    assert asked(run) == [(1, 4)]
    assert asked(run) == [(4, 1)]


def test_fewer_trials_than_the_factor_are_never_promoted() -> None:
    run = started(3, 2)
    assert [asked(run), asked(run), asked(run)] == [[(0, 1)], [(1, 1)], []]
    tell(run, 0, 1.0)
    tell(run, 1, 1.0)
    assert asked(run) == []


def test_a_request_says_why() -> None:
    run = started(2, 2)
    assert run.ask()[0].reason == "begins at the first rung"
    run.ask()
    tell(run, 0, 1.0)
    tell(run, 1, 0.5)
    assert run.ask()[0].reason == "promoted: among the best 1 of 2 at step 1"


@pytest.mark.parametrize("n_workers", [1, 2, 7])
def test_a_trial_that_diverged_with_another_before_it_began_stays_over(n_workers: int) -> None:
    alike = [dt.step_decay(0.1, factor=0.1, at=[step]) for step in range(3, 9)]
    study = dt.Study(
        Untrained(),
        space={"lr": dt.choice([*alike, 0.5, 0.6, 0.7, 0.8])},
        sampler=dt.Grid(),
        tuner=dt.ASHA(min_steps=2, max_steps=18, reduction_factor=3),
        metric="a",
        mode="min",
    )

    def curve(configuration: dt.Configuration, step: int) -> dict[str, float]:
        lr = configuration.at(0)["lr"]
        assert isinstance(lr, float)
        return {"a": nan if lr == 0.1 else lr + step}

    result = dt.simulate(study, dt.World(workers=n_workers, curve=curve))
    for trial in result.trials[: len(alike)]:
        assert trial.status is TrialStatus.DIVERGED
        assert trial.reports == ()
    assert result.best is not None
    assert result.best.configuration.at(0) == {"lr": 0.5}
