import importlib
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
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
def value(of: Of) -> Callable[..., str]:
    """Digest of a trainable whose only attribute is `x`, set to an expression of its module."""

    def digest_of(expression: str, prelude: str = "") -> str:
        source = f"{prelude}\nclass Net: pass\nnet = Net()\nnet.x = {expression}"
        return of(source, "net").digest

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


NOISE = """
import random
SEED = 7
def make(seed):
    def noise(x, rng={}):
        return rng.random() * x
    return noise
"""


@pytest.mark.parametrize("default", ["random.Random(seed)", "random.Random(SEED)"])
def test_a_default_without_content_that_may_take_a_local_is_refused(
    value: Callable[..., str], default: str
) -> None:
    with pytest.raises(InvalidStudyError, match=r"default 'rng' of make.*noise is an object of ra"):
        value("make(7)", NOISE.format(default))


def test_a_default_without_content_counts_by_an_expression_that_says_all(
    value: Callable[..., str],
) -> None:
    seven = value("make(7)", NOISE.format("random.Random(7)"))
    assert seven == value("make(7)", NOISE.format("random.Random(7)"))
    assert seven != value("make(7)", NOISE.format("random.Random(8)"))
    assert value("make(7)", NOISE.format("[seed]")) != value("make(8)", NOISE.format("[seed]"))


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
    expected = in_process(folder, "script.py")
    cells = (folder / "cells.txt").read_text(encoding="utf-8")
    first = next(cell for cell in cells.split("# %%") if "class Settings" in cell)
    earlier = first.replace("rate: float", "speed: float")
    (folder / "cells.txt").write_text(cells.replace(first, f"{earlier}# %%{first}"))

    assert in_process(folder, "-c", KERNEL) == expected


def test_script_that_an_installed_command_runs_is_the_users(folder: Path) -> None:
    source = "class Net:\n    def step(self): return 1\n"
    (folder / "train.py").write_text(source, encoding="utf-8")
    command = "import runpy, __main__; __main__.__file__ = '/usr/lib/site-packages/tool.py'\n"
    run = f"Net = runpy.run_path('train.py', run_name='__main__')['Net']{SHOW}"

    assert in_process(folder, "-c", command + run) == in_process(
        folder, "-c", f"from train import Net{SHOW}"
    )


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
    "pass": ("def scale(x):", "def scale(x):\n    pass"),
    "prefix of a string": ('hp["lr"]', 'hp[u"lr"]'),
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
    "method": ('hp["lr"]', 'hp["rate"]', ("Net.step changed",)),
    "property": ("scale(self.depth)", "scale(self.depth + 1)", ("Net.size changed",)),
    "function": ("math.sqrt(x) *", "math.sqrt(x) +", ("scale changed",)),
    "installed function": ("math.sqrt", "math.exp", ("scale changed",)),
    "constant": ("WIDTH = 8", "WIDTH = 9", ("WIDTH changed",)),
    "type of a constant": ("WIDTH = 8", "WIDTH = 8.0", ("WIDTH changed",)),
    "method of a base": ("return None", "return True", ("Base.close changed",)),
    "base": ("class Net(Base)", "class Net", ("Base removed", "Base.close removed", "Net changed")),
    "class attribute": ("rate = 0.5", "rate = 0.25", ("Net changed",)),
    "version": ("rate = 0.5", "rate = 0.5\n    version = 2", ("Net changed",)),
    "decorator": (
        "    @measured\n",
        "",
        ("Net changed", "Net.step changed", "timed removed", "timed.<locals>.wrapper removed"),
    ),
    "default": ("depth=2", "depth=3", ("Net.__init__ changed", "trainable.depth changed")),
    "attribute": (
        "self.depth = depth",
        "self.depth = 3",
        ("Net.__init__ changed", "trainable.depth changed"),
    ),
    "name of an attribute": (
        "self.depth = depth",
        "self.d = depth",
        ("Net.__init__ changed", "trainable.d added", "trainable.depth removed"),
    ),
}


@pytest.mark.parametrize("edit", RELATED.values(), ids=RELATED)
def test_edits_that_may_train_otherwise_are_named(
    of: Of, edit: tuple[str, str, tuple[str, ...]]
) -> None:
    old, new, words = edit
    assert TRAIN.count(old) == 1
    before = of(TRAIN, helper=HELPER, far=FAR)

    after = of(TRAIN.replace(old, new), helper=HELPER, far=FAR)

    assert difference(before, after) == words


def test_name_of_the_class_counts(of: Of) -> None:
    before = of("class Net: pass")

    assert difference(before, of("class Other: pass", "Other()")) == ("Net removed", "Other added")


def test_accessors_are_parts_of_their_own(of: Of) -> None:
    source = """
class Net:
    @property
    def x(self): return 1
    @x.setter
    def x(self, value): self.y = 2
    @x.deleter
    def x(self): self.y = 3
"""
    for number in "123":
        assert difference(of(source), of(source.replace(number, "4"))) == ("Net.x changed",)


