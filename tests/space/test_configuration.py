import pytest
from hypothesis import given
from hypothesis import strategies as st

from dasktune.errors import InvalidStudyError
from dasktune.space import Configuration, Schedule, choice, constant, cosine, uniform
from tests.space.strategies import HORIZON, few_values, schedules, token_of

named = st.dictionaries(st.sampled_from(["lr", "wd", "bs", "optimizer"]), schedules, max_size=3)


@given(named, st.integers(0, HORIZON))
def test_values_come_by_name(mapping: dict[str, Schedule], step: int) -> None:
    configuration = Configuration.of(mapping)
    assert configuration.names == tuple(sorted(mapping))
    assert configuration.text == {name: each.text for name, each in mapping.items()}
    values = configuration.at(step)
    assert list(values) == sorted(mapping)
    assert all(token_of(values[name]) == token_of(mapping[name].at(step)) for name in mapping)


@given(named)
def test_the_order_of_writing_does_not_matter(mapping: dict[str, Schedule]) -> None:
    backwards = dict(reversed(mapping.items()))
    assert Configuration.of(mapping) == Configuration.of(backwards)
    assert hash(Configuration.of(mapping)) == hash(Configuration.of(backwards))


@given(few_values, few_values)
def test_configurations_are_equal_only_with_values_of_one_type(a: object, b: object) -> None:
    is_equal = Configuration.of({"lr": a}) == Configuration.of({"lr": b})
    assert is_equal == (token_of(a) == token_of(b))


def test_plain_values_are_constants() -> None:
    assert Configuration.of({"lr": 0.1}) == Configuration.of({"lr": constant(0.1)})
    assert Configuration.of({"shape": (3, 3)}).at(7) == {"shape": (3, 3)}


def test_functions_are_schedules() -> None:
    assert Configuration.of({"lr": lambda step: 2 * step}).at(3) == {"lr": 6}


@pytest.mark.parametrize(
    ("mapping", "value", "cure"),
    [
        ({"lr": uniform(0, 1)}, "uniform(0.0, 1.0)", "SearchSpace draws"),
        ({"lr": choice([1, 2])}, "choice([1, 2])", "SearchSpace draws"),
        ({"lr": cosine(uniform(0, 1), 5)}, "cosine(uniform(0.0, 1.0)", "SearchSpace draws"),
        ({"lr": [0.1]}, "[0.1]", "write choice([...])"),
        ({"lr": {0: 0.1}}, "{0: 0.1}", "piecewise({...})"),
        ({"": 0.1}, "''", "an identifier"),
        ({3: 0.1}, "3", "an identifier"),
        ({"lr": float("nan")}, "nan", "lr is nan"),
    ],
)
def test_what_is_no_configuration_is_refused_with_the_value_and_the_cure(
    mapping: dict[str, object], value: str, cure: str
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        Configuration.of(mapping)
    assert value in str(error.value)
    assert cure in str(error.value)
