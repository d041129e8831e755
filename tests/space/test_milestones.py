"""Milestones: where the configurations of a space are likely to part."""

import dasktune as dt
from dasktune.space import SearchSpace
from dasktune.space.milestones import milestones


def test_steps_of_rare_changes_are_found_in_every_option() -> None:
    space = SearchSpace(
        {
            "lr": dt.choice([0.1, dt.step_decay(0.1, factor=0.1, at=dt.choice([[3], [9, 12]]))]),
            "batch_size": dt.choice([64, dt.piecewise({0: 64, 6: 128})]),
        }
    )
    assert milestones(space, 18) == (3, 6, 9, 12)


def test_steps_at_or_after_the_end_are_none() -> None:
    space = SearchSpace({"lr": dt.piecewise({0: 1.0, 4: 0.5, 8: 0.1})})
    assert milestones(space, 8) == (4,)
    assert milestones(space, 4) == ()


def test_schedules_that_always_move_have_none() -> None:
    space = SearchSpace({"lr": dt.cosine(0.1, 100), "momentum": dt.exponential(0.9, 0.99)})
    assert milestones(space, 100) == ()


def test_of_many_steps_the_commonest_are_returned_in_order() -> None:
    at = dt.choice([[step] for step in range(1, 40)])
    space = SearchSpace(
        {"lr": dt.step_decay(0.1, factor=0.1, at=at), "b": dt.piecewise({0: 1, 5: 2})}
    )
    found = milestones(space, 50)
    assert len(found) == 8
    assert 5 in found
    assert list(found) == sorted(found)
    assert found == milestones(space, 50)
