"""What every tuner owes, as tests that a class for each tuner inherits.

Called by the tests of tuners, ours and other people's. Nothing here needs pytest, or any other
test runner but Hypothesis.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dasktune.samplers.random import Random
from dasktune.samplers.sampler import Sampler
from dasktune.space.search_space import SearchSpace
from dasktune.testing.laws import no_global_chance, same, tried, tried_in_studies
from dasktune.testing.moves import Ask, answer, answers
from dasktune.testing.play import Play
from dasktune.testing.spaces import SCHEDULES
from dasktune.testing.studies import (
    Search,
    check_it_ends,
    check_modes_mirror,
    check_replay,
    check_resume,
    searches,
)
from dasktune.trial import Report, Request, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun


class TunerContract(ABC):
    """What every tuner owes, whatever its policy.

    Inherit in a test module, say which tuners there are, and let pytest collect the class. Each
    method is one law, tried on many plays: reports, divergence and failures in any order, ties,
    no trials, one trial, a dozen. A failure shows the play, made as small as possible.

    Example:
        >>> import dasktune as dt
        >>> class TestHalving(TunerContract):
        ...     @staticmethod
        ...     def tuners():
        ...         return st.builds(
        ...             lambda n: dt.SuccessiveHalving(rungs=[1, n], reduction_factor=2),
        ...             st.integers(2, 9),
        ...         )
    """

    stretches: Sequence[Callable[[float], float]] = (
        lambda score: score - 100,
        lambda score: score + 100,
        lambda score: 1e-9 * score**3,
    )
    """Ways to write scores that change no decision, since only their order counts. Fewer, or none,
    for a tuner that calculates with scores."""
    leaves_paused: bool = False
    """Whether trials may rest at a step for good, neither asked again nor ended, as those that ASHA
    never promotes; else a run that asks for nothing more has ended every trial."""
    space: SearchSpace = SCHEDULES
    """What the tuner's studies search; another one for a tuner that needs certain parameters."""
    sampler: Sampler = Random()
    """How they search it."""

    @staticmethod
    @abstractmethod
    def tuners() -> st.SearchStrategy[Tuner]:
        """Return tuners to try: of few steps, with all options varied."""

    def play(self, data: st.DataObject, *, bad: float = 0.1) -> Play:
        """Begin a run of some tuner, for some number of trials from none to twelve."""
        tuner = data.draw(self.tuners(), label="tuner")
        n_trials = data.draw(st.integers(0, 12), label="n_trials")
        return Play(tuner, n_trials, data.draw(st.randoms(use_true_random=False)), bad=bad)

    def search(self, data: st.DataObject) -> Search:
        """Draw a study with some tuner, and a world for it."""
        return data.draw(
            searches(self.tuners(), st.just(self.sampler), st.just(self.space)), label="search"
        )

    # --- one run --------------------------------------------------------------------------------

    @tried
    @given(data=st.data())
    def test_it_ends_and_asks_for_nothing_twice_whatever_the_order(
        self, data: st.DataObject
    ) -> None:
        """Each trial is asked for ascending steps, one at a time, and not when it is over."""
        played = self.play(data).go()
        assert not played.run.ask(), "a run that had nothing to ask for asks again without news"

    @tried
    @given(data=st.data())
    def test_nobody_is_waited_for_that_never_reports(self, data: st.DataObject) -> None:
        """When a run waits for nothing and asks for nothing, no trial is left over.

        A tuner that still counts on trials that diverged or failed leaves the others waiting.
        """
        played = self.play(data, bad=0.3).go()
        left = [trial for trial in range(played.n_existing) if trial not in played.over]
        if self.leaves_paused:
            left = [trial for trial in left if trial not in played.trained]
            assert not left, f"the run has finished, and trials {left} were never asked for"
        assert not left, (
            f"the run has finished, and trials {left} are neither over nor asked for; if they may "
            "rest where they are, set leaves_paused"
        )

    @tried
    @given(data=st.data())
    def test_a_trial_that_reaches_the_last_step_is_completed(self, data: st.DataObject) -> None:
        """Trials that reach the last decision step are COMPLETED, and no others."""
        played = self.play(data, bad=0.0).go()
        last = played.tuner.decision_steps[-1]
        complete = {t for t, status in played.over.items() if status is TrialStatus.COMPLETED}
        reached = {trial for trial, at in played.trained.items() if at == last}
        same(complete, reached, "completed are the trials that reached the last step")

    @tried
    @given(data=st.data())
    def test_the_outlook_is_how_many_trials_train_to_each_decision_if_nothing_fails(
        self, data: st.DataObject
    ) -> None:
        """The outlook is exact for tuners that are not asked on demand, and falls for all."""
        played = self.play(data, bad=0.0).go()
        outlook, steps = played.tuner.outlook(played.n_trials), played.tuner.decision_steps
        same(len(outlook), len(steps), "an outlook has a number for each decision step")
        same(outlook[0], played.n_trials, "all trials train to the first decision step")
        same(list(outlook), sorted(outlook, reverse=True), "no trial skips a decision step")
        if not played.run.asks_on_demand:
            found = tuple([played.n_trained(step) for step in steps])
            same(found, outlook, "as many trials train to each step as the outlook says")

    @tried
    @given(data=st.data())
    def test_nobody_is_complete_where_all_trials_fail(self, data: st.DataObject) -> None:
        """A run ends also if no trial ever reports."""
        played = self.play(data, bad=1.0).go()
        assert TrialStatus.COMPLETED not in played.over.values(), "a trial that failed is complete"

    # --- a run and another one ------------------------------------------------------------------

    @tried
    @given(data=st.data())
    def test_equal_news_get_equal_answers(self, data: st.DataObject) -> None:
        """A run is a function of the seed and of what it was told: so studies can be resumed."""
        with no_global_chance(0):
            played = self.play(data).go()
        with no_global_chance(1):
            found = answers(_started(played), played.moves)
        same(found, played.answers, "a run that is told the same answers the same")

    @tried
    @given(data=st.data())
    def test_a_copy_goes_on_equally_and_by_itself(self, data: st.DataObject) -> None:
        """A copy answers like the run, and nothing that either hears reaches the other."""
        played = self.play(data)
        played.go(data.draw(st.integers(0, 30), label="moves before the copy"))
        at = len(played.moves)
        twin, stranger = played.run.copy(), played.run.copy()
        over = set(played.over)
        for trial in reversed(range(played.n_existing)):
            if trial not in over:
                over.update(ending.trial for ending in stranger.end(trial, TrialStatus.FAILED))
            stranger.ask()
        played.go()
        same(answers(twin, played.moves[at:]), played.answers[at:], "a copy answers like the run")
        found = answers(_started(played), played.moves)
        same(found, played.answers, "what a copy hears changes nothing in the run")

    @tried
    @given(data=st.data())
    def test_the_scale_of_scores_does_not_count(self, data: st.DataObject) -> None:
        """Scores are compared, not calculated with; see `stretches`."""
        if not self.stretches:
            return
        played = self.play(data).go()
        stretch = data.draw(st.sampled_from(self.stretches))
        moves = [
            replace(move, score=stretch(move.score)) if isinstance(move, Report) else move
            for move in played.moves
        ]
        found = answers(_started(played), moves)
        same(found, played.answers, "scores in the same order get the same answers")

    @tried
    @given(data=st.data(), n_missing=st.integers(1, 20))
    def test_trials_that_do_not_exist_change_nothing(
        self, data: st.DataObject, n_missing: int
    ) -> None:
        """Where a space has fewer configurations than trials, the rest is told to be STOPPED."""
        played = self.play(data).go()
        n = played.n_trials
        existing = set(range(n))
        larger = played.tuner.start(TunerContext(n_trials=n + n_missing, seed=0))
        what = f"{n} trials train the same when {n_missing} more turn out not to exist"
        for move, expected in zip(played.moves, played.answers, strict=True):
            if isinstance(move, Ask):
                asked = _asked_of_existing(larger, existing)
                same(asked, [(r.trial, r.step) for r in expected if isinstance(r, Request)], what)
            else:
                ended = [ending.trial for ending in answer(larger, move)]
                same(ended, [ending.trial for ending in expected], what)

    @tried
    @given(data=st.data())
    def test_tuners_are_values(self, data: st.DataObject) -> None:
        """Tuners are equal if they read alike: by their text a study knows that it has changed."""
        tuner, other = data.draw(self.tuners()), data.draw(self.tuners())
        same(tuner == other, repr(tuner) == repr(other), f"{tuner} equals {other} if texts do")
        assert tuner != other or hash(tuner) == hash(other), f"equal {tuner} hash differently"
        steps = tuner.decision_steps
        same(steps, tuple(sorted(set(steps))), "decision steps ascend")
        for step in range(steps[-1] + 2):
            own = tuner.steps_of(0)
            assert set(own) <= set(steps), "steps_of gives some of the decision steps"
            same(own[-1], steps[-1], "the last of a trial's steps is the last of all")
            later = [at for at in own if at > step]
            same(tuner.next_decision(0, step), later[0] if later else None, "next_decision")

    # --- whole studies --------------------------------------------------------------------------

    @tried_in_studies
    @given(data=st.data())
    def test_a_study_ends_with_every_trial_over(self, data: st.DataObject) -> None:
        """Whatever scores trials report, and if some or all diverge."""
        check_it_ends(self.search(data))

    @tried_in_studies
    @given(data=st.data())
    def test_modes_mirror_each_other(self, data: st.DataObject) -> None:
        """With mode "min" and all signs turned a study decides as with mode "max"."""
        check_modes_mirror(self.search(data))

    @tried_in_studies
    @given(data=st.data(), share=st.floats(0, 1))
    def test_a_study_that_is_broken_off_goes_on(self, data: st.DataObject, share: float) -> None:
        """Replayed to any event, it decides from there on as it did."""
        search = self.search(data)
        check_replay(search)
        check_resume(search, share)


def _started(played: Play) -> TunerRun:
    return played.tuner.start(TunerContext(n_trials=played.n_trials, seed=0))


def _asked_of_existing(run: TunerRun, existing: set[int]) -> list[tuple[int, int]]:
    """Ask once for trials that exist, ending those that do not as a study does."""
    while True:
        requests = run.ask()
        existing.update(request.trial for request in requests if request.branch is not None)
        missing = [request.trial for request in requests if request.trial not in existing]
        for trial in missing:
            assert not run.end(trial, TrialStatus.STOPPED), "a trial that does not exist ends none"
        found = [(r.trial, r.step) for r in requests if r.trial in existing]
        if found or not missing or not run.asks_on_demand:
            return found
