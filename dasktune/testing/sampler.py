"""What every sampler owes, as tests that a class for each sampler inherits.

Called by the tests of samplers, ours and other people's. Nothing here needs pytest, or any other
test runner but Hypothesis.
"""

from abc import ABC
from random import Random as Generator

from hypothesis import assume, given
from hypothesis import strategies as st

from dasktune.samplers.sampler import Sampler, SamplerContext, SamplerRun
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import SearchSpace
from dasktune.testing.laws import no_global_chance, same, tried, tried_in_studies
from dasktune.testing.life import Drew, Life, draw_all, hear, mirrored, no_steps
from dasktune.testing.spaces import continuous_spaces, finite_spaces
from dasktune.testing.studies import (
    Search,
    check_it_ends,
    check_modes_mirror,
    check_replay,
    check_resume,
    searches,
)
from dasktune.tuners.full import FullTraining
from dasktune.tuners.successive_halving import SuccessiveHalving
from dasktune.tuners.tuner import Tuner

_LARGEST = 60
"""Points of the largest space that is drawn to its end."""
_MOST_EVENTS = 40
"""Events of the longest past."""
_TUNERS: st.SearchStrategy[Tuner] = st.sampled_from(
    [FullTraining(2, report_every=1), SuccessiveHalving(rungs=[1, 3], reduction_factor=2)]
)