def test_helper_two_modules_away_is_named_alone(of: Of) -> None:
    before = of(TRAIN, helper=HELPER, far=FAR)

    after = of(TRAIN, helper=HELPER, far=FAR.replace("x * GAIN", "x + GAIN"))
    farther = of(TRAIN, helper=HELPER, far=FAR.replace("3", "4"))

    assert difference(before, after) == ("move changed",)
    assert difference(before, farther) == ("GAIN changed",)


def test_no_difference_has_no_words(of: Of) -> None:
    assert difference(of("class Net: pass"), of("class Net: pass")) == ()


def test_all_parts_are_named(of: Of) -> None:
    assert names(of(TRAIN, helper=HELPER, far=FAR)) == {
        "Base",
        "Base.close",
        "GAIN",
        "Net",
        "Net.__init__",
        "Net.size",
        "Net.step",
        "WIDTH",
        "advance",
        "move",
        "scale",
        "timed",
        "timed.<locals>.wrapper",
        "trainable.depth",
    }


def test_parts_that_change_places_change_the_whole(of: Of) -> None:
    """Two functions have one name and one syntax, and only what they reach differs."""
    one, two = "K = 1\ndef f(): return K", "K = 2\ndef f(): return K"
    source = """
import one, two
class Net:
    def step(self): return one.f()
    def evaluate(self): return two.f()
"""
    before = of(source, one=one, two=two)
    after = of(source, one=two, two=one)

    assert before.parts == after.parts
    assert difference(before, after) == ("the same parts refer to one another in another way",)


# What refers to what


REFERENCES = {
    "name": "from helper import f\nclass Net:\n    def step(self): return f()",
    "module": "import helper\nclass Net:\n    def step(self): return helper.f()",
    "alias": "import helper as h\nclass Net:\n    def step(self): return h.f()",
    "alias of a name": "from helper import f as g\nclass Net:\n    def step(self): return g()",
    "star": "from helper import *\nclass Net:\n    def step(self): return f()",
    "import inside": "class Net:\n    def step(self):\n        import helper\n        helper.f()",
    "name imported inside": (
        "class Net:\n    def step(self):\n        from helper import f as g\n        g()"
    ),
    "decorator": "from helper import deco\nclass Net:\n    @deco\n    def step(self): pass",
    "decorator of the class": "from helper import f\n@lambda c: f() and c\nclass Net: pass",
    "default": "from helper import f\nclass Net:\n    def step(self, f=f): return f()",
    "value of a default": "from helper import f\nclass Net:\n    def step(self, g=f()): pass",
    "lambda": "from helper import f\nclass Net:\n    step = lambda self: f()",
    "nested function": (
        "from helper import f\nclass Net:\n    def step(self):\n        def g(): return f()\n"
        "        return g"
    ),
    "comprehension": (
        "from helper import f\nclass Net:\n    def step(self): return [f for f in f()]"
    ),
    "partial": (
        "from functools import partial\nfrom helper import f\ng = partial(f)\nclass Net:\n"
        "    def step(self): return g()"
    ),
    "static method": "from helper import f\nclass Net:\n    step = staticmethod(f)",
    "class method": (
        "from helper import f\nclass Net:\n    @classmethod\n    def step(cls): return f()"
    ),
    "cached property": (
        "import functools\nfrom helper import f\nclass Net:\n    @functools.cached_property\n"
        "    def size(self): return f()"
    ),
    "setter": (
        "from helper import f\nclass Net:\n    @property\n    def x(self): pass\n    @x.setter\n"
        "    def x(self, value): f()"
    ),
    "list": "from helper import f\nALL = [[f]]\nclass Net:\n    def step(self): ALL[0]()",
    "registry": "from helper import f\nALL = {'f': f}\nclass Net:\n    def step(self): ALL['f']()",
    "class body": "from helper import f\nclass Net:\n    size = f()",
    "name of a class body": "from helper import f\nclass Net:\n    f = f",
    "dataclass field": (
        "from dataclasses import dataclass, field\nfrom helper import f\n@dataclass\nclass Net:\n"
        "    x: int = field(default_factory=lambda: f() and 0)"
    ),
    "metaclass": "from helper import Meta\nclass Net(metaclass=Meta): pass",
    "base": "from helper import Base\nclass Net(Base): pass",
    "module as a value": "import helper\nclass Net:\n    def step(self): getattr(helper, 'f')()",
    "cached function": (
        "import functools\nfrom helper import f\n@functools.cache\ndef g(): return f()\n"
        "class Net:\n    def step(self): return g()"
    ),
    "wrapper of a library": (
        "import contextlib\nfrom helper import f\n@contextlib.contextmanager\ndef g(): yield f()\n"
        "class Net:\n    def step(self): return g()"
    ),
    "dispatch": (
        "import functools\nfrom helper import f\n@functools.singledispatch\ndef g(x): pass\n"
        "@g.register\ndef _(x: int): f()\nclass Net:\n    def step(self): return g(1)"
    ),
    "class of a function": (
        "from helper import f\ndef make(rate):\n    class Net:\n        size = rate\n"
        "        def step(self): return f(rate)\n    return Net\nNet = make(1)"
    ),
    "attribute of a function": (
        "from helper import f\ndef g(): pass\ng.loss = f\nclass Net:\n"
        "    def step(self): return g.loss()"
    ),
    "base that a function was given": (
        "from helper import Base\ndef make(base):\n    class Net(base): pass\n    return Net\n"
        "Net = make(Base)"
    ),
    "metaclass that a function was given": (
        "from helper import Meta\ndef make(meta):\n    class Net(metaclass=meta): pass\n"
        "    return Net\nNet = make(Meta)"
    ),
    "monkey patch": (
        "import helper\nhelper.g = helper.f\nclass Net:\n    def step(self): return helper.g()"
    ),
    "wrapped in place": (
        "import contextlib\nfrom helper import f\nclass Net:\n    @contextlib.contextmanager\n"
        "    def step(self): yield f()"
    ),
    "opaque object": (
        "import weakref\nfrom helper import f\nREF = weakref.ref(f)\nclass Net:\n"
        "    def step(self): return REF()"
    ),
    "match": (
        "from helper import f\nclass Net:\n    def step(self, x):\n        match x:\n"
        "            case f.A: pass"
    ),
    "global statement": (
        "from helper import f\nclass Net:\n    def step(self):\n        global f\n        f += 1"
    ),
}

