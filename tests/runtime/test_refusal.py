"""What cannot travel is refused before anything is sent, by name, with the cure."""

import io
import multiprocessing
import socket
import sqlite3
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dasktune.errors import InvalidStudyError
from dasktune.runner import run
from dasktune.runtime import refusal
from dasktune.runtime.refusal import is_guarded, refuse_what_cannot_travel
from tests.runtime.mistaken import Right
from tests.worlds import small_study

ROOT = Path(__file__).parents[2]
MB = 2**20
LARGE = np.zeros(11 * MB, np.uint8)
LOCK = threading.Lock()


def refused(trainable: object) -> str:
    with pytest.raises(InvalidStudyError) as caught:
        refuse_what_cannot_travel(trainable)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith("in setup(), which runs where training does")
    return text


def holding(**attributes: object) -> Right:
    trainable = Right()
    vars(trainable).update(attributes)
    return trainable


# --- attributes


@pytest.mark.parametrize(
    "thing",
    [
        LARGE,
        bytes(11 * MB),
        bytearray(11 * MB),
        "x" * (11 * MB),
        array("B", bytes(11 * MB)),
        [np.zeros(MB, np.uint8) for _ in range(11)],
    ],
    ids=["array", "bytes", "bytearray", "text", "array.array", "many arrays"],
)
def test_what_is_too_large_is_named_with_its_size(thing: object) -> None:
    text = refused(holding(small=1, data=thing))

    assert text.startswith("trainable.data has 11")
    assert "10 MB are allowed: load it in setup()" in text


@pytest.mark.torch
def test_a_large_tensor_is_named() -> None:
    torch = pytest.importorskip("torch")

    assert refused(holding(w=[torch.zeros(3 * MB)])).startswith("trainable.w[0] has 12.0 MB")


def test_large_arrays_are_not_copied_to_find_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Huge(np.ndarray[Any, Any]):
        def __reduce__(self) -> Any:  # noqa: ANN401
            raise AssertionError("it is being pickled")

    assert "trainable.x has" in refused(holding(x=LARGE.view(Huge)))
    monkeypatch.setattr(refusal, "LIMIT_BYTES", 10)
    assert "trainable.x has" in refused(holding(x=np.zeros(2).view(Huge)))


@pytest.fixture
def things() -> Iterator[dict[str, object]]:
    with (
        Path(__file__).open(encoding="utf-8") as file,
        io.FileIO(__file__) as raw,
        socket.socket() as plug,
        closing(sqlite3.connect(":memory:")) as base,
    ):
        yield {
            "lock": threading.Lock(),
            "rlock": threading.RLock(),
            "event": threading.Event(),
            "shared": multiprocessing.Lock(),
            "file": file,
            "raw": raw,
            "socket": plug,
            "generator": (i for i in range(3)),
            "base": base,
        }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lock", "trainable.x[0]['a'] is a lock"),
        ("rlock", "trainable.x[0]['a'] is a lock"),
        ("event", "trainable.x[0]['a']._cond._lock is a lock"),
        ("shared", "trainable.x[0]['a'] is a lock"),
        ("file", "trainable.x[0]['a'] is an open file"),
        ("raw", "trainable.x[0]['a'] is an open file"),
        ("socket", "trainable.x[0]['a'] is a socket"),
        ("generator", "trainable.x[0]['a'] is a generator"),
        ("base", "trainable.x[0]['a'] cannot be sent to workers (cannot pickle 'sqlite3.Conn"),
    ],
)
def test_what_lives_in_one_process_is_named(
    things: dict[str, object], name: str, words: str
) -> None:
    assert refused(holding(x=[{"a": things[name]}])).startswith(words)


def test_slots_and_bound_methods_are_looked_into() -> None:
    class Slotted:
        __slots__ = ("inner",)
        inner: object

        def call(self) -> None: ...

    slotted = Slotted()
    slotted.inner = LARGE

    assert refused(holding(x=slotted)).startswith("trainable.x.inner has 11.0 MB")
    assert refused(holding(x=slotted.call)).startswith("trainable.x.__self__.inner has")
    assert refused(holding(x=partial(print, LARGE))).startswith("trainable.x.args[0] has")


# --- code


def test_globals_closures_defaults_and_class_attributes_are_named() -> None:
    local = LARGE

    class Reads(Right):
        def evaluate(self) -> dict[str, Any]:
            return {"loss": LARGE.sum()}

    class Locks(Right):
        def evaluate(self) -> dict[str, Any]:
            return {"loss": max(LOCK.locked() for _ in range(1))}

    class Captures(Right):
        def evaluate(self) -> dict[str, Any]:
            return {"loss": local.sum()}

    class Defaults(Right):
        def evaluate(self, data: Any = LARGE) -> dict[str, Any]:  # noqa: ANN401
            return {"loss": data.sum()}

    class Holds(Right):
        data = LARGE

    name = "test_globals_closures_defaults_and_class_attributes_are_named.<locals>"
    assert refused(Reads()).startswith(f"the global LARGE, which {name}.Reads.evaluate reads, has")
    assert refused(Locks()).startswith("the global LOCK, which ")
    assert refused(Captures()).startswith(
        f"the variable local that {name}.Captures.evaluate has from around it has 11.0 MB"
    )
    assert refused(Defaults()).startswith(f"a default of {name}.Defaults.evaluate has")
    assert refused(Holds()).startswith(f"{name}.Holds.data has")


