import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dasktune.errors import InvalidStudyError
from dasktune.study.fingerprint import Fingerprint, difference, fingerprint

ROOT = Path(__file__).parents[2]

TRAIN = '''
"""Train a net."""
import argparse
import math

import helper
from helper import timed as measured

WIDTH = 8


def scale(x):
    return math.sqrt(x) * WIDTH


class Base:
    def close(self):
        return None


class Net(Base):
    """A net."""

    rate = 0.5

    def __init__(self, depth=2):
        self.depth = depth

    @property
    def size(self):
        return scale(self.depth)

    @measured
    def step(self, hp, t):
        # One step.
        return helper.advance(self.size, hp["lr"])


def unused():
    return 1


if __name__ == "__main__":
    print("trains")
'''

HELPER = """
import functools

import far


def timed(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


def advance(x, lr):
    return far.move(x) - lr
"""

FAR = """
GAIN = 3


def move(x):
    return x * GAIN
"""

Load = Callable[..., ModuleType]
Of = Callable[..., Fingerprint]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write modules into a new folder and import the first; the others are found beside it."""
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]

    def write_and_import(**sources: str) -> ModuleType:
        forget()
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, source in sources.items():
            path = folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder))
        return __import__(next(iter(sources)))

    yield write_and_import
    forget()


@pytest.fixture
def of(load: Load) -> Of:
    """Fingerprint what an expression gives in a module with this source."""

    def fingerprint_of(source: str, expression: str = "Net()", **others: str) -> Fingerprint:
        module = load(train=source, **others)
        return fingerprint(eval(expression, vars(module)))

    return fingerprint_of


@pytest.fixture
def value(of: Of) -> Callable[[str], str]:
    """Digest of a trainable whose only attribute is `x`, set by an expression."""

    def digest_of(expression: str, prelude: str = "") -> str:
        source = f"{prelude}\nclass Net:\n    pass\n"
        return of(source, f"(net := Net(), setattr(net, 'x', {expression}))[0]").digest

    return digest_of


def names(found: Fingerprint) -> set[str]:
    return {name for name, _ in found.parts}


def in_process(folder: Path, *arguments: str, hash_seed: str = "random") -> str:
    answer = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# One identity wherever the code is


EVERYWHERE = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum
from logging import getLogger
from pathlib import Path
import threading

from helper import HERE, advance

LOG = getLogger(__name__)
LOCK = threading.Lock()
Point = namedtuple("Point", "x y")
PAIR = lambda x: x + 1, lambda x: x + 2


@dataclass
class Settings:
    rate: float = 0.5
    names: frozenset = frozenset({"a", "b", "c", "d"})


class Kind(Enum):
    SMALL = 1
    LARGE = 2


class Net:
    def __init__(self):
        self.settings = Settings()
        self.kinds = {Kind.SMALL, Kind.LARGE, advance, "text", 1.5}
        self.at = Point(1, 2)

    def step(self, hp, t):
        LOG.info(HERE)
        with LOCK:
            return advance(PAIR[0](t))
"""

KERNEL = """
import linecache
cells = open("cells.txt").read().split("# %%")
for number, cell in enumerate(cells):
    name = f"/tmp/ipykernel_7/{number}.py"
    linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
    exec(compile(cell, name, "exec"))
"""

