"""The counts agree with the core at every entry; what is shown is seldom, escaped and true."""

import errno
import io
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from random import Random as Generator
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from rich.console import Console
from rich.live import Live

import dasktune as dt
from dasktune import progress as module
from dasktune.display import (
    KEPT,
    STOPPING,
    Lines,
    Notebook,
    Screen,
    Silence,
    Terminal,
    Watch,
    duration,
    line,
    rows,
    watching,
)
from dasktune.progress import Progress
from dasktune.simulator import world as dt_world
from dasktune.simulator.backend import SimulatedBackend
from dasktune.study.commands import Command, RunPath
from dasktune.study.core import StudyCore
from dasktune.study.drive import drive
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    PathHeld,
    Resumed,
    StageFinished,
    WorkerLeft,
)
from dasktune.study.result import results_of
from dasktune.study.study import Study
from dasktune.study.timeline import Entry, Timeline
from dasktune.trial import TrialStatus
from dasktune.trial_progress import Answered
from dasktune.units import Seconds
from tests.worlds import random_studies, small_study


def random_world(rng: Generator) -> dt.World:
    faults: list[Any] = []
    if rng.random() < 0.4:
        faults.append(dt_world.StageRaises(fraction=rng.choice([0.1, 0.5]), seed=rng.randrange(9)))
    if rng.random() < 0.4:
        faults.append(dt_world.WorkerDies(worker=0, at_s=rng.uniform(0, 20), back_after_s=1.0))
    if rng.random() < 0.4:
        faults.append(dt_world.StateVanishes(at_s=rng.uniform(0, 20)))
    curve = diverging if rng.random() < 0.3 else None
    return dt.World(
        workers=rng.choice([1, 2, 4]), step_s=1.0, save_s=0.1, faults=faults, curve=curve
    )


def diverging(configuration: dt.Configuration, step: int) -> dict[str, float]:
    rate = configuration.at(step - 1)["lr"]
    drawn = crc32(f"{rate} {step}".encode()) % 1000 / 1000
    value = float("nan") if step > 4 and rate == 0.1 else drawn
    return {"accuracy": value, "loss": 1 - value}


def followed(studies: list[Study], world: dt.World) -> tuple[Progress, StudyCore, list[Answered]]:
    core, progress, timeline = StudyCore(studies), Progress(studies), Timeline()
    answered: list[Answered] = []

    def record(at_s: Seconds, event: Event, commands: tuple[Command, ...]) -> None:
        timeline.record(at_s, event, commands)
        answered.extend(progress.take(Entry(at_s, event, commands)))
        assert_agrees(progress, core)

    metrics = tuple(sorted({study.metric for study in studies}))
    drive(core, SimulatedBackend(world, metrics), record)
    for result in results_of(core, timeline):
        best = progress.best.get(result.study.name)
        assert len(studies) > 1 or (best is None) == (result.best is None)
        if len(studies) == 1 and best is not None and result.best is not None:
            assert best.value == result.best.metrics[result.study.metric]
            assert best.step == result.best.steps
            assert best.trial in (None, result.best.number)
    return progress, core, answered


def assert_agrees(progress: Progress, core: StudyCore) -> None:
    records = [record for run in core.runs for record in run.trials]
    assert +progress.by_status == Counter(record.status for record in records)
    assert progress.steps_requested == sum(record.planned.furthest for record in records)
    assert progress.steps_unique == core.plan.steps_unique
    assert progress.steps_executed == core.plan.steps_executed
    assert progress.n_busy == core.n_running
    assert progress.n_slots == len(core.slots)
    assert progress.steps_done <= progress.steps_unique


@pytest.mark.parametrize("seed", range(100))
def test_counts_are_those_of_the_core(seed: int) -> None:
    rng = Generator(seed)
    studies = random_studies(rng)

    progress, core, answered = followed(studies, random_world(rng))

    heard = [(run.study.name, one.id.number, one.asked, one.reports) for run in core.runs
             for one in run.trials]  # fmt: skip
    for one in answered:
        assert one.step <= next(asked for study, n, asked, _ in heard
                                if (study, n) == (one.study, one.trial))  # fmt: skip
    assert progress.end_reason
    assert progress.steps_owed == 0
    assert progress.left_s is None


def brute_owed(progress: Progress) -> int:
    """Distinct steps that waiting trials need and that are not done, by values."""
    needed = set()
    for trial in progress.trials.values():
        if trial.status is TrialStatus.WAITING and trial.configuration is not None:
            history: tuple[object, ...] = (progress.studies[trial.id.study].family,)
            for step in range(trial.asked):
                history = (*history, tuple(trial.configuration.at(step).items()))
                needed.add(history)
    return len(needed)


