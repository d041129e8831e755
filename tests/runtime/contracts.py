"""What every backend owes to the core, and those that train or reach for other machines besides."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import dasktune as dt
from dasktune.plan.history import key_of
from dasktune.simulator.backend import SimulatedBackend
from dasktune.simulator.world import Fault, StageRaises, World
from dasktune.space.configuration import Configuration
from dasktune.store.codec import encode
from dasktune.store.store import Store
from dasktune.study.commands import Command, EndTrial, RunPath, StopPath, StudyStatus
from dasktune.study.core import StudyCore
from dasktune.study.drive import drive
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    StageFailed,
    StageFinished,
    StateLost,
    WorkerJoined,
    WorkerLeft,
)
from dasktune.study.ports import Backend
from dasktune.study.result import Result, results_of
from dasktune.study.study import Study
from dasktune.study.timeline import Timeline
from dasktune.trial import TrialStatus
from tests.runtime.faults import (
    DECAYS_AT,
    Diverges,
    FillableStore,
    Refuses,
    Unnamed,
    has_decayed,
)
from tests.runtime.trainables import (
    TUNERS,
    Made,
    Notes,
    Raises,
    Walk,
    assert_exact,
    study_of,
)

TUNERS_AND_REPORTS = [
    TUNERS["full"],
    dt.FullTraining(8, report_every=3),
    TUNERS["halving"],
    dt.Hyperband(min_steps=2, max_steps=8, reduction_factor=2),
]
UNTIMELY = [
    TUNERS["asha"],
    dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2, variant="stopping"),
    dt.AsyncHyperband(min_steps=2, max_steps=8, reduction_factor=2),
    dt.MedianStopping(8, report_every=2, min_trials=2),
]
"""Tuners whose decisions depend on who is first."""


class Watched:
    """A backend between core and machines that must keep to the protocol, or the test fails."""

    def __init__(
        self,
        backend: Backend,
        interrupt_after: int | None = None,
        before: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._backend = backend
        self._interrupt_after = interrupt_after
        self._before = before  # the core hears of an event
        self._last_s = 0.0
        self._paths: dict[int, list[Any]] = {}
        self._worker_of: dict[int, str] = {}
        self._stopped: set[int] = set()
        self._workers: set[str] = set()
        self._reported: dict[int, int] = {}
        self.finished: set[str] = set()
        self.n_steps = 0
        self.n_wasted = 0
        self.events: list[Event] = []

    def perform(self, command: Command) -> None:
        match command:
            case RunPath():
                assert command.worker in self._workers
                assert command.path not in self._paths
                self._paths[command.path] = list(command.stages)
                self._worker_of[command.path] = command.worker
            case StopPath():
                self._stopped.add(command.path)
        self._backend.perform(command)

    def next_event(self) -> tuple[Event, float]:
        if len(self.events) + 1 == self._interrupt_after:
            self.events.append(Interrupted())
            return self.events[-1], self._last_s
        event, at_s = self._backend.next_event()
        assert at_s >= self._last_s, "time runs backwards"
        self._last_s = at_s
        match event:
            case WorkerJoined():
                assert event.n_slots == 1
                self._workers.add(event.worker)
            case WorkerLeft():
                self._workers.remove(event.worker)
                for path in [n for n in self._paths if self._worker_of[n] == event.worker]:
                    self._end(path)
            case MetricsReported():
                stage = self._paths[event.path][0]
                assert event.stage == stage.key
                assert event.step in stage.report_steps
                assert event.step > self._reported.get(event.path, stage.start)
                self._reported[event.path] = event.step
            case StageFinished():
                self._finished(event)
            case StageFailed():
                assert event.stage == self._paths[event.path][0].key
                assert event.error
                self._waste(event.executed_steps)
                self._end(event.path)
        self.events.append(event)
        self._before(event)
        return event, at_s

    def _finished(self, event: StageFinished) -> None:
        stage = self._paths[event.path].pop(0)
        assert event.stage == stage.key, "stages of a path are answered in their order"
        assert stage.start <= event.reached <= stage.stop
        assert event.seconds >= 0
        is_through = event.reached == stage.stop
        assert (event.metrics is not None) == (is_through and stage.evaluates)
        if is_through:
            self.finished.add(stage.key)
            reported = self._reported.pop(event.path, None)
            assert reported == (stage.report_steps[-1] if stage.report_steps else None)
        elif event.path not in self._stopped:
            assert event.reached == stage.start, "a path that was not told to stop goes on"
            assert isinstance(self.events[-1], StateLost), "the reason comes first"
        if event.reached == stage.start and not is_through:
            self._waste(event.executed_steps)
        else:
            assert event.executed_steps == event.reached - stage.start
            self.n_steps += event.executed_steps
        if not is_through or not self._paths[event.path]:
            self._end(event.path)  # nothing more may be heard of it

    def _waste(self, executed_steps: int) -> None:
        self.n_steps += executed_steps
        self.n_wasted += executed_steps

    def _end(self, path: int) -> None:
        del self._paths[path]
        self._reported.pop(path, None)

    def assert_idle(self) -> None:
        assert not self._paths, "paths are not answered"

    def heard(self, kind: type[Any]) -> list[Any]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class BackendContract(ABC):
    """What every backend owes to the core."""

    @abstractmethod
    def backend(
        self, study: Study, states: dict[str, Made], store: Store, faults: Sequence[Fault] = ()
    ) -> AbstractContextManager[Backend]:
        """Open a backend for a study.

        Args:
            study: With a trainable that does what the test is about.
            states: What its trainable makes where nothing goes wrong.
            store: Where states are kept.
            faults: What a world must be told to let happen; real ones come to it by themselves.
        """

    has_states = True
    """Whether states are made and kept."""

    def play(
        self,
        core: StudyCore,
        states: dict[str, Made],
        store: Store,
        *,
        faults: Sequence[Fault] = (),
        before: Callable[[Event], None] = lambda _: None,
        resumes: bool = False,
    ) -> Watched:
        """Drive the one study of a core until the run is over, and watch the backend."""
        with self.backend(core.runs[0].study, states, store, faults) as backend:
            watched = Watched(_Later(backend, core.now), before=before)
            drive(core, watched, lambda *_: None, resumes=resumes)
        watched.assert_idle()
        return watched

    def assert_truth(self, core: StudyCore, states: dict[str, Made], store: Store) -> Result:
        """What was reported, and what can be read from the store, is true, whoever failed."""
        (result,) = results_of(core, Timeline(), store)
        has_one = any(trial.status is not TrialStatus.FAILED for trial in result.trials)
        assert result.status is (StudyStatus.COMPLETED if has_one else StudyStatus.FAILED)
        assert_exact(result, store, states, has_ends=self.has_states)
        for record in store.records():
            state = store.load(record.key)
            assert state is None or sha256(encode(state)).hexdigest() == states[record.key].sha256
        return result

    @pytest.mark.parametrize("tuner", TUNERS_AND_REPORTS + UNTIMELY, ids=repr)
    def test_a_study_runs_to_its_end_by_the_protocol(
        self,
        folder: Path,
        states: dict[str, Made],
        tmp_path: Path,
        tuner: Any,  # noqa: ANN401
    ) -> None:
        study = study_of(Walk(str(folder)), tuner=tuner)
        core = StudyCore([study])
        ends: list[EndTrial] = []

        def record(_at: float, _event: Event, commands: tuple[Command, ...]) -> None:
            ends.extend(command for command in commands if isinstance(command, EndTrial))

        with self.backend(study, states, Store(tmp_path)) as backend:
            watched = Watched(backend)
            drive(core, watched, record)
        watched.assert_idle()
        assert watched.n_steps == core.plan.steps_executed
        assert core.plan.steps_recomputed == 0
        assert len(ends) == 10
        for run in core.runs[0].trials:
            for report in run.reports:
                key = key_of(study.family, run.configuration, report.step)
                assert report.metrics == states[key].metrics
        if tuner not in UNTIMELY:
            assert watched.finished == stages_of(study, states)

    @pytest.mark.parametrize("n_events", [1, 2, 3, 5, 9])
    def test_an_interrupted_run_ends_at_step_boundaries_and_can_be_resumed(
        self, folder: Path, states: dict[str, Made], tmp_path: Path, n_events: int
    ) -> None:
        study = study_of(Walk(str(folder)), tuner=TUNERS["halving"])
        core = StudyCore([study])
        n_steps = 0
        for interrupt_after in (n_events, None):
            with self.backend(study, states, Store(tmp_path)) as backend:
                watched = Watched(_Later(backend, core.now), interrupt_after)
                drive(core, watched, lambda *_: None, resumes=interrupt_after is None)
            watched.assert_idle()
            n_steps += watched.n_steps
        assert core.runs[0].has_ended
        assert n_steps == core.plan.steps_executed
        assert core.plan.steps_recomputed == 0

    def test_a_timeout_stops_stages_at_their_step_boundaries(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        study = study_of(
            Walk(str(folder), pace_s=0.05), tuner=TUNERS["full"], timeout=self.timeout_s
        )
        core = StudyCore([study])
        with self.backend(study, states, Store(tmp_path)) as backend:
            watched = Watched(backend)
            drive(core, watched, lambda *_: None)
        watched.assert_idle()
        assert core.runs[0].reason == f"the timeout of {self.timeout_s:g} s is over"
        assert watched.n_steps == core.plan.steps_executed < core.plan.steps_unique
        assert core.plan.steps_recomputed == 0

    timeout_s = 0.3
    """Less than the 38 steps of the study take."""

    # --- what goes wrong ----------------------------------------------------------------------

    def test_a_stage_that_raises_is_tried_again_and_its_trials_fail_alone(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        study = study_of(Raises(str(folder)), retries=2, max_failures=99)
        core, true = StudyCore([study]), renamed(states, study, folder)
        store = Store(tmp_path)
        watched = self.play(core, true, store, faults=[StageRaises(fraction=0.5)])
        failures = Counter(event.stage for event in watched.heard(StageFailed))
        given_up = {stage for stage, n in failures.items() if n == 1 + study.retries}
        assert max(failures.values()) <= 1 + study.retries
        result = self.assert_truth(core, true, store)
        failed = set()
        for trial in result.trials:
            if given_up & {key_of(study.family, trial.configuration, n) for n in range(1, 9)}:
                failed.add(trial.number)
                assert trial.status is TrialStatus.FAILED
                assert watched.heard(StageFailed)[-1].error.split(":")[0] in trial.reason
            else:
                assert trial.status is TrialStatus.COMPLETED
                assert [report.step for report in trial.reports] == [8]
        if self.has_states:  # else which attempts fail is a matter of their names
            assert failed == {t.number for t in result.trials if decays(t.configuration)}
        assert watched.n_steps == core.plan.steps_executed
        assert watched.n_wasted == core.plan.steps_recomputed

    def test_a_study_gives_up_when_its_first_trials_all_fail(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        study = study_of(Refuses(str(folder)), retries=0, max_failures=2)
        core = StudyCore([study])
        watched = self.play(
            core,
            renamed(states, study, folder),
            Store(tmp_path),
            faults=[StageRaises(fraction=1.0)],
        )
        (run,) = core.runs
        error = watched.heard(StageFailed)[0].error
        n_failed = sum(trial.status is TrialStatus.FAILED for trial in run.trials)
        assert run.status is StudyStatus.FAILED
        assert run.reason.startswith(f"the first {n_failed} trials all failed: {error[:20]}")
        assert n_failed >= 2
        assert not watched.heard(MetricsReported)
        assert not Store(tmp_path).keys()

    @pytest.mark.parametrize("answer", [math.nan, math.inf, None])
    def test_trials_whose_metric_is_no_number_have_diverged_and_the_others_go_on(
        self, folder: Path, states: dict[str, Made], tmp_path: Path, answer: float | None
    ) -> None:
        study = study_of(Diverges(str(folder), answer), tuner=dt.FullTraining(8, report_every=2))
        core, true = StudyCore([study]), renamed(states, study, folder)
        self.play(core, true, Store(tmp_path))
        (run,) = core.runs
        assert run.status is StudyStatus.COMPLETED
        for trial in run.trials:
            finite = [r for r in trial.reports if math.isfinite(r.metrics["accuracy"])]
            has_diverged = decays(trial.configuration)
            assert (trial.status is TrialStatus.DIVERGED) == has_diverged
            assert [r.step for r in finite] == ([2, 4] if has_diverged else [2, 4, 6, 8])
            for report in finite:
                key = key_of(study.family, trial.configuration, report.step)
                assert report.metrics == true[key].metrics

    def test_a_metric_that_is_missing_ends_the_study_and_those_there_are_get_named(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        study = study_of(Unnamed(str(folder)), tuner=TUNERS["halving"])
        core = StudyCore([study])
        self.play(core, renamed(states, study, folder), Store(tmp_path))
        (run,) = core.runs
        assert run.status is StudyStatus.FAILED
        assert "evaluate() gave no 'accuracy'; it gave: loss" in run.reason


def decays(configuration: Configuration) -> bool:
    """Say whether something goes wrong with a configuration, where its trainable is made for it."""
    return has_decayed(configuration.at(DECAYS_AT))


def renamed(states: Mapping[str, Made], study: Study, folder: Path) -> dict[str, Made]:
    """Name the states of `Walk` as those of a trainable that trains as it does."""
    walk = study_of(Walk(str(folder))).family
    found: dict[str, Made] = {}
    for point in study.space.points():
        configuration = study.space.configuration(point)
        for step in range(1, 9):
            made = states[key_of(walk, configuration, step)]
            found[key_of(study.family, configuration, step)] = made
    return found


def flip(blob: Path) -> None:
    """Change one bit of a state."""
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)


def truncate(blob: Path) -> None:
    """Lose the end of a state."""
    blob.write_bytes(blob.read_bytes()[:-1])


class TrainingContract(BackendContract):
    """What those owe besides that train and keep states."""

    n_workers = 1

    @pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
    def test_a_state_that_cannot_be_read_any_more_is_trained_again_to_the_same_bits(
        self,
        folder: Path,
        states: dict[str, Made],
        tmp_path: Path,
        damage: Callable[[Path], None],
    ) -> None:
        damaged: list[str] = []

        def damage_first(event: Event) -> None:
            if isinstance(event, StageFinished) and not damaged:
                damaged.append(event.stage)  # a fork: others are to begin from it
                (blob,) = tmp_path.glob(f"states/{event.stage}.*.state")
                damage(blob)

        core, store = StudyCore([study_of(Walk(str(folder)))]), Store(tmp_path)
        watched = self.play(core, states, store, before=damage_first)
        lost = [event.state for event in watched.heard(StateLost)]
        assert set(lost) == set(damaged)
        assert len(lost) <= self.n_workers, "no worker is given it again before it is there again"
        self.assert_truth(core, states, store)
        assert watched.n_steps == core.plan.steps_executed
        step = states[damaged[0]].step
        assert step <= core.plan.steps_recomputed <= step * len(lost)

    def test_a_full_store_ends_the_run_with_a_reason_and_what_it_has_is_used_again(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        marker = tmp_path / "full"
        store = FillableStore(tmp_path / "store", marker)
        n_finished = Counter[type[Event]]()

        def fill(event: Event) -> None:
            n_finished[type(event)] += 1
            if n_finished[StageFinished] == 2:
                marker.touch()

        notes = Notes(folder)
        core = StudyCore([study_of(Walk(str(folder)))])
        first = self.play(core, states, store, before=fill)
        assert core.is_over
        assert not core.runs[0].has_ended
        reason = core.why_stopped or ""
        assert reason.startswith("the store is full (StoreFullError: cannot write")
        assert "No space left" in reason
        assert reason.endswith(": make room")
        assert not first.heard(StageFailed), "nothing is wrong with the stage"
        kept = store.keys()
        assert len(kept) >= 2

        marker.unlink()
        second = self.play(core, states, store, resumes=True)
        self.assert_truth(core, states, store)
        assert kept <= store.keys()
        assert not second.heard(StateLost)
        assert first.n_wasted > 0
        assert notes.repeated.total() == first.n_wasted == core.plan.steps_recomputed
        assert first.n_steps + second.n_steps == core.plan.steps_executed == len(notes.calls)


class ClusterContract(TrainingContract):
    """What those owe besides that train in two other processes, which may die."""

    n_workers = 2

    def test_what_a_killed_worker_had_not_committed_is_trained_again_to_the_same_bits(
        self, folder: Path, states: dict[str, Made], tmp_path: Path
    ) -> None:
        notes, store = Notes(folder), Store(tmp_path)
        core = StudyCore([study_of(Walk(str(folder)))])
        with notes.killing(4) as killed:
            watched = self.play(core, states, store)
            pid = killed.result()
        assert [event.died for event in watched.heard(WorkerLeft)] == [True]
        self.assert_truth(core, states, store)
        assert notes.repeated
        assert notes.repeated <= notes.in_flight([pid], store)


class _Later:
    """A backend whose clock goes on from a time."""

    def __init__(self, backend: Backend, since_s: float) -> None:
        self._backend = backend
        self._since_s = since_s

    def perform(self, command: Command) -> None:
        self._backend.perform(command)

    def next_event(self) -> tuple[Event, float]:
        event, at_s = self._backend.next_event()
        return event, at_s + self._since_s


# --- the simulated twin, which every other one is compared with -----------------------------------


def simulated(
    study: Study, states: dict[str, Made], n_workers: int, faults: Sequence[Fault] = ()
) -> SimulatedBackend:
    """Machines on which the trainable of a study scores as it does on real ones."""

    def curve(configuration: Configuration, step: int) -> Mapping[str, float]:
        trainable = study.trainable
        if isinstance(trainable, Unnamed):
            return {"loss": 1.0}
        if isinstance(trainable, Diverges) and step > DECAYS_AT and decays(configuration):
            return {"accuracy": math.nan if trainable.answer is None else trainable.answer}
        key = key_of(study.family, configuration, step)
        return states[key].metrics if key in states else {"accuracy": 0.5}

    world = World(workers=n_workers, curve=curve, faults=faults)
    return SimulatedBackend(world, (study.metric,))


def stages_of(study: Study, states: dict[str, Made]) -> set[str]:
    """The states that a study under a synchronous tuner commits, wherever it runs."""
    watched = Watched(simulated(study, states, 1))
    drive(StudyCore([study]), watched, lambda *_: None)
    return watched.finished
