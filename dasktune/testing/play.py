"""A study as its tuner sees it, with reports and endings in any order; doubts every answer."""

from random import Random

from dasktune.testing.laws import SCORES
from dasktune.testing.moves import Answer, Ask, End, Move, answer
from dasktune.trial import Branch, Ending, Report, Request, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext

_ENDINGS = (TrialStatus.COMPLETED, TrialStatus.STOPPED)
_ASKS_FIRST = 0.5
"""How often the tuner is asked, when it may be, although it is owed reports."""


class Play:
    """A run of a tuner, and all that was said to it and by it.

    Keeps all moves and answers, so that they can be compared with those of another run.
    """

    def __init__(self, tuner: Tuner, n_trials: int, rng: Random, *, bad: float = 0.1) -> None:
        """Begin with nothing said.

        Args:
            tuner: Who decides.
            n_trials: How many trials there are.
            rng: Chooses what happens.
            bad: Fraction of news that are of a trial that diverged or failed.
        """
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
        self._bad = bad
        self._has_news = True

    @property
    def is_finished(self) -> bool:
        """Whether the run waits for nothing and asked for nothing."""
        return not self.owed and not self._has_news

    def go(self, most: int | None = None) -> "Play":
        """Play so many moves, or until the run has finished."""
        limit = (self.n_trials + 1) * (len(self.tuner.decision_steps) + 20) * 3
        while not self.is_finished and (most is None or len(self.moves) < most):
            assert len(self.moves) < limit, f"the run has not ended after {limit} moves"
            if self._has_news and (not self.owed or self._rng.random() < _ASKS_FIRST):
                self._ask()
            elif self._rng.random() < self._bad:
                self._end()
            else:
                self._report()
        return self

    def n_trained(self, step: int) -> int:
        """Return how many trials were trained to a step, but for those that began there or later.

        Those that branched off earlier count.
        """
        return sum(
            at >= step and (trial not in self.branches or self.branches[trial].step < step)
            for trial, at in self.trained.items()
        )

    def _answer(self, move: Move) -> Answer:
        self.moves.append(move)
        self.answers.append(answer(self.run, move))
        return self.answers[-1]

    # --- requests -------------------------------------------------------------------------------

    def _ask(self) -> None:
        requests = self._answer(Ask())
        for request in requests:
            assert isinstance(request, Request), f"ask() gives {request!r}, which is no Request"
            if request.branch is not None:
                self._branch(request, request.branch)
            self._check_request(request)
            self.owed[request.trial] = [*request.report_steps, request.step]
        self._has_news = bool(requests) and self.run.asks_on_demand

    def _branch(self, request: Request, branch: Branch) -> None:
        assert request.trial == self.n_existing, (
            f"{request} is of a new trial, whose number must be {self.n_existing}, the next one"
        )
        assert (branch.parent, branch.step) in self.reported, (
            f"{request} follows a trial to a step at which it has not reported"
        )
        assert branch.step < request.step, f"{request} begins at its end"
        self.n_existing += 1
        self.branches[request.trial] = branch
        self.trained[request.trial] = branch.step

    def _check_request(self, request: Request) -> None:
        trial, own = request.trial, self.tuner.steps_of(request.trial)
        assert 0 <= trial < self.n_existing, f"{request}: there is no such trial"
        assert trial not in self.over, f"{request}: the trial is over"
        assert trial not in self.owed, f"{request}: it was asked already, and has not reported yet"
        done = self.trained.get(trial, 0)
        steps = [done, *request.report_steps, request.step]
        assert steps == sorted(set(steps)), f"{request}: steps must ascend from {done}, what it has"
        assert request.step in own, f"{request}: the step is none of steps_of({trial}), {own}"
        if self.tuner.report_steps:
            extra = set(request.report_steps) - set(self.tuner.report_steps)
            assert not extra, f"{request}: {sorted(extra)} are none of the tuner's report_steps"
        assert request.reason, f"{request} gives no reason"

    # --- news -----------------------------------------------------------------------------------

    def _report(self) -> None:
        trial = self._rng.choice(sorted(self.owed))
        step = self.owed[trial].pop(0)
        if not self.owed[trial]:
            del self.owed[trial]
        self.trained[trial] = step
        self.reported.add((trial, step))
        score = self._rng.choice(SCORES)
        is_last = self.tuner.next_decision(trial, step) is None
        branch = None if is_last else self._rng.randrange(3)
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
        last = self.tuner.decision_steps[-1]
        for ending in endings:
            assert isinstance(ending, Ending), f"the tuner says {ending!r}, which is no Ending"
            trial = ending.trial
            assert trial not in self.over, f"{ending}: the trial is over already"
            assert trial not in self.owed or trial == reporting, f"{ending}: it waits for a report"
            self.owed.pop(trial, None)
            assert ending.status in _ENDINGS, f"{ending}: a tuner completes or stops trials"
            is_complete = self.trained.get(trial) == last
            assert (ending.status is TrialStatus.COMPLETED) == is_complete, (
                f"{ending}: a trial is COMPLETED at step {last}, the last decision step, else "
                f"STOPPED; it has {self.trained.get(trial, 0)} steps"
            )
            assert ending.reason, f"{ending} gives no reason"
            self.over[trial] = ending.status