@pytest.mark.parametrize("seed", range(20))
def test_owed_is_never_less_than_what_nobody_has_done(seed: int) -> None:
    rng = Generator(seed)
    studies = random_studies(rng)
    core, progress = StudyCore(studies), Progress(studies)

    def record(at_s: Seconds, event: Event, commands: tuple[Command, ...]) -> None:
        progress.take(Entry(at_s, event, commands))
        owed = progress.steps_owed
        assert brute_owed(progress) - progress.steps_done <= owed <= brute_owed(progress)

    metrics = tuple(sorted({study.metric for study in studies}))
    world = dt.World(workers=2, curve=diverging if seed % 2 else None)
    drive(core, SimulatedBackend(world, metrics), record)


def test_at_the_end_saved_is_requested_less_distinct() -> None:
    progress, core, _ = followed([example()], dt.World(workers=2))

    assert progress.steps_saved == progress.steps_requested - core.plan.steps_unique > 0
    assert progress.steps_done == core.plan.steps_unique


def test_too_many_histories_are_counted_as_sharing_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_LINKS", 0)
    core, progress = StudyCore([example()]), Progress([example()])

    def record(at_s: Seconds, event: Event, commands: tuple[Command, ...]) -> None:
        progress.take(Entry(at_s, event, commands))

    drive(core, SimulatedBackend(dt.World(workers=2), ("loss",)), record)

    assert progress.steps_unique > core.plan.steps_unique
    assert progress.steps_saved <= progress.steps_requested - core.plan.steps_unique


def test_time_left_is_known_as_soon_as_a_step_is_done_and_shrinks() -> None:
    left: list[float | None] = []
    core, progress = StudyCore([example()]), Progress([example()])

    def record(at_s: Seconds, event: Event, commands: tuple[Command, ...]) -> None:
        progress.take(Entry(at_s, event, commands))
        left.append(progress.left_s)

    drive(core, SimulatedBackend(dt.World(workers=1), ("loss",)), record)

    known = [one for one in left if one is not None]
    assert left[0] is None
    assert known == sorted(known, reverse=True)
    assert known[0] == pytest.approx(core.now, rel=0.5)


def test_what_was_in_the_store_says_nothing_about_the_time_left() -> None:
    """A hundred steps of a thousand were there; the second trained one took a second."""
    study = example(tuner=dt.FullTraining(1000), space={"lr": 0.1}, n_trials=1)
    progress = Progress([study])
    progress.take(entries_of(study)[0])
    progress.at_s, progress.steps_done, progress.steps_executed = 10.0, 110, 10

    assert progress.left_s == pytest.approx((1000 - 110) * 1.0)


@pytest.mark.parametrize(
    ("limit", "left_s"),
    [({"timeout": 60}, 50.0), ({"max_steps_executed": 25}, 15.0), ({"timeout": 5000}, 890.0)],
)
def test_time_left_is_no_more_than_the_limits_allow(limit: dict[str, Any], left_s: float) -> None:
    study = example(tuner=dt.FullTraining(1000), space={"lr": 0.1}, n_trials=1, **limit)
    progress = Progress([study])
    progress.take(entries_of(study)[0])
    progress.at_s, progress.steps_done, progress.steps_executed = 10.0, 110, 10

    assert progress.left_s == pytest.approx(left_s)


def test_trials_that_end_on_their_way_have_heard_what_was_measured_there() -> None:
    study = example(
        space={"lr": dt.choice([0.1, 0.2, 0.3, 0.4])},
        sampler=dt.Grid(),
        tuner=dt.MedianStopping(8, report_every=2, grace_steps=2, min_trials=2),
    )
    progress, core, _ = followed([study], dt.World(workers=1, step_s=1.0))

    stopped = [record for record in core.runs[0].trials if record.status is TrialStatus.STOPPED]
    assert stopped
    for record in stopped:
        shown = progress.trials[record.id]
        assert shown.step == max(report.step for report in record.reports) < shown.asked
        assert shown.metrics == record.reports[-1].metrics
    assert progress.steps_saved == 0


