"""What others run: whether it covers what we want, found by halves as by trying all steps."""

import pickle
from collections.abc import Sequence

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


def announce(others: Others, number: int, stages: Sequence[Stage]) -> None:
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
    others.begin("them", number, str(plain["worker"]), plain["stages"])


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
