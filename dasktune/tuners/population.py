"""Population based training: let the worst go on from where the best stand, slightly changed.

A population of `n_trials` members trains in parallel. Every `ready_steps` a member may give up its
own state for a better one's and go on from there with varied hyper-parameters. A trial is one
configuration for good, so that is two things here: the member's trial ends, and a new trial begins
to stand for it, whose history is the better one's up to that step and its own from there on. No
state is copied, what the two have in common is trained once, and the best trial's configuration is
an ordinary schedule that anybody can train again from step 0.

References:
    [1] Jaderberg et al., "Population Based Training of Neural Networks", arXiv:1711.09846, 2017,
        algorithm 1 (ready, exploit, explore), section 4.1 for truncation selection (the lower 20 %
        copy one of the upper 20 %) and the binary tournament, perturbing and resampling.
    [2] Liaw et al., "Tune", arXiv:1807.05118, 2018. Its implementation
        (ray.tune.schedulers.pbt) rounds the 20 % up, to at most half of those that are compared,
        and leaves out members that have not reported, or have finished; so does this one.

Departures: a member whose trial diverged or failed ranks behind all others and is always replaced,
by one that has come at least as far as it was asked to. When members are not waited for, nobody
takes over a state of fewer steps than its own: members only go forward, so a run ends.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, Self, TypeAlias, final, get_args

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import number, whole
from dasktune.space.chance import unit_of
from dasktune.space.exploration import Exploration
from dasktune.space.search_space import SearchSpace
from dasktune.trial import Branch, Ending, Report, Request, TrialStatus
from dasktune.tuners.tuner import Tuner, TunerContext, TunerRun
from dasktune.units import Step

Exploit: TypeAlias = Literal["truncation", "tournament"]
"""Who is replaced by whom: the lower quantile by members of the upper one, or each member by
another one, drawn at random, that is better."""

_SLACK = 1 - 1e-12
"""Lets count as whole what only rounding puts above: 100 * 0.07 in floats."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationBasedTraining(Tuner):
    """Train a population whose worst members go on from the states of its best.

    `n_trials` of the study is the size of the population; trials that replace members are numbered
    on from there. Whatever `setup` builds once (layers, the kind of optimizer) must not change in
    mid-training: name it in `fixed`.

    Example:
        >>> PopulationBasedTraining(max_steps=20, ready_steps=8).decision_steps
        (8, 16, 20)
    """

    branches = True

    max_steps: Step
    """Steps to which each member trains, at least 1."""
    ready_steps: Step
    """Steps that a member trains between two exploits, from 1 to `max_steps`."""
    burn_in_steps: Step = 0
    """Nobody is replaced before this step; below `max_steps`."""
    exploit: Exploit = "truncation"
    """Who is replaced by whom."""
    quantile: float = 0.2
    """For truncation: share of the population that is replaced, and from which its models are
    drawn; above 0, at most 0.5. Rounded up, to at most half of the population."""
    factors: tuple[float, ...] = (0.8, 1.2)
    """A number is varied by one of these factors, all above 0."""
    resample_probability: float = 0.25
    """Probability, from 0 to 1, that a number is drawn anew from its domain instead."""
    fixed: tuple[str, ...] = ()
    """Names of hyper-parameters that are not varied."""
    is_synchronous: bool = True
    """True: all members wait for one another where they are compared, so the result depends on no
    worker's speed. False: a member that reports is compared with the latest scores of the others,
    as in [1], and never waits; where workers are few, the members take turns."""

    def __post_init__(self) -> None:
        last = whole(self.max_steps, "max_steps", 1)
        ready, burn_in = whole(self.ready_steps, "ready_steps", 1), self.burn_in_steps
        if ready > last:
            raise InvalidStudyError(
                f"ready_steps is {ready}; it must not be larger than max_steps, which is {last}"
            )
        if whole(burn_in, "burn_in_steps", 0) >= last:
            raise InvalidStudyError(
                f"burn_in_steps is {burn_in}; it must be smaller than max_steps, which is {last}"
            )
        if self.exploit not in get_args(Exploit):
            raise InvalidStudyError(
                f"exploit is {self.exploit!r}; it must be 'truncation' or 'tournament'"
            )
        if not 0 < number(self.quantile, "quantile") <= 0.5:  # noqa: PLR2004
            raise InvalidStudyError(
                f"quantile is {self.quantile!r}; it must be a number above 0, at most 0.5"
            )
        if not isinstance(self.is_synchronous, bool):
            raise InvalidStudyError(
                f"is_synchronous is {self.is_synchronous!r}; it must be True or False"
            )
        varied = self.exploration
        for name in ("factors", "resample_probability", "fixed"):
            object.__setattr__(self, name, getattr(varied, name))

    @property
    def exploration(self) -> Exploration:
        """How the hyper-parameters of a new trial differ from its parent's."""
        return Exploration(
            factors=self.factors,
            resample_probability=self.resample_probability,
            fixed=self.fixed,
        )

    @property
    def decision_steps(self) -> tuple[Step, ...]:
        """Multiples of `ready_steps`, and last `max_steps`."""
        return (*range(self.ready_steps, self.max_steps, self.ready_steps), self.max_steps)

    def outlook(self, n_trials: int) -> tuple[int, ...]:
        """Return that a trial for each member is trained to each step."""
        return (n_trials,) * len(self.decision_steps)

    def check(self, space: SearchSpace) -> None:
        """Refuse names to be fixed that a space does not have.

        Raises:
            InvalidStudyError: Naming them, and those there are.
        """
        self.exploration.check(space)

    def start(self, context: TunerContext) -> "TunerRun":
        """Begin a run of this policy."""
        return _Run(self, context.n_trials, context.seed)


