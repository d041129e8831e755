"""Run one of Optuna's samplers by ask and tell.

Called through the sampler `dasktune.Optuna`; with `optuna_storage` and `distributions` the only
code here that knows Optuna. What the run is told is kept as a row of moves and shown to Optuna when
a draw is asked for, so that a recorded past costs nothing until then. Each ask gets a fresh Optuna
sampler with a seed of its own; what a sampler remembers is what the storage holds. So a draw is a
function of (seed, number of the trial, attempt, what was told).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any, Self, TypeAlias

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import NopPruner
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GPSampler,
    NSGAIIISampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import Study, load_study
from optuna.trial import FrozenTrial, Trial

from dasktune.errors import InvalidStudyError
from dasktune.samplers.distributions import distributions_of, drawn, suggested
from dasktune.samplers.optuna_storage import STUDY_NAME, Habits, Known, Notes, RunStorage, Scores
from dasktune.samplers.random import Random
from dasktune.samplers.sampler import NewSteps, SamplerContext, SamplerRun
from dasktune.space.domain import Domain
from dasktune.space.search_space import Point
from dasktune.trial import Report, TrialStatus

Factory: TypeAlias = Callable[[int], BaseSampler]

_MOST_TRIES = 4
"""Proposals in a row that may repeat an earlier draw."""
_NOTELESS = (TPESampler, GPSampler, RandomSampler)
"""What these leave in the storage only serves trials that are still being drawn."""
_COMPLETED_ONLY = (CmaEsSampler, GPSampler, NSGAIISampler, NSGAIIISampler)


_NEEDS: dict[type[BaseSampler], tuple[str, ...]] = {
    CmaEsSampler: ("cmaes",),
    GPSampler: ("torch", "scipy"),
    QMCSampler: ("scipy",),
}
"""What Optuna imports only when a sampler draws."""


def check(sampler: object) -> None:
    """Refuse what is no sampler of Optuna, or lacks a library.

    Raises:
        InvalidStudyError: The sampler could not draw.
    """
    if not isinstance(sampler, BaseSampler):
        raise InvalidStudyError(
            f"sampler is {sampler!r}; the factory must make one of Optuna's, such as TPESampler"
        )
    for kind, names in _NEEDS.items():
        missing = [name for name in names if isinstance(sampler, kind) and not find_spec(name)]
        if missing:
            raise InvalidStudyError(
                f"Optuna's {kind.__name__} needs {' and '.join(missing)}, which is not installed: "
                f"pip install {' '.join(missing)}"
            )


def habits_of(sampler: BaseSampler, n_scores: int) -> Habits:
    """Return what must be known of a sampler; one of another class is trusted with nothing."""
    return Habits(
        n_scores=n_scores,
        keeps_notes=type(sampler) not in _NOTELESS,
        sees_completed_only=isinstance(sampler, _COMPLETED_ONLY),
        is_sequence=isinstance(sampler, QMCSampler),
    )


def draws_ahead(sampler: BaseSampler) -> bool:
    """Return whether the draws of a sampler depend on no report."""
    return type(sampler) is RandomSampler or isinstance(sampler, QMCSampler)


def started(factory: Factory, context: SamplerContext) -> SamplerRun:
    """Begin a run of the samplers that a factory makes.

    Raises:
        InvalidStudyError: Optuna's sampler refuses several metrics.
    """
    if context.n_scores > 1:
        try:
            _Run(factory, replace(context, earlier=())).ask(0, lambda _, __: 0)
        except ValueError as error:
            name = type(factory(0)).__name__
            raise InvalidStudyError(
                f"sampler is Optuna's {name}, which refuses {context.n_scores} metrics ({error}); "
                "take NSGAIISampler, NSGAIIISampler, TPESampler or GPSampler, or one metric"
            ) from error
    return _Run(factory, context)


@dataclass(frozen=True, slots=True)
class _Draw:
    """A trial has this draw."""

    number: int
    point: Point


@dataclass(frozen=True, slots=True)
class _Tell:
    """A trial reports."""

    report: Report
    rests: bool


@dataclass(frozen=True, slots=True)
class _End:
    """A trial is over."""

    number: int
    status: TrialStatus


@dataclass(frozen=True, slots=True)
class _Proposal:
    """What Optuna's sampler answered, and the notes it took."""

    point: Point
    notes: Notes
    study_notes: Notes


