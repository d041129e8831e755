import math
import pickle
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space import (
    Schedule,
    constant,
    cosine,
    cosine_restarts,
    cyclic,
    exponential,
    join,
    linear,
    piecewise,
    polynomial,
    same_until,
    splice,
    step_decay,
    token,
    warmup,
)
from dasktune.space.schedule import FunctionSchedule, as_schedule
from tests.space.strategies import (
    HORIZON,
    brute_changes,
    brute_same_until,
    counted,
    milestones,
    numbers,
    numeric_schedules,
    schedules,
    warm_schedules,
)

steps = st.integers(0, HORIZON)


def number_at(schedule: Schedule, step: int) -> float:
    value = schedule.at(step)
    assert isinstance(value, int | float)
    return value


def values_of(schedule: Schedule, stop: int = HORIZON) -> list[str]:
    return [token(schedule.at(step)) for step in range(stop)]


@given(schedules, steps, steps)
def test_changes_are_the_steps_at_which_the_value_differs(
    schedule: Schedule, start: int, stop: int
) -> None:
    expected = brute_changes(schedule, start, stop)
    assert typed(schedule.changes(start, stop)) == typed(expected)


@given(schedules)
def test_changes_up_to_any_step_are_the_first_of_all_changes(schedule: Schedule) -> None:
    everything = typed(schedule.changes(0, HORIZON))
    for stop in range(HORIZON):
        before = [change for change in everything if change[0] < stop]
        assert typed(schedule.changes(0, stop)) == before
        assert typed(schedule.changes(stop, HORIZON)) == everything[len(before) :]


@given(schedules)
def test_changes_from_zero_tell_the_whole_schedule(schedule: Schedule) -> None:
    again = piecewise(dict(schedule.changes(0, HORIZON)))
    assert values_of(again) == values_of(schedule)


@given(schedules, steps)
def test_values_do_not_depend_on_how_a_step_is_reached(schedule: Schedule, step: int) -> None:
    fresh = pickle.loads(pickle.dumps(schedule)) if is_picklable(schedule) else schedule
    at_once = token(fresh.at(step))
    assert at_once == values_of(schedule)[step] if step < HORIZON else at_once


@given(schedules, schedules, steps)
def test_same_until_is_the_first_difference(a: Schedule, b: Schedule, stop: int) -> None:
    assert same_until(a, b, stop) == brute_same_until(a, b, stop)


@given(schedules, schedules, st.integers(1, 30))
def test_same_until_finds_the_step_at_which_a_copy_departs(
    a: Schedule, b: Schedule, at: int
) -> None:
    departed = join([a, b], at=[at])
    assert same_until(a, departed, at) == at
    expected = brute_same_until(a, departed, HORIZON)
    assert same_until(a, departed, HORIZON) == expected
    assert same_until(departed, a, HORIZON) == expected


@given(schedules)
def test_a_schedule_written_as_its_changes_is_the_same_to_the_end(schedule: Schedule) -> None:
    again = piecewise(dict(schedule.changes(0, HORIZON)))
    assert same_until(schedule, again, HORIZON) == HORIZON


@given(schedules, schedules)
def test_equal_schedules_have_equal_values_and_hashes(a: Schedule, b: Schedule) -> None:
    if a == b:
        assert hash(a) == hash(b)
        assert values_of(a) == values_of(b)


@given(warm_schedules)
def test_a_schedule_is_what_its_text_says(schedule: Schedule) -> None:
    again = eval(schedule.text, {"inf": math.inf, **CONSTRUCTORS})
    again = as_schedule(again, "again")
    assert again == schedule
    assert again.text == schedule.text
    assert hash(again) == hash(schedule)


@given(schedules)
def test_a_schedule_is_made_again_of_its_arguments(schedule: Schedule) -> None:
    again = type(schedule).of(*schedule.arguments())
    assert again == schedule
    apart = type(schedule).taken_apart(schedule)
    assert apart is not None
    assert type(schedule).of(*apart) == schedule


@given(schedules)
def test_a_pickled_schedule_is_equal(schedule: Schedule) -> None:
    if is_picklable(schedule):
        assert pickle.loads(pickle.dumps(schedule)) == schedule


@pytest.mark.parametrize("value", [1, 1.0, True])
def test_constants_are_equal_only_with_values_of_one_type(value: object) -> None:
    others = [v for v in (1, 1.0, True) if type(v) is not type(value)]
    mine = as_schedule(value, "v")
    assert mine == as_schedule(value, "v")
    assert all(mine != as_schedule(other, "v") for other in others)
    assert all(same_until(mine, as_schedule(other, "v"), 9) == 0 for other in others)


def test_the_text_of_a_constant_is_its_repr() -> None:
    assert constant("adam").text == "'adam'"
    assert constant(0.1).text == "0.1"
    assert repr(constant(0.1)) == "constant(0.1)"