REFERRED = """
def f(): return 1
def deco(g):
    def wrapper(*args): return g(*args), f()
    return wrapper
class Base:
    def close(self): f()
class Meta(type):
    def __len__(cls): return f()
"""


@pytest.mark.parametrize("source", REFERENCES.values(), ids=REFERENCES)
def test_references_are_followed(of: Of, source: str) -> None:
    before = of(source, helper=REFERRED)
    after = of(source, helper=REFERRED.replace("return 1", "return 2"))

    if "f()): pass" in source:
        assert difference(before, after) == ("Net.step changed", "f changed")
    elif "size = f()" in source:
        assert difference(before, after) == ("Net changed", "f changed")
    else:
        assert difference(before, after) == ("f changed",)


UNREFERENCED = {
    "local variable": "def step(self):\n        f = 1\n        return f",
    "parameter": "def step(self, f): return f()",
    "local of the outer function": (
        "def step(self):\n        f = 1\n        def g(): return f\n        return g"
    ),
    "comprehension": "def step(self): return [f() for f in self.all]",
    "exception": "def step(self):\n        try: pass\n        except OSError as f: print(f)",
    "capture": "def step(self, x):\n        match x:\n            case [*f]: f()",
    "attribute": "def step(self): return self.f()",
    "keyword": "def step(self): return dict(f=1)",
    "loop": "def step(self):\n        for f in range(3): print(f)",
    "assignment expression": "def step(self, x):\n        if (f := x): print(f)",
}


@pytest.mark.parametrize("body", UNREFERENCED.values(), ids=UNREFERENCED)
def test_bound_names_are_no_references(of: Of, body: str) -> None:
    found = of(f"from helper import f\nclass Net:\n    {body}", helper=REFERRED)

    assert names(found) == {"Net", "Net.step"}


def test_only_what_is_read_of_a_module_counts(of: Of) -> None:
    source = "import helper\nclass Net:\n    def step(self): return helper.f()"

    assert names(of(source, helper=REFERRED)) == {"Net", "Net.step", "f"}


def test_names_of_closures_hide_those_of_the_module(of: Of) -> None:
    source = "from helper import f\ndef make(f):\n    def g(): return f\n    return g\ng = make(1)"

    assert names(of(source, "g", helper=REFERRED)) == {"make.<locals>.g"}


def test_modules_of_a_package_are_followed(of: Of) -> None:
    source = "from package.one import g\nclass Net:\n    def step(self): return g()"
    package = {
        "package____init__": "",
        "package__one": "from . import two\ndef g():\n    from . import three\n    two.f, three.h",
        "package__two": "def f(): return 1",
        "package__three": "def h(): return 1",
    }

    assert names(of(source, **package)) == {"Net", "Net.step", "f", "g", "h"}


def test_installed_things_are_no_parts(of: Of) -> None:
    source = """
import json, math
import dasktune.study.fingerprint
from collections import OrderedDict
class Net(OrderedDict):
    def step(self): return json.dumps(math.pi), dasktune.study.fingerprint.difference
"""
    assert names(of(source)) == {"Net", "Net.step"}


def test_installed_things_keep_their_name_when_their_library_moves_them(
    of: Of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import net_library\nclass Net(net_library.Base): pass"
    found = []
    for private in ("first", "second"):
        package = tmp_path / private / "site-packages" / "net_library"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"from net_library.{private} import Base")
        (package / f"{private}.py").write_text("class Base: pass")
        monkeypatch.syspath_prepend(str(package.parent))
        found.append(of(source))

    assert found[0] == found[1]


