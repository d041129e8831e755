import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.plan.history import changes, tokens_at
from dasktune.plan.keys import Family, extended, first_link, next_link, state_key
from dasktune.plan.paths import stage_between
from dasktune.plan.search_plan import SearchPlan
from dasktune.space import Configuration, Schedule, constant, join, piecewise, step_decay, token
from dasktune.space.schedule import FunctionSchedule
from dasktune.trial import TrialId
from dasktune.units import Digest, Step
from tests.strategies import (
    FAMILIES,
    HORIZON,
    WAYS,
    DrawnTrial,
    Row,
    configurations,
    pairs_at,
    rows,
    trial_sets,
)

GOLDEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "golden" / "keys.json").read_text(encoding="utf-8")
)

Change = tuple[Step, tuple[tuple[str, str], ...]]
Chain = tuple[Family, tuple[tuple[str, str], ...], tuple[Change, ...], Step]


def key_of(configuration: Configuration, step: Step, family: Family = FAMILIES[0]) -> Digest:
    """Name a state through a plan that holds nothing else."""
    plan = SearchPlan()
    plan.add(TrialId(0, 0), family, configuration, stop=max(step, 1), decision_steps=())
    return plan.tree.vertex(plan.trials[TrialId(0, 0)].node, step).key


def chain_key(chain: Chain) -> Digest:
    family, first, later, step = chain
    return state_key(extended(first_link(family, first), later), step)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["what"])
def test_digests_are_pinned(case: dict[str, Any]) -> None:
    family = Family(case["fingerprint"], case["training_seed"])
    configuration = Configuration.of(
        {name: piecewise(dict(pieces)) for name, pieces in case["history"]}
    )
    link = first_link(family, tokens_at(configuration, 0))
    links = [[0, link.hex()]]
    for step, tokens in changes(configuration, 1, 100):
        link = next_link(link, step, tokens)
        links.append([step, link.hex()])
    assert links == case["links"]
    states = [[step, key_of(configuration, step, family)] for step, _ in case["states"]]
    assert states == case["states"]


def test_pinned_digests_differ_wherever_their_content_does() -> None:
    seen: dict[str, object] = {}
    for case in GOLDEN:
        content = [case["fingerprint"], case["training_seed"], case["history"]]
        for step, digest in case["states"]:
            done = [[n, [p for p in ps if p[0] < max(step, 1)]] for n, ps in content[2]]
            state = json.dumps([*content[:2], done, step])
            assert seen.setdefault(digest, state) == state
    assert len(set(map(str, seen.values()))) == len(seen)


