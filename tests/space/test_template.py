from collections.abc import Callable
from typing import Any

import pytest

from dasktune.errors import InvalidStudyError
from dasktune.space import (
    Configuration,
    Schedule,
    SearchSpace,
    Template,
    choice,
    constant,
    cosine,
    cosine_restarts,
    cyclic,
    exponential,
    join,
    linear,
    loguniform,
    piecewise,
    polynomial,
    randint,
    splice,
    step_decay,
    uniform,
    warmup,
)

one = choice([0.5])
n = randint(2, 2)
any_step_decay: Any = step_decay

PAIRS: list[tuple[Callable[[], object], Schedule, set[str]]] = [
    (lambda: constant(one), constant(0.5), {"lr.v"}),
    (lambda: constant((1, one)), constant((1, 0.5)), {"lr.v[1]"}),
    (
        lambda: step_decay(one, factor=0.1, at=[randint(6, 6), 12]),
        step_decay(0.5, factor=0.1, at=[6, 12]),
        {"lr.v", "lr.at[0]"},
    ),
    (
        lambda: step_decay(1, factor=one, at=choice([[6, 12]])),
        step_decay(1, factor=0.5, at=[6, 12]),
        {"lr.factor", "lr.at"},
    ),
    (
        lambda: piecewise({9: one, 0: "a"}),
        piecewise({0: "a", 9: 0.5}),
        {"lr.values[9]"},
    ),
    (lambda: exponential(one, one), exponential(0.5, 0.5), {"lr.v", "lr.rate"}),
    (lambda: linear(one, 0, n), linear(0.5, 0, 2), {"lr.v", "lr.steps"}),
    (lambda: linear(1, one, 2), linear(1, 0.5, 2), {"lr.end"}),
    (
        lambda: polynomial(1, 0, 2, power=one),
        polynomial(1, 0, 2, power=0.5),
        {"lr.power"},
    ),
    (lambda: cosine(one, n), cosine(0.5, 2), {"lr.v", "lr.steps"}),
    (lambda: cosine(1, 2, one), cosine(1, 2, 0.5), {"lr.end"}),
    (
        lambda: cosine_restarts(1, n, n, one),
        cosine_restarts(1, 2, 2, 0.5),
        {"lr.period", "lr.factor", "lr.end"},
    ),
    (lambda: cyclic(one, 1, n), cyclic(0.5, 1, 2), {"lr.low", "lr.half_period"}),
    (lambda: warmup(n, 0.1), warmup(2, 0.1), {"lr.n"}),
    (lambda: warmup(2, one), warmup(2, 0.5), {"lr.then"}),
    (
        lambda: warmup(2, choice([cosine(one, 3)])),
        warmup(2, cosine(0.5, 3)),
        {"lr.then", "lr.then[0].v"},
    ),
    (
        lambda: join([0.1, one, cosine(one, 2)], at=[n, 5]),
        join([0.1, 0.5, cosine(0.5, 2)], at=[2, 5]),
        {"lr.schedules[1]", "lr.schedules[2].v", "lr.at[0]"},
    ),
    (
        lambda: splice([one, 0.1, cosine(one, 3)], at=[n, 5]),
        splice([0.5, 0.1, cosine(0.5, 3)], at=[2, 5]),
        {"lr.schedules[0]", "lr.schedules[2].v", "lr.at[0]"},
    ),
    (
        lambda: splice([0.5, one], at=[n]),
        constant(0.5),
        {"lr.schedules[1]", "lr.at[0]"},
    ),
]


def first(_: str, domain: Any) -> int | float:  # noqa: ANN401
    value: int | float = domain.from_unit(0.0)
    return value


@pytest.mark.parametrize(("template", "plain", "paths"), PAIRS)
def test_a_template_makes_what_the_plain_call_with_drawn_values_makes(
    template: Callable[[], object], plain: Schedule, paths: set[str]
) -> None:
    made = template()
    assert isinstance(made, Template)
    point, configuration = SearchSpace({"lr": made}).draw(first)
    assert configuration == Configuration.of({"lr": plain})
    assert set(point) == paths


@pytest.mark.parametrize(("template", "plain", "paths"), PAIRS)
def test_templates_are_equal_by_definition(
    template: Callable[[], object], plain: Schedule, paths: set[str]
) -> None:
    assert template() == template()
    assert hash(template()) == hash(template())
    assert template() != plain
    assert sum(template() == other() for other, *_ in PAIRS) == len({frozenset(paths)})