def test_missing_names_count_by_name(of: Of) -> None:
    source = "class Net:\n    def step(self): return to_come()"

    assert names(of(source)) == {"Net", "Net.step"}
    assert of(source) != of(source.replace("to_come", "to_go"))


def test_recursion_ends(of: Of) -> None:
    source = """
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
class Net:
    def step(self): return even(3), Net
"""
    before = of(source)

    assert of(source) == before
    assert difference(before, of(source.replace("n != 0", "n > 0"))) == ("odd changed",)


def test_wrapper_and_wrapped_both_count(of: Of) -> None:
    found = of(TRAIN, helper=HELPER, far=FAR)

    assert {"Net.step", "timed.<locals>.wrapper", "timed"} <= names(found)


def test_values_of_closures_count(of: Of) -> None:
    source = "def make(n):\n    def f(): return n\n    return f\none, two = make(1), make(2)"

    assert of(source, "one").digest != of(source, "two").digest


def test_order_of_like_functions_counts(of: Of) -> None:
    """Only what the defaults hold tells them apart, and only by their places."""
    source = "FS = [lambda x, i=i: x * i for i in (1, 2)]\nclass Net:\n    def step(self): FS"

    assert of(source).digest != of(source.replace("(1, 2)", "(2, 1)")).digest


LAMBDAS = """
PAIR = (lambda x: x + 1), (lambda x: x + 2); NESTED = lambda: lambda: 1
MADE = [make for make in (lambda: (lambda: 1)() + 1,
    lambda: 3)]
"""


def test_lambdas_of_one_line_are_told_apart(of: Of) -> None:
    found = [
        of(LAMBDAS, expression)
        for expression in ("PAIR[0]", "PAIR[1]", "NESTED", "NESTED()", "MADE[0]", "MADE[1]")
    ]

    assert len({one.digest for one in found}) == len(found)
    assert found[0] == of("f = lambda x: x + 1", "f")
    assert found[3] == of("f = (lambda: [lambda: 1])()[0]", "f")


# Module-level names


@pytest.mark.parametrize("text", ["1", "'a'", "None", "(1, [2])", "{'a': {1, 2}}", "Settings(1)"])
def test_constants_count_by_value(of: Of, text: str) -> None:
    source = "from helper import Settings\nX = 0\nclass Net:\n    def step(self): return X"
    helper = "class Settings:\n    def __init__(self, x): self.x = x"
    before = of(source, helper=helper)

    written = of(source.replace("X = 0", f"X = {text}"), helper=helper)
    computed = of(source.replace("X = 0", f"X = 0\nX = [{text}][0]"), helper=helper)

    assert "X changed" in difference(before, written)
    assert written == computed


def test_global_settings_of_the_command_line_count(of: Of) -> None:
    source = """
import argparse
PARSER = argparse.ArgumentParser()
PARSER.add_argument("--width", type=int)
if True:
    ARGS = PARSER.parse_args(TEXT)
class Net:
    def step(self): return ARGS.width
"""
    one = of(source.replace("TEXT", "['--width', '1']"))
    two = of(source.replace("TEXT", "['--width', '2']"))

    assert difference(one, two) == ("ARGS changed",)


OPAQUE = """
import threading
from helper import size
if True:
    with open(__file__) as FILE: pass
    LOCK = threading.Semaphore(size())
for NOISE in [threading.Event()]: print(NOISE)
class Net:
    def step(self): return LOCK, FILE, NOISE
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Semaphore(", "BoundedSemaphore(", ("LOCK changed",)),
        ("return 1", "return 2", ("size changed",)),
        ("open(__file__)", "open(__file__, 'rb')", ("FILE changed",)),
        ("[threading.Event()]", "(threading.Event(),)", ("NOISE changed",)),
        ("print(NOISE)", "pass", ()),
    ],
)
def test_what_has_no_content_counts_by_its_statement(
    of: Of, old: str, new: str, words: tuple[str, ...]
) -> None:
    helper = "def size(): return 1"
    before = of(OPAQUE, helper=helper)

    after = of(OPAQUE.replace(old, new), helper=helper.replace(old, new))

    assert difference(before, after) == words


@pytest.mark.parametrize("imported", ["from helper import LOCK as X", "from helper import *"])
def test_statements_are_found_in_the_module_that_binds(of: Of, imported: str) -> None:
    source = f"{imported}\nclass Net:\n    def step(self): return X"
    helper = "import threading\ndef size(): return 1\nLOCK = X = threading.Semaphore(size())"

    before = of(source, helper=helper)
    after = of(source, helper=helper.replace("return 1", "return 2"))

    assert difference(before, after) == ("size changed",)


def test_what_was_refused_once_is_refused_again(of: Of) -> None:
    source = """
import threading
X = [[1], threading.Lock()]
Y = X
class Net:
    def step(self): return X, Y
"""
    assert difference(of(source), of(source.replace("Y = X", "Y = X or 1"))) == ("Y changed",)


def test_place_of_the_code_does_not_count(of: Of) -> None:
    source = """
