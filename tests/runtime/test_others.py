"""What others run: whether it covers what we want, found by halves as by trying all steps."""

import importlib
import logging
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dasktune as dt
from dasktune.plan.history import changes, key_of, tokens_at
from dasktune.plan.keys import Family, extended, first_link
from dasktune.plan.stage import Stage
from dasktune.runtime.others import Foreign, Others
from dasktune.runtime.payload import by_value
from dasktune.space.configuration import Configuration
from dasktune.study.commands import RunPath
from dasktune.units import Digest, WorkerId

STOP = 7
histories = st.tuples(*[st.sampled_from([0.1, 0.2])] * STOP)
families = st.sampled_from([Family("code", 0), Family("code", 0), Family("code", 1)])


def stage_of(history: Sequence[float], start: int, stop: int, family: Family) -> Stage:
    configuration = Configuration.of({"lr": dt.piecewise(dict(enumerate(history)))})
    first = first_link(family, tokens_at(configuration, 0))
    link = extended(first, changes(configuration, 1, start))
    return Stage(
        key=key_of(family, configuration, stop),
        start_key=key_of(family, configuration, start) if start else None,
        start_link=link,
        start=start,
        stop=stop,
        family=family,
        configuration=configuration,
        report_steps=(),
        evaluates=False,
    )


@st.composite
def rows(draw: st.DrawFn) -> tuple[Sequence[float], int, int, Family]:
    start = draw(st.integers(0, STOP))
    return draw(histories), start, draw(st.integers(start, STOP)), draw(families)


def test_nobody_is_there_before_somebody_is_heard_of() -> None:
    assert not Others().are_there


def announce(others: Others, number: int, stages: Sequence[Stage], topic: str = "them") -> None:
    command = RunPath(
        path=number,
        worker=WorkerId("w"),
        slot=0,
        stages=tuple(stages),
        is_warm=False,
        reason="",
    )
    plain = Foreign.plain(command, map(by_value, stages))
    assert isinstance(plain["stages"], list)
    others.begin(topic, number, str(plain["worker"]), plain["stages"])


@given(mine=rows(), theirs=st.lists(rows(), max_size=3))
def test_covering_is_what_comparing_all_values_finds(
    mine: tuple[Sequence[float], int, int, Family],
    theirs: list[tuple[Sequence[float], int, int, Family]],
) -> None:
    history, start, stop, family = mine
    stage = stage_of(*mine)
    others = Others()
    expected: dict[int, int] = {}
    for number, (other, other_start, other_stop, other_family) in enumerate(theirs):
        announce(others, number, [stage_of(other, other_start, other_stop, other_family)])
        shared = [
            step
            for step in range(max(start, other_start) + 1, min(stop, other_stop) + 1)
            if other_family == family and other[:step] == history[:step]
        ]
        if shared:
            expected[number] = max(shared)
    found = others.covering(stage)
    if not expected:
        assert found is None
        return
    assert found is not None
    foreign, wanted = found
    assert foreign.is_path("them", foreign.number)
    assert wanted == key_of(family, stage.configuration, expected[foreign.number])
    for number in expected:
        others.end("them", number)
    assert others.covering(stage) is None


def test_news_of_a_path_replace_what_was_known_of_it() -> None:
    others = Others()
    history, family = (0.1,) * STOP, Family("code", 0)
    first, second = stage_of(history, 0, 3, family), stage_of(history, 3, 6, family)
    announce(others, 1, [first, second])
    assert others.are_there
    assert others.covering(first) is not None
    announce(others, 1, [second])
    assert others.covering(first) is None
    assert others.covering(second) is not None
    others.end("them", 1)
    others.end("them", 1)  # heard twice
    assert others.covering(second) is None


def test_stages_travel_with_functions_of_the_user() -> None:
    configuration = Configuration.of({"lr": lambda step: 0.1 / (step + 1)})
    family = Family("code", 0)
    stage = Stage(
        key=key_of(family, configuration, 3),
        start_key=None,
        start_link=first_link(family, tokens_at(configuration, 0)),
        start=0,
        stop=3,
        family=family,
        configuration=configuration,
        report_steps=(),
        evaluates=False,
    )
    others = Others()
    announce(others, 1, [stage])
    found = others.covering(stage)
    assert found is not None
    assert found[1] == stage.key == Digest(stage.key_at(3))
    assert pickle.loads(pickle.dumps(found[1])) == stage.key


@given(mine=st.lists(rows(), max_size=4), theirs=st.lists(rows(), max_size=2))
def test_a_path_is_free_up_to_the_first_stage_that_somebody_covers(
    mine: list[tuple[Sequence[float], int, int, Family]],
    theirs: list[tuple[Sequence[float], int, int, Family]],
) -> None:
    others = Others()
    for number, row in enumerate(theirs):
        announce(others, number, [stage_of(*row)])
    stages = [stage_of(*row) for row in mine]
    covering = [others.covering(stage) for stage in stages]
    n_free, foreign = others.before(stages)
    assert all(each is None for each in covering[:n_free])
    if foreign is None:
        assert n_free == len(stages)
    else:
        found = covering[n_free]
        assert found is not None
        assert found[0] == foreign


def written_with_a_package(folder: Path, how: str) -> Configuration:
    """A schedule that needs a package which only its driver has."""
    (folder / "only_theirs_deep.py").write_text("BASE = 0.1\n")
    (folder / "only_theirs.py").write_text(
        "import importlib\n"
        "def early(step):\n    return 0.1\n"
        "def late(step):\n    return importlib.import_module('only_theirs_deep').BASE\n"
    )
    module = importlib.import_module("only_theirs")
    return Configuration.of({"lr": getattr(module, how)})


@pytest.mark.parametrize("how", ["early", "late"])
def test_what_cannot_be_read_here_is_nobodys_and_said_once_for_each_driver(
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    configuration = written_with_a_package(tmp_path, how)
    mine = stage_of((0.1,) * STOP, 0, 3, Family("code", 0))
    theirs = replace(mine, configuration=configuration, key=Digest("0" * 64))
    content = pickle.dumps(theirs)
    for name in ("only_theirs", "only_theirs_deep"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if how == "early":  # the package itself is missing
        (tmp_path / "only_theirs.py").unlink()
    (tmp_path / "only_theirs_deep.py").unlink()
    importlib.invalidate_caches()

    others = Others()
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):
            others.begin("them", number, "w", [content])
            assert others.covering(mine) is None
        assert others.are_there
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "trained twice" in caplog.text
        others.begin("more of them", 1, "w", [content])
        assert others.covering(mine) is None
    assert len(caplog.records) == 2
    # Others are read as ever, and so is what the same driver says later.
    announce(others, 1, [mine], "us")
    assert others.covering(mine) is not None
    others.end("us", 1)
    announce(others, 3, [mine])
    assert others.covering(mine) is not None


def test_news_that_cannot_be_read_end_what_was_known_of_their_path() -> None:
    others = Others()
    stage = stage_of((0.1,) * STOP, 0, 3, Family("code", 0))
    announce(others, 1, [stage])
    others.begin("them", 1, "w", [b"of another version"])
    assert others.covering(stage) is None


def test_who_begins_anew_knows_of_nobody() -> None:
    others = Others()
    stage = stage_of((0.1,) * STOP, 0, 3, Family("code", 0))
    announce(others, 1, [stage])
    others.begin_anew()
    assert not others.are_there
    assert others.covering(stage) is None
