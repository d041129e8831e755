"""The core against worlds that go wrong in every way, each event followed by all checks of `Play`.

The random driver plays many short worlds; the state machine plays few, and shrinks what it finds.
"""

from random import Random as Generator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dasktune.scheduling.fifo import Fifo
from tests.plays import Play, Truth, rolled, stage_past
from tests.worlds import random_studies

picks = st.integers(0, 7)
workers = st.sampled_from("abc")


class CoreMachine(RuleBasedStateMachine):
    """One or two studies, three names of workers, and everything that can happen to them."""

    play: Play

    @initialize(
        seed=st.integers(0, 10_000),
        odd_share=st.sampled_from([0.0, 0.2]),
        grid=st.sampled_from([None, 2]),
        is_fifo=st.booleans(),
    )
    def begin(self, seed: int, odd_share: float, grid: int | None, *, is_fifo: bool) -> None:
        truth = Truth(seed=seed, odd_share=odd_share, grid=grid)
        self.play = Play(random_studies(Generator(seed)), truth, Fifo() if is_fifo else None)
        self.play.start(0)

    def _path(self, pick: int) -> int:
        return list(self.play.running)[pick % len(self.play.running)]

    def _is_running(self) -> bool:
        return bool(self.play.running)

    @rule(worker=workers, n_slots=st.sampled_from([1, 1, 3]))
    def a_worker_joins_or_restarts(self, worker: str, n_slots: int) -> None:
        self.play.join(worker, n_slots)

    @rule(worker=workers, died=st.booleans())
    def a_worker_leaves(self, worker: str, *, died: bool) -> None:
        self.play.leave(worker, died=died)

    @rule(worker=workers)
    def a_worker_is_needed_elsewhere(self, worker: str) -> None:
        self.play.recall(worker)

    @precondition(_is_running)
    @rule(pick=picks)
    def somebody_else_trains_what_a_path_would(self, pick: int) -> None:
        self.play.hold(self._path(pick))

    @precondition(_is_running)
    @rule(pick=picks)
    def a_stage_finishes(self, pick: int) -> None:
        self.play.finish(self._path(pick))

    @precondition(_is_running)
    @rule(pick=picks, skipped=picks, is_evaluated=st.sampled_from([True, False, None]))
    def a_stage_ends_early(self, pick: int, skipped: int, *, is_evaluated: bool | None) -> None:
        number = self._path(pick)
        stage = self.play.running[number].stage
        reached = max(stage.start, stage.stop - skipped)
        self.play.finish(number, reached=reached, is_evaluated=is_evaluated)

    @precondition(_is_running)
    @rule(pick=picks, at=picks)
    def a_stage_reports(self, pick: int, at: int) -> None:
        number = self._path(pick)
        steps = self.play.running[number].stage.report_steps
        if steps:
            self.play.report(number, steps[at % len(steps)])

    @precondition(_is_running)
    @rule(pick=picks, executed_steps=st.integers(0, 2))
    def a_stage_raises(self, pick: int, executed_steps: int) -> None:
        self.play.fail(self._path(pick), executed_steps)

    @precondition(lambda self: self.play.ghosts)
    @rule(pick=picks, how=st.sampled_from(["finish", "report", "fail"]))
    def a_worker_that_was_given_up_answers(self, pick: int, how: str) -> None:
        ghost = self.play.ghosts[pick % len(self.play.ghosts)]
        stage = ghost.stage
        if how != "finish":
            self.play.say_late(ghost, is_failure=how == "fail")
        elif stage.n_steps or stage_past(stage, stage.stop) in self.play.account.stored:
            self.play.finish_late(ghost, max(stage.stop - pick, min(stage.start + 1, stage.stop)))

    @precondition(lambda self: self.play.repeatable())
    @rule(pick=picks)
    def an_answer_comes_twice(self, pick: int) -> None:
        events = self.play.repeatable()
        self.play.repeat(events[-1 - pick % len(events)])

    @precondition(lambda self: self.play.account.keys)
    @rule(pick=st.integers(0, 30))
    def a_state_is_lost(self, pick: int) -> None:
        keys = list(self.play.account.keys)
        self.play.lose(keys[pick % len(keys)])

    @precondition(lambda self: not self.play.is_draining)
    @rule()
    def the_user_interrupts(self) -> None:
        self.play.interrupt()

    @precondition(lambda self: self.play.is_draining)
    @rule()
    def the_same_driver_resumes(self) -> None:
        self.play.resume()

    @rule()
    def another_driver_resumes(self) -> None:
        self.play.resume_from_lines()

    @precondition(lambda self: any(run.status is None for run in self.play.core.runs))
    @rule()
    def the_other_study_starts(self) -> None:
        self.play.start(1)

    def teardown(self) -> None:
        if hasattr(self, "play"):
            self.play.finish_all()


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("trouble", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("block", range(4))
def test_whatever_happens_every_study_ends_and_every_check_holds(
    block: int, trouble: float
) -> None:
    for seed in range(25):
        rolled(1000 * block + seed, n_events=60, trouble=trouble).finish_all()
