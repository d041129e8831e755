"""What a driver wrote down is enough for the next one, and says so when it does not fit."""

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from math import inf, nan
from random import Random as Generator
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.errors import BackendError
from dasktune.scheduling.fifo import Fifo
from dasktune.study.commands import Command, DrawTrial, StopPath
from dasktune.study.core import StudyCore
from dasktune.study.events import (
    Event,
    Interrupted,
    MetricsReported,
    Resumed,
    StageFailed,
    StageFinished,
    StateLost,
    StudyStarted,
    WorkerJoined,
    WorkerLeft,
)
from dasktune.study.journal import read_entry, say_the_same, write_entry
from dasktune.study.timeline import Timeline, replay
from dasktune.trial import TrialId
from dasktune.units import Digest, WorkerId
from tests.plays import Play, Truth, reports_of, rolled
from tests.worlds import OneByOne, random_studies, small_study


def played(seed: int, *, trouble: float = 0.3) -> Play:
    play = rolled(seed, n_events=40, trouble=trouble)
    play.finish_all()
    return play


# --- replay ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(24))
def test_a_core_rebuilt_after_any_event_goes_on_as_the_first_did(seed: int) -> None:
    play = played(seed)
    lines = list(play.timeline.lines())
    for at in range(0, len(lines), 3):
        core, timeline = replay(play.studies, lines[:at], play.scheduler)
        assert list(timeline.lines()) == lines[:at]
        for entry, line in zip(play.timeline.entries[at:], lines[at:], strict=True):
            commands = core.handle(entry.event, entry.at_s)
            assert write_entry(entry.at_s, entry.event, commands) == line


@pytest.mark.parametrize("seed", range(6))
def test_draws_are_fed_and_not_made_again(seed: int) -> None:
    play = rolled(seed, studies=[small_study(sampler=OneByOne(), n_trials=8)], trouble=0.0)
    play.finish_all()
    # The same search by a sampler that would have drawn otherwise.
    changed = [small_study(sampler=OneByOne(is_reversed=True), n_trials=8)]

    core, _ = replay(changed, play.timeline.lines(), play.scheduler)

    drawn = {c.trial: c.point for _, c in play.timeline.commands() if isinstance(c, DrawTrial)}
    space = changed[0].space
    for trial in core.runs[0].trials:
        assert trial.configuration == space.configuration(drawn[trial.id])


@pytest.mark.parametrize("seed", range(12))
def test_a_driver_that_dies_after_any_event_changes_no_report_under_synchronous_tuners(
    seed: int,
) -> None:
    studies = random_studies(Generator(seed), is_synchronous=True)
    truth = Truth(seed=seed, odd_share=0.1 * (seed % 2), grid=3)
    straight = Play(studies, truth)
    straight.finish_all()
    n_events = len(straight.timeline.entries)
    for at in range(1, n_events, 5):
        play = Play(studies, truth)
        events_left = at
        while events_left and not play.is_over:
            events_left -= 1
            advance(play)
        play.resume_from_lines()
        play.finish_all()
        for mine, other in zip(play.core.runs, straight.core.runs, strict=True):
            assert reports_of(mine) == reports_of(other)
            assert mine.status is other.status


def advance(play: Play) -> None:
    """Let the next thing go well."""
    unstarted = [run.index for run in play.core.runs if run.status is None]
    if unstarted:
        play.start(unstarted[0])
    elif not play.workers:
        play.join("a", 2)
    else:
        number = next(iter(play.running))
        for step in play.running[number].stage.report_steps:
            if number in play.running:
                play.report(number, step)
        play.finish(number)


def test_a_timeline_of_no_lines_is_a_fresh_core() -> None:
    core, timeline = replay([small_study()], [])
    assert core.now == 0
    assert core.runs[0].status is None
    assert timeline.entries == []


def test_lines_may_end_with_a_newline() -> None:
    play = played(1)
    replay(play.studies, (line + "\n" for line in play.timeline.lines()), play.scheduler)


