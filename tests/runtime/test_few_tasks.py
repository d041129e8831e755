"""A study of many trials is few tasks at a time."""

from pathlib import Path

import pytest
from distributed import Client

import dasktune as dt
from dasktune.runtime.sent import HELD
from dasktune.study.commands import RunPath
from dasktune.study.timeline import Entry
from tests.runtime.trainables import Walk, cluster_of, study_of, tasks_of, wait_until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("n_steps", [1, 8])
def test_tasks_are_bounded_by_what_runs_and_what_has_just_answered(
    tmp_path: Path, n_steps: int
) -> None:
    space = {"lr": dt.choice([n / 100 for n in range(1, 61)]), "momentum": 0.9}
    study = study_of(Walk(str(tmp_path)), space=space, tuner=dt.FullTraining(n_steps))
    longest = most = 0

    with cluster_of({}, {}) as cluster, Client(cluster) as client:

        def look(entry: Entry) -> None:
            nonlocal longest, most
            paths = [each for each in entry.commands if isinstance(each, RunPath)]
            longest = max([longest, *(len(path.stages) for path in paths)])
            most = max(most, len(tasks_of(cluster)))
            # What the driver has released may not have come to the scheduler yet.
            wait_until(lambda: len(tasks_of(cluster)) <= 2 * longest + HELD, "there are too many")

        result = dt.run(study, store=tmp_path / "store", client=client, on_event=look)
        wait_until(lambda: not tasks_of(cluster))

    assert len(result.trials) == 60
    assert most > 0