from pathlib import Path
HERE = Path(__file__).parent
DATA = str(HERE / "data")
NAME = __name__ + ".net"
class Net:
    def step(self, data=DATA): return DATA, HERE, NAME, __file__
"""
    before = of(source)

    assert of(source) == before
    assert difference(before, of(source.replace('"data"', '"test"'))) == ("DATA changed",)


def test_imported_objects_of_libraries_count_by_name(of: Of) -> None:
    source = "from random import random\nclass Net:\n    def step(self): return random()"

    assert of(source) != of(source.replace("import random", "import gauss as random"))
    assert of(source) == of(source.replace("import random", "import gauss, random"))


def test_class_attributes_count_by_value(of: Of) -> None:
    source = "class Net: rate = 1"

    assert of(source, "setattr(Net, 'rate', 2) or Net()") != of(source)


def test_methods_put_on_a_class_count(of: Of) -> None:
    source = "def f(self): return 1\nclass Net: pass\nNet.step = f"

    assert difference(of(source), of(source.replace("1", "2"))) == ("f changed",)


# Attributes


PRELUDE = """
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
import logging, math, operator, re
def f(x): return x
def g(x): return -x
class Plain:
    def __init__(self, x): self.x = x
    def method(self): return 1
class Slotted:
    __slots__ = ("x", "unset")
    def __init__(self, x): self.x = x
class Names(dict): pass
class Dim(int): pass
@dataclass(frozen=True, slots=True)
class Data:
    x: int
class Kind(Enum):
    A = 1
    B = object()
class Bits(Flag):
    R = 1
    W = 2
Point = namedtuple("Point", "x y")
Pair = namedtuple("Pair", "x y")
Shape = Enum("Shape", "ROUND FLAT")
"""

DIFFERENT = """
None True False 0 1 -1 1.0 0.0 -0.0 1j ... '' '1' b'1' bytearray(b'1') float('nan') float('inf')
() (1,) [1] [1,1] [[1]] ((1,),) {1} frozenset({1}) {} {1:2} {'1':2} {True:2} {1:{2}} {(1,):2} set()
range(3) range(4) deque([1]) deque([1],3) deque([1,2])
{'a':1,'b':2} {'b':2,'a':1} {f:1,g:2} {g:2,f:1} {'a':1,f:2} {f:2,'a':1} {(1,):2,'a':1}
defaultdict(int,a=1,b=2) defaultdict(int,b=2,a=1) Names(a=1,b=2) Names(b=2,a=1)
OrderedDict(a=1,b=2) OrderedDict(b=2,a=1)
defaultdict(int) defaultdict(float) Path('a') Path('b') 'a' 'b' {'a':None} {'b':None}
date(2024,1,1) timedelta(1) Decimal('1') Decimal('1.0') Fraction(1,2) re.compile('a')
re.compile('a',re.I) SimpleNamespace(x=1) SimpleNamespace(x=2) SimpleNamespace(y=1)
f g [f] [g] partial(f) partial(f,1) partial(f,x=1) partial(g) len max math.sqrt math.exp
operator.add str.lower ''.join 'a'.join Plain Slotted Plain(1) Plain(2) Plain(f) Plain(g)
Plain(Plain(1)) Plain(1).method Plain(2).method Plain.method Slotted(1) Slotted(2) Data(1) Data(2)
Kind Kind.A Kind.B Bits.R Bits.R|Bits.W Point(1,2) Point(2,1) Pair(1,2) Shape.ROUND Shape.FLAT
Names(a=1)
Names(a=2) Dim(1) Dim(2) int float math logging lambda:1 lambda:2 cache(f) cache(g)
"""


ATTRIBUTES = DIFFERENT.split()
LINES = ",\n".join(ATTRIBUTES)
TABLE = f"{PRELUDE}\nclass Net: pass\nnet = Net()\nVALUES = [\n{LINES}\n]\n"


def test_different_attributes_differ(load: Load) -> None:
    module = load(train=TABLE)
    by_digest = defaultdict(list)
    for text, x in zip(ATTRIBUTES, module.VALUES, strict=True):
        module.net.x = x
        by_digest[fingerprint(module.net).digest].append(text)

    assert [texts for texts in by_digest.values() if len(texts) > 1] == []


def test_equal_attributes_are_equal_in_another_load(of: Of) -> None:
    expression = "setattr(net, 'x', VALUES) or net"

    assert of(TABLE, expression) == of(TABLE, expression)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'a': 1, 'b': [2]}", "dict([('a', 1), ('b', [2])])"),
        ("{f: 1, g: 2}", "dict([(f, 1), (g, 2)])"),
        ("OrderedDict(a=1, b=2)", "(lambda d: d.move_to_end('b') or d)(OrderedDict(b=2, a=1))"),
        ("SimpleNamespace(x=1, y=2)", "SimpleNamespace(y=2, x=1)"),
        ("{'a', 'b', 1, f}", "{f, 1, 'b', 'a'}"),
        ("[[1, 2]] * 2", "[[1, 2], [1, 2]]"),
        ("Path('a') / 'b'", "Path('a/b')"),
        ("logging.getLogger('a')", "logging.getLogger('b')"),
        ("(lambda: 1)", "(lambda: 1  )"),
    ],
)
def test_equal_values_are_one(value: Callable[..., str], one: str, other: str) -> None:
    assert value(one, PRELUDE) == value(other, PRELUDE)


def test_the_order_in_which_layers_are_built_counts(of: Of) -> None:
    """Two keys, two values, and yet other weights: each layer draws from one generator."""
    source = "class Net:\n    def __init__(self, **layers): self.layers = layers"

    one, other = of(source, "Net(a=[64], b=[32])"), of(source, "Net(b=[32], a=[64])")

    assert difference(one, other) == ("trainable.layers changed",)


def test_cycles_end(value: Callable[..., str]) -> None:
    prelude = (
        "def ring(*items):\n    items = list(items)\n    items.append([items])\n    return items"
    )

    assert value("ring(1)", prelude) == value("ring(1)", prelude)
    assert value("ring(1)", prelude) != value("ring(2)", prelude)
    assert value("ring(1)", prelude) != value("[1, [[1, [1]]]]", prelude)


def test_shared_values_cost_no_more_than_one(of: Of) -> None:
    source = "x = [[1]]\nfor _ in range(100): x = [x, x]\nclass Net: x = x"

    assert names(of(source)) == {"Net", "x"}


def test_a_trainable_may_hold_itself(of: Of) -> None:
    source = "class Net:\n    def __init__(self): self.me, self.run = self, self.step\n"

    assert names(of(f"{source}    def step(self): pass")) >= {"trainable.me", "trainable.run"}


def test_code_of_attributes_counts(of: Of) -> None:
    source = "def f(): return 1\nclass Net:\n    def __init__(self): self.f = {'f': f}"

    assert difference(of(source), of(source.replace("1", "2"))) == ("f changed",)


def test_classes_and_functions_count_by_their_code(of: Of) -> None:
    of_class = of(TRAIN, "Net", helper=HELPER, far=FAR)
    of_object = of(TRAIN, helper=HELPER, far=FAR)

    assert names(of_class) == names(of_object) - {"trainable.depth"}
    assert names(of(TRAIN, "scale", helper=HELPER, far=FAR)) == {"WIDTH", "scale"}


LIBRARY = """
class Dtype:
    def __str__(self): return "bfloat16"