def test_the_same_lines_do_not_fit_another_scheduler_or_another_study() -> None:
    studies = [small_study(n_trials=6, sampler=dt.Random())]
    play = Play(studies)
    play.finish_all()
    lines = list(play.timeline.lines())

    for others, scheduler in (
        (studies, Fifo()),
        ([small_study(n_trials=7, sampler=dt.Random())], None),
        ([small_study(n_trials=6, sampler=dt.Random(), training_seed=1)], None),
        (
            [small_study(n_trials=6, sampler=dt.Random(), mode="min", tuner=dt.FullTraining(7))],
            None,
        ),
    ):
        with pytest.raises(BackendError, match=r"differs at line \d+, character"):
            replay(others, lines, scheduler)


# --- lines that were altered ----------------------------------------------------------------------


def loads(line: str) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(line)
    return entry


def dumps(entry: object) -> str:
    return json.dumps(entry, separators=(",", ":"))


ALTERED = played(3, trouble=0.2)
LINES = list(ALTERED.timeline.lines())


@given(st.data())
def test_any_character_changed_in_a_decision_is_noticed_in_its_line(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([n for n, line in enumerate(LINES) if '"reason"' in line]))
    line = LINES[number]
    begin = line.index('"commands":[') + len('"commands":')
    at = data.draw(st.integers(begin, len(line) - 1))
    if '"point"' in line[at - 60 : at + 60]:
        return  # draws are fed to the core: what follows from them differs, not they
    char = data.draw(st.characters(codec="ascii", exclude_characters=line[at] + "\n"))
    lines = [*LINES[:number], line[:at] + char + line[at + 1 :], *LINES[number + 1 :]]

    with pytest.raises(BackendError, match=f"line {number + 1}[ ,]"):
        replay(ALTERED.studies, lines, ALTERED.scheduler)


def drop_a_command(entry: dict[str, Any]) -> None:
    entry["commands"].pop()


def repeat_a_command(entry: dict[str, Any]) -> None:
    entry["commands"].append(entry["commands"][-1])


def lose_commands(entry: dict[str, Any]) -> None:
    del entry["commands"]


def lose_time(entry: dict[str, Any]) -> None:
    del entry["at_s"]


def time_as_text(entry: dict[str, Any]) -> None:
    entry["at_s"] = "now"


def go_back_in_time(entry: dict[str, Any]) -> None:
    entry["at_s"] = -1.0


def rename_event(entry: dict[str, Any]) -> None:
    entry["event"]["is"] = "StageImagined"


def lose_kind(entry: dict[str, Any]) -> None:
    del entry["event"]["is"]


def event_as_list(entry: dict[str, Any]) -> None:
    entry["event"] = [1]


def add_a_field(entry: dict[str, Any]) -> None:
    entry["event"]["colour"] = "red"


def other_event(entry: dict[str, Any]) -> None:
    entry["event"] = {"is": "Interrupted"}


def no_point(entry: dict[str, Any]) -> None:
    entry["commands"].append({"is": "DrawTrial"})


def point_as_number(entry: dict[str, Any]) -> None:
    entry["commands"].append({"is": "DrawTrial", "trial": [0, 0], "point": 3})


@pytest.mark.parametrize(
    "alter",
    [
        drop_a_command,
        repeat_a_command,
        lose_commands,
        lose_time,
        time_as_text,
        go_back_in_time,
        rename_event,
        lose_kind,
        event_as_list,
        add_a_field,
        other_event,
        no_point,
        point_as_number,
    ],
)
def test_an_altered_entry_is_refused_with_its_line(
    alter: Callable[[dict[str, Any]], None],
) -> None:
    for number, line in enumerate(LINES):
        entry = loads(line)
        if not entry["commands"]:
            continue
        alter(entry)
        if dumps(entry) == line:
            continue
        with pytest.raises(BackendError, match=f"line {number + 1}[ ,]"):
            replay(ALTERED.studies, [*LINES[:number], dumps(entry)], ALTERED.scheduler)


