"""Small trees to schedule: drawn as a whole, or as trials that branch from one another."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

import dasktune as dt
from dasktune.plan.stage_tree import StageTree, TreeStage, derive
from dasktune.study.core import StudyCore
from dasktune.study.events import StudyStarted
from dasktune.tuners.tuner import Tuner
from dasktune.units import Digest
from tests.oracles import Forest, History
from tests.scheduling.untrained import Untrained


@st.composite
def forests(draw: st.DrawFn, most: int = 6) -> Forest:
    """Draw stages of whole seconds, so that sums are exact."""
    n = draw(st.integers(1, most))
    parents = [draw(st.sampled_from([None, *range(i)])) for i in range(n)]
    seconds = draw(st.lists(st.integers(0, 7).map(float), min_size=n, max_size=n))
    return Forest(tuple(seconds), tuple(parents))


@st.composite
def branching(draw: st.DrawFn, most: int = 4, stop: int = 6) -> list[History]:
    """Draw histories of one length; each leaves an earlier one at some step, or shares nothing."""
    rows: list[list[int]] = [[0] * stop]
    for i in range(1, draw(st.integers(1, most))):
        at = draw(st.integers(0, stop - 1))
        rows.append([*draw(st.sampled_from(rows))[:at], *[i] * (stop - at)])
    return [tuple((value,) for value in row) for row in rows]


def study_of(
    histories: Sequence[History],
    tuner: Tuner | None = None,
    *,
    name: str = "study",
    metric: str = "a",
) -> dt.Study:
    """A study of which trial i has history i: a grid over one hyper-parameter."""
    options = [dt.piecewise({t: x for t, (x,) in enumerate(rows)}) for rows in histories]  # type: ignore[misc]
    return dt.Study(
        Untrained(),
        space={"x": dt.choice(options)},
        sampler=dt.Grid(),
        tuner=tuner or dt.FullTraining(len(histories[0])),
        metric=metric,
        mode="max",
        name=name,
    )


def owed_at_start(*studies: dt.Study) -> StageTree:
    """The stages that studies owe together before any worker has joined."""
    core = StudyCore(studies)
    for index in range(len(studies)):
        core.handle(StudyStarted(study=index), 0.0)
    return derive(core.plan)


def stage_tree_of(forest: Forest) -> StageTree:
    """The forest as if the plan had derived it; only keys and parents of its stages are true."""
    some = _some_stage()
    stages = []
    for i, parent in enumerate(forest.parents):
        start_key = None if parent is None else Digest(str(parent))
        stage = replace(some.stage, key=Digest(str(i)), start_key=start_key)
        stages.append(replace(some, stage=stage, parent=parent))
    return StageTree(tuple(stages))


@cache
def _some_stage() -> TreeStage:
    return owed_at_start(study_of([((0,),)])).stages[0]