class Tensor:
    dtype = Dtype()
    def __init__(self, data, shape): self.data, self.shape = data, shape
    def detach(self): return self
    def cpu(self): return self
    def float(self): return Wide(self.data)
    def numpy(self): raise TypeError
class Sparse(Tensor):
    def float(self): raise RuntimeError
class Wide:
    def __init__(self, data): self.data = data
    def numpy(self): return memoryview(self.data)
class Model:
    def __init__(self): self.size = 1
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make `tensors` importable from a folder of installed packages."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "tensors.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(packages))
    yield
    sys.modules.pop("tensors", None)


@pytest.mark.usefixtures("library")
def test_tensors_count_by_shape_and_bytes(value: Callable[..., str]) -> None:
    prelude = "from tensors import Tensor"
    found = [
        value(f"Tensor({x})", prelude) for x in ("b'ab', (2,)", "b'ab', (1, 2)", "b'ac', (2,)")
    ]

    assert len(set(found)) == 3
    assert value("Tensor(b'ab', (2,))", prelude) == found[0]


def test_arrays_count_by_type_shape_and_bytes(value: Callable[..., str]) -> None:
    pytest.importorskip("numpy")
    prelude = "import numpy as np"
    different = [
        *("np.zeros(2)", "np.zeros(3)", "np.ones(2)", "np.zeros((1, 2))", "np.zeros(2, 'f4')"),
        *("np.float32(0)", "np.float64(0)", "0.0", "np.float32", "np.dtype('f4')", "np.tanh"),
        *("np.array(['a', [1]], object)", "np.array(['a', [2]], object)", "np.array(['a'])"),
    ]

    assert len({value(text, prelude) for text in different}) == len(different)
    assert value("np.zeros(2, 'f4')", prelude) != value("np.zeros(2, 'i4')", prelude)
    objects = "np.array(['a', [1.5]], object)"
    assert value(objects, prelude) == value(objects, prelude)
    assert value("np.eye(3).T[::2]", prelude) == value("np.array([[1., 0, 0], [0, 0, 1]])", prelude)


def test_values_made_on_the_way_are_not_mixed_up(load: Load) -> None:
    """An address that is free again must not lead to what was there before."""
    np = pytest.importorskip("numpy")
    net = load(train="class Net: pass").Net()
    found = set()
    for changed in range(20):
        net.x = [np.array([[i if i != changed else -1], "a"], object) for i in range(20)]
        found.add(fingerprint(net).digest)

    assert len(found) == 20