class _Run(SamplerRun):
    def __init__(self, factory: Factory, context: SamplerContext) -> None:
        self._factory = factory
        self._context = context
        self._habits = habits_of(factory(0), context.n_scores)
        self._distributions = distributions_of(context.space)
        self._storage = RunStorage(context.n_scores)
        self._known: list[Known] = []
        self._index: dict[int, int] = {}  # by number of the trial; trials of the past have none
        self._stale: set[int] = set()  # known, and not shown to Optuna yet
        self._worst: Scores | None = None
        self._moves: list[_Draw | _Tell | _End] = []  # told, and not yet worked in
        self._proposals: dict[tuple[int, int], _Proposal] = {}  # since the last move
        self._drawn: set[Point] = set()
        self._random = Random().start(context)
        for number, trial in enumerate(context.earlier, -len(context.earlier)):
            self._moves.append(_Draw(number, trial.point))
            for report in trial.reports:
                self._moves.append(_Tell(replace(report, trial=number), rests=False))
            is_over = trial.status.is_final
            self._moves.append(_End(number, trial.status if is_over else TrialStatus.STOPPED))

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        size = self._context.space.size
        if size is not None and len(self._drawn) >= size:
            return None
        for move in self._moves:
            self._work_in(move)
        self._moves = []
        first = attempt * _MOST_TRIES
        point = None
        for turn in range(first, first + _MOST_TRIES):
            point = self._proposal(number, turn).point
            if point not in self._drawn:
                return point
        return point if size is None else self._random.ask(number, new_steps, attempt)

    def record(self, number: int, point: Point) -> None:
        self._random.record(number, point)
        self._drawn.add(point)
        self._moves.append(_Draw(number, point))

    def tell(self, report: Report, *, rests: bool) -> None:
        self._moves.append(_Tell(report, rests))

    def end(self, trial: int, status: TrialStatus) -> None:
        self._moves.append(_End(trial, status))

    def copy(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._storage = self._storage.copy()
        twin._known = [known.copy() for known in self._known]
        twin._index = self._index.copy()
        twin._stale = self._stale.copy()
        twin._moves = self._moves.copy()
        twin._proposals = self._proposals.copy()
        twin._drawn = self._drawn.copy()
        twin._random = self._random.copy()
        return twin

    # --- what was told

    def _work_in(self, move: _Draw | _Tell | _End) -> None:
        match move:
            case _Draw(number, point):
                self._add(number, point)
            case _Tell(report, rests):
                self._report(report, rests=rests)
            case _End(number, status):
                known = self._known[self._index[number]]
                known.status, known.worst = status, self._worst
                self._changed(number)
        self._proposals = {}

    def _add(self, number: int, point: Point) -> None:
        notes: Notes = {}
        if self._habits.keeps_notes:
            proposal = self._proposed_as(number, point)
            notes, self._storage.notes = proposal.notes, proposal.study_notes
        used = {path: self._distributions[path] for path, _ in point.pairs}
        params = {path: suggested(each, used[path]) for path, each in point.pairs}
        index = self._index[number] = len(self._known)
        known = Known(params=params, distributions=used, notes=notes)
        self._known.append(known)
        self._storage.trials.append(known.frozen(index, self._habits))

    def _proposed_as(self, number: int, point: Point) -> _Proposal:
        """Return the proposal that became a draw; for one of other origin the first, as Optuna."""
        for turn in range(_MOST_TRIES):
            proposal = self._proposal(number, turn)
            if proposal.point == point:
                return proposal
        return self._proposal(number, 0)

    def _report(self, report: Report, *, rests: bool) -> None:
        known = self._known[self._index[report.trial]]
        scores = report.scores or (report.score,)
        worst = self._worst or scores
        self._worst = tuple([min(pair) for pair in zip(worst, scores, strict=True)])
        known.scores[report.step] = scores
        known.metrics = dict(report.metrics)
        known.rests = rests
        self._changed(report.trial)

    def _changed(self, number: int) -> None:
        """Let Optuna see a trial anew; let its sampler finish what it takes for finished."""
        index = self._index[number]
        known = self._known[index]
        self._stale.add(index)
        if self._habits.is_sequence or not (known.rests or known.status):
            return
        trial = known.frozen(index, self._habits)
        if trial.state.is_finished():
            self._show()
            study = self._study(number, 0)
            study.sampler.after_trial(study, trial, trial.state, trial.values)
            known.notes = self._storage.trials[index].system_attrs

    def _show(self) -> None:
        for index in self._stale:
            self._storage.trials[index] = self._known[index].frozen(index, self._habits)
        self._stale = set()

    # --- what Optuna answers

    def _proposal(self, number: int, turn: int) -> _Proposal:
        known = self._proposals.get((number, turn))
        if known is None:
            self._show()
            known = self._proposals[number, turn] = self._proposed(number, turn)
        return known

    def _proposed(self, number: int, turn: int) -> _Proposal:
        storage = self._storage
        trials, notes = storage.trials, storage.notes
        try:
            # The next proposal of a sequence is the next of its members; elsewhere the seed is new.
            for each in range(0 if self._habits.is_sequence else turn, turn + 1):
                storage.trials = trials.copy()
                trial = self._study(number, each).ask()
                point, _ = self._context.space.draw(_suggest(trial, self._distributions))
            return _Proposal(point, storage.trials[-1].system_attrs, storage.notes)
        finally:
            storage.trials, storage.notes = trials, notes

    def _study(self, number: int, turn: int) -> Study:
        seed = self._context.seed
        sampler = self._factory(_hashed(f"{seed}:{number}:{turn}"))
        if self._habits.is_sequence:
            sampler = _Sequence(self._factory(_hashed(f"{seed}")), sampler)
        return load_study(
            study_name=STUDY_NAME, storage=self._storage, sampler=sampler, pruner=NopPruner()
        )


class _Sequence(BaseSampler):
    """One sequence for all draws; a sampler of the draw's seed for what it does not cover."""

    def __init__(self, sequence: BaseSampler, others: BaseSampler) -> None:
        self._sequence = sequence
        self._others = others

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._sequence.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._sequence.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401  (as in the class above)
        return self._others.sample_independent(study, trial, param_name, param_distribution)


def _suggest(
    trial: Trial, distributions: Mapping[str, BaseDistribution]
) -> Callable[[str, Domain], int | float]:
    def suggest(path: str, domain: Domain) -> int | float:  # noqa: ARG001
        match distributions[path]:
            case CategoricalDistribution() as words:
                return drawn(trial.suggest_categorical(path, words.choices), words)
            case FloatDistribution(low=low, high=high, step=step, log=log):
                return trial.suggest_float(path, low, high, step=step, log=log)
            case IntDistribution(low=low, high=high, step=step, log=log):
                # Optuna thinks in floats, which have gaps where integers are large.
                whole = trial.suggest_int(path, low, high, step=step, log=log)
                return min(max(low + (whole - low) // step * step, low), high)
            case other:
                raise AssertionError(f"{path} has {other}")

    return suggest


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest())