def test_texts_are_calls() -> None:
    assert step_decay(0.1, factor=0.1, at=[6, 12]).text == "step_decay(0.1, factor=0.1, at=[6, 12])"
    assert warmup(3, cosine(0.1, 15)).text == "warmup(3, cosine(0.1, steps=15))"
    assert join([0.1, cyclic(0, 1, 4)], at=[5]).text == (
        "join([0.1, cyclic(0.0, high=1.0, half_period=4)], at=[5])"
    )
    assert splice([0.1, cosine(0.1, 9)], at=[5]).text == (
        "splice([0.1, cosine(0.1, steps=9)], at=[5])"
    )
    assert piecewise({9: 128, 0: 64}).text == "piecewise({0: 64, 9: 128})"


def test_a_decay_agrees_with_the_values_that_people_write() -> None:
    decay = step_decay(0.1, factor=0.1, at=[6, 12])
    assert same_until(decay, piecewise({0: 0.1, 6: 0.01, 12: 0.001}), 10**6) == 10**6


@given(numbers, st.floats(0.01, 3), milestones, steps)
def test_step_decay_multiplies_once_per_milestone(
    v: float, factor: float, at: list[int], step: int
) -> None:
    expected = float(v)
    for _ in [milestone for milestone in at if milestone <= step]:
        expected *= factor
    assert number_at(step_decay(v, factor=factor, at=at), step) == pytest.approx(expected, rel=1e-9)


def test_integers_that_are_multiplied_by_an_integer_stay_integers() -> None:
    doubled = step_decay(64, factor=2, at=[3, 6])
    assert typed(doubled.changes(0, 9)) == typed([(0, 64), (3, 128), (6, 256)])
    assert token(step_decay(64, factor=0.5, at=[3]).at(0)) == token(64.0)
    assert step_decay(64, factor=2, at=[3]) != step_decay(64.0, factor=2, at=[3])


def test_a_rate_that_leaves_the_floats_ends_in_infinity_or_zero() -> None:
    assert exponential(1, 10.0).at(10**6) == math.inf
    assert exponential(-1, 10.0).at(10**6) == -math.inf
    assert exponential(0, 10.0).at(10**6) == 0.0
    assert exponential(1, 0.1).at(10**6) == 0.0


@given(numbers, numbers, st.integers(1, 15))
def test_what_moves_to_an_end_starts_and_stays_exactly_there(
    v: float, end: float, steps: int
) -> None:
    moving = [linear(v, end, steps), cosine(v, steps, end), polynomial(v, end, steps, power=2)]
    for schedule in moving:
        assert schedule.at(0) == constant(float(v)).at(0)
        assert schedule.at(steps) == schedule.at(10**9) == constant(float(end)).at(0)


@given(numbers, numbers, st.integers(1, 10))
def test_restarts_repeat_with_period_and_cycles_with_twice_the_half(
    a: float, b: float, n: int
) -> None:
    for schedule, period in [(cosine_restarts(a, n, end=b), n), (cyclic(a, b, n), 2 * n)]:
        assert values_of(schedule, 30) == [token(schedule.at(step % period)) for step in range(30)]


@given(st.integers(1, 9), st.integers(1, 4))
def test_restarts_begin_where_the_geometric_sums_say(period: int, factor: int) -> None:
    schedule = cosine_restarts(1.0, period, factor)
    begins = [0]
    for i in range(4):
        begins.append(begins[-1] + period * factor**i)
    top = [step for step in range(begins[-1] + 1) if schedule.at(step) == 1.0]
    assert top == begins


@given(st.integers(0, 8), warm_schedules, steps)
def test_warmup_grows_to_the_first_value_and_goes_on(n: int, then: Schedule, step: int) -> None:
    schedule = warmup(n, then)
    if step >= n:
        assert token(schedule.at(step)) == token(then.at(step - n))
    else:
        expected = number_at(then, 0) * (step + 1) / (n + 1)
        assert token(schedule.at(step)) == token(constant(expected).at(0))


@given(st.lists(schedules, min_size=1, max_size=4), st.data())
def test_each_joined_schedule_counts_from_its_own_boundary(
    parts: list[Schedule], data: st.DataObject
) -> None:
    n = len(parts) - 1
    at = sorted(data.draw(st.sets(st.integers(1, 30), min_size=n, max_size=n)))
    joined = join(parts, at=at)
    begins = [0, *at]
    for step in range(HORIZON):
        i = max(k for k, begin in enumerate(begins) if begin <= step)
        assert token(joined.at(step)) == token(parts[i].at(step - begins[i]))