@pytest.mark.parametrize("number", range(0, len(LINES), 4))
def test_a_line_that_broke_off_is_refused(number: int) -> None:
    line = LINES[number]
    for kept in (0, 1, len(line) // 2, len(line) - 1):
        with pytest.raises(BackendError, match=f"line {number + 1} "):
            replay(ALTERED.studies, [*LINES[:number], line[:kept]], ALTERED.scheduler)


@pytest.mark.parametrize("text", ["", "null", "[]", "3", '"x"', "{}", "not JSON", '{"event":{}}'])
def test_what_is_no_entry_is_refused(text: str) -> None:
    with pytest.raises(BackendError, match=r"line 1 .*must be a JSON entry"):
        replay([small_study()], [text])


WRONG_TYPES: list[object] = ["x", None, [], {}, -1]


@pytest.mark.parametrize("wrong", WRONG_TYPES)
def test_nonsense_in_the_fields_of_an_event_raises_nothing_but_a_backend_error(
    wrong: object,
) -> None:
    noticed = []
    for number, line in enumerate(LINES):
        for name in ("study", "n_slots", "path", "reached", "executed_steps", "step", "metrics"):
            entry = loads(line)
            if name not in entry["event"] or not entry["commands"]:
                continue
            if wrong is None and name == "metrics":
                continue  # metrics may be left out
            entry["event"][name] = wrong
            changed = [*LINES[:number], dumps(entry)]
            try:
                replay(ALTERED.studies, changed, ALTERED.scheduler)
            except BackendError as error:
                noticed.append((number, str(error)))
    assert len(noticed) > 5
    for number, message in noticed:
        assert f"line {number + 1}" in message


def test_an_altered_draw_is_noticed_when_its_stages_run() -> None:
    play = Play([small_study(n_trials=1)])
    play.finish_all()
    lines = list(play.timeline.lines())
    entry = loads(lines[0])
    entry["commands"][0]["point"]["momentum"] = 1
    with pytest.raises(BackendError, match="the timeline differs at line 2"):
        replay(play.studies, [dumps(entry), *lines[1:]])
    entry["commands"][0]["point"]["momentum"] = 2  # there is no such option
    with pytest.raises(BackendError, match=r"line 1 .*momentum"):
        replay(play.studies, [dumps(entry), *lines[1:]])


def test_draws_of_studies_that_share_a_plan_are_not_mixed_up() -> None:
    # The first has nothing left to draw when the second draws more, at the same event.
    tuner = dt.ASHA(min_steps=1, max_steps=2, reduction_factor=2)
    few = {"lr": dt.choice([0.1, 0.2])}
    studies = [
        small_study(space=few, tuner=tuner, sampler=OneByOne(), n_trials=5, name="few"),
        small_study(tuner=tuner, sampler=OneByOne(), n_trials=10, name="many"),
    ]
    play = Play(studies)
    play.start(0)
    play.start(1)
    play.join("a", 9)
    play.finish_all()

    core, _ = replay(studies, play.timeline.lines())

    assert [len(run.trials) for run in core.runs] == [2, 10]


# --- lines ----------------------------------------------------------------------------------------

texts = st.text(max_size=20)
steps = st.integers(0, 10**12)
numbers = st.floats() | st.sampled_from([nan, inf, -inf, -0.0, 0.1, 1e-320])
metrics = st.dictionaries(texts, numbers | st.integers() | st.none(), max_size=3)
times = st.floats(0, 1e9)
_BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "study": st.integers(0, 9),
    "n_slots": st.integers(1, 64),
    "died": st.booleans(),
    "metrics": metrics,
    "seconds": times,
}


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(get_args(Event)))
    values: dict[str, Any] = {}
    for field in fields(kind):
        is_count = field.name in ("path", "step", "reached", "executed_steps")
        values[field.name] = draw(_BY_TYPE.get(field.name, steps if is_count else texts))
    if kind is StageFinished and draw(st.booleans()):
        values["metrics"] = None
    event: Event = kind(**values)
    return event


