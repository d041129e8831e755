import math
from collections.abc import Callable

import pytest

from dasktune.errors import InvalidStudyError
from dasktune.space import (
    constant,
    cosine,
    cosine_restarts,
    cyclic,
    exponential,
    join,
    linear,
    piecewise,
    polynomial,
    splice,
    step_decay,
    warmup,
)

Bad = Callable[[], object]
REFUSED: list[tuple[Bad, str, str]] = [
    (lambda: constant({"a": 1}), "{'a': 1}", "a value is a bool, int"),  # type: ignore[call-overload]
    (lambda: constant(math.nan), "nan", "must be a number"),
    (lambda: step_decay("0.1", factor=0.1, at=[6]), "'0.1'", "finite number"),  # type: ignore[call-overload]
    (lambda: step_decay(True, factor=0.1, at=[6]), "True", "finite number"),
    (lambda: step_decay(math.inf, factor=0.1, at=[6]), "inf", "finite number"),
    (lambda: step_decay(0.1, factor=0, at=[6]), "0", "above 0"),
    (lambda: step_decay(0.1, factor=-1, at=[6]), "-1", "above 0"),
    (lambda: step_decay(0.1, factor=math.nan, at=[6]), "nan", "finite number"),
    (lambda: step_decay(0.1, factor=0.1, at=[12, 6]), "[12, 6]", "must rise strictly"),
    (lambda: step_decay(0.1, factor=0.1, at=[6, 6]), "[6, 6]", "must rise strictly"),
    (lambda: step_decay(0.1, factor=0.1, at=[6.0]), "6.0", "at[0] must be an integer"),  # type: ignore[list-item]
    (lambda: step_decay(0.1, factor=0.1, at=[True]), "True", "must be an integer"),
    (lambda: step_decay(0.1, factor=0.1, at=[3, -6]), "-6", "at[1] must be at least 1"),
    (lambda: step_decay(0.1, factor=0.1, at=[0]), "0", "at least 1"),
    (lambda: step_decay(0.1, factor=0.1, at=6), "6", "a list of steps such as [6, 12]"),  # type: ignore[call-overload]
    (lambda: step_decay(0.1, factor=0.1, at="6"), "'6'", "a list of steps"),  # type: ignore[arg-type]
    (lambda: step_decay(2, factor=2**600, at=[1, 2]), "1202 bits", "up to 1023"),
    (lambda: step_decay(cosine(1, 2), factor=0.1, at=[6]), "cosine(1.0, steps=2)", "finite"),  # type: ignore[call-overload]
    (lambda: piecewise({9: 1}), "{9: 1}", "a value for step 0"),
    (lambda: piecewise({}), "{}", "a value for step 0"),
    (lambda: piecewise([(0, 1)]), "[(0, 1)]", "a mapping such as {0: 0.1"),  # type: ignore[call-overload]
    (lambda: piecewise({0: 1, 2.5: 2}), "2.5", "must be an integer"),  # type: ignore[dict-item]
    (lambda: piecewise({0: 1, -2: 2}), "-2", "at least 0"),
    (lambda: piecewise({0: cosine(1, 2)}), "cosine(1.0, steps=2)", "join([...], at=[...])"),  # type: ignore[dict-item]
    (lambda: piecewise({0: 1, 5: math.nan}), "nan", "the value of step 5"),
    (lambda: exponential(0.1, 0), "0", "above 0"),
    (lambda: exponential(0.1, math.inf), "inf", "finite number"),
    (lambda: linear(1, None, 4), "None", "finite number"),  # type: ignore[call-overload]
    (lambda: linear(1, 0, 0), "0", "at least 1"),
    (lambda: linear(1, 0, 2.5), "2.5", "must be an integer"),  # type: ignore[call-overload]
    (lambda: polynomial(1, 0, 4, power=0), "0", "above 0"),
    (lambda: cosine(0.1, 0), "0", "at least 1"),
    (lambda: cosine(0.1, True), "True", "must be an integer"),
    (lambda: cosine_restarts(0.1, 0), "0", "at least 1"),
    (lambda: cosine_restarts(0.1, 5, 0), "0", "at least 1"),
    (lambda: cosine_restarts(0.1, 5, 1.5), "1.5", "must be an integer"),  # type: ignore[call-overload]
    (lambda: cyclic(0, 1, 0), "0", "at least 1"),
    (lambda: warmup(-1, 0.1), "-1", "at least 0"),
    (lambda: warmup(3, "x"), "'x'", "finite number"),
    (lambda: warmup(3, lambda _: True), "True", "finite number"),
    (lambda: warmup(3, lambda step: 1 / step), "ZeroDivisionError", "at step 0"),
    (lambda: join([], at=[]), "[]", "at least one schedule"),
    (lambda: join([0.1, 0.2], at=[]), "at=[]", "one step fewer than the 2 schedules"),
    (lambda: join([0.1], at=[4]), "at=[4]", "one step fewer than the 1 schedules"),
    (lambda: join([0.1, 0.2], at=[0]), "0", "at least 1"),
    (lambda: join(cosine(1, 2), at=[]), "cosine(1.0, steps=2)", "a list of"),  # type: ignore[call-overload]
    (lambda: join([0.1, {"a": 1}], at=[3]), "{'a': 1}", "join: schedules[1]"),  # type: ignore[list-item]
    (lambda: splice([], at=[]), "[]", "splice takes a list of at least one schedule"),
    (lambda: splice([0.1, 0.2], at=[]), "at=[]", "one step fewer than the 2 schedules"),
    (lambda: splice([0.1, 0.2], at=[0]), "0", "splice: at[0] must be at least 1"),
    (lambda: splice([0.1, 0.2, 0.3], at=[5, 5]), "[5, 5]", "splice: at must rise strictly"),
    (lambda: splice(cosine(1, 2), at=[]), "cosine(1.0, steps=2)", "a list of"),  # type: ignore[call-overload]
    (lambda: splice([0.1, {"a": 1}], at=[3]), "{'a': 1}", "splice: schedules[1]"),  # type: ignore[list-item]
    (lambda: constant(1).at(-1), "-1", "at least 0"),
    (lambda: constant(1).changes(-1, 3), "-1", "at least 0"),
]


@pytest.mark.parametrize(("call", "value", "cure"), REFUSED)
def test_wrong_input_is_refused_with_the_value_and_the_cure(
    call: Bad, value: str, cure: str
) -> None:
    with pytest.raises(InvalidStudyError) as error:
        call()
    assert value in str(error.value)
    assert cure in str(error.value)
