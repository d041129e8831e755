"""Trials that were taken over come first, then those given first, whatever branches between."""

from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.space.search_space import Point
from dasktune.study.drawing import Drawing
from dasktune.study.study import Study
from tests.worlds import small_study


def study_with(taken_over: list[Point], first: list[Point]) -> Study:
    space = small_study().space
    given_first = [space.configuration(point) for point in first]
    study = small_study(sampler=dt.Random(), n_trials=30, first=given_first)
    object.__setattr__(study, "taken_over", tuple(taken_over))
    return study


POINTS = list(small_study().space.points())


@given(
    taken_over=st.lists(st.sampled_from(POINTS), max_size=6),
    first=st.lists(st.sampled_from(POINTS), max_size=6),
    branches=st.lists(st.booleans(), max_size=16),
)
def test_trials_that_are_known_are_drawn_in_order_whatever_branches_between_them(
    taken_over: list[Point], first: list[Point], branches: list[bool]
) -> None:
    drawing = Drawing(0, study_with(taken_over, first))

    drawn = [
        drawing.draw(number, lambda *_: 0, None)
        for number, is_branch in enumerate(branches)
        if not is_branch
    ]

    known = [*taken_over, *first[len(taken_over) :]]
    assert drawn[: len(known)] == known[: len(drawn)]