def test_the_text_is_the_call() -> None:
    template = step_decay(loguniform(1e-3, 1), factor=choice([0.1, 0.3]), at=[6, randint(9, 12)])
    assert template.text == (
        "step_decay(loguniform(0.001, 1.0), factor=choice([0.1, 0.3]), at=[6, randint(9, 12)])"
    )
    assert piecewise({0: 1, 9: randint(2, 3)}).text == "piecewise({0: 1, 9: randint(2, 3)})"


def test_an_argument_may_be_changed_afterwards() -> None:
    at = [6, 12]
    space = SearchSpace({"lr": step_decay(one, factor=0.1, at=at)})
    at[0] = 1
    _, configuration = space.draw(first)
    assert configuration == Configuration.of({"lr": step_decay(0.5, factor=0.1, at=[6, 12])})


@pytest.mark.parametrize(
    ("call", "value", "cure"),
    [
        (lambda: step_decay(uniform(0, 1), factor=0, at=[6]), "0", "above 0"),
        (lambda: step_decay(uniform(0, 1), factor=choice([0.1, -1]), at=[6]), "-1", "above 0"),
        (lambda: step_decay(1, factor=uniform(0, 1), at=[6]), "0.0", "above 0"),
        (lambda: step_decay(one, factor=0.1, at=choice([[6], [9, 3]])), "[9, 3]", "rise strictly"),
        (
            lambda: step_decay(1, factor=0.1, at=[randint(3, 9), randint(5, 12)]),
            "[9, 5]",
            "rise strictly",
        ),
        (lambda: warmup(randint(-1, 3), 0.1), "-1", "at least 0"),
        (lambda: warmup(3, choice([0.1, "x"])), "'x'", "finite number"),
        (lambda: warmup(3, choice([cosine(one, 3), piecewise({0: "x"})])), "'x'", "finite number"),
        (lambda: cosine(0.1, uniform(1, 9)), "1.0", "an integer"),
        (lambda: cosine(0.1, choice([5, 2.5])), "2.5", "an integer"),
        (lambda: join([one, 0.1], at=[]), "at=[]", "one step fewer"),
        (lambda: splice([one, 0.1], at=[]), "splice: at", "one step fewer"),
        (lambda: splice([one, 0.1], at=[randint(0, 5)]), "0", "splice: at[0] must be at least 1"),
        (lambda: piecewise({0: choice([cosine(1, 2)])}), "cosine(1.0, steps=2)", "join([...]"),
        (lambda: constant(choice([cosine(1, 2)])), "cosine(1.0, steps=2)", "a value is"),
        (
            lambda: any_step_decay(choice({0.1: {"x": 1}}), factor=0.1, at=[6]),
            "{0.1: {'x': 1}}",
            "sub-space belongs directly at a name",
        ),
    ],
)
def test_what_the_plain_call_would_refuse_is_refused_when_the_template_is_born(
    call: Callable[[], object], value: str, cure: str
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        call()
    assert value in str(error.value)
    assert cure in str(error.value)


def test_a_template_with_very_many_corners_is_born_quickly_and_checked_when_drawn() -> None:
    many = choice([float(i + 1) for i in range(300)])
    space = SearchSpace({"lr": cosine(many, 5, many), "wd": linear(many, many, 3)})
    assert space.size == 300**4
    late = step_decay(1, factor=0.5, at=[choice([1, 20]), choice([*range(30, 330), 15])])
    with pytest.raises(InvalidStudyError, match=r"^lr: step_decay: at must rise .* 15 follows 20"):
        SearchSpace({"lr": late}).configuration({"lr.at[0]": 1, "lr.at[1]": 300})


def test_one_wrong_option_is_found_among_very_many_combinations() -> None:
    many = choice([float(i + 1) for i in range(300)])
    with pytest.raises(InvalidStudyError, match=r"polynomial: steps must be .* got 7\.5"):
        polynomial(many, many, choice([5, 6, 7.5]), power=1)
    with pytest.raises(InvalidStudyError, match=r"linear: v must be a finite number .* got 'x'"):
        linear(choice([1, "x"]), many, 3)
