"""Hold what one run knows of its trials where Optuna's samplers look for it.

Called by the run of `dasktune.Optuna`, which adds trials and says how they stand, and by Optuna's
samplers, which read them and keep notes (system attributes) of their own. Unlike Optuna's storages
it lets a finished trial go on: one that rests at a rung counts as pruned until it reports again.
"""

from collections.abc import Container, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self, TypeAlias

from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from dasktune.trial import TrialStatus
from dasktune.units import Step

Scores: TypeAlias = tuple[float, ...]
"""Every tuned metric, greater is better."""
Notes: TypeAlias = dict[str, Any]
"""What a sampler keeps in the storage, by its own keys."""

STUDY_NAME = "dasktune"
_STUDY_ID = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What must be known of a sampler, and its class tells."""

    keeps_notes: bool = True
    """Reads what earlier asks left in the storage; asks of a recorded past are made up for."""
    sees_completed_only: bool = False
    """Learns from completed trials and from no pruned one."""
    is_sequence: bool = False
    """Goes through a sequence that is fixed by its seed, and learns nothing."""
    n_scores: int = 1
    """How many metrics it is shown; Optuna has no pruned trials where they are several."""


@dataclass(slots=True, kw_only=True)
class Known:
    """What is known of one trial."""

    params: dict[str, Any]
    distributions: dict[str, BaseDistribution]
    notes: Notes
    scores: dict[Step, Scores] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    """The last report's."""
    rests: bool = False
    status: TrialStatus | None = None
    """How it ended; None if it has not."""
    worst: Scores | None = None
    """Of a trial that diverged: the worst scores of any trial until then."""

    def copy(self) -> "Known":
        """Return one that changes by itself."""
        return replace(self, scores=self.scores.copy())

    def frozen(self, index: int, habits: Habits) -> FrozenTrial:
        """Return the trial as Optuna's samplers shall see it."""
        state, values = self._standing(habits)
        is_silent = habits.n_scores > 1 or self.status is TrialStatus.DIVERGED
        steps = {} if is_silent else {step: scores[0] for step, scores in self.scores.items()}
        return FrozenTrial(
            number=index,
            trial_id=index,
            state=state,
            value=None,
            values=values,
            datetime_start=None,
            datetime_complete=None,
            params=self.params,
            distributions=self.distributions,
            user_attrs=self.metrics,
            system_attrs=self.notes,
            intermediate_values=steps,
        )

    def _standing(self, habits: Habits) -> tuple[TrialState, Scores | None]:
        last = self.scores[max(self.scores)] if self.scores else None
        is_several = habits.n_scores > 1
        if habits.is_sequence:
            return TrialState.PRUNED, None
        if self.status is TrialStatus.DIVERGED:
            return self._diverged(habits)
        if self.status is TrialStatus.COMPLETED and last is not None:
            return TrialState.COMPLETE, last
        if self.status is None and (is_several or not self.rests):
            return TrialState.RUNNING, None
        if self.status is TrialStatus.FAILED or is_several or last is None:
            return TrialState.FAIL, None
        return TrialState.PRUNED, last

    def _diverged(self, habits: Habits) -> tuple[TrialState, Scores | None]:
        """Tell a sampler to keep away.

        As failed the trial would be ignored, and its region drawn again and again. TPE ranks every
        completed trial before every pruned one, hence last those pruned without a report; others
        see completed trials only.
        """
        if not habits.sees_completed_only and habits.n_scores == 1:
            return TrialState.PRUNED, None
        if self.worst is None:
            return TrialState.FAIL, None
        return TrialState.COMPLETE, self.worst


class RunStorage(BaseStorage):
    """One study in memory. Trials are replaced, never changed, so copies may share them."""

    def __init__(self, n_scores: int) -> None:
        self.trials: list[FrozenTrial] = []
        self.notes: Notes = {}
        self._n_scores = n_scores

    def copy(self) -> Self:
        """Return a storage that goes on from here by itself."""
        twin = copy(self)
        twin.trials, twin.notes = self.trials.copy(), self.notes.copy()
        return twin

    # --- the study

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        """Refuse: there is one study."""
        self._refuse()

    def delete_study(self, study_id: int) -> None:
        """Refuse: there is one study."""
        self._refuse()

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the only one."""
        return _STUDY_ID

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return the only one."""
        return STUDY_NAME

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return that more is better: of scores it always is."""
        return [StudyDirection.MAXIMIZE] * self._n_scores

    def get_study_user_attrs(self, study_id: int) -> Notes:
        """Return none."""
        return {}

    def get_study_system_attrs(self, study_id: int) -> Notes:
        """Return the sampler's notes on the study."""
        return self.notes

    def set_study_user_attr(self, study_id: int, key: str, value: object) -> None:
        """Refuse: nobody reads them."""
        self._refuse()

    def set_study_system_attr(self, study_id: int, key: str, value: object) -> None:
        """Take down a note on the study."""
        self.notes = {**self.notes, key: value}

    def get_all_studies(self) -> Any:  # noqa: ANN401  (Optuna exports no name for the type)
        """Refuse: there is one study, which is known."""
        self._refuse()

    # --- its trials

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Add the trial that is being asked for."""
        known = Known(params={}, distributions={}, notes={})
        self.trials.append(known.frozen(len(self.trials), Habits()))
        return len(self.trials) - 1

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """Take down what a sampler suggests."""
        trial = copy(self.trials[trial_id])
        value = distribution.to_external_repr(param_value_internal)
        trial.params = {**trial.params, param_name: value}
        trial.distributions = {**trial.distributions, param_name: distribution}
        self.trials[trial_id] = trial

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Refuse: the run says how trials stand."""
        self._refuse()

    def set_trial_intermediate_value(
        self, trial_id: int, step: int, intermediate_value: float
    ) -> None:
        """Refuse: the run says what trials report."""
        self._refuse()

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        """Refuse: the run says what trials report."""
        self._refuse()

    def set_trial_system_attr(self, trial_id: int, key: str, value: object) -> None:
        """Take down a note on a trial."""
        trial = copy(self.trials[trial_id])
        notes: Notes = {**trial.system_attrs, key: value}
        trial.system_attrs = notes
        self.trials[trial_id] = trial

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial as it stands."""
        return self.trials[trial_id]

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials in these states, by number."""
        if states is None:
            found = self.trials.copy()
        else:
            found = [trial for trial in self.trials if trial.state in states]
        return _deep(found) if deepcopy else found

    def _refuse(self) -> NoReturn:
        raise NotImplementedError(
            "this storage belongs to a run of dasktune.Optuna: samplers may read it and keep notes"
        )


def _deep(trials: list[FrozenTrial]) -> list[FrozenTrial]:
    return deepcopy(trials)
