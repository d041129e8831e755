"""Small search spaces of all kinds, for laws to be tried on."""

from hypothesis import strategies as st

from dasktune.space import (
    SearchSpace,
    choice,
    constant,
    cosine,
    logint,
    loguniform,
    piecewise,
    randint,
    step_decay,
    uniform,
    warmup,
)

_numbers: st.SearchStrategy[object] = st.one_of(
    st.builds(lambda low, n: randint(low, low + n), st.integers(-3, 3), st.integers(0, 4)),
    st.builds(lambda low, n: logint(low, low + n), st.integers(1, 5), st.integers(0, 6)),
    st.builds(lambda n: uniform(0.0, n / 4, step=0.25), st.integers(0, 4)),
)
_choices: st.SearchStrategy[object] = st.one_of(
    st.lists(
        st.sampled_from([0.1, 1, True, None, "adam", cosine(0.1, 9), piecewise({0: 0.1, 3: 0.2})]),
        min_size=1,
        max_size=4,
        unique_by=repr,
    ).map(choice),
    st.just(step_decay(0.1, factor=choice([0.1, 0.5]), at=choice([[3], [3, 6]]))),
    st.just(choice([constant(0.1), warmup(randint(1, 2), constant(0.1))])),
)
_conditional: st.SearchStrategy[object] = st.builds(
    lambda inner: choice({"sgd": {"momentum": inner}, "adam": {}}), _numbers
)
_finite = _numbers | _choices
_continuous: st.SearchStrategy[object] = st.sampled_from(
    [uniform(-1.0, 1.0), loguniform(1e-5, 1.0), choice([0.5, uniform(0.0, 0.1)])]
)

finite_spaces: st.SearchStrategy[SearchSpace] = st.one_of(
    st.fixed_dictionaries({"lr": _finite}, optional={"batch_size": _finite}),
    st.fixed_dictionaries({"lr": _finite, "optimizer": _conditional}),
).map(SearchSpace)
"""Spaces of at most some hundred points, some of them conditional, some with schedules."""

continuous_spaces: st.SearchStrategy[SearchSpace] = st.fixed_dictionaries(
    {"lr": _continuous}, optional={"batch_size": _finite, "optimizer": _conditional}
).map(SearchSpace)
"""Spaces that have no end."""

SCHEDULES = SearchSpace(
    {
        "lr": choice(
            [
                constant(0.1),
                step_decay(0.1, factor=0.1, at=[3]),
                piecewise({0: 0.1, 3: 0.01, 6: 0.001}),
                warmup(2, constant(0.1)),
            ]
        ),
        "momentum": choice([0.9, piecewise({0: 0.9, 5: 0.95})]),
    }
)
"""Eight configurations that share many first steps; they part at steps 0, 3, 5 and 6."""