def test_sparse_schedules_look_only_at_what_changes() -> None:
    far = 10**15
    sparse = [
        constant(1),
        step_decay(1, factor=0.5, at=[3, far]),
        piecewise({0: 1, far: "x"}),
        linear(1, 0, 5),
        cosine(1, 5),
        warmup(3, step_decay(1, factor=0.5, at=[far])),
        join([warmup(3, 0.1), step_decay(1, factor=0.5, at=[7])], at=[far]),
        splice([linear(1, 0, 5), step_decay(1, factor=0.5, at=[far])], at=[far - 9]),
    ]
    for schedule in sparse:
        assert len(list(schedule.changes(0, far + 10))) < 10
        assert len(list(schedule.changes(far - 10, far + 10))) < 4


def test_a_far_step_of_a_periodic_schedule_is_found_at_once() -> None:
    far = 3 * 10**15
    assert cosine_restarts(1, 3).at(far) == cosine_restarts(1, 3, 2).at(0) == 1.0
    assert cosine_restarts(1, 3, 2).at(3 * (2**60 - 1)) == 1.0
    assert cyclic(0, 1, 3).at(far + 3) == 1.0


def test_changes_are_found_lazily() -> None:
    function, asked = counted(lambda step: step)
    first = list(islice(as_schedule(function, "f").changes(0, 10**9), 3))
    assert first == [(0, 0), (1, 1), (2, 2)]
    assert asked == [0, 1, 2]


def test_same_until_asks_no_further_than_the_difference() -> None:
    function, asked = counted(lambda step: 0 if step < 5 else 1)
    assert same_until(as_schedule(function, "f"), constant(0), 10**9) == 5
    assert asked == [0, 1, 2, 3, 4, 5]


def test_a_function_is_asked_once_a_step() -> None:
    answers = count()
    schedule = as_schedule(lambda step: (step, next(answers)), "f")
    assert [schedule.at(3), schedule.at(0), schedule.at(3)] == [(3, 0), (0, 1), (3, 0)]


def test_functions_are_equal_only_to_themselves() -> None:
    def one(step: int) -> int:
        return step

    def two(step: int) -> int:
        return step

    assert as_schedule(one, "f") == as_schedule(one, "f")
    assert hash(as_schedule(one, "f")) == hash(as_schedule(one, "f"))
    assert as_schedule(one, "f") != as_schedule(two, "f")
    assert as_schedule(one, "f") != constant(1)
    assert same_until(as_schedule(one, "f"), as_schedule(two, "f"), 9) == 9


def test_functions_may_stand_for_parts() -> None:
    assert [warmup(1, lambda step: 4 + step).at(step) for step in range(3)] == [2.0, 4, 5]
    assert [join([lambda _: "a", 0], at=[1]).at(step) for step in range(2)] == ["a", 0]


def test_answers_of_a_function_are_canonical() -> None:
    assert as_schedule(lambda _: [0.1 + 0.2, -0.0], "f").at(0) == (0.3, 0.0)


def test_a_function_that_raises_is_named_with_the_step() -> None:
    schedule = as_schedule(lambda step: 1 / (step - 2), "f")
    with pytest.raises(InvalidStudyError, match=r"<lambda> raised ZeroDivisionError.* at step 2"):
        list(schedule.changes(0, 9))


def test_a_function_that_answers_with_nan_is_named_with_the_step() -> None:
    with pytest.raises(InvalidStudyError, match="at step 4 is nan"):
        as_schedule(lambda _: math.nan, "f").at(4)


def test_a_schedule_is_immutable() -> None:
    with pytest.raises(AttributeError):
        constant(1).v = 2  # type: ignore[attr-defined]


def test_a_milestone_list_may_be_changed_afterwards() -> None:
    at = [6, 12]
    schedule = step_decay(0.1, factor=0.1, at=at)
    at[0] = 1
    assert schedule.at(1) == 0.1


@given(numeric_schedules, steps)
def test_numeric_schedules_give_numbers(schedule: Schedule, step: int) -> None:
    assert type(schedule.at(step)) in {int, float}


def typed(changes: object) -> list[tuple[int, str]]:
    """Spell changes out with the types of their values."""
    return [(step, token(value)) for step, value in changes]  # type: ignore[attr-defined]


def is_picklable(schedule: Schedule) -> bool:
    """Tell whether no local function is in it."""
    return "<lambda>" not in schedule.text


CONSTRUCTORS = {
    each.__name__: each
    for each in (
        constant,
        cosine,
        cosine_restarts,
        cyclic,
        exponential,
        join,
        linear,
        piecewise,
        polynomial,
        splice,
        step_decay,
        warmup,
    )
}


def test_functions_survive_pickling_without_their_answers() -> None:
    schedule = FunctionSchedule(math.factorial)
    schedule.at(5)
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert again.at(5) == 120
