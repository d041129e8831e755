"""Training code as bytes: by value to others, and as it is to the process that has it."""

import asyncio
import importlib
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

import dasktune as dt
from dasktune.runtime.payload import (
    Payload,
    by_value,
    early_imports,
    pack,
    travelling_by_value,
    unpack,
)
from dasktune.runtime.plugins import TrainingCode
from dasktune.runtime.task import PAYLOADS
from dasktune.units import Digest
from tests.runtime.trainables import Walk
from tests.worlds import small_study


def test_what_is_ours_travels_as_cloudpickle_would_send_it() -> None:
    for thing in (dt.constant(0.1), [dt.cosine(0.1, 3)], {"x": dt.choice([1, 2])}, small_study):
        with travelling_by_value():
            assert by_value(thing) == cloudpickle.dumps(thing)


def test_torch_is_imported_early_where_training_code_names_it() -> None:
    pytest.importorskip("torch")
    plain, with_torch = Payload(b"numpy", Digest("1")), Payload(b"\x8c\x05torch", Digest("2"))

    assert early_imports([plain]) == ()
    assert early_imports([plain, with_torch]) == ("dasktune.runtime.torch_early",)


class Rate:
    """Reads a global when it trains."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def setup(self, hp: object, seed: int) -> None:  # noqa: ARG002
        self.settings["seed"] = seed

    def step(self, hp: object, t: int) -> None:  # noqa: ARG002
        self.settings["rate"] = RATE

    def evaluate(self) -> dict[str, float]:
        return {"rate": float(self.settings["rate"])}

    def state_dict(self) -> object:
        return self.settings

    def load_state_dict(self, state: object) -> None:
        pass


RATE = 1.0


def test_unpacking_gives_fresh_instances_whose_data_is_their_own() -> None:
    original = Rate({"a": [1]})
    payload = pack(original)
    one, other = unpack(payload), unpack(payload)
    one.setup({}, 7)
    assert one.state_dict() == {"a": [1], "seed": 7}
    assert other.state_dict() == original.settings == {"a": [1]}


def test_code_that_came_as_bytes_knows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(pack(Rate({})).content)
    asked = "type(cloudpickle.load(open(sys.argv[1], 'rb'))).step.__code__.co_filename"
    command = [sys.executable, "-c", f"import sys, cloudpickle; print({asked})", str(file)]

    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert answer.stdout == f"{Rate.step.__code__.co_filename}\n" == f"{__file__}\n"


def test_unpacking_where_it_was_packed_leaves_the_users_class_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Rate.step
    instance = unpack(pack(Rate({})))
    assert type(instance) is Rate
    assert Rate.step is step
    monkeypatch.setattr(sys.modules[__name__], "RATE", 5.0)  # as in a notebook
    instance.step({}, 0)
    assert instance.evaluate() == {"rate": 5.0}
    small_study(trainable=Rate({}))  # its source is found


def test_elsewhere_it_needs_no_module_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs_helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "theirs.py").write_text(
        "from theirs_helper import double\n"
        "class Theirs:\n"
        "    def evaluate(self): return {'x': double(21)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    payload = pack(importlib.import_module("theirs").Theirs())
    (tmp_path / "payload").write_bytes(cloudpickle.dumps(payload))
    code = (
        "import pickle, sys; from dasktune.runtime.payload import unpack;"
        "p = pickle.loads(open(sys.argv[1], 'rb').read());"
        "assert p.local is None;"
        "print(unpack(p).evaluate(), 'theirs' in sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "payload")],
        check=True, capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    assert answer.stdout.strip() == "{'x': 42} False"


def test_contexts_in_which_modules_travel_by_value_may_overlap() -> None:
    walk = Walk("")
    by_reference = len(cloudpickle.dumps(walk))
    first, second = ExitStack(), ExitStack()
    first.enter_context(travelling_by_value())
    second.enter_context(travelling_by_value())
    first.close()
    assert len(cloudpickle.dumps(walk)) > by_reference
    second.close()
    assert len(cloudpickle.dumps(walk)) == by_reference


def test_the_code_of_a_run_stays_until_the_last_run_that_uses_it_has_left() -> None:
    payload = Payload(b"same code", pack(Rate({})).digest)
    one = TrainingCode("one", {payload.digest: payload}, mends=False)
    two = TrainingCode("two", {payload.digest: payload}, mends=False)
    one.setup(None)
    two.setup(None)
    worker = SimpleNamespace(status=SimpleNamespace(name="running"))
    asyncio.run(one.teardown(worker))
    assert [PAYLOADS[each] for each in PAYLOADS if each[1] == payload.digest] == [payload]
    asyncio.run(two.teardown(worker))
    assert not [each for each in PAYLOADS if each[1] == payload.digest]


def test_what_cannot_be_pickled_is_refused_in_a_sentence() -> None:
    with pytest.raises(dt.InvalidStudyError, match=r"cannot be sent to workers.*in setup") as said:
        pack(Rate({"generator": (i for i in range(3))}))
    assert "\n" not in str(said.value)