@given(configurations, configurations, st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_states_have_one_key_if_and_only_if_all_values_before_them_are_equal(
    a: Configuration, b: Configuration, step: Step, other: Step
) -> None:
    done = [pairs_at(a, t) for t in range(max(step, 1))]
    are_equal = step == other and done == [pairs_at(b, t) for t in range(max(other, 1))]
    assert (key_of(a, step) == key_of(b, other)) == are_equal


@given(rows, st.integers(0, HORIZON))
def test_how_a_history_is_written_does_not_matter(row: Row, step: Step) -> None:
    keys = {key_of(Configuration.of({"lr": way(row)}), step) for way in WAYS}
    assert len(keys) == 1


@given(
    st.sampled_from([0.1, 0.3, 64, 1.5]),
    st.sampled_from([0.1, 0.5, 3.0]),
    st.lists(st.integers(1, HORIZON - 1), max_size=3, unique=True).map(sorted),
)
def test_a_decay_is_its_values(value: float, factor: float, at: list[Step]) -> None:
    """Products and powers differ in the last bits; values are rounded."""
    pieces: dict[int, float] = {0: float(value)}
    product = float(value)
    for step in at:
        product *= factor
        pieces[step] = product
    ways: list[Schedule] = [
        step_decay(float(value), factor=factor, at=at),
        piecewise(pieces),
        join([constant(v) for v in pieces.values()], at=at),
        FunctionSchedule(lambda t: value * factor ** sum(m <= t for m in at) * 1.0),
    ]
    assert len({key_of(Configuration.of({"lr": way}), HORIZON) for way in ways}) == 1


@given(trial_sets(min_size=1, max_size=5, n_studies=2), st.integers(0, HORIZON), st.data())
def test_key_does_not_depend_on_company(
    drawn: list[DrawnTrial], step: Step, data: st.DataObject
) -> None:
    """Other trials, their order, the vertices they need, numbers of trials and studies."""
    own = drawn[0]
    alone = key_of(own.configuration, step, own.family)
    plan = SearchPlan()
    for place, trial in enumerate(data.draw(st.permutations(drawn))):
        planned = plan.add(
            TrialId(data.draw(st.integers(0, 3)), place),
            trial.family,
            trial.configuration,
            stop=HORIZON,
            decision_steps=trial.decision_steps,
        )
        if trial is own:
            node = planned.node
        if data.draw(st.booleans()):  # a key that is worked out early is kept
            assert all(vertex.key for vertex in plan.tree.vertices())
        for at in trial.report_steps:
            plan.tree.vertex(planned.node, at)
    assert plan.tree.vertex(node, step).key == alone


@given(rows, rows, st.integers(0, HORIZON))
def test_values_to_come_do_not_matter(row: Row, later: Row, step: Step) -> None:
    """But those of step 0 do, also for a fresh state."""
    kept = max(step, 1)
    other = row[:kept] + later[kept:]
    a, b = (Configuration.of({"lr": WAYS[1](values)}) for values in (row, other))
    assert key_of(a, step) == key_of(b, step)


words = st.text(st.sampled_from("ab1:;"), max_size=3)
families = st.builds(Family, words, st.integers(-2, 12))
tokens = st.lists(st.tuples(words, words), max_size=3).map(tuple)
later_changes = st.lists(st.tuples(st.integers(1, 12), tokens), max_size=2).map(tuple)
chains: st.SearchStrategy[Chain] = st.tuples(families, tokens, later_changes, st.integers(0, 12))


@given(chains, chains)
def test_other_content_has_another_key(a: Chain, b: Chain) -> None:
    assert (chain_key(a) == chain_key(b)) == (a == b)


def moved(parts: Iterable[str]) -> list[list[str]]:
    """All ways to move one character across a boundary between neighbours."""
    row = list(parts)
    found = []
    for i in range(len(row) - 1):
        left, right = row[i], row[i + 1]
        if left:
            found.append([*row[:i], left[:-1], left[-1] + right, *row[i + 2 :]])
        if right:
            found.append([*row[:i], left + right[0], right[1:], *row[i + 2 :]])
    return found


@given(st.lists(st.text(st.sampled_from("a1:"), max_size=4), min_size=5, max_size=5))
def test_parts_moved_across_a_boundary_give_another_key(parts: list[str]) -> None:
    def key(row: list[str]) -> Digest:
        fingerprint, *rest = row
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        return state_key(first_link(Family(fingerprint, 0), pairs), 1)

    def continued(row: list[str]) -> Digest:
        start = first_link(Family("", 0), ())
        pairs = list(zip(row[1::2], row[2::2], strict=True))
        return state_key(next_link(start, 1, pairs), 1)

    for other in moved(parts):
        assert key(other) != key(parts)
    for other in moved(parts[1:]):
        assert continued([parts[0], *other]) != continued(parts)


def test_digits_moved_between_a_link_and_its_step_give_another_key() -> None:
    start = first_link(Family("", 0), ())
    digests = {state_key(start, 11), state_key(next_link(start, 1, ()), 1)}
    digests |= {state_key(next_link(start, 11, ()), 1), state_key(next_link(start, 1, ()), 11)}
    assert len(digests) == 4


def test_a_key_is_64_hexadecimal_digits() -> None:
    key = key_of(Configuration.of({"lr": 0.1}), 3)
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")


@given(configurations, st.integers(0, HORIZON), st.integers(0, HORIZON), st.integers(1, HORIZON))
def test_a_stage_names_the_states_inside_it_as_the_plan_does(
    configuration: Configuration, start: Step, at: Step, stop: Step
) -> None:
    start, at, stop = sorted([start, at, max(stop, start)])
    plan = SearchPlan()
    trial = plan.add(TrialId(0, 0), FAMILIES[0], configuration, stop=HORIZON, decision_steps=())
    begin = plan.tree.vertex(trial.node, start)
    end = plan.tree.vertex(trial.node, stop)
    stage = stage_between(begin, end, ())
    assert stage.key_at(at) == key_of(configuration, at)
    assert stage.key == stage.key_at(stop)
    assert (stage.start_key or stage.key_at(start)) == stage.key_at(start)


@given(rows)
def test_equal_neighbours_are_fused_before_hashing(row: Row) -> None:
    """A chain has a link for each change, however many pieces a schedule is written in."""
    configuration = Configuration.of({"lr": WAYS[1](row)})
    n_changes = sum(token(a) != token(b) for a, b in pairwise(row))
    assert len(list(changes(configuration, 1, HORIZON))) == n_changes
