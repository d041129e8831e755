"""Populations: who is replaced by whom, and what comes of it in whole studies."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from random import Random as Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.testing import TunerContract
from dasktune.testing.moves import Ask, End
from dasktune.testing.play import Play
from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.population import Exploit
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun

exploits: st.SearchStrategy[Exploit] = st.sampled_from(["truncation", "tournament"])


@st.composite
def populations(draw: st.DrawFn) -> dt.PopulationBasedTraining:
    last = draw(st.integers(1, 20))
    return dt.PopulationBasedTraining(
        max_steps=last,
        ready_steps=draw(st.integers(max(1, last // 6), last)),
        burn_in_steps=draw(st.one_of(st.just(0), st.integers(0, last - 1))),
        exploit=draw(exploits),
        quantile=draw(st.sampled_from([0.01, 0.2, 0.25, 0.4, 0.5])),
        is_synchronous=draw(st.booleans()),
    )


class TestPopulationBasedTrainingIsATuner(TunerContract):
    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return populations()


# --- who is replaced by whom ----------------------------------------------------------------------


class Population:
    """Who may be replaced by whom, worked out anew from all that was told."""

    def __init__(self, tuner: dt.PopulationBasedTraining, n: int) -> None:
        self.tuner = tuner
        self.last = tuner.decision_steps[-1]
        self.chains = [[trial] for trial in range(n)]  # the trials that stood for each member
        self.said: dict[int, list[tuple[int, float]]] = {}  # steps and scores, by trial
        self.goal = dict.fromkeys(range(n), tuner.decision_steps[0])
        self.dead: set[int] = set()
        self.n_trials = n
        self.going_on = {trial: self.goal[trial] for trial in range(n)}  # to be asked
        self.new: dict[int, set[tuple[int, int]]] = {}  # and whom they may follow, up to where
        self.n_asks = 0

    def current(self) -> list[int]:
        """The trials that stand for the members now, but for those that nobody trains again."""
        return [
            chain[-1]
            for chain in self.chains
            if not (chain[-1] in self.goal and self.is_through(chain[-1]))
        ]

    def is_through(self, trial: int) -> bool:
        if trial in self.dead:
            return self.goal[trial] == self.last
        return bool(self.said.get(trial)) and self.said[trial][-1][0] == self.last

    def order(self) -> list[int]:
        """The trials that can be compared, best first."""
        dead = [trial for trial in self.current() if trial in self.dead]
        alive = [trial for trial in self.current() if trial in self.said and trial not in dead]
        return sorted(alive, key=lambda trial: (-self.said[trial][-1][1], trial)) + sorted(dead)

    def n_worst(self) -> int:
        n = len(self.order())
        return min(ceil(n * Fraction(str(self.tuner.quantile))), n // 2)

    def models(self, trial: int) -> set[tuple[int, int]]:
        """Whom a trial may be replaced by, and up to which step; empty if it goes on."""
        order, n = self.order(), self.n_worst()
        is_dead = trial in self.dead
        if not is_dead and self.said[trial][-1][0] < self.tuner.burn_in_steps:
            return set()
        if self.tuner.exploit == "truncation":
            others = order[:n] if is_dead or trial in order[len(order) - n :] else []
        else:
            others = [
                one
                for one in order
                if is_dead or one in self.dead or self.said[one][-1][1] > self.said[trial][-1][1]
            ]
        least = max(self.goal[trial], self.tuner.burn_in_steps)
        return {
            (one, self.said[one][-1][0])
            for one in others
            if one != trial and one not in self.dead and self.said[one][-1][0] >= least
        }

    def tell(self, report: Report, endings: Sequence[Ending]) -> None:
        self.said.setdefault(report.trial, []).append((report.step, report.score))
        if report.step == self.last:
            assert [(e.trial, e.status) for e in endings] == [(report.trial, TrialStatus.COMPLETED)]
            return
        self.decide(report.trial, endings)

    def end(self, trial: int, endings: Sequence[Ending]) -> None:
        self.dead.add(trial)
        self.going_on.pop(trial, None)
        self.decide(None, endings)

    def decide(self, reporting: int | None, endings: Sequence[Ending]) -> None:
        alive = [trial for trial in self.current() if trial not in self.dead]
        ready = [reporting] if reporting is not None else []
        if self.tuner.is_synchronous:
            ready = [t for t in alive if t in self.said and self.said[t][-1][0] == self.goal[t]]
            if len(ready) < len(alive):
                assert not endings
                return
            assert len({self.said[t][-1][0] for t in ready}) <= 1, "all are at one step"
        ended = [ending.trial for ending in endings]
        assert set(ended) <= set(ready)
        assert all(ending.status is TrialStatus.STOPPED for ending in endings)
        models = {trial: self.models(trial) for trial in self.current() if trial in self.dead}
        models |= {trial: self.models(trial) for trial in ready}
        for chain in self.chains:
            trial = chain[-1]
            if trial not in models:
                continue
            assert trial not in ended or models[trial], "nobody to replace it"
            if trial not in self.dead and self.tuner.exploit == "truncation":
                assert (trial in ended) == bool(models[trial])
            if trial in ended or (trial in self.dead and models[trial]):
                chain.append(self.n_trials)
                self.new[self.n_trials] = models[trial]
                self.n_trials += 1
            elif trial not in self.dead:
                goal = self.tuner.next_decision(trial, self.said[trial][-1][0])
                assert goal is not None
                self.goal[trial] = self.going_on[trial] = goal
        for ending in endings:
            chain = next(chain for chain in self.chains if ending.trial in chain)
            assert ending.reason.startswith(f"replaced by trial {chain[-1]}, which follows trial ")

    def ask(self, requests: Sequence[Request]) -> None:
        by_need = sorted((goal, trial) for trial, goal in self.going_on.items())
        expected = [*sorted(self.new), *(trial for _, trial in by_need)]
        if self.n_asks and not self.tuner.is_synchronous:
            expected = expected[:1]
        self.n_asks += 1
        assert [request.trial for request in requests] == expected
        for request in requests:
            if request.branch is None:
                assert request.step == self.going_on.pop(request.trial)
                continue
            follows = (request.branch.parent, request.branch.step)
            assert follows in self.new.pop(request.trial)
            assert request.step == self.tuner.next_decision(request.trial, request.branch.step)
            assert request.branch.exploration == self.tuner.exploration
            assert f"follows trial {follows[0]} up to step {follows[1]}" in request.reason
            self.goal[request.trial] = request.step


@given(
    tuner=populations(),
    n=st.integers(0, 12),
    bad=st.sampled_from([0.0, 0.1, 0.4]),
    rng=st.randoms(use_true_random=False),
)
def test_members_are_replaced_by_better_ones_as_the_rule_says(
    tuner: dt.PopulationBasedTraining, n: int, bad: float, rng: Generator
) -> None:
    played, population = Play(tuner, n, rng, bad=bad).go(), Population(tuner, n)
    for move, answer in zip(played.moves, played.answers, strict=True):
        match move:
            case Ask():
                population.ask(answer)  # type: ignore[arg-type]
            case Report():
                population.tell(move, answer)  # type: ignore[arg-type]
            case End(trial):
                population.end(trial, answer)  # type: ignore[arg-type]
    salts = [branch.salt for branch in played.branches.values()]
    assert len(set(salts)) == len(salts)
    last = tuner.decision_steps[-1]
    for chain in population.chains:  # a member that was not lost got to the end
        assert played.trained.get(chain[-1]) == last or chain[-1] in population.dead


# --- single decisions -----------------------------------------------------------------------------


def started(n_trials: int, *, seed: int = 0, **changes: Any) -> TunerRun:  # noqa: ANN401
    tuner = dt.PopulationBasedTraining(**({"max_steps": 9, "ready_steps": 3} | changes))
    run = tuner.start(TunerContext(n_trials=n_trials, seed=seed))
    run.ask()
    return run


def tell(run: TunerRun, trial: int, score: float, step: int = 3) -> list[Ending]:
    report = Report(trial=trial, step=step, metrics={}, score=score, branch=trial)
    return list(run.tell(report))


def tell_all(run: TunerRun, scores: Sequence[float], step: int = 3) -> list[int]:
    """Tell a whole generation; return who is replaced."""
    told = [tell(run, trial, score, step) for trial, score in enumerate(scores)]
    assert not any(told[:-1])
    return [ending.trial for ending in told[-1]]


@pytest.mark.parametrize(
    ("n", "quantile", "n_replaced"),
    [(1, 0.5, 0), (2, 0.2, 1), (3, 0.5, 1), (4, 0.2, 1), (5, 0.2, 1), (6, 0.2, 2), (10, 0.2, 2),
     (10, 0.01, 1), (11, 0.5, 5), (100, 0.07, 7)],
)  # fmt: skip
def test_the_quantile_is_rounded_up_to_at_most_half(
    n: int, quantile: float, n_replaced: int
) -> None:
    run = started(n, quantile=quantile)
    assert tell_all(run, [float(-k) for k in range(n)]) == list(range(n - n_replaced, n))
    parents = {request.branch.parent for request in run.ask() if request.branch is not None}
    assert parents <= set(range(n_replaced))


def test_of_equal_members_those_of_higher_numbers_are_replaced() -> None:
    run = started(5, quantile=0.4)
    assert tell_all(run, [1.0] * 5) == [3, 4]
    branches = [request.branch for request in run.ask() if request.branch is not None]
    assert {branch.parent for branch in branches} <= {0, 1}


def test_of_equal_members_none_wins_a_tournament() -> None:
    assert not tell_all(started(6, exploit="tournament"), [1.0] * 6)


def test_nobody_is_replaced_during_the_burn_in() -> None:
    run = started(4, burn_in_steps=4)
    assert not tell_all(run, [0.0, 1.0, 2.0, 3.0])
    assert [(request.trial, request.step) for request in run.ask()] == [(n, 6) for n in range(4)]
    assert tell_all(run, [0.0, 1.0, 2.0, 3.0], step=6) == [0]


def test_a_member_that_is_lost_is_replaced_at_the_next_comparison_instead_of_a_living_one() -> None:
    run = started(5)
    assert not run.end(4, TrialStatus.DIVERGED)
    assert not tell_all(run, [0.0, 1.0, 2.0, 3.0])
    first, *others = run.ask()
    assert first.branch is not None
    assert (first.trial, first.branch.parent, first.branch.step) == (5, 3, 3)
    assert first.reason == "replaces trial 4, follows trial 3 up to step 3"
    assert [(request.trial, request.step) for request in others] == [(n, 6) for n in range(4)]


def test_a_loss_lets_the_others_go_on_if_it_was_the_last_that_they_waited_for() -> None:
    run = started(3)
    assert not tell(run, 0, 1.0)
    assert not tell(run, 1, 0.0)
    assert not run.ask()
    assert not run.end(2, TrialStatus.FAILED)
    assert [request.trial for request in run.ask()] == [3, 0, 1]


def test_one_that_was_replaced_is_told_by_whom() -> None:
    run = started(2)
    tell(run, 0, 1.0)
    (ending,) = tell(run, 1, 0.0)
    assert ending.status is TrialStatus.STOPPED
    assert ending.reason == "replaced by trial 2, which follows trial 0 up to step 3"
    new, kept = run.ask()
    assert new.reason == "replaces trial 1, follows trial 0 up to step 3"
    assert kept.reason == "goes on: rank 1 of 2 at step 3"


def test_without_waiting_a_member_is_compared_with_the_latest_of_the_others() -> None:
    run = started(3, is_synchronous=False)
    assert not tell(run, 0, 1.0)
    assert [(request.trial, request.step) for request in run.ask()] == [(0, 6)]
    assert not tell(run, 0, 2.0, step=6)
    (ending,) = tell(run, 1, 1.5)
    assert ending.reason == "replaced by trial 3, which follows trial 0 up to step 6"
    assert [(request.trial, request.step) for request in run.ask()] == [(3, 9)]


def test_without_waiting_nobody_goes_back_to_a_state_of_fewer_steps() -> None:
    run = started(2, is_synchronous=False)
    tell(run, 0, 1.0)
    run.ask()
    assert not tell(run, 1, 2.0)
    assert not tell(run, 0, 0.0, step=6)
    assert [(request.trial, request.step) for request in (*run.ask(), *run.ask())] == [
        (1, 6),
        (0, 9),
    ]


def test_without_waiting_members_take_turns() -> None:
    run = started(3, is_synchronous=False, burn_in_steps=8)
    for trial, step in [(0, 3), (2, 3), (1, 3)]:
        tell(run, trial, 0.0, step)
    assert [run.ask()[0].trial for _ in range(2)] == [0, 1]
    tell(run, 0, 0.0, step=6)
    assert [run.ask()[0].trial for _ in range(2)] == [2, 0]
    assert not run.ask()


@pytest.mark.parametrize("exploit", ["truncation", "tournament"])
def test_every_better_one_is_as_likely_a_model(exploit: str) -> None:
    drawn = Counter[int]()
    for seed in range(600):
        run = started(6, seed=seed, exploit=exploit, quantile=0.5)
        tell_all(run, [5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
        drawn.update(
            request.branch.parent
            for request in run.ask()
            if request.branch is not None and request.branch.salt.split(":")[1] == "5"
        )
    models = range(3) if exploit == "truncation" else range(5)
    assert set(drawn) == set(models)
    assert all(abs(n - 600 / len(models)) < 70 for n in drawn.values())


def test_what_is_explored_is_part_of_the_tuners_value() -> None:
    listed: Any = {"factors": [0.5, 2], "fixed": ["depth"]}
    tuner = dt.PopulationBasedTraining(max_steps=4, ready_steps=2, **listed)
    assert (tuner.factors, tuner.fixed) == ((0.5, 2.0), ("depth",))
    assert tuner == dt.PopulationBasedTraining(
        max_steps=4, ready_steps=2, factors=(0.5, 2.0), fixed=("depth",)
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"ready_steps": 0}, "ready_steps must be at least 1, got 0"),
        ({"ready_steps": 10}, "ready_steps is 10; it must not be larger than max_steps, "
                              "which is 9"),
        ({"burn_in_steps": 9}, "burn_in_steps is 9; it must be smaller than max_steps, "
                               "which is 9"),
        ({"exploit": "best"}, "exploit is 'best'; it must be 'truncation' or 'tournament'"),
        ({"quantile": 0}, "quantile is 0; it must be a number above 0, at most 0.5"),
        ({"quantile": 0.6}, "quantile is 0.6; it must be a number above 0, at most 0.5"),
        ({"is_synchronous": "no"}, "is_synchronous is 'no'; it must be True or False"),
        ({"factors": ()}, "factors must be numbers"),
        ({"resample_probability": 2}, "resample_probability must be from 0 to 1, got 2"),
        ({"fixed": "lr"}, "fixed must be names of hyper-parameters"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_with_what_would_be_right(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(dt.InvalidStudyError) as refused:
        started(3, **wrong)
    assert message in str(refused.value)
