"""What every tuner owes: answer `ask` with requests, and `tell` with endings.

A *tuner* is a frozen description that a study holds; `start` makes a `TunerRun` of it, the only
mutable part, whose state is a function of what it was told. Runs know trials by number and scores,
nothing of stages, workers or time, so any tuner goes with any sampler, backend and scheduler.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from dasktune.space.search_space import SearchSpace
from dasktune.trial import Ending, Report, Request, TrialStatus
from dasktune.units import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerContext:
    """What a run may know about its study."""

    n_trials: int
    """Trials there will be at most, numbered from 0."""
    seed: int
    """Seed of the study, for tuners that draw."""
    draws_ahead: bool = True
    """False: the sampler learns from reports, so a trial had better begin late than early."""


class Tuner(ABC):
    """The description of a policy: which trials train how far."""

    __slots__ = ()

    compares: bool = True
    """Whether trials are ended or let go on by their scores; then there must be one score."""

    branches: bool = False
    """Whether trials branch off others: those share steps, however the first ones were drawn."""

    @property
    @abstractmethod
    def decision_steps(self) -> tuple[Step, ...]:
        """Steps, ascending, at which the tuner is known to decide.

        The last is the furthest step that any trial is ever asked for. Stages end at these steps
        on the way of every unstopped trial, so that a decision finds its state stored.
        """

    @abstractmethod
    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return how many of `n_trials` trials train to each decision step, or past it.

        What is known before anything ran, and if all go well: for asynchronous policies the figures
        of the synchronous ones, which they approach.
        """

    @abstractmethod
    def start(self, context: TunerContext) -> "TunerRun":
        """Begin a run of this policy."""

    def check(self, space: SearchSpace) -> None:  # noqa: B027  (most tuners know no space)
        """Refuse what does not go with a space; most tuners do not care.

        Raises:
            InvalidStudyError: It does not; the message says what would.
        """

    @property
    def report_steps(self) -> tuple[Step, ...]:
        """Steps, ascending, at which trials report in passing, as far as is known.

        Metrics are taken there whoever is the first to pass, so that nobody passes again.
        """
        return ()

    def steps_of(self, trial: int) -> tuple[Step, ...]:  # noqa: ARG002  (the same for most)
        """Return the decision steps of the trial of this number: all, or some of them."""
        return self.decision_steps

    def next_decision(self, trial: int, step: Step) -> Step | None:
        """Return the first decision step of a trial after `step`, if any."""
        return next((at for at in self.steps_of(trial) if at > step), None)


class TunerRun(ABC):
    """One run of a policy: told reports, asked for requests."""

    asks_on_demand: bool = False
    """True: `ask` gives little at a time, and is called when a worker would otherwise idle.
    False: `ask` gives all that can be asked for, and is called after every report."""

    @abstractmethod
    def ask(self) -> Sequence[Request]:
        """Return new requests; none while the run must first hear of earlier ones.

        A run that has no open request and asks for nothing has finished.
        """

    @abstractmethod
    def tell(self, report: Report) -> Sequence[Ending]:
        """Hear a report; return the trials that are over because of it.

        Reports of one state are told in trial order. A trial may be ended while it waits for a
        later report, which is then never told.
        """

    @abstractmethod
    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        """Hear that a trial is over without the report it was asked for.

        DIVERGED or FAILED: it may wait for a report, be paused, or not have been asked for yet,
        where it shares a state with one that was. STOPPED: the space is exhausted, there is no
        such trial. Return the trials that are over because of it.
        """

    @abstractmethod
    def copy(self) -> Self:
        """Return a run that goes on from here by itself."""
