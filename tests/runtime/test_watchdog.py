"""When a worker is said to hang, and when it is not, as a thing of times alone."""

import time

from hypothesis import given
from hypothesis import strategies as st

from dasktune.runtime.pulse import PULSES, Pulse, beating, signs_of, stacks_of
from dasktune.runtime.watchdog import Watchdog
from dasktune.units import WorkerId

A, B = WorkerId("a"), WorkerId("b")
LIMIT_S = 60.0


def asked(watchdog: Watchdog, from_s: float, to_s: float, *, step_s: float = 1.0) -> float | None:
    """Look every second; return when the worker is asked, if it is."""
    now = from_s
    while now <= to_s:
        if watchdog.due(now, [A]):
            return now
        now += step_s
    return None


def test_a_worker_is_asked_now_and_then_and_is_not_asked_twice_at_a_time() -> None:
    watchdog = Watchdog(LIMIT_S)
    at_s = asked(watchdog, 0.0, LIMIT_S)
    assert at_s is not None
    assert 0 < at_s < LIMIT_S / 2
    assert asked(watchdog, at_s + 1, 2 * LIMIT_S) is None
    watchdog.answered(A, 2 * LIMIT_S, [])
    assert asked(watchdog, 2 * LIMIT_S + 1, 3 * LIMIT_S) is not None


def test_a_worker_that_never_answers_hangs_and_one_that_does_not() -> None:
    watchdog = Watchdog(LIMIT_S)
    for now in range(100):
        assert watchdog.silent(float(now)) == {}
        for worker in watchdog.due(float(now), [A, B]):
            if worker == B:
                watchdog.answered(B, float(now), [])
        if now > 70:
            break
    for now in range(72, 90):
        watchdog.due(float(now), [A, B])
    assert list(watchdog.silent(90.0)) == [A]
    assert "not answered for" in watchdog.silent(90.0)[A]


def test_a_question_that_is_lost_is_asked_again_and_does_not_count_as_an_answer() -> None:
    watchdog = Watchdog(LIMIT_S)
    n_asked = 0
    for now in range(100):
        for worker in watchdog.due(float(now), [A]):
            n_asked += 1
            watchdog.unanswered(worker)
    assert n_asked > 10
    assert list(watchdog.silent(100.0)) == [A]


def test_a_driver_that_slept_itself_accuses_nobody() -> None:
    watchdog = Watchdog(LIMIT_S)
    at_s = asked(watchdog, 0.0, LIMIT_S)
    assert at_s is not None
    watchdog.due(at_s + 1, [A])
    watchdog.due(at_s + 1000, [A])
    assert watchdog.silent(at_s + 1000) == {}


def test_a_worker_that_has_nothing_to_do_is_forgotten() -> None:
    watchdog = Watchdog(LIMIT_S)
    assert asked(watchdog, 0.0, LIMIT_S) is not None
    watchdog.due(LIMIT_S, [])
    assert watchdog.silent(3 * LIMIT_S) == {}
    assert watchdog.answered(A, 3 * LIMIT_S, [(1e9, 0.1)]) is None
    watchdog.unanswered(A)


@given(
    in_step_s=st.none() | st.floats(0, 1e5),
    longest_s=st.none() | st.floats(0, 1e4),
    limit_s=st.floats(0.1, 100),
)
def test_a_step_hangs_if_it_takes_five_times_as_long_as_any_before_it_and_the_limit_at_least(
    in_step_s: float | None, longest_s: float | None, limit_s: float
) -> None:
    watchdog = Watchdog(limit_s)
    watchdog.due(0.0, [A])
    why = watchdog.answered(A, 1.0, [(None, None), (in_step_s, longest_s)])
    if in_step_s is None or longest_s is None:
        assert why is None
    else:
        assert (why is not None) == (in_step_s > max(5 * longest_s, limit_s))


def test_long_steps_give_a_silent_process_the_more_time() -> None:
    watchdog = Watchdog(LIMIT_S)
    watchdog.due(0.0, [A])
    watchdog.answered(A, 0.0, [(None, 100.0)])
    for now in range(1, 600):
        watchdog.due(float(now), [A])
        if now < 500:
            assert watchdog.silent(float(now)) == {}
    for now in range(600, 700):
        watchdog.due(float(now), [A])
    assert list(watchdog.silent(700.0)) == [A]


# --- what a process says of its stages ------------------------------------------------------------


def test_a_pulse_knows_the_step_that_is_running_and_the_longest_before_it() -> None:
    pulse = Pulse()
    assert pulse.signs() == (None, None)
    pulse.begin()
    in_step_s, longest_s = pulse.signs()
    assert in_step_s is not None
    assert in_step_s >= 0
    assert longest_s is None
    time.sleep(0.02)
    pulse.end()
    before, longest_s = pulse.signs()
    assert before is None
    assert longest_s is not None
    assert longest_s >= 0.02
    pulse.begin()
    pulse.end()
    assert pulse.signs() == (None, longest_s)


def test_a_process_tells_of_the_stages_of_a_run_while_they_run() -> None:
    with beating("mine", 1) as pulse, beating("other", 1):
        pulse.begin()
        assert list(signs_of("mine")) == [1]
        assert "test_a_process_tells_of_the_stages" in stacks_of("mine")
        assert signs_of("nobody") == {}
        assert stacks_of("nobody") == ""
    assert not PULSES


def test_a_stage_that_was_given_up_does_not_take_its_successor_along() -> None:
    with beating("mine", 1):
        PULSES["mine", 1] = successor = Pulse()
    assert PULSES.pop(("mine", 1)) is successor


def test_who_waits_longer_than_the_limit_for_a_close_waits_for_something_that_hangs() -> None:
    stage, closing = Pulse(), Pulse()
    closing.begin_closing()
    stage.behind = closing
    time.sleep(0.02)
    for limit_s, hangs in ((0.01, True), (60.0, False)):
        watchdog = Watchdog(limit_s)
        watchdog.due(0.0, [A])
        why = watchdog.answered(A, 1.0, [stage.signs()])
        assert (why is not None) == hangs
        assert why is None or "is being closed" in why