@pytest.mark.torch
def test_torch_tensors_count_by_type_shape_and_bytes(value: Callable[..., str]) -> None:
    pytest.importorskip("torch")
    prelude = "import torch"
    different = [
        *("torch.zeros(2)", "torch.ones(2)", "torch.zeros(2, dtype=torch.int32)", "torch.float32"),
        *("torch.zeros(2, dtype=torch.bfloat16)", "torch.device('cpu')", "torch.zeros(2).shape"),
        *("torch.nn.Parameter(torch.zeros(2))", "torch.nn.Linear", "torch.nn.functional.relu"),
        *("torch.relu", "torch.tanh"),
    ]

    assert len({value(text, prelude) for text in different}) == len(different)
    assert value("torch.eye(2, requires_grad=True)", prelude) == value("torch.eye(2)", prelude)


# Refusals


REFUSED = {
    "lock": ("threading.Lock()", "trainable.x is an object of _thread.lock"),
    "inside": (
        "{'a': [0, Plain(threading.Lock())]}",
        "trainable.x['a'][1].x is an object of _thread.lock",
    ),
    "file": ("FILE", "trainable.x is an object of _io.TextIOWrapper"),
    "generator": ("(i for i in ())", "trainable.x is an object of builtins.generator"),
    "socket": ("SOCKET", "trainable.x is an object of socket.socket"),
    "random numbers": ("random.Random(0)", "trainable.x is an object of random.Random"),
    "bound to one": ("random.random", "trainable.x.__self__ is an object of random.Random"),
    "installed": ("tensors.Model()", "trainable.x is an object of tensors.Model"),
    "sparse": ("tensors.Sparse(b'', ())", "trainable.x is an object of tensors.Sparse"),
    "hidden": ("Chance()", "trainable.x is an object of train.Chance"),
    "closed over": ("hold(FILE)", "closure variable 'x' of hold.<locals>.f is an object"),
}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_fixed_content_is_refused_with_its_path(
    value: Callable[..., str], text: str, words: str
) -> None:
    prelude = """
import random, socket, threading
import tensors
with open(__file__) as FILE, socket.socket() as SOCKET: pass
class Plain:
    def __init__(self, x): self.x = x
class Chance(random.Random): pass
def hold(x):
    def f(): return x
    return f
"""

    with pytest.raises(InvalidStudyError) as caught:
        value(text, prelude)

    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith("build it in setup(), where it is no part of the fingerprint")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("exec('class Net: pass')", "the source of class 'Net' isn't found: define it in a file"),
        (
            "class Net:\n    exec('def step(self): pass')",
            "the source of 'step' isn't found at line 1 of '<string>': define it in a file",
        ),
        (
            "exec('def f(): pass')\nclass Net:\n    def __init__(self): self.f = f",
            "the source of 'f' isn't found at line 1 of '<string>': define it in a file",
        ),
        (
            "globals()['X'] = iter(())\nclass Net:\n    def step(self): return X",
            "module-level name 'X' is an object of builtins.tuple_iterator",
        ),
        (
            "class Net:\n    def __init__(self):\n        self.x = []\n"
            "        for _ in range(10_000): self.x = [self.x]",
            "trainable holds values or code nested too deeply",
        ),
    ],
)
def test_what_has_no_source_is_refused(of: Of, source: str, words: str) -> None:
    with pytest.raises(InvalidStudyError) as caught:
        of(source)

    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("name", ["train", "helper", "far"])
def test_source_that_was_edited_after_the_import_is_refused(load: Load, name: str) -> None:
    sources = {"train": TRAIN, "helper": HELPER, "far": FAR}
    module = load(**sources)
    path = Path(str(module.__file__)).parent / f"{name}.py"
    path.write_text(f"X = 1\n{sources[name]}", encoding="utf-8")

    with pytest.raises(InvalidStudyError, match=r"reload what was edited since it was imported"):
        fingerprint(module.Net())


def edit(module: ModuleType, old: str, new: str) -> None:
    """Change the file of a module, and leave the module as it was imported."""
    path = Path(str(module.__file__))
    source = path.read_text(encoding="utf-8")
    assert source.count(old) >= 1
    before_ns = path.stat().st_mtime_ns
    path.write_text(source.replace(old, new), encoding="utf-8")
    # Where clocks of files are coarse, a file of the same length would pass for unchanged.
    os.utime(path, ns=(before_ns, max(path.stat().st_mtime_ns, before_ns + 10_000_000)))


