"""Go on with a study that has ended, or was begun otherwise: more trials, more steps, more space.

A journal is a row of timelines, each with a header; only the last one goes on. The first trials of
an extended study are those that there were, so that the states and metrics of the store answer for
them, and its tuner decides anew about all of them.
"""

from collections.abc import Iterable, Sequence
from copy import copy

from dasktune.errors import InvalidStudyError
from dasktune.space.search_space import Point, SearchSpace
from dasktune.study.header import changes_since, is_header, read_header, taken_over_in
from dasktune.study.study import Study
from dasktune.study.study_run import StudyRun
from dasktune.study.timeline import replay


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
        raise InvalidStudyError(
            f"{names} was begun otherwise: {'; '.join(changes)}; describe it as it was, give it "
            "another name, or go on with it as it is now by dasktune.extend(study)"
        )
    taken = taken_over_in(header)
    return [_with(study, points) for study, points in zip(studies, taken, strict=True)]


def extended(lines: Sequence[str], study: Study) -> Study:
    """Return a study that begins with all trials that its last timeline has drawn.

    Args:
        lines: The last timeline of its journal, not empty.
        study: As it is to go on.

    Raises:
        InvalidStudyError: The training code has changed, or a trial has no place in the study.
    """
    (before,) = read_header(lines[0])
    if before.family != study.family:
        changes = "; ".join(changes_since(lines[0], [study]))
        raise InvalidStudyError(
            f"{study.name} cannot be extended, since nothing that it trained would be of use: "
            f"{changes}; give the new study another name"
        )
    core, _ = replay([before], lines)
    points = _points(core.runs[0], study.space)
    if study.n_trials < len(points):
        raise InvalidStudyError(
            f"n_trials is {study.n_trials}; {study.name} has {len(points)} trials already, and an "
            "extended study keeps them"
        )
    return _with(study, points)


def _points(run: StudyRun, space: SearchSpace) -> tuple[Point, ...]:
    """Return where the trials that were drawn, not branched, lie in a space."""
    points = []
    for record in run.trials:
        if record.branch is not None:
            continue
        point = space.locate(record.configuration)
        if point is None:
            raise InvalidStudyError(
                f"the space lacks trial {record.id.number}, {record.configuration.text}; an "
                "extended study keeps the trials that there were, so its space may only grow"
            )
        points.append(point)
    return tuple(points)


def _with(study: Study, taken_over: tuple[Point, ...]) -> Study:
    twin = copy(study)
    object.__setattr__(twin, "taken_over", taken_over)
    return twin