class SamplerContract(ABC):
    """What every sampler owes, whatever its policy.

    Inherit in a test module, name the sampler, and let pytest collect the class. Each method is one
    law, tried on many spaces: of one point or many, with choices, conditions and schedules.

    Example:
        >>> import dasktune as dt
        >>> class TestGrid(SamplerContract):
        ...     sampler = dt.Grid()
        ...     takes_continuous = False
    """

    sampler: Sampler
    """The sampler to try."""
    n_draws: int = 40
    """Draws of a run in most laws; fewer for a sampler that thinks long."""
    spaces: st.SearchStrategy[SearchSpace] = finite_spaces
    """Finite spaces that it can search."""
    takes_continuous: bool = True
    """Whether it searches spaces with continuous domains, too."""

    def start(self, space: SearchSpace, n_trials: int, seed: int = 0) -> SamplerRun:
        """Begin a run in a space."""
        return self.sampler.start(SamplerContext(space=space, n_trials=n_trials, seed=seed))

    def all_spaces(self) -> st.SearchStrategy[SearchSpace]:
        """Return all spaces that it can search."""
        return self.spaces | continuous_spaces if self.takes_continuous else self.spaces

    def search(self, data: st.DataObject) -> Search:
        """Draw a study with the sampler, and a world for it."""
        drawn = searches(_TUNERS, st.just(self.sampler), self.all_spaces(), min(8, self.n_draws))
        return data.draw(drawn, label="search")

    # --- draws ----------------------------------------------------------------------------------

    @tried
    @given(data=st.data(), seed=st.integers(0, 3))
    def test_a_finite_space_is_drawn_to_the_last_point_and_none_twice(
        self, data: st.DataObject, seed: int
    ) -> None:
        """Without replacement, and None when nothing is left."""
        space = data.draw(self.spaces, label="space")
        assume(space.size is not None and space.size <= _LARGEST)
        assert space.size is not None
        drawn = draw_all(self.start(space, space.size + 2, seed), range(space.size + 2))
        points = [point for point in drawn[: space.size] if point is not None]
        twice = sorted({str(dict(p)) for p in points if points.count(p) > 1})
        assert not twice, f"in a space of {space.size} points these are drawn twice: {twice}"
        same(set(points), set(space.points()), "all points of a finite space are drawn")
        same(drawn[space.size :], [None, None], "None is drawn when a space is exhausted")

    @tried
    @given(data=st.data())
    def test_proposals_are_points_of_the_space(self, data: st.DataObject) -> None:
        """Also where the space has no end, if it takes such."""
        space = data.draw(self.all_spaces(), label="space")
        for point in draw_all(self.start(space, 10), range(10)):
            if point is not None:
                assert isinstance(space.configuration(point), Configuration)

    # --- a run and another one ------------------------------------------------------------------

    @tried
    @given(data=st.data(), n=st.integers(0, 20), seed=st.integers(0, 3))
    def test_equal_seeds_draw_equally(self, data: st.DataObject, n: int, seed: int) -> None:
        """A run is a function of the seed and of what it was told: so studies can be resumed."""
        space = data.draw(self.spaces, label="space")
        n = min(n, self.n_draws // 2)
        with no_global_chance(0):
            drawn = draw_all(self.start(space, self.n_draws, seed), range(n))
        with no_global_chance(1):
            again = draw_all(self.start(space, self.n_draws, seed), range(n))
        same(again, drawn, "equal seeds draw equally")

    @tried
    @given(data=st.data(), n=st.integers(0, 20))
    def test_the_state_of_a_run_is_what_it_was_told(self, data: st.DataObject, n: int) -> None:
        """Asking changes nothing; only what is recorded counts, whoever drew it."""
        space = data.draw(self.spaces, label="space")
        total = self.n_draws
        n = min(n, total // 2)
        points = data.draw(st.permutations(list(zip(range(total), space.points(), strict=False))))
        told, asked_too = self.start(space, total), self.start(space, total)
        for number, (_, point) in enumerate(points[:n]):
            told.record(number, point)
            asked_too.ask(number, no_steps)
            asked_too.record(number, point)
        first = told.ask(n, no_steps)
        same(told.ask(n, no_steps), first, "a run that is asked twice proposes the same")
        same(asked_too.ask(n, no_steps), first, "what is proposed and not recorded does not count")
        same(
            draw_all(asked_too, range(n, total)),
            draw_all(told, range(n, total)),
            "runs that were told the same draw the same",
        )

    @tried
    @given(data=st.data(), n=st.integers(0, 20), others=st.integers(0, 20))
    def test_a_copy_goes_on_equally_and_by_itself(
        self, data: st.DataObject, n: int, others: int
    ) -> None:
        """A copy draws like the run, and nothing that either hears reaches the other."""
        space = data.draw(self.spaces, label="space")
        total = self.n_draws
        n, others = min(n, total // 2), min(others, total // 2)
        run = self.start(space, total)
        before = draw_all(run, range(n))
        twin, stranger = run.copy(), run.copy()
        draw_all(stranger, range(100, 100 + others))
        after = draw_all(run, range(n, total))
        same(draw_all(twin, range(n, total)), after, "a copy draws like the run")
        fresh = draw_all(self.start(space, total), range(total))
        same(before + after, fresh, "what a copy hears changes nothing in the run")

    @tried
    @given(
        data=st.data(),
        rng=st.randoms(use_true_random=False),
        n=st.integers(0, _MOST_EVENTS),
        more=st.integers(15, 30),
    )
    def test_a_past_that_is_told_counts_as_one_that_was_lived(
        self, data: st.DataObject, rng: Generator, n: int, more: int
    ) -> None:
        """A run that hears of draws, reports and endings goes on like the one that had them."""
        space = data.draw(self.all_spaces(), label="space")
        life = Life(rng)
        run = self.start(space, self.n_draws)
        life.live(run, n)
        twin, told = run.copy(), self.start(space, self.n_draws)
        for event in life.events:
            hear(told, event)
        life.live(run, more)
        for other, name in ((twin, "a copy"), (told, "a run that was told the past")):
            for event in life.events[n:]:
                if isinstance(event, Drew):
                    drawn = other.ask(event.number, no_steps)
                    same(drawn, event.point, f"{name} draws like the run that lived it")
                hear(other, event)

    @tried
    @given(
        data=st.data(),
        rng=st.randoms(use_true_random=False),
        n=st.integers(_MOST_EVENTS // 2, _MOST_EVENTS),
    )
    def test_scores_count_and_not_metrics(
        self, data: st.DataObject, rng: Generator, n: int
    ) -> None:
        """Of scores more is better in both modes; metrics have the sign that the user gave them."""
        space = data.draw(self.all_spaces(), label="space")
        life = Life(rng)
        life.live(self.start(space, self.n_draws), n)
        other = self.start(space, self.n_draws)
        for event in life.events:
            if isinstance(event, Drew):
                drawn = other.ask(event.number, no_steps)
                same(drawn, event.point, "the sign of metrics changes no draw")
            hear(other, mirrored(event))

    # --- whole studies --------------------------------------------------------------------------

    @tried_in_studies
    @given(data=st.data())
    def test_a_study_ends_with_every_trial_over(self, data: st.DataObject) -> None:
        """Whatever scores trials report, and if some or all diverge."""
        check_it_ends(self.search(data))

    @tried_in_studies
    @given(data=st.data())
    def test_modes_mirror_each_other(self, data: st.DataObject) -> None:
        """With mode "min" and all signs turned a study draws as with mode "max"."""
        check_modes_mirror(self.search(data))

    @tried_in_studies
    @given(data=st.data(), share=st.floats(0, 1))
    def test_a_study_that_is_broken_off_goes_on(self, data: st.DataObject, share: float) -> None:
        """Replayed to any event, it draws from there on as it did."""
        search = self.search(data)
        check_replay(search)
        check_resume(search, share)