RUNS = """
import functools
def twice(f):
    @functools.wraps(f)
    def wrapper(*args): return f(*args) * 2
    return wrapper
LAYERS = [lambda x: x * 3, lambda x: x * 5]
def make(rate): return lambda x: x * rate
SCALE = make(7)
class Part:
    def move(self, x): return x + 11
class Net:
    @twice
    def step(self, hp, t, depth=13):
        def inner(x): return x in {17, 19} or -0.0
        return [inner(LAYERS[0](x)) for x in hp], SCALE(t), Part().move(t)
    @property
    def size(self): return 23
    @staticmethod
    def free(): return "29"
    draw = functools.partial(lambda x: (x, 31))
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 3", "x * 4"),
        ("x * 5", "x / 5"),
        ("lambda x: x * 3, lambda x: x * 5", "lambda x: x * 5, lambda x: x * 3"),
        ("x * rate", "x + rate"),
        ("x + 11", "x + 12"),
        ("* 2", "* 2.0"),
        ("{17, 19}", "{17, 18}"),
        ("-0.0", "+0.0"),
        ("return 23", "return 23.0"),
        ('"29"', "b'29'"),
        ("(x, 31)", "(x, 31.0)"),
        ("Part().move", "Part().turn"),
        ("def inner(x)", "def inner(x, *y)"),
    ],
)
def test_code_that_is_not_what_its_file_says_is_refused(load: Load, old: str, new: str) -> None:
    """As in a notebook: a module is imported and edited on the same line, and not reloaded."""
    module = load(train=RUNS)
    before = fingerprint(module.Net())
    edit(module, old, new)

    with pytest.raises(InvalidStudyError, match=r"is not what runs: reload what was edited"):
        fingerprint(module.Net())

    edit(module, new, old)
    assert fingerprint(module.Net()) == before


def test_what_was_reloaded_counts_and_what_was_made_before_does_not(load: Load) -> None:
    module = load(train=RUNS)
    old_net, before = module.Net(), fingerprint(module.Net())
    edit(module, "x + 11", "x + 4711")  # another length: a reload goes by date and size
    importlib.reload(module)

    assert difference(before, fingerprint(module.Net())) == ("Part.move changed",)
    edit(module, "return 23", "return 2323")
    importlib.reload(module)
    with pytest.raises(InvalidStudyError, match="make the trainable anew"):
        fingerprint(old_net)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class Net:\n", "class Net:  # a remark\n"),
        ("return 23", "return (23)"),
        ("x * rate", "x  *  rate"),
    ],
)
def test_an_edit_that_compiles_to_the_same_is_none(load: Load, old: str, new: str) -> None:
    module = load(train=RUNS)
    before = fingerprint(module.Net())
    edit(module, old, new)

    assert fingerprint(module.Net()) == before


def test_a_changed_function_is_not_replaced_by_the_statement_that_holds_it(load: Load) -> None:
    source = "FS = [lambda x: x + 1]\nclass Net:\n    def step(self): return FS"
    module = load(train=source)
    edit(module, "x + 1", "x + 2")
    with pytest.raises(InvalidStudyError, match="is not what runs"):
        fingerprint(module.Net())
    edit(module, "FS =", "\nFS =")
    with pytest.raises(InvalidStudyError, match="is not what runs"):
        fingerprint(module.Net())


def test_modules_that_were_not_compiled_as_they_are_written_are_taken_at_their_word(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assertions that pytest rewrites, checkers of types: their loaders are others."""

    class Rewriting(SourceFileLoader):
        def source_to_code(self, data: Any, path: Any, **_: Any) -> CodeType:  # type: ignore[override]  # noqa: ANN401
            code: CodeType = compile(bytes(data).replace(b"23", b"3"), path, "exec")
            return code

    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        place = next((Path(p, "train.py") for p in sys.path if Path(p, "train.py").exists()), None)
        if name != "train" or place is None:
            return None
        return spec_from_file_location(name, place, loader=Rewriting(name, str(place)))

    before = fingerprint(load(train=RUNS).Net())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=find_spec), *sys.meta_path])
    module = load(train=RUNS)

    assert module.Net().size == 3
    assert fingerprint(module.Net()) == before


FUTURE = '''"""A module."""
from __future__ import annotations
def scale(x: Missing) -> Missing:
    """Scale."""
    assert x
    return x
class Net:
    """A net."""
    size: Missing = 1
    def __step(self): return scale(self.__hidden)
    def step(self): return self.__step(), __debug__
'''


@pytest.mark.parametrize("flags", [[], ["-O"], ["-OO"], ["-X", "no_debug_ranges"], ["-B"]])
def test_how_python_was_started_makes_no_difference(tmp_path: Path, flags: list[str]) -> None:
    (tmp_path / "train.py").write_text(FUTURE, encoding="utf-8")
    (tmp_path / "script.py").write_text(FUTURE + SHOW, encoding="utf-8")
    expected = in_process(tmp_path, "-c", f"from train import Net{SHOW}")

    assert in_process(tmp_path, *flags, "-c", f"from train import Net{SHOW}") == expected
    assert in_process(tmp_path, *flags, "script.py") == expected


def test_tracing_makes_no_difference(load: Load) -> None:
    module = load(train=RUNS)
    before = fingerprint(module.Net())
    tracer = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        for _ in range(100):  # the interpreter has made its code faster by now
            module.LAYERS[0](1)
        assert fingerprint(module.Net()) == before
    finally:
        sys.settrace(tracer)