def test_what_may_travel_does() -> None:
    refuse_what_cannot_travel(
        holding(
            data=np.zeros(9 * MB, np.uint8),
            text="a",
            nested={"a": [1, (2, {3})], None: None},
            buffer=io.BytesIO(b"abc"),
            function=lambda x: x + 1,
            rng=np.random.default_rng(0),
            path=Path(),
        )
    )


SCRIPT = """
import threading
import numpy as np
from dasktune.errors import InvalidStudyError
from dasktune.runtime.refusal import refuse_what_cannot_travel
DATA = np.zeros(12 * 2**20, np.uint8)
class Net:
    def step(self, hp, t):
        return DATA[t]
try:
    refuse_what_cannot_travel(Net())
except InvalidStudyError as error:
    print(error)
"""
NOTEBOOK = f"""
import linecache
cell = {SCRIPT!r}
name = "<ipython-input-1>"
linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
exec(compile(cell, name, "exec"), globals())
"""


@pytest.mark.parametrize("source", [SCRIPT, NOTEBOOK], ids=["script", "notebook"])
def test_what_main_holds_is_found(source: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(source, encoding="utf-8")
    command = [sys.executable, str(script)] if source is SCRIPT else [sys.executable, "-c", source]

    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    assert answer.stdout.startswith("the global DATA, which Net.step reads, has 12.0 MB")


def test_a_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    trainable = Right()
    study = small_study(trainable=trainable)
    vars(trainable)["data"] = LARGE

    with pytest.raises(InvalidStudyError, match=r"trainable\.data has 11\.0 MB"):
        run(study, store=tmp_path / "store", workers=0)
    assert list(tmp_path.iterdir()) == []


# --- scripts

GUARDED = [
    'if __name__ == "__main__":\n    run()',
    'if "__main__" == __name__:\n    if True:\n        run()',
    'if __name__ != "__main__":\n    raise SystemExit\nrun()',
    'import sys\nif __name__ != "__main__":\n    sys.exit()\nrun()',
]
UNGUARDED = [
    "run()",
    'if __name__ == "__main__":\n    pass\nrun()',
    "if True:\n    run()",
    'run()\nif __name__ == "__main__":\n    pass',
    "def main():\n    pass\nfor _ in range(1):\n    run()",
]


@pytest.mark.parametrize("source", GUARDED + UNGUARDED)
def test_guards_are_recognized(source: str) -> None:
    lines = source.splitlines()
    line = next(i for i, text in enumerate(lines, start=1) if "run()" in text)

    assert is_guarded(source, line) == (source in GUARDED)


STUDY = """
import dasktune as dt
class Net:
    def setup(self, hp, seed): self.x = 1.0
    def step(self, hp, t): self.x *= hp["lr"]
    def evaluate(self): return {"loss": self.x}
    def state_dict(self): return {"x": self.x}
    def load_state_dict(self, state): self.x = state["x"]
study = dt.Study(Net(), space={"lr": dt.choice([0.1, 0.2])}, tuner=dt.FullTraining(2),
                 metric="loss", mode="min", n_trials=2)
"""


def run_script(source: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    script = folder / "script.py"
    script.write_text(STUDY + source, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False
    )


def test_an_unguarded_script_gets_one_sentence(tmp_path: Path) -> None:
    answer = run_script("dt.run(study, workers=1)\n", tmp_path)

    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr == (
        f"dasktune: {tmp_path / 'script.py'}, line 11, runs a study when it is imported, as "
        'workers and the command line do: put the call under if __name__ == "__main__":\n'
    )
    assert {path.name for path in tmp_path.iterdir()} == {"script.py"}


def test_an_unguarded_script_may_run_in_its_own_process(tmp_path: Path) -> None:
    answer = run_script("print(dt.run(study, workers=0).best.number)\n", tmp_path)

    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "0\n", "")


def test_the_sentence_can_be_caught_as_an_error() -> None:
    error = refusal.UnguardedScriptError("a sentence")

    assert isinstance(error, InvalidStudyError)
    assert (str(error), error.code) == ("a sentence", "dasktune: a sentence")


def test_what_a_test_runner_calls_is_guarded() -> None:
    refusal.refuse_unguarded_script(starts_workers=True)
