"""What every member of a family owes, as tests that a class for each member inherits."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from random import Random as Generator
from typing import TypeAlias

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dasktune.samplers.sampler import Sampler, SamplerContext, SamplerRun
from dasktune.space import Configuration, Point, SearchSpace
from dasktune.trial import Branch, Ending, Report, Request, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from tests.space.strategies import finite_spaces

# A contract's test is one function for all classes that inherit it, which Hypothesis warns of.
_inherited = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])

SCORES = (-3.5, -1.0, 0.0, 1.0, 2.25)
"""So few that trials often tie, and of both signs."""


@dataclass(frozen=True)
class Ask:
    """The study asks the tuner."""


@dataclass(frozen=True)
class End:
    """The study tells that a trial diverged, failed, or does not exist."""

    trial: int
    status: TrialStatus


Move: TypeAlias = Ask | Report | End
Answer: TypeAlias = Sequence[Request] | Sequence[Ending]


def answer(run: TunerRun, move: Move) -> Answer:
    """What a run says to a move."""
    match move:
        case Ask():
            return list(run.ask())
        case Report():
            return list(run.tell(move))
        case End(trial, status):
            return list(run.end(trial, status))


class Play:
    """A study as its tuner sees it, with reports and endings in any order; checks every answer.

    Keeps all moves and answers, so that they can be compared with those of another run.
    """

    def __init__(self, tuner: Tuner, n_trials: int, rng: Generator, *, bad: float = 0.1) -> None:
        self.tuner = tuner
        self.n_trials = n_trials
        self.run = tuner.start(TunerContext(n_trials=n_trials, seed=0))
        self.moves: list[Move] = []
        self.answers: list[Answer] = []
        self.owed: dict[int, list[int]] = {}  # steps that each trial was asked for, and must report
        self.trained: dict[int, int] = {}
        self.n_existing = n_trials  # those of the sampler, and those that branched off
        self.branches: dict[int, Branch] = {}
        self.reported: set[tuple[int, int]] = set()  # trials and steps
        self.over: dict[int, TrialStatus] = {}
        self._rng = rng
        self._bad = bad  # fraction of news that are of a trial that diverged or failed
        self._has_news = True

    def go(self, most: int | None = None) -> "Play":
        """Play so many moves, or until the run has finished."""
        limit = (self.n_trials + 1) * (len(self.tuner.decision_steps) + 20) * 3
        while (self.owed or self._has_news) and (most is None or len(self.moves) < most):
            assert len(self.moves) < limit, "the run does not end"
            if self._has_news and (not self.owed or self._rng.random() < 0.5):
                self._ask()
            elif self._rng.random() < self._bad:
                self._end()
            else:
                self._report()
        return self

    def _answer(self, move: Move) -> Answer:
        self.moves.append(move)
        self.answers.append(answer(self.run, move))
        return self.answers[-1]

    def _ask(self) -> None:
        requests = self._answer(Ask())
        for request in requests:
            assert isinstance(request, Request)
            if request.branch is not None:
                self._branch(request, request.branch)
            self._check_request(request)
            self.owed[request.trial] = [*request.report_steps, request.step]
        self._has_news = bool(requests) and self.run.asks_on_demand

    def _branch(self, request: Request, branch: Branch) -> None:
        assert request.trial == self.n_existing, "a new trial has the next number"
        assert (branch.parent, branch.step) in self.reported, "its parent's state is not there"
        assert branch.step < request.step
        self.n_existing += 1
        self.branches[request.trial] = branch
        self.trained[request.trial] = branch.step

    def n_trained(self, step: int) -> int:
        """How many trials were trained to a step, not counting those that began there or later."""
        return sum(
            at >= step and (trial not in self.branches or self.branches[trial].step < step)
            for trial, at in self.trained.items()
        )

    def _check_request(self, request: Request) -> None:
        assert 0 <= request.trial < self.n_existing, "there is no such trial"
        assert request.trial not in self.over, "the trial is over"
        assert request.trial not in self.owed, "the trial was asked already"
        done = self.trained.get(request.trial, 0)
        steps = [done, *request.report_steps, request.step]
        assert steps == sorted(set(steps)), "steps ascend from what the trial has"
        assert request.step in self.tuner.steps_of(request.trial)
        if self.tuner.report_steps:
            assert set(request.report_steps) <= set(self.tuner.report_steps)
        assert request.reason

    def _report(self) -> None:
        trial = self._rng.choice(sorted(self.owed))
        step = self.owed[trial].pop(0)
        if not self.owed[trial]:
            del self.owed[trial]
        self.trained[trial] = step
        self.reported.add((trial, step))
        score = self._rng.choice(SCORES)
        is_last = self.tuner.next_decision(trial, step) is None
        branch: Hashable = None if is_last else self._rng.randrange(3)
        self._hear(self._answer(Report(
            trial=trial, step=step, metrics={"a": score}, score=score, branch=branch
        )), reporting=trial)  # fmt: skip

    def _end(self) -> None:
        alive = [trial for trial in range(self.n_existing) if trial not in self.over]
        if alive and self.moves:
            trial = self._rng.choice(alive)
            status = self._rng.choice([TrialStatus.DIVERGED, TrialStatus.FAILED])
            self.over[trial] = status
            self.owed.pop(trial, None)
            self._hear(self._answer(End(trial, status)))

    def _hear(self, endings: Answer, reporting: int | None = None) -> None:
        """Let trials be over; one that waits may be because of what it reports in passing."""
        self._has_news = True
        for ending in endings:
            assert isinstance(ending, Ending)
            assert ending.trial not in self.over, "the trial is over already"
            assert ending.trial not in self.owed or ending.trial == reporting, "it has not reported"
            self.owed.pop(ending.trial, None)
            assert ending.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED)
            is_complete = self.trained.get(ending.trial) == self.tuner.decision_steps[-1]
            assert (ending.status is TrialStatus.COMPLETED) == is_complete
            assert ending.reason
            self.over[ending.trial] = ending.status


class TunerContract(ABC):
    """What every tuner owes, whatever its policy."""

    stretches: Sequence[Callable[[float], float]] = (
        lambda score: score - 100,
        lambda score: score + 100,
        lambda score: 1e-9 * score**3,
    )
    """Ways to write scores that change no decision."""

    @staticmethod
    @abstractmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        """Tuners of few steps."""

    def play(self, data: st.DataObject, *, bad: float = 0.1) -> Play:
        tuner = data.draw(self.tuners(), label="tuner")
        n_trials = data.draw(st.integers(0, 12), label="n_trials")
        return Play(tuner, n_trials, data.draw(st.randoms(use_true_random=False)), bad=bad)

    @_inherited
    @given(data=st.data())
    def test_it_ends_and_asks_for_nothing_twice_whatever_the_order(
        self, data: st.DataObject
    ) -> None:
        played = self.play(data).go()
        assert not played.run.ask()

    @_inherited
    @given(data=st.data())
    def test_a_trial_that_reaches_the_last_step_is_completed(self, data: st.DataObject) -> None:
        played = self.play(data, bad=0.0).go()
        last = played.tuner.decision_steps[-1]
        assert {t for t, status in played.over.items() if status is TrialStatus.COMPLETED} == {
            trial for trial, at in played.trained.items() if at == last
        }

    @_inherited
    @given(data=st.data())
    def test_the_outlook_is_how_many_trials_train_to_each_decision_if_nothing_fails(
        self, data: st.DataObject
    ) -> None:
        played = self.play(data, bad=0.0).go()
        outlook, steps = played.tuner.outlook(played.n_trials), played.tuner.decision_steps
        assert len(outlook) == len(steps)
        assert outlook[0] == played.n_trials
        assert list(outlook) == sorted(outlook, reverse=True)
        if not played.run.asks_on_demand:
            assert outlook == tuple(played.n_trained(step) for step in steps)

    @_inherited
    @given(data=st.data())
    def test_equal_news_get_equal_answers(self, data: st.DataObject) -> None:
        played = self.play(data).go()
        again = played.tuner.start(TunerContext(n_trials=played.n_trials, seed=0))
        assert [answer(again, move) for move in played.moves] == played.answers

    @_inherited
    @given(data=st.data())
    def test_a_copy_goes_on_equally_and_by_itself(self, data: st.DataObject) -> None:
        played = self.play(data)
        at = data.draw(st.integers(0, 30), label="moves before the copy")
        played.go(at)
        at = len(played.moves)
        twin, stranger = played.run.copy(), played.run.copy()
        over = set(played.over)
        for trial in reversed(range(played.n_existing)):
            if trial not in over:
                over.update(ending.trial for ending in stranger.end(trial, TrialStatus.FAILED))
            stranger.ask()
        played.go()
        assert [answer(twin, move) for move in played.moves[at:]] == played.answers[at:]
        again = played.tuner.start(TunerContext(n_trials=played.n_trials, seed=0))
        assert [answer(again, move) for move in played.moves] == played.answers

    @_inherited
    @given(data=st.data())
    def test_the_scale_of_scores_does_not_count(self, data: st.DataObject) -> None:
        played = self.play(data).go()
        stretch = data.draw(st.sampled_from(self.stretches))
        again = played.tuner.start(TunerContext(n_trials=played.n_trials, seed=0))
        moves = [
            replace(move, score=stretch(move.score)) if isinstance(move, Report) else move
            for move in played.moves
        ]
        assert [answer(again, move) for move in moves] == played.answers

    @_inherited
    @given(data=st.data())
    def test_nobody_is_complete_where_all_trials_fail(self, data: st.DataObject) -> None:
        played = self.play(data, bad=1.0).go()
        assert TrialStatus.COMPLETED not in played.over.values()

    @_inherited
    @given(data=st.data(), n_missing=st.integers(1, 20))
    def test_trials_that_do_not_exist_change_nothing(
        self, data: st.DataObject, n_missing: int
    ) -> None:
        played = self.play(data).go()
        n = played.n_trials
        existing = set(range(n))
        larger = played.tuner.start(TunerContext(n_trials=n + n_missing, seed=0))
        for move, expected in zip(played.moves, played.answers, strict=True):
            if isinstance(move, Ask):
                found = _asked_of_existing(larger, existing)
                assert found == [(r.trial, r.step) for r in expected if isinstance(r, Request)]
            else:
                assert [e.trial for e in answer(larger, move)] == [e.trial for e in expected]

    @given(data=st.data())
    @_inherited
    def test_tuners_are_values(self, data: st.DataObject) -> None:
        tuner, other = data.draw(self.tuners()), data.draw(self.tuners())
        assert (tuner == other) == (repr(tuner) == repr(other))
        assert tuner != other or hash(tuner) == hash(other)
        steps = tuner.decision_steps
        assert steps == tuple(sorted(set(steps)))
        for step in range(steps[-1] + 2):
            own = tuner.steps_of(0)
            assert set(own) <= set(steps)
            assert own[-1] == steps[-1]
            later = [at for at in own if at > step]
            assert tuner.next_decision(0, step) == (later[0] if later else None)


def _asked_of_existing(run: TunerRun, existing: set[int]) -> list[tuple[int, int]]:
    """Ask once for trials that exist, ending those that do not as a study does."""
    while True:
        requests = run.ask()
        existing.update(request.trial for request in requests if request.branch is not None)
        missing = [request.trial for request in requests if request.trial not in existing]
        for trial in missing:
            assert not run.end(trial, TrialStatus.STOPPED)
        found = [(r.trial, r.step) for r in requests if r.trial in existing]
        if found or not missing or not run.asks_on_demand:
            return found


def draw_all(run: SamplerRun, numbers: Sequence[int]) -> list[Point | None]:
    """Ask for each trial and tell which draw it got, as a study does."""
    points = []
    for number in numbers:
        point = run.ask(number, no_steps)
        if point is not None:
            run.record(number, point)
        points.append(point)
    return points


def no_steps(configuration: Configuration, step: int) -> int:  # noqa: ARG001
    """A plan that has everything already."""
    return 0


@dataclass(frozen=True)
class Drew:
    """A trial got a draw; None: there was none left."""

    number: int
    point: Point | None


@dataclass(frozen=True)
class Told:
    """A trial reported."""

    report: Report
    rests: bool


class Life:
    """A study as its sampler sees it, with draws, reports and endings in any order."""

    def __init__(self, rng: Generator) -> None:
        self.moves: list[Drew | Told | End] = []
        self._rng = rng
        self._steps: dict[int, int] = {}  # of living trials, the last report's
        self._resting: set[int] = set()

    def live(self, run: SamplerRun, n_moves: int) -> "Life":
        """Let a run live through so many moves; it must ask for draws."""
        for _ in range(n_moves):
            move = self._move(run)
            hear(run, move)
            self.moves.append(move)
        return self

    def _move(self, run: SamplerRun) -> Drew | Told | End:
        rng, alive = self._rng, sorted(self._steps)
        if not alive or rng.random() < 0.4:
            number = sum(isinstance(move, Drew) for move in self.moves)
            point = run.ask(number, no_steps)
            if point is not None:
                self._steps[number] = 0
            return Drew(number, point)
        trial = rng.choice(alive)
        if rng.random() < 0.4:
            ways = [TrialStatus.STOPPED, TrialStatus.DIVERGED, TrialStatus.FAILED]
            ways += [TrialStatus.COMPLETED] * 6 if trial in self._resting else []
            del self._steps[trial]
            self._resting.discard(trial)
            return End(trial, rng.choice(ways))
        self._steps[trial] += 1
        rests = rng.random() < 0.7
        (self._resting.add if rests else self._resting.discard)(trial)
        score = rng.choice(SCORES)
        report = Report(
            trial=trial, step=self._steps[trial], metrics={"a": score}, score=score, scores=(score,)
        )
        return Told(report, rests)


def hear(run: SamplerRun, move: Drew | Told | End) -> None:
    """Tell a run what happened, asking it for nothing."""
    match move:
        case Drew(number, point) if point is not None:
            run.record(number, point)
        case Told(report, rests):
            run.tell(report, rests=rests)
        case End(trial, status):
            run.end(trial, status)


class SamplerContract(ABC):
    """What every sampler owes on a finite space."""

    sampler: Sampler
    n_draws = 40
    """Draws of a run in most laws; fewer for a sampler that thinks long."""

    def start(self, space: SearchSpace, n_trials: int, seed: int = 0) -> SamplerRun:
        return self.sampler.start(SamplerContext(space=space, n_trials=n_trials, seed=seed))

    @_inherited
    @given(space=finite_spaces, seed=st.integers(0, 3))
    def test_a_finite_space_is_drawn_to_the_last_point_and_none_twice(
        self, space: SearchSpace, seed: int
    ) -> None:
        assume(space.size is not None and space.size <= 60)
        assert space.size is not None
        drawn = draw_all(self.start(space, space.size + 2, seed), range(space.size + 2))
        assert drawn[space.size :] == [None, None]
        assert len(set(drawn[: space.size])) == space.size
        assert set(drawn[: space.size]) == set(space.points())

    @_inherited
    @given(space=finite_spaces, n=st.integers(0, 20), data=st.data())
    def test_the_state_of_a_run_is_what_it_was_told(
        self, space: SearchSpace, n: int, data: st.DataObject
    ) -> None:
        total = self.n_draws
        n = min(n, total // 2)
        points = data.draw(st.permutations(list(zip(range(total), space.points(), strict=False))))
        told, asked_too = self.start(space, total), self.start(space, total)
        for number, (_, point) in enumerate(points[:n]):
            told.record(number, point)
            asked_too.ask(number, no_steps)
            asked_too.record(number, point)
        assert told.ask(n, no_steps) == told.ask(n, no_steps) == asked_too.ask(n, no_steps)
        assert draw_all(told, range(n, total)) == draw_all(asked_too, range(n, total))

    @_inherited
    @given(space=finite_spaces, n=st.integers(0, 20), others=st.integers(0, 20))
    def test_a_copy_goes_on_equally_and_by_itself(
        self, space: SearchSpace, n: int, others: int
    ) -> None:
        total = self.n_draws
        n, others = min(n, total // 2), min(others, total // 2)
        run = self.start(space, total)
        before = draw_all(run, range(n))
        twin, stranger = run.copy(), run.copy()
        draw_all(stranger, range(100, 100 + others))
        after = draw_all(run, range(n, total))
        assert draw_all(twin, range(n, total)) == after
        assert draw_all(self.start(space, total), range(total)) == before + after

    @_inherited
    @given(space=finite_spaces)
    def test_proposals_are_points_of_the_space(self, space: SearchSpace) -> None:
        for point in draw_all(self.start(space, 10), range(10)):
            if point is not None:
                assert isinstance(space.configuration(point), Configuration)

    @_inherited
    @given(
        space=finite_spaces,
        rng=st.randoms(use_true_random=False),
        n=st.integers(0, 40),
        more=st.integers(1, 12),
    )
    def test_a_past_that_is_told_counts_as_one_that_was_lived(
        self, space: SearchSpace, rng: Generator, n: int, more: int
    ) -> None:
        life = Life(rng)
        run = self.start(space, self.n_draws)
        life.live(run, n)
        twin, told = run.copy(), self.start(space, self.n_draws)
        for move in life.moves:
            hear(told, move)
        life.live(run, more)
        for other in (twin, told):
            for move in life.moves[n:]:
                if isinstance(move, Drew):
                    assert other.ask(move.number, no_steps) == move.point
                hear(other, move)