def shown(event: Event) -> str:
    """Return all of an event, with the type of each value; NaN is equal to itself."""
    return repr(event)


@given(event=events(), now=times)
def test_every_event_comes_back_from_its_line(event: Event, now: float) -> None:
    line = write_entry(now, event, ())

    at_s, read, points = read_entry(line)

    assert (at_s, shown(read), points) == (now, shown(event), {})
    assert write_entry(at_s, read, ()) == line


# --- lines of other versions


DEFAULTS: dict[str, dict[str, object]] = {
    kind.__name__: {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    for kind in (*get_args(Event), *get_args(Command))
}


def spelled_out(line: str, *, but: str = "") -> str:
    """Write a line as a version does that leaves nothing out, but does not know one field."""
    entry = loads(line)
    for each in (entry["event"], *entry["commands"]):
        for name, default in DEFAULTS[each["is"]].items():
            if name != but:
                each.setdefault(name, default)
    return dumps(entry)


@given(event=events(), now=times)
def test_fields_that_have_their_default_are_left_out(event: Event, now: float) -> None:
    written = loads(write_entry(now, event, ()))["event"]

    for name, default in DEFAULTS[type(event).__name__].items():
        assert (name in written) == (repr(getattr(event, name)) != repr(default))


@pytest.mark.parametrize("but", ["", "seconds", "traceback", "n_slots"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lines_that_spell_defaults_out_or_lack_a_field_that_came_later_fit(
    seed: int, but: str
) -> None:
    play = played(seed)
    lines = list(play.timeline.lines())
    old = [spelled_out(line, but=but) for line in lines]
    assert but or old != lines

    _, timeline = replay(play.studies, old, play.scheduler)

    assert list(timeline.lines()) == lines


def test_a_field_that_is_not_its_default_is_compared() -> None:
    failed = StageFailed(path=1, stage=Digest("a"), error="e", seconds=2.0)
    line = write_entry(1.0, failed, ())

    assert say_the_same(line, spelled_out(line))
    assert not say_the_same(line, line.replace("2.0", "3.0"))
    assert not say_the_same(line, write_entry(1.0, replace(failed, seconds=0.0), ()))


def refuse(constant: str) -> object:
    raise AssertionError(f"{constant} is not JSON")


@given(event=events(), now=times)
def test_lines_are_strict_json_and_one_line(event: Event, now: float) -> None:
    stop = StopPath(path=1, worker=WorkerId("a\nb"), slot=0, reason='"\u2028\n')
    line = write_entry(now, event, (stop,))

    assert "\n" not in line
    assert json.loads(line, parse_constant=refuse)["commands"][0]["reason"] == stop.reason


def test_every_kind_of_event_was_thought_of() -> None:
    known = {
        StudyStarted,
        WorkerJoined,
        WorkerLeft,
        MetricsReported,
        StageFinished,
        StageFailed,
        StateLost,
        Interrupted,
        Resumed,
    }
    assert known <= set(get_args(Event))


def test_lines_of_plays_are_strict_json() -> None:
    for seed in range(10):
        for line in played(seed).timeline.lines():
            json.loads(line, parse_constant=refuse)


def test_a_timeline_gives_its_commands_with_their_times() -> None:
    timeline = Timeline()
    draw = DrawTrial(trial=TrialId(0, 1), point=next(small_study().space.points()))
    timeline.record(1.5, Interrupted(), (draw, draw))
    timeline.record(2.5, Interrupted(), (draw,))

    assert list(timeline.commands()) == [(1.5, draw), (1.5, draw), (2.5, draw)]
    assert read_entry(next(timeline.lines())) == (1.5, Interrupted(), {draw.trial: draw.point})


def test_a_core_is_not_needed_to_read_lines() -> None:
    core = StudyCore([small_study()])
    event = StudyStarted(study=0)
    line = write_entry(0.0, event, core.handle(event, 0.0))
    _, read, points = read_entry(line)

    assert read == event
    assert sorted(points) == [TrialId(0, n) for n in range(10)]
