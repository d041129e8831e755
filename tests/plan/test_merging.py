from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from dasktune.plan.merging import (
    distinct_steps,
    merge_rate,
    steps_requested,
    steps_unique,
    why_shared,
)
from dasktune.plan.search_plan import SearchPlan
from dasktune.space import Configuration, token
from dasktune.trial import TrialId
from dasktune.units import Step
from tests.plan.naive import State, state_of
from tests.strategies import (
    FAMILIES,
    HORIZON,
    WAYS,
    DrawnTrial,
    Row,
    asked,
    configurations,
    differ_at,
    rows,
    trial_sets,
)

N_STUDIES = 3
some_studies = st.frozensets(st.integers(0, N_STUDIES - 1))
studies_or_all = st.none() | some_studies


def brute_unique(drawn: Iterable[DrawnTrial]) -> int:
    distinct: set[State] = set()
    for trial in drawn:
        distinct.update(state_of(trial.family, trial.configuration, trial.furthest).up()[:-1])
    return len(distinct)


@given(trial_sets(max_size=8, n_studies=N_STUDIES), studies_or_all)
def test_counts_equal_brute_force_for_every_set_of_studies(
    drawn: list[DrawnTrial], studies: frozenset[int] | None
) -> None:
    plan = asked(drawn)
    chosen = [trial for trial in drawn if studies is None or trial.id.study in studies]
    requested = sum(trial.furthest for trial in chosen)
    unique = brute_unique(chosen)
    assert steps_requested(plan, studies) == requested
    assert steps_unique(plan, studies) == unique
    assert merge_rate(plan, studies) == (requested / unique if unique else 1.0)


@given(trial_sets(max_size=8, n_studies=N_STUDIES))
def test_rates_do_not_depend_on_what_was_executed_or_ended(drawn: list[DrawnTrial]) -> None:
    plan = asked(drawn)
    before = [merge_rate(plan, frozenset([study])) for study in range(N_STUDIES)]
    for vertex in plan.tree.vertices()[1:3]:
        if vertex.parent is not None and vertex.parent.is_stored:
            plan.claim(vertex, vertex.parent.step, 1)
            plan.finish(vertex, vertex.parent.step, reached=vertex.step, executed_steps=0)
    plan.end(plan.trials.values())
    assert [merge_rate(plan, frozenset([study])) for study in range(N_STUDIES)] == before
    assert steps_unique(plan) == plan.steps_unique


@given(trial_sets(max_size=8, n_studies=N_STUDIES))
def test_the_rate_of_several_studies_is_the_rate_of_their_union(drawn: list[DrawnTrial]) -> None:
    """q = r * (sum of requested / sum of unique), r: unique one by one over unique together."""
    plan = asked(drawn)
    own = [steps_unique(plan, frozenset([study])) for study in range(N_STUDIES)]
    together = steps_unique(plan)
    assert max(own) <= together <= sum(own)
    assert merge_rate(plan) >= 1.0


@given(st.lists(st.lists(rows, min_size=1, max_size=3), min_size=1, max_size=3))
def test_a_full_grid_has_the_closed_form(columns: list[list[Row]]) -> None:
    """Distinct steps: sum over t of the product over names of distinct prefixes through t."""

    def n_prefixes(column: Sequence[Row], t: Step) -> int:
        return len({tuple(map(token, row[: t + 1])) for row in column})

    unique = sum(prod(n_prefixes(column, t) for column in columns) for t in range(HORIZON))
    grid = [
        Configuration.of({f"x{i}": WAYS[n % len(WAYS)](row) for i, row in enumerate(chosen)})
        for n, chosen in enumerate(product(*columns))
    ]
    plan = SearchPlan()
    for number, configuration in enumerate(grid):
        trial = plan.add(
            TrialId(0, number), FAMILIES[0], configuration, stop=HORIZON, decision_steps=()
        )
        plan.request(trial, HORIZON)
    assert steps_unique(plan) == plan.steps_unique == distinct_steps(grid, HORIZON) == unique
    assert merge_rate(plan) == len(grid) * HORIZON / unique


@given(configurations, st.integers(1, 5))
def test_copies_of_one_trial_share_all(configuration: Configuration, n: int) -> None:
    assert distinct_steps([configuration] * n, HORIZON) == HORIZON


def test_a_plan_that_was_asked_nothing_has_rate_one() -> None:
    assert merge_rate(SearchPlan()) == 1.0


@given(configurations, configurations, st.integers(1, HORIZON))
def test_reason_names_the_step_and_the_hyper_parameters_that_part_two_trials(
    a: Configuration, b: Configuration, stop: Step
) -> None:
    sentence = why_shared(a, b, stop)
    shared = differ_at(a, b, stop)
    if set(a.names) != set(b.names):
        only = ", ".join(sorted(set(a.names) ^ set(b.names)))
        assert sentence == f"they share nothing: only one of them has {only}"
    elif shared == stop:
        assert sentence == f"they share all {stop} steps"
    else:
        first, _, parted = sentence.partition(f": at step {shared} ")
        assert first == (f"they share steps 0 to {shared - 1}" if shared else "they share nothing")
        left, right = a.at(shared), b.at(shared)
        assert parted == " and ".join(
            f"{name} is {left[name]!r} in one and {right[name]!r} in the other"
            for name in sorted(left)
            if token(left[name]) != token(right[name])
        )
