"""Go on with a study that has ended, or was begun otherwise: more trials, more steps, more space.

A journal is a row of timelines, each with a header; only the last one goes on. The first trials of
an extended study are those that there were, so that the states and metrics of the store answer for
them, and its tuner decides anew about all of them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NoReturn

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point, SearchSpace
from dasktune.study.commands import DrawTrial, EndStudy, StudyStatus
from dasktune.study.core import StudyCore
from dasktune.study.header import (
    changes_since,
    families_in,
    is_header,
    space_in,
    taken_over_in,
)
from dasktune.study.study import Study
from dasktune.study.study_run import StudyRun
from dasktune.units import Step


def timelines(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the timelines of a journal, each from its header on."""
    timeline: list[str] = []
    for line in lines:
        if is_header(line) and timeline:
            yield timeline
            timeline = []
        timeline.append(line)
    if timeline:
        yield timeline


def last_timeline(lines: Iterable[str]) -> list[str]:
    """Return the lines from the last header of a journal on."""
    last: list[str] = []
    for timeline in timelines(lines):
        last = timeline
    return last


def as_begun(header: str, studies: Sequence[Study]) -> list[Study]:
    """Return studies with the trials that their timeline took over from an earlier one.

    Args:
        header: The first line of the timeline.
        studies: As the user describes them now.

    Raises:
        InvalidStudyError: They are not those that the timeline was begun with.
    """
    changes = changes_since(header, studies)
    if changes:
        names = ", ".join([study.name for study in studies])
        advice = "describe it as it was, or give it another name"
        if families_in(header) == [studies[0].family]:
            advice += ", or go on with it as it is now by dasktune.extend(study)"
        raise InvalidStudyError(f"{names} was begun otherwise: {'; '.join(changes)}; {advice}")
    taken = taken_over_in(header)
    return [_with(study, points) for study, points in zip(studies, taken, strict=True)]


def refuse_other_code(header: str, study: Study, *, is_spent: bool) -> NoReturn:
    """Refuse to extend a study whose training code has changed, and say what can be done.

    Args:
        header: Of its last timeline.
        study: As it is now.
        is_spent: Whether its journal has come to nothing.

    Raises:
        InvalidStudyError: Always.
    """
    changes = "; ".join(changes_since(header, [study]))
    advice = "give the new study another name"
    if is_spent:
        advice = "it has failed, so dasktune.run(study) begins it anew under this name"
    raise InvalidStudyError(
        f"{study.name} cannot be extended, since nothing that it trained would be of use: "
        f"{changes}; {advice}"
    )


def extended(lines: Sequence[str], study: Study) -> Study:
    """Return a study that begins with all trials that its last timeline has drawn or taken over.

    Then come the configurations of `first` that are none of these.

    Args:
        lines: The last timeline of its journal, not empty.
        study: As it is to go on, with the training code that it had.

    Raises:
        InvalidStudyError: A trial has no place in the study.
        BackendError: A line cannot be read.
    """
    # Whoever drew them and decided about them: draws are recorded, and nothing else is needed.
    try:
        before, stop = space_in(lines[0], study)
    except BackendError as error:
        raise InvalidStudyError(
            f"{study.name} cannot be extended with another space: {error}; leave that "
            "hyper-parameter as it was, or give the new study another name"
        ) from error
    (taken,) = taken_over_in(lines[0])
    kept = [before.configuration(point) for point in _kept(_drawn(lines), taken)]
    points = _located(kept, study.space, until=stop)
    if study.n_trials < len(points):
        raise InvalidStudyError(
            f"n_trials is {study.n_trials}; {study.name} has {len(points)} trials already, and an "
            "extended study keeps them"
        )
    new = [point for point in study.first if point not in points]
    if study.n_trials < len(points) + len(new):
        raise InvalidStudyError(
            f"n_trials is {study.n_trials}; {study.name} has {len(points)} trials already, and "
            f"first gives {len(new)} more"
        )
    return _with(study, (*points, *new))


def is_spent(lines: Iterable[str]) -> bool:
    """Say whether a journal has come to nothing, so that its name is free for another beginning.

    That is if its last timeline has failed, and so has each whose trials it took over.

    Args:
        lines: The whole journal.
    """
    spent = True
    for timeline in timelines(lines):
        takes_over = any(taken_over_in(timeline[0]))
        spent = _has_failed(timeline) and (spent or not takes_over)
    return spent


def _has_failed(timeline: Sequence[str]) -> bool:
    """Say whether all studies of a timeline have ended because trials failed."""
    ends = [command["status"] for command in _commands(timeline, EndStudy)]
    return ends == [StudyStatus.FAILED.value] * len(families_in(timeline[0]))


def has_failed_in(core: StudyCore) -> bool:
    """Say whether all studies have ended because trials failed.

    Beside one that has completed none tries again: its limits would begin anew, and its tuner
    could decide otherwise. The one that failed can be run by itself.
    """
    return all(one.status is StudyStatus.FAILED for one in core.runs)


def once_more(core: StudyCore) -> list[Study]:
    """Return studies that begin with all trials of a timeline which failed.

    Args:
        core: What the timeline has come to.
    """
    return [_with(run.study, _kept(_points(run), run.study.taken_over)) for run in core.runs]


def _points(run: StudyRun) -> list[Point]:
    """Return the draws of the trials that were drawn, not branched."""
    return [record.point for record in run.trials if record.branch is None]


def _kept(drawn: Sequence[Point], taken_over: Sequence[Point]) -> tuple[Point, ...]:
    """Return the draws that go on from a timeline, which may have ended before it drew all."""
    return (*drawn, *taken_over[len(drawn) :])


def _drawn(lines: Sequence[str]) -> list[Point]:
    """Return from a timeline of one study its draws, by trial, without those that branched."""
    try:
        found = {
            command["trial"][1]: Point.of(command["point"])
            for command in _commands(lines, DrawTrial)
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BackendError(f"a draw in the timeline cannot be read ({error})") from error
    return [found[number] for number in sorted(found)]


def _commands(lines: Sequence[str], kind: type) -> list[Mapping[str, Any]]:
    """Return the commands of a kind in a timeline, as they were written."""
    try:
        return [
            command
            for line in lines[1:]
            for command in json.loads(line)["commands"]
            if command["is"] == kind.__name__
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise BackendError(f"a line of the timeline cannot be read ({error})") from error


def _located(
    kept: Iterable[Configuration], space: SearchSpace, *, until: Step
) -> tuple[Point, ...]:
    """Return where the trials with these configurations lie in a space."""
    points = []
    for number, configuration in enumerate(kept):
        point = space.locate(configuration, until=until)
        if point is None:
            raise InvalidStudyError(
                f"the space lacks trial {number}, {configuration.text}; an extended study keeps "
                "the trials that there were, so its space may only grow, and its functions of the "
                f"step must give what they gave in the first {until} steps"
            )
        points.append(point)
    return tuple(points)


def _with(study: Study, taken_over: tuple[Point, ...]) -> Study:
    twin = copy(study)
    object.__setattr__(twin, "taken_over", taken_over)
    return twin