@dataclass(frozen=True, slots=True)
class _Member:
    """A place in the population, and the trial that stands for it now."""

    trial: int
    asked: Step = 0
    """Where that trial reports next, or has reported."""
    score: float | None = None
    """What it reported at `asked`, or, once asked to go on, at the step before."""
    reported: Step = 0
    """Where it reported that."""
    is_alive: bool = True
    """Whether its trial has not diverged or failed."""


class _Run(TunerRun):
    def __init__(self, tuner: PopulationBasedTraining, n_trials: int, seed: int) -> None:
        # On demand, so that few workers train all members in turn and none runs far ahead.
        self.asks_on_demand = not tuner.is_synchronous
        self._tuner = tuner
        self._has_begun = False
        self._seed = seed
        self._n_trials = n_trials  # that exist: the members, and those that replaced some
        self._members = {place: _Member(place) for place in range(n_trials)}  # not at the last step
        self._places = {place: place for place in range(n_trials)}  # of their trials
        self._waiting: set[int] = set()  # places that must report before anything is decided
        self._next: dict[int, Request] = {}  # requests to make, by place
        for place in self._members:
            self._go_on(place, 0, "begins as a member of the population")

    def ask(self) -> Sequence[Request]:
        def order(place: int) -> tuple[bool, Step, int]:
            # New trials first, by number; then whoever is furthest behind.
            request = self._next[place]
            is_new = request.branch is not None
            return not is_new, 0 if is_new else request.step, request.trial

        places = sorted(self._next, key=order)
        if self.asks_on_demand and self._has_begun:
            places = places[:1]
        self._has_begun = True
        return [self._next.pop(place) for place in places]

    # --- news -----------------------------------------------------------------------------------

    def tell(self, report: Report) -> Sequence[Ending]:
        place = self._places[report.trial]
        self._waiting.discard(place)
        if report.step == self._tuner.max_steps:
            del self._members[place]
            return (
                Ending(
                    trial=report.trial,
                    status=TrialStatus.COMPLETED,
                    reason="trained to the last step",
                ),
            )
        member = self._members[place]
        self._members[place] = replace(member, score=report.score, reported=report.step)
        return self._decide([place])

    def end(self, trial: int, status: TrialStatus) -> Sequence[Ending]:
        place = self._places.pop(trial)
        self._waiting.discard(place)
        self._next.pop(place, None)
        member = self._members.pop(place)
        if status is TrialStatus.STOPPED:  # there is no such trial
            self._n_trials -= 1
        elif member.asked < self._tuner.max_steps:
            self._members[place] = replace(member, score=None, is_alive=False)
        return self._decide([])

    # --- decisions ------------------------------------------------------------------------------

    def _decide(self, ready: list[int]) -> Sequence[Ending]:
        """Let those that are ready go on or be replaced, and replace whoever is gone."""
        if self._tuner.is_synchronous:
            if self._waiting:
                return ()
            ready = [place for place, member in self._members.items() if member.is_alive]
        gone = [place for place, member in self._members.items() if not member.is_alive]
        ranks = self._ranks()
        # All choices are made before the first is carried out: nobody sees a half-new population.
        models = {place: self._model(place, ranks) for place in sorted([*ready, *gone])}
        endings: list[Ending] = []
        for place, model in models.items():
            member = self._members[place]
            if model is not None:
                endings += self._replace(place, member, model)
            elif member.is_alive:
                rank = f"rank {ranks[place] + 1} of {len(ranks)}"
                self._go_on(place, member.reported, f"goes on: {rank} at step {member.reported}")
        return endings

    def _ranks(self) -> dict[int, int]:
        """Return the places that can be compared, best first, with their ranks from 0.

        Those whose trials died stand last.
        """

        def order(place: int) -> tuple[bool, float, int]:
            member = self._members[place]
            return not member.is_alive, -(member.score or 0.0), member.trial

        known = [
            place
            for place, member in self._members.items()
            if member.score is not None or not member.is_alive
        ]
        return {place: rank for rank, place in enumerate(sorted(known, key=order))}

    def _model(self, place: int, ranks: dict[int, int]) -> _Member | None:
        """Return whom the member at a place shall go on from; None if from itself, or nobody."""
        member = self._members[place]
        if member.is_alive and member.reported < self._tuner.burn_in_steps:
            return None
        drawn_from = list(ranks)
        if self._tuner.exploit == "truncation":
            n = min(ceil(len(ranks) * self._tuner.quantile * _SLACK), len(ranks) // 2)
            if member.is_alive and ranks[place] < len(ranks) - n:
                return None
            drawn_from = drawn_from[:n]
        model = self._drawn(member, (self._members[p] for p in drawn_from if p != place))
        if model is None or not member.is_alive:
            return model
        assert model.score is not None
        assert member.score is not None
        is_better = self._tuner.exploit == "truncation" or model.score > member.score
        return model if is_better else None

    def _drawn(self, member: _Member, others: Iterable[_Member]) -> _Member | None:
        """Draw one of those that have come at least as far as a member, each as likely."""
        least = max(member.asked, self._tuner.burn_in_steps)
        models = [other for other in others if other.is_alive and other.reported >= least]
        if not models:
            return None
        purpose = f"exploit:{self._seed}:{member.trial}:{member.asked}"
        return models[int(unit_of(purpose.encode()) * len(models))]

    def _go_on(self, place: int, step: Step, reason: str) -> None:
        """Let a place's trial train from a step to the next decision."""
        member = self._members[place]
        following = self._tuner.next_decision(member.trial, step)
        assert following is not None
        self._members[place] = replace(member, asked=following)
        self._waiting.add(place)
        self._next[place] = Request(trial=member.trial, step=following, reason=reason)

    def _replace(self, place: int, member: _Member, model: _Member) -> Sequence[Ending]:
        """Let a new trial stand for a place, which follows a model up to its last report."""
        made = self._n_trials
        self._n_trials += 1
        self._places.pop(member.trial, None)
        self._places[made] = place
        self._members[place] = _Member(made)
        follows = f"follows trial {model.trial} up to step {model.reported}"
        self._go_on(place, model.reported, f"replaces trial {member.trial}, {follows}")
        branch = Branch(
            parent=model.trial,
            step=model.reported,
            exploration=self._tuner.exploration,
            salt=f"{self._seed}:{member.trial}:{member.asked}",
        )
        self._next[place] = replace(self._next[place], branch=branch)
        if not member.is_alive:
            return ()
        return (
            Ending(
                trial=member.trial,
                status=TrialStatus.STOPPED,
                reason=f"replaced by trial {made}, which {follows}",
            ),
        )

    def copy(self) -> Self:
        twin = type(self)(self._tuner, 0, self._seed)
        twin._has_begun = self._has_begun
        twin._n_trials = self._n_trials
        twin._members = self._members.copy()
        twin._places = self._places.copy()
        twin._waiting = self._waiting.copy()
        twin._next = self._next.copy()
        return twin
