"""Go on with a study that has ended, or was begun otherwise: more trials, more steps, more space.

A journal is a row of timelines, each with a header; only the last one goes on. The first trials of
an extended study are those that there were, so that the states and metrics of the store answer for
them, and its tuner decides anew about all of them.
"""

import json
from collections.abc import Iterable, Sequence
from copy import copy

from dasktune.errors import BackendError, InvalidStudyError
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import Point, SearchSpace
from dasktune.study.commands import DrawTrial, StudyStatus
from dasktune.study.core import StudyCore
from dasktune.study.header import (
    changes_since,
    families_in,
    is_header,
    read_header,
    space_in,
    taken_over_in,
)
from dasktune.study.study import Study
from dasktune.study.study_run import StudyRun
from dasktune.study.timeline import replay
from dasktune.units import Step


def last_timeline(lines: Iterable[str]) -> list[str]:
    """Return the lines from the last header of a journal on."""
    last: list[str] = []
    for line in lines:
        if is_header(line):
            last = []
        last.append(line)
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


def extended(lines: Sequence[str], study: Study) -> Study:
    """Return a study that begins with all trials that its last timeline has drawn.

    Args:
        lines: The last timeline of its journal, not empty.
        study: As it is to go on.

    Raises:
        InvalidStudyError: The training code has changed, or a trial has no place in the study.
        BackendError: A line cannot be read.
    """
    if families_in(lines[0]) != [study.family]:
        changes = "; ".join(changes_since(lines[0], [study]))
        raise InvalidStudyError(
            f"{study.name} cannot be extended, since nothing that it trained would be of use: "
            f"{changes}; give the new study another name"
        )
    # Whoever drew them and decided about them: draws are recorded, and nothing else is needed.
    try:
        before, stop = space_in(lines[0], study)
    except BackendError as error:
        raise InvalidStudyError(
            f"{study.name} cannot be extended with another space: {error}; leave that "
            "hyper-parameter as it was, or give the new study another name"
        ) from error
    drawn = [(number, before.configuration(point)) for number, point in _drawn(lines)]
    points = _located(drawn, study.space, until=stop)
    if study.n_trials < len(points):
        raise InvalidStudyError(
            f"n_trials is {study.n_trials}; {study.name} has {len(points)} trials already, and an "
            "extended study keeps them"
        )
    return _with(study, points)


def has_failed(lines: Sequence[str]) -> bool:
    """Say whether a timeline has ended because trials failed, as far as it is told without code.

    Args:
        lines: The timeline, with its header.
    """
    try:
        core, _ = replay(read_header(lines[0]), lines)
    except BackendError:  # the tuner is the user's own
        return False
    return has_failed_in(core)


def has_failed_in(core: StudyCore) -> bool:
    """Say whether all studies have ended because trials failed.

    Beside one that has completed none tries again: its limits would begin anew, and its tuner
    could decide otherwise. The one that failed can be run by itself.
    """
    return all(one.status is StudyStatus.FAILED for one in core.runs)


def once_more(core: StudyCore) -> list[Study]:
    """Return studies that begin with all trials that a timeline which failed has drawn.

    Args:
        core: What the timeline has come to.
    """
    return [_with(run.study, _points(run)) for run in core.runs]


def _points(run: StudyRun) -> tuple[Point, ...]:
    """Return the draws of the trials that were drawn, not branched."""
    return tuple([record.point for record in run.trials if record.branch is None])


def _drawn(lines: Sequence[str]) -> list[tuple[int, Point]]:
    """Return from a timeline of one study the trials that were drawn, not branched, by number."""
    try:
        return sorted(
            [
                (command["trial"][1], Point.of(command["point"]))
                for line in lines[1:]
                for command in json.loads(line)["commands"]
                if command["is"] == DrawTrial.__name__
            ]
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BackendError(f"a line of the timeline cannot be read ({error})") from error


def _located(
    drawn: Iterable[tuple[int, Configuration]], space: SearchSpace, *, until: Step
) -> tuple[Point, ...]:
    """Return where the trials with these numbers and configurations lie in a space."""
    points = []
    for number, configuration in drawn:
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