SHOW = "\nfrom dasktune.study.fingerprint import fingerprint\nprint(fingerprint(Net()))\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that holds the same study as a script, a module and cells of a notebook."""
    helper = "from pathlib import Path\nHERE = Path(__file__).parent / 'data'\ndef advance(x):\n"
    (tmp_path / "helper.py").write_text(helper + "    return x + 1\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(EVERYWHERE, encoding="utf-8")
    (tmp_path / "script.py").write_text(EVERYWHERE + SHOW, encoding="utf-8")
    cells = "\n\n# %%\n".join(("x = 0" + EVERYWHERE + SHOW).split("\n\n\n"))
    (tmp_path / "cells.txt").write_text(cells, encoding="utf-8")
    return tmp_path


def test_script_import_and_notebook_are_one(folder: Path) -> None:
    imported = in_process(folder, "-c", f"from train import Net{SHOW}")

    assert "Settings" in imported
    assert in_process(folder, "script.py") == imported
    assert in_process(folder, "-c", KERNEL) == imported


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_hash_seed_does_not_matter(folder: Path, hash_seed: str) -> None:
    expected = in_process(folder, "script.py", hash_seed="3")

    assert in_process(folder, "script.py", hash_seed=hash_seed) == expected


def test_the_last_run_of_a_cell_counts(folder: Path) -> None:
    edited = KERNEL.replace("for number", "cells.insert(1, cells[3].replace('0.5', '9'))\nfor number")
    assert in_process(folder, "-c", edited) == in_process(folder, "script.py")


def test_name_of_the_module_does_not_matter(load: Load) -> None:
    first = load(one=TRAIN, helper=HELPER, far=FAR)
    here = fingerprint(first.Net())
    second = load(other_name=TRAIN, helper=HELPER, far=FAR)

    assert fingerprint(second.Net()) == here


# What an edit changes


UNRELATED = {
    "comment": ("# One step.", "# Another remark."),
    "docstring of the class": ('"""A net."""', '"""Another text,\n    longer."""'),
    "docstring of the module": ('"""Train a net."""', ""),
    "new docstring": ("def scale(x):", 'def scale(x):\n    """Scale."""'),
    "formatting": ("def scale(x):\n", "\n\n\ndef scale(\n    x,\n):\n"),
    "quotes": ('hp["lr"]', "(hp['lr'])"),
    "unused function": ("return 1", "return 2"),
    "unused import": ("import argparse", "import decimal"),
    "settings under the guard": ('print("trains")', "print(3)"),
    "constant elsewhere": ("WIDTH = 8", "WIDTH = 8\nTRIALS = 100"),
    "order of definitions": ("def unused():\n    return 1\n", ""),
}


@pytest.mark.parametrize("edit", UNRELATED.values(), ids=UNRELATED)
def test_edits_that_train_the_same_change_nothing(of: Of, edit: tuple[str, str]) -> None:
    assert TRAIN.count(edit[0]) == 1

    edited = of(TRAIN.replace(*edit), helper=HELPER, far=FAR)

    assert edited == of(TRAIN, helper=HELPER, far=FAR)


RELATED = {
    "method": ("lr: hp['lr']", 'hp["lr"]', 'hp["rate"]', "Net.step changed"),
    "property": ("", "scale(self.depth)", "scale(self.depth + 1)", "Net.size changed"),
    "function": ("", "math.sqrt(x) *", "math.sqrt(x) +", "scale changed"),
    "installed function": ("", "math.sqrt", "math.exp", "scale changed"),
    "constant": ("", "WIDTH = 8", "WIDTH = 9", "WIDTH changed"),
    "type of a constant": ("", "WIDTH = 8", "WIDTH = 8.0", "WIDTH changed"),
    "base class": ("", "return None", "return True", "Base.close changed"),
    "class attribute": ("", "rate = 0.5", "rate = 0.25", "Net changed"),
    "decorator": ("", "    @measured\n", "", "Net.step changed"),
    "name of the class": ("", "class Net", "class Net2(Base): pass\nclass Net", ""),
    "attribute": ("", "self.depth = depth", "self.depth = 3", "trainable.depth changed"),
}


@pytest.mark.parametrize("edit", [edit[1:] for edit in RELATED.values() if edit[3]])
def test_edits_that_may_train_otherwise_are_named(of: Of, edit: tuple[str, str, str]) -> None:
    assert TRAIN.count(edit[0]) == 1
    before = of(TRAIN, helper=HELPER, far=FAR)

    after = of(TRAIN.replace(edit[0], edit[1]), helper=HELPER, far=FAR)

    assert after.digest != before.digest
    assert edit[2] in difference(before, after)