def test_a_new_driver_forgets_workers_and_that_the_old_one_was_stopped() -> None:
    entries = entries_of(example())
    half = entries[: len(entries) // 2]
    progress = Progress([example()])
    for entry in half:
        progress.take(entry)
    progress.take(Entry(half[-1].at_s, Interrupted(), ()))
    assert progress.is_stopping
    assert progress.n_slots

    progress.take(Entry(half[-1].at_s, Resumed(), ()))

    assert (progress.is_stopping, progress.n_slots, progress.n_busy) == (False, 0, 0)


def run_path(progress: Progress) -> RunPath:
    """The first path of the example, taken in."""
    for entry in entries_of(example()):
        progress.take(entry)
        for command in entry.commands:
            if isinstance(command, RunPath) and len(command.stages) > 1:
                return command
    raise AssertionError("no path has two stages")


def test_a_path_that_was_stopped_frees_its_slot() -> None:
    progress = Progress([example()])
    path = run_path(progress)
    busy = progress.n_busy
    first = path.stages[0]

    stopped = StageFinished(
        path=path.path, stage=first.key, reached=first.stop - 1, metrics=None, executed_steps=3
    )
    progress.take(Entry(9.0, stopped, ()))

    assert progress.n_busy == busy - 1
    assert progress.steps_done == first.stop - 1


def test_a_state_has_one_answer_the_first() -> None:
    progress = Progress([example()])
    path = run_path(progress)
    for value in (2.0, 1.0):
        reported = MetricsReported(
            path=path.path, stage=path.stages[0].key, step=1, metrics={"loss": value}
        )
        progress.take(Entry(9.0, reported, ()))

    assert progress.best["example"].value == 2.0


# --- words


def example(**changes: Any) -> Study:  # noqa: ANN401
    space = {"lr": dt.choice([0.1, dt.step_decay(0.1, factor=0.5, at=[4])])}
    given = {"space": space, "metric": "loss", "mode": "min", "name": "example"}
    return small_study(**{**given, **changes})


def entries_of(study: Study) -> list[Entry]:
    return dt.simulate(study, dt.World(workers=2, curve=falling)).timeline.entries


def falling(configuration: dt.Configuration, step: int) -> dict[str, float]:
    names = {"loss", "[red]loss[/red]"}
    return {name: float(configuration.at(step - 1)["lr"]) / step for name in names}  # type: ignore[arg-type]


def after(n: int, study: Study | None = None) -> Progress:
    """The counts after so many entries."""
    progress = Progress([study or example()])
    for entry in entries_of(study or example())[:n]:
        progress.take(entry)
    return progress


def test_the_line_says_how_a_run_gets_on() -> None:
    n = len(entries_of(example()))

    lines = [line(after(i), 90.0 if i == n - 1 else None) for i in (1, n - 1, n)]

    assert lines == [
        "example: 2 trials (2 waiting) | steps: 0 done, 12 owed, 0 saved by sharing | "
        "0 of 0 workers busy",
        "example: 2 trials (1 waiting, 1 completed) | steps: 8 done, 4 owed, 0 saved by sharing | "
        "1 of 2 workers busy | best loss 0.0125 (step 8, trial 0) | about 1.5 min left",
        "example: 2 trials (2 completed) | steps: 12 done, 0 owed, 4 saved by sharing | "
        "best loss 0.00625 (step 8, trial 1)",
    ]


def test_the_line_says_that_a_run_is_stopping() -> None:
    progress = after(4)
    progress.take(Entry(9.0, Interrupted(), ()))

    assert line(progress, progress.left_s).startswith(f"{STOPPING} | example: ")
    assert progress.left_s is None


def test_the_line_says_why_nothing_runs_while_nothing_does() -> None:
    clock, stream = Clock(), io.StringIO()
    watch = Watch([example()], Lines(stream, has_table=False), clock)
    watch.take(entries_of(example())[0])

    watch.stalls("2 stages are ready and no worker has joined")
    watch.stalls("")

    said, taken_back = stream.getvalue().splitlines()
    assert said.endswith(" | 0 of 0 workers busy | 2 stages are ready and no worker has joined")
    assert taken_back.endswith("workers busy")


def test_a_path_that_waits_for_another_driver_keeps_no_slot_busy_until_it_is_answered() -> None:
    progress = Progress([example()])
    path = run_path(progress)
    n_busy, first = progress.n_busy, path.stages[0]
    progress.take(Entry(9.0, PathHeld(path=path.path), ()))
    progress.take(Entry(9.0, PathHeld(path=12345), ()))
    assert progress.n_busy == n_busy - 1

    progress.take(Entry(9.0, WorkerLeft(worker=path.worker, died=False), ()))
    found = StageFinished(
        path=path.path, stage=first.key, reached=first.stop, metrics={"loss": 0.5}, executed_steps=0
    )
    progress.take(Entry(9.0, found, ()))
    progress.take(Entry(9.0, found, ()))  # the path has ended there
    assert progress.steps_done == first.stop


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (90, "1.5 min"), (3599, "60 min"), (3600, "1 h"),
     (5400, "1.5 h"), (86400, "1 d"), (200000, "2.3 d"), (2e6, "23 d")],
)  # fmt: skip
def test_durations_are_rounded(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_rows_begin_with_trials_in_training_then_the_best() -> None:
    n = len(entries_of(example()))

    assert rows(after(n - 1), 5) == [
        ("1", "waiting", "0/8", "", "lr=step_decay(0.1, factor=0.5, at=[4])"),
        ("0", "completed", "8/8", "loss 0.0125", "lr=0.1"),
    ]
    assert [cells[0] for cells in rows(after(n), 5)] == ["1", "0"]
    assert len(rows(after(n), 1)) == 1


# --- screens


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Recorder(Silence):
    """A screen that counts, and takes its time."""

    def __init__(self, clock: Clock, *, every_s: float, takes_s: float = 0.0) -> None:
        self.every_s, self._clock, self._takes_s = every_s, clock, takes_s
        self.drawn_s: list[float] = []

    def draw(self, progress: Progress, left_s: Seconds | None) -> None:
        del progress, left_s
        self.drawn_s.append(self._clock.now)
        self._clock.now += self._takes_s


def play(screen: Screen, clock: Clock, *, step_s: float, study: Study | None = None) -> Watch:
    watch = Watch([study or example()], screen, clock)
    for entry in entries_of(study or example()):
        clock.now += step_s
        watch.take(entry)
    return watch


def test_drawing_is_limited_by_the_clock() -> None:
    clock = Clock()
    screen = Recorder(clock, every_s=1.0)

    play(screen, clock, step_s=0.3)

    gaps = [b - a for a, b in zip(screen.drawn_s, screen.drawn_s[1:], strict=False)]
    assert gaps
    assert min(gaps) >= 1.0


def test_slow_drawing_is_done_the_more_seldom() -> None:
    clock = Clock()
    screen = Recorder(clock, every_s=0.1, takes_s=1.0)

    play(screen, clock, step_s=1.0)

    assert len(screen.drawn_s) == 1


def test_lines_come_now_and_then_and_not_from_short_runs() -> None:
    clock, stream = Clock(), io.StringIO()
    play(Lines(stream, has_table=False), clock, step_s=0.5).close(at_once=False)
    assert stream.getvalue() == ""

    play(Lines(stream, has_table=False), clock, step_s=11.0).close(at_once=False)
    text = stream.getvalue().splitlines()
    assert 1 < len(text) < len(entries_of(example()))
    assert all(one.startswith("example: 2 trials") for one in text)


def test_the_table_of_lines_is_whole_and_plain() -> None:
    stream = io.StringIO()

    play(Lines(stream, has_table=True), Clock(), step_s=0.1).close(at_once=False)

    assert [" ".join(one.split()) for one in stream.getvalue().splitlines()[:3]] == [
        "trial status steps metric hyper-parameters",
        "1 completed 8/8 loss 0.00625 lr=step_decay(0.1, factor=0.5, at=[4])",
        "0 completed 8/8 loss 0.0125 lr=0.1",
    ]
    assert "\x1b" not in stream.getvalue()


def test_a_stream_that_nobody_reads_stops_no_study() -> None:
    stream = io.StringIO()
    stream.close()

    for has_table in (False, True):
        screen = Lines(stream, has_table=has_table)
        screen.interrupt()
        play(screen, Clock(), step_s=20.0).close(at_once=True)


def test_a_pipe_that_nobody_reads_stops_no_study_and_spares_the_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as stream:
        play(Lines(stream, has_table=True), Clock(), step_s=20.0).close(at_once=False)
        sys.stdout.write("still heard\n")
        sys.stdout.flush()
    assert capfd.readouterr().out == "still heard\n"


class Gone(io.StringIO):
    """A terminal whose other end is closed, from a moment on."""

    is_gone = False

    def write(self, text: str) -> int:
        if self.is_gone:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_a_terminal_that_is_gone_stops_no_study() -> None:
    stream = Gone()
    console = Console(file=stream, force_terminal=True, width=200, height=30)
    terminal = Terminal(console, Clock(), has_table=True)
    watch = play(terminal, Clock(), step_s=1.0)

    with terminal._live._lock:  # or what draws by itself would find it gone before
        stream.is_gone = True
        watch.close(at_once=True)


def test_where_the_output_is_closed_a_terminal_still_shows_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, height=30)

    play(Terminal(console, Clock(), has_table=False), Clock(), step_s=1.0).close(at_once=False)

    assert "example: 2 trials" in stream.getvalue()


