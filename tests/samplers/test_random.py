from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.samplers.sampler import SamplerContext, SamplerRun
from dasktune.space import Point, SearchSpace
from dasktune.testing import SamplerContract
from dasktune.testing.life import draw_all, no_steps
from tests.space.strategies import finite_spaces


class TestRandomIsASampler(SamplerContract):
    sampler = dt.Random()
    spaces = finite_spaces


def start(space: Mapping[str, object], n_trials: int = 100, seed: int = 0) -> SamplerRun:
    return dt.Random().start(SamplerContext(space=SearchSpace(space), n_trials=n_trials, seed=seed))


def without(name: str, points: list[Point | None]) -> list[dict[str, int | float]]:
    return [
        {path: number for path, number in (point or {}).items() if path != name} for point in points
    ]


SPACE: dict[str, object] = {
    "lr": dt.loguniform(1e-4, 1.0),
    "bs": dt.choice([64, 128]),
    "momentum": dt.uniform(0, 1),
}


@given(seed=st.integers(0, 2**40), n=st.integers(1, 30))
def test_more_trials_change_no_draw(seed: int, n: int) -> None:
    few, many = start(SPACE, n, seed), start(SPACE, 1000, seed)
    assert draw_all(few, range(n)) == draw_all(many, range(n))


@given(seed=st.integers(0, 2**40), numbers=st.permutations(range(12)))
def test_a_draw_depends_on_no_other_trial(seed: int, numbers: list[int]) -> None:
    in_order = draw_all(start(SPACE, seed=seed), range(12))
    shuffled = draw_all(start(SPACE, seed=seed), numbers)
    assert [in_order[number] for number in numbers] == shuffled
    assert start(SPACE, seed=seed).ask(7, no_steps) == in_order[7]


@given(seed=st.integers(0, 2**40))
def test_another_parameter_changes_no_draw(seed: int) -> None:
    larger = SPACE | {
        "a": dt.uniform(0, 1),
        "z": dt.choice({"x": {"y": dt.uniform(0, 1)}, "w": {}}),
    }
    drawn = draw_all(start(larger, seed=seed), range(20))
    known = [
        {path: number for path, number in (point or {}).items() if path in SPACE} for point in drawn
    ]
    assert known == without("", draw_all(start(SPACE, seed=seed), range(20)))


@given(seed=st.integers(0, 2**40), name=st.sampled_from(["lr", "momentum"]))
def test_a_parameter_less_changes_no_draw(seed: int, name: str) -> None:
    smaller = {path: domain for path, domain in SPACE.items() if path != name}
    drawn = draw_all(start(SPACE, seed=seed), range(20))
    assert without(name, drawn) == without("", draw_all(start(smaller, seed=seed), range(20)))


def test_draws_of_a_seed_are_the_same_for_ever() -> None:
    points = draw_all(start(SPACE, seed=7), range(2))
    assert [dict(point or {}) for point in points] == [
        {"bs": 1, "lr": 0.0271807534503, "momentum": 0.794251090525},
        {"bs": 0, "lr": 0.00910140349213, "momentum": 0.545987598426},
    ]


def test_draws_are_fair_and_of_different_paths_independent() -> None:
    space = {"a": dt.randint(0, 3), "b": dt.randint(0, 3), "c": dt.uniform(0, 1)}
    points = [p for p in draw_all(start(space), range(3200)) if p is not None]
    assert len(points) == 3200
    pairs = Counter((point["a"], point["b"]) for point in points)
    # 200 expected of each of 16 pairs, with a deviation of 14.
    assert len(pairs) == 16
    assert all(140 < count < 260 for count in pairs.values())
    following = Counter((one["a"], two["a"]) for one, two in pairwise(points))
    assert all(140 < count < 260 for count in following.values())


def test_seeds_draw_differently() -> None:
    drawn = {tuple(draw_all(start(SPACE, seed=seed), range(3))) for seed in range(50)}
    assert len(drawn) == 50


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("space", "size"),
    [
        ({"o": dt.choice({"rare": {"x": dt.randint(1, 300)}, "often": {}})}, 301),
        (
            {"o": dt.choice({key: {} for key in "abcdefgh"} | {"i": {"x": dt.logint(1, 200)}})},
            208,
        ),
        ({"x": dt.logint(1, 400), "y": dt.choice([1, 2])}, 800),
        ({"only": dt.choice([1])}, 1),
        ({"fixed": 0.1}, 1),
    ],
)
def test_a_skewed_space_is_drawn_to_its_last_point(
    space: dict[str, object], size: int, seed: int
) -> None:
    drawn = draw_all(start(space, size + 1, seed), range(size + 1))
    assert SearchSpace(space).size == size
    assert drawn[-1] is None
    assert set(drawn[:-1]) == set(SearchSpace(space).points())


def test_a_continuous_space_of_few_values_repeats_them() -> None:
    drawn = draw_all(start({"x": dt.uniform(1.0, 1.00000000001)}), range(4))
    assert len({point for point in drawn if point is not None}) == 2
    assert None not in drawn


def test_a_continuous_option_is_found_beside_many_plain_ones() -> None:
    plain = [dt.constant(n) for n in range(30)]
    space = {"x": dt.choice([*plain, dt.uniform(0, 1)])}
    drawn = draw_all(start(space), range(60))
    assert len(set(drawn)) == 60
