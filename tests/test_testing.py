"""The contracts themselves: right policies keep them, and each wrong one breaks the law it should.

Every wrong policy is a right one with a single mistake.
"""

import random
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import inf
from typing import Self

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dasktune as dt
from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space import Point
from dasktune.space.domain import Domain
from dasktune.testing import SamplerContract, TunerContract
from dasktune.testing.laws import tried
from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun

# --- tuners ---------------------------------------------------------------------------------------


class Halving(TunerRun):
    """Train all trials to a step, stop the worse half, train the others to the end."""

    def __init__(self, at: int, end: int, n_trials: int) -> None:
        self.at, self.last, self.step = at, end, at
        self.due = list(range(n_trials))
        self.waiting = set(self.due)
        self.scores: dict[int, float] = {}

    def ask(self) -> Sequence[Request]:
        due, self.due = self.due, []
        return [Request(trial=trial, step=self.step, reason="its turn") for trial in due]

    def tell(self, report: Report) -> Sequence[Ending]:
        if report.step == self.last:
            return [self.ending(report.trial, TrialStatus.COMPLETED)]
        self.waiting.discard(report.trial)
        self.scores[report.trial] = self.worth(report)
        return self.halve()

    def worth(self, report: Report) -> float:
        return report.score

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        del status
        if trial in self.due:
            self.due.remove(trial)
        self.waiting.discard(trial)
        self.scores.pop(trial, None)
        return self.halve()

    def halve(self) -> Sequence[Ending]:
        if self.waiting or self.step == self.last:
            return ()
        self.step = self.last
        going_on = self.best()
        self.due = sorted(going_on)
        return [self.ending(t, TrialStatus.STOPPED) for t in self.scores if t not in going_on]

    def best(self) -> list[int]:
        ranked = sorted(self.scores, key=lambda trial: (-self.scores[trial], trial))
        return ranked[: (len(ranked) + 1) // 2]

    def ending(self, trial: int, status: TrialStatus) -> Ending:
        return Ending(trial=trial, status=status, reason="its rank")

    def copy(self) -> Self:
        twin = copy(self)
        twin.due, twin.waiting, twin.scores = [*self.due], {*self.waiting}, {**self.scores}
        return twin


@dataclass(frozen=True)
class Once(Tuner):
    """The description of a run of some kind."""

    at: int
    last: int
    kind: type[Halving]

    @property
    def decision_steps(self) -> tuple[int, ...]:
        return (self.at, self.last)

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        return (n_trials, (n_trials + 1) // 2)

    def start(self, context: TunerContext) -> TunerRun:
        return self.kind(self.at, self.last, context.n_trials)


def tuners_of(kind: type[Halving]) -> st.SearchStrategy[Tuner]:
    steps = st.integers(1, 4)
    return st.builds(lambda at, more: Once(at, at + more, kind), steps, steps)


class TestARightTunerKeepsTheContract(TunerContract):
    @staticmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        return tuners_of(Halving)


def complaint(contract: TunerContract | SamplerContract, law: str) -> str:
    """Return what a law says that it finds wrong; not made small, which takes long.

    Tried more often than the law is: whether it finds a mistake must not depend on the draws.
    """
    handle = getattr(type(contract), law).hypothesis
    quick = settings(tried, max_examples=1000, phases=[Phase.generate])(
        given(**handle._given_kwargs)(handle.inner_test)
    )
    with pytest.raises((AssertionError, ExceptionGroup)) as failure:
        quick(contract)
    found = failure.value
    if isinstance(found, ExceptionGroup):  # it did not even fail the same way twice
        return "; ".join(map(str, found.exceptions))
    return str(found)


class AsksTwice(Halving):
    """Asks again and again until it is answered."""

    def ask(self) -> Sequence[Request]:
        return [Request(trial=trial, step=self.step, reason="again") for trial in self.due]

    def tell(self, report: Report) -> Sequence[Ending]:
        self.due.remove(report.trial)
        return super().tell(report)


class WaitsForTheDead(Halving):
    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        del status
        if trial in self.due:
            self.due.remove(trial)
        self.scores.pop(trial, None)
        return ()


class AsksTheDead(Halving):
    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        del status
        self.waiting.discard(trial)
        return self.halve()


class AsksForOtherSteps(Halving):
    def ask(self) -> Sequence[Request]:
        due, self.due = self.due, []
        return [Request(trial=trial, step=self.step + 1, reason="more") for trial in due]


class FollowsChance(Halving):
    def best(self) -> list[int]:
        chosen = sorted(self.scores)
        random.shuffle(chosen)
        return chosen[: (len(chosen) + 1) // 2]


class CountsItsRuns(Halving):
    """Depends on something that neither the seed nor the news tell."""

    n_halved = 0

    def best(self) -> list[int]:
        CountsItsRuns.n_halved += 1
        n = len(super().best())
        return sorted(self.scores)[:n] if self.n_halved % 2 else sorted(self.scores)[-n:]


class SharesWithItsCopy(Halving):
    def copy(self) -> Self:
        return copy(self)


class CompletesEarly(Halving):
    def halve(self) -> Sequence[Ending]:
        early = super().halve()
        return [self.ending(ending.trial, TrialStatus.COMPLETED) for ending in early]


class EndsTwice(Halving):
    def tell(self, report: Report) -> Sequence[Ending]:
        return [*super().tell(report)] * 2


class GivesNoReason(Halving):
    def ending(self, trial: int, status: TrialStatus) -> Ending:
        return Ending(trial=trial, status=status, reason="")


class CalculatesWithScores(Halving):
    def best(self) -> list[int]:
        ranked = super().best()
        return [t for t in ranked if t == ranked[0] or self.scores[t] > 0]


class LooksAtMetrics(Halving):
    def worth(self, report: Report) -> float:
        return next(iter(report.metrics.values()))


class CountsTheMissing(Halving):
    """Lets so many go on as if those that do not exist had been worse."""

    n_missing = 0

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        self.n_missing += status is TrialStatus.STOPPED
        return super().end(trial, status)

    def best(self) -> list[int]:
        ranked = sorted(self.scores, key=lambda trial: (-self.scores[trial], trial))
        return ranked[: (len(ranked) + self.n_missing + 1) // 2]


class StopsFew(Halving):
    def best(self) -> list[int]:
        return sorted(self.scores)[: max(1, len(self.scores) - 1)]


@pytest.mark.parametrize(
    ("kind", "law", "words"),
    [
        (AsksTwice, "test_it_ends_and_asks_for_nothing_twice_whatever_the_order", "asked already"),
        (AsksTheDead, "test_it_ends_and_asks_for_nothing_twice_whatever_the_order", "is over"),
        (
            AsksForOtherSteps,
            "test_it_ends_and_asks_for_nothing_twice_whatever_the_order",
            "none of steps_of",
        ),
        (EndsTwice, "test_it_ends_and_asks_for_nothing_twice_whatever_the_order", "over already"),
        (
            GivesNoReason,
            "test_it_ends_and_asks_for_nothing_twice_whatever_the_order",
            "gives no reason",
        ),
        (WaitsForTheDead, "test_nobody_is_waited_for_that_never_reports", "neither over nor asked"),
        (CompletesEarly, "test_a_trial_that_reaches_the_last_step_is_completed", "COMPLETED"),
        (
            StopsFew,
            "test_the_outlook_is_how_many_trials_train_to_each_decision_if_nothing_fails",
            "as the outlook says",
        ),
        (FollowsChance, "test_equal_news_get_equal_answers", "global generator"),
        (FollowsChance, "test_a_study_that_is_broken_off_goes_on", "global generator"),
        (CountsItsRuns, "test_equal_news_get_equal_answers", "answers the same"),
        (SharesWithItsCopy, "test_a_copy_goes_on_equally_and_by_itself", "copy"),
        (CalculatesWithScores, "test_the_scale_of_scores_does_not_count", "same order"),
        (CountsTheMissing, "test_trials_that_do_not_exist_change_nothing", "not to exist"),
        (LooksAtMetrics, "test_modes_mirror_each_other", "with mode 'min'"),
    ],
)
def test_a_tuner_with_one_mistake_breaks_the_law_against_it(
    kind: type[Halving], law: str, words: str
) -> None:
    class Tried(TunerContract):
        @staticmethod
        def tuners() -> st.SearchStrategy[Tuner]:
            return tuners_of(kind)

    assert words in complaint(Tried(), law)


def test_trials_may_rest_for_good_if_it_is_said_and_were_asked_for() -> None:
    class Rests(Halving):
        def halve(self) -> Sequence[Ending]:
            super().halve()
            return ()

    class NeverAsks(Halving):
        def ask(self) -> Sequence[Request]:
            self.due = [trial for trial in self.due if trial]
            return super().ask()

    class Tried(TunerContract):
        leaves_paused = True

        @staticmethod
        def tuners() -> st.SearchStrategy[Tuner]:
            return tuners_of(Rests)

    class Idle(Tried):
        @staticmethod
        def tuners() -> st.SearchStrategy[Tuner]:
            return tuners_of(NeverAsks)

    Tried().test_nobody_is_waited_for_that_never_reports()
    assert "never asked" in complaint(Idle(), "test_nobody_is_waited_for_that_never_reports")


def test_a_tuner_without_a_text_of_its_own_is_no_value() -> None:
    class Nameless(Once):
        __eq__ = object.__eq__
        __hash__ = object.__hash__

    class Tried(TunerContract):
        @staticmethod
        def tuners() -> st.SearchStrategy[Tuner]:
            return st.builds(lambda: Nameless(1, 2, Halving))

    assert "if texts do" in complaint(Tried(), "test_tuners_are_values")


# --- samplers -------------------------------------------------------------------------------------


class Mixing(SamplerRun):
    """Draw at random; every second trial changes one place of the best so far."""

    def __init__(self, context: SamplerContext, inner: SamplerRun) -> None:
        self.context, self.inner = context, inner
        self.points: dict[int, Point] = {}
        self.scores: dict[int, float] = {}

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        fresh = self.inner.ask(number, new_steps, attempt)
        if fresh is None or number % 2 == 0 or not self.scores:
            return fresh
        best = self.points[max(self.scores, key=lambda trial: (self.scores[trial], -trial))]
        changed = sorted(fresh)[number // 2 % len(fresh)]

        def suggest(path: str, domain: Domain) -> int | float:
            del domain
            return fresh[path] if path == changed or path not in best else best[path]

        mixed, _ = self.context.space.draw(suggest)
        return fresh if mixed in self.points.values() else mixed

    def record(self, number: int, point: Point) -> None:
        self.inner.record(number, point)
        self.points[number] = point

    def tell(self, report: Report, *, rests: bool) -> None:
        del rests
        self.scores[report.trial] = max(self.scores.get(report.trial, -inf), self.worth(report))

    def worth(self, report: Report) -> float:
        return report.score

    def copy(self) -> Self:
        twin = copy(self)
        twin.inner, twin.points, twin.scores = self.inner.copy(), {**self.points}, {**self.scores}
        return twin


@dataclass(frozen=True)
class Mixed(Sampler):
    """The description of a run of some kind."""

    kind: type[Mixing] = Mixing

    def start(self, context: SamplerContext) -> SamplerRun:
        return self.kind(context, dt.Random().start(context))


class TestARightSamplerKeepsTheContract(SamplerContract):
    sampler = Mixed()


class TestPrefixAwareIsASampler(SamplerContract):
    sampler = dt.PrefixAware(dt.Random(), n_candidates=3)


class Repeats(Mixing):
    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        fresh = super().ask(number, new_steps, attempt)
        return None if fresh is None else self.points.get(number - 5, fresh)


class DrawsByChance(Mixing):
    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        del number, new_steps, attempt
        left = [p for p in self.context.space.points() if p not in self.points.values()]
        return random.choice(left) if left else None


class ChangesWhenAsked(Mixing):
    n_asked = 0

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        self.n_asked += 1
        return super().ask(number + self.n_asked, new_steps, attempt)


class RemembersOthers(Mixing):
    n_drawn = 0

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        return super().ask(number + self.n_drawn, new_steps, attempt)

    def record(self, number: int, point: Point) -> None:
        super().record(number, point)
        RemembersOthers.n_drawn += 1


class SharesItsDraws(Mixing):
    def copy(self) -> Self:
        twin = super().copy()
        twin.inner = self.inner
        return twin


class ForgetsScores(Mixing):
    def copy(self) -> Self:
        twin = super().copy()
        twin.scores = {}
        return twin


class LeavesTheSpace(Mixing):
    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        point = super().ask(number, new_steps, attempt)
        return point if point is None else Point.of({path: at + 1000 for path, at in point.items()})


class LearnsFromMetrics(Mixing):
    def worth(self, report: Report) -> float:
        return next(iter(report.metrics.values()))


@pytest.mark.parametrize(
    ("kind", "law", "words"),
    [
        (Repeats, "test_a_finite_space_is_drawn_to_the_last_point_and_none_twice", "drawn twice"),
        (DrawsByChance, "test_equal_seeds_draw_equally", "global generator"),
        (RemembersOthers, "test_equal_seeds_draw_equally", "equal seeds"),
        (ChangesWhenAsked, "test_the_state_of_a_run_is_what_it_was_told", "found:"),
        (SharesItsDraws, "test_a_copy_goes_on_equally_and_by_itself", "copy"),
        (ForgetsScores, "test_a_past_that_is_told_counts_as_one_that_was_lived", "a copy"),
        (LearnsFromMetrics, "test_scores_count_and_not_metrics", "the sign of metrics"),
    ],
)
def test_a_sampler_with_one_mistake_breaks_the_law_against_it(
    kind: type[Mixing], law: str, words: str
) -> None:
    class Tried(SamplerContract):
        sampler = Mixed(kind)

    assert words in complaint(Tried(), law)


def test_a_sampler_that_leaves_the_space_is_refused() -> None:
    class Tried(SamplerContract):
        sampler = Mixed(LeavesTheSpace)

    with pytest.raises(dt.InvalidStudyError):
        Tried().test_proposals_are_points_of_the_space()


# --- the module -----------------------------------------------------------------------------------


def test_the_contracts_need_hypothesis_and_no_test_runner() -> None:
    program = (
        "import sys; sys.modules['pytest'] = None; import dasktune.testing\n"
        "print('hypothesis' in sys.modules, 'dask' in sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert told.stdout.split() == ["True", "False"], told.stderr