@pytest.mark.parametrize(("at_once", "words"), [(False, "interrupted"), (True, "stopped at once")])
def test_who_interrupts_is_told_how_to_go_on(at_once: bool, words: str) -> None:
    stream = io.StringIO()
    watch = Watch([example()], Lines(stream, has_table=False), Clock())
    watch.take(Entry(0.0, Interrupted(), ()))

    watch.close(at_once=at_once)

    assert stream.getvalue() == f"{words}: {KEPT}\n"
    assert "the same call goes on from here" in KEPT


STRANGE = {
    "space": {"lr": dt.choice([0.1]), "kind": dt.choice(["[bold]x[/bold]", "[/nothing]"])},
    "metric": "[red]loss[/red]",
}


def test_names_of_the_user_are_no_markup_in_a_terminal() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200, height=30, color_system=None)
    terminal = Terminal(console, Clock(), has_table=True)

    play(terminal, Clock(), step_s=1.0, study=example(**STRANGE)).close(at_once=False)

    assert "kind='[bold]x[/bold]'" in stream.getvalue()
    assert "[red]loss[/red] 0.0125" in stream.getvalue()
    assert "kind='[/nothing]'" in stream.getvalue()


@pytest.fixture
def no_live_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Live, "start", lambda _self: None)


@pytest.mark.usefixtures("no_live_thread")
def test_time_left_goes_down_while_nothing_happens() -> None:
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    terminal = Terminal(console, clock, has_table=False)
    terminal.draw(after(4), 100.0)
    before = str(terminal._now())
    clock.now += 60.0

    assert before.endswith("about 1.7 min left")
    assert str(terminal._now()).endswith("about 40 s left")
    terminal.interrupt()
    assert str(terminal._now()) == STOPPING


class FakeDisplay(ModuleType):
    """`IPython.display` that remembers."""

    def __init__(self) -> None:
        super().__init__("IPython.display")
        self.shown: list[tuple[dict[str, str], bool]] = []
        self.ids: set[str] = set()

    def display(self, data: dict[str, str], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw
        self.shown.append((data, update))
        self.ids.add(display_id)


def test_a_notebook_shows_one_display_that_is_updated() -> None:
    fake = FakeDisplay()

    play(Notebook(fake, has_table=True), Clock(), step_s=1.0, study=example(**STRANGE)).close(
        at_once=False
    )

    assert len(fake.ids) == 1
    assert [update for _, update in fake.shown] == [False] + [True] * (len(fake.shown) - 1)
    last = fake.shown[-1][0]
    assert last["text/plain"].startswith("example: 2 trials (2 completed)")
    assert last["text/html"].startswith("<table><tr><th>trial</th>")
    assert "<td>kind=&#x27;[bold]x[/bold]&#x27;, lr=0.1</td>" in last["text/html"]


# --- which screen


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("dasktune")
    before = logger.level
    yield logger
    logger.setLevel(before)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen_of(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None, *, in_process: bool = False
) -> type[Screen]:
    monkeypatch.setattr(sys, "stderr", stream)
    with watching([example()], in_process=in_process) as watch:
        return type(watch._screen)


@pytest.mark.usefixtures("no_live_thread")
def test_the_screen_fits_where_it_is(
    monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert screen_of(monkeypatch, Tty()) is Terminal
    assert screen_of(monkeypatch, Tty(), in_process=True) is Lines
    assert screen_of(monkeypatch, io.StringIO()) is Lines
    assert screen_of(monkeypatch, None) is Silence
    monkeypatch.setenv("TERM", "dumb")
    assert screen_of(monkeypatch, Tty()) is Lines
    logger.setLevel(logging.WARNING)
    assert screen_of(monkeypatch, Tty()) is Silence


@pytest.mark.parametrize(("kernel", "expected"), [(object(), Notebook), (None, Lines)])
def test_a_notebook_is_told_from_a_shell(
    monkeypatch: pytest.MonkeyPatch, kernel: object, expected: type[Screen]
) -> None:
    shell = type("Shell", (), {"kernel": kernel})()
    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", FakeDisplay())

    assert screen_of(monkeypatch, io.StringIO()) is expected


def test_a_second_interrupt_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)

    def broken_off() -> None:
        with watching([example()]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert stream.getvalue() == f"stopped at once: {KEPT}\n"
