"""What runs is compared with what stands in the file now, by what Python still holds of it."""

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from dasktune.errors import InvalidStudyError
from dasktune.study.compiled import ChangedSourceError
from dasktune.study.fingerprint import difference, fingerprint

ROOT = Path(__file__).parents[2]

Import = Callable[[str], ModuleType]


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Write a module `edited` and import it; Python caches its bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_and_import(source: str) -> ModuleType:
        sys.modules.pop("edited", None)
        (tmp_path / "edited.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        return importlib.import_module("edited")

    yield write_and_import
    sys.modules.pop("edited", None)


def rewrite(module: ModuleType, source: str) -> None:
    """Change the file of a module, and leave the module as it was imported."""
    Path(str(module.__file__)).write_text(source, encoding="utf-8")


def in_process(folder: Path, *arguments: str) -> str:
    keep = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    answer = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**keep, "PYTHONPATH": f"{ROOT}:{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


# Files that are no module any more


NET = """
LINES = []
class Net:
    def step(self, hp, t):
        for line in LINES: print(line)
        return t
"""


@pytest.mark.parametrize(
    "broken",
    [
        f"{NET}return\n",
        f"{NET}break\n",
        f"{NET}def f(x, x): pass\n",
        f"{NET}def f(:\n",
        f"{NET}x = '\0'\n",
        NET.replace("        return t", "        nonlocal t\n        return t"),
    ],
    ids=["return", "break", "arguments", "syntax", "null", "nonlocal"],
)
def test_a_file_that_no_longer_compiles_is_a_changed_source(imports: Import, broken: str) -> None:
    module = imports(NET)
    rewrite(module, broken)

    with pytest.raises(ChangedSourceError, match=r"is not what runs: reload what was edited"):
        fingerprint(module.Net())


def test_a_class_without_methods_needs_its_file_too(imports: Import) -> None:
    module = imports("class Net: rate = 1\n")
    rewrite(module, "class Net: rate = 1\nreturn\n")

    with pytest.raises(ChangedSourceError, match=r"is not what runs: reload what was edited"):
        fingerprint(module.Net())


# Warnings


WARNS = r"""
import re
PATTERN = "\d"
class Net:
    def step(self, hp, t):
        assert (t, "always true")
        return re.match(PATTERN, "\s") is "x", [lambda: "\w", lambda: "\z"]
"""


@pytest.mark.parametrize("action", ["error", "always"])
def test_what_the_compiler_warns_of_is_not_said_again_and_is_no_change(
    imports: Import, action: str
) -> None:
    with warnings.catch_warnings(action="ignore"):
        module = imports(WARNS)
        expected = fingerprint(module.Net())
        other = imports(WARNS + "\n")  # a text that was not parsed before

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        assert fingerprint(other.Net()) == expected

    assert heard == []


# Lambdas of one line


LAMBDAS = """
LAYERS = [lambda x: x * 3, lambda x: x * 5, lambda x: x + 3]
def make(rate): return [lambda x: x * rate, lambda x: x + rate, lambda: lambda: rate]
class Part:
    @staticmethod
    def make(): return lambda part: part.__hidden
class Net:
    def __init__(self): self.made = [*make(7), make(7)[2](), Part.make()]
    def step(self, hp, t): return LAYERS[0](t)
"""
SHOW = """
from dasktune.study.fingerprint import fingerprint
print(fingerprint(Net()))
"""


@pytest.mark.parametrize("imported_with", [[], ["-X", "no_debug_ranges"]], ids=["all", "lines"])
@pytest.mark.parametrize("run_with", [[], ["-X", "no_debug_ranges"]], ids=["all", "lines"])
def test_columns_that_python_left_out_make_no_difference(
    tmp_path: Path, imported_with: list[str], run_with: list[str]
) -> None:
    """Cached bytecode keeps the columns of the process that wrote it, or none."""
    (tmp_path / "train.py").write_text(LAMBDAS, encoding="utf-8")
    (tmp_path / "script.py").write_text(LAMBDAS + SHOW, encoding="utf-8")
    expected = in_process(tmp_path, "script.py")

    in_process(tmp_path, *imported_with, "-c", "import train")
    found = in_process(tmp_path, *run_with, "-c", f"from train import Net{SHOW}")

    assert list((tmp_path / "__pycache__").iterdir())
    assert found == expected


@pytest.mark.parametrize("flags", [[], ["-X", "no_debug_ranges"]], ids=["all", "lines"])
def test_lambdas_that_changed_places_are_never_taken_for_each_other(
    tmp_path: Path, flags: list[str]
) -> None:
    """The first is where the second was, and the other way round: columns alone would lie."""
    (tmp_path / "train.py").write_text("FS = [lambda x: x * 3, lambda x: x * 500]\n")
    swapped = "FS = [lambda x: x * 500, lambda x: x * 3]\n"
    show = (
        "from dasktune.errors import InvalidStudyError\n"
        "from dasktune.study.fingerprint import fingerprint\n"
        "def show(f):\n"
        "    try: return fingerprint(f).digest\n"
        "    except InvalidStudyError: return 'refused'\n"
    )
    in_process(tmp_path, *flags, "-c", "import train")
    right = in_process(tmp_path, "-c", f"import train\n{show}print(show(train.FS[0]))").strip()
    edit = f"open('train.py', 'w').write({swapped!r})"
    found = in_process(
        tmp_path, "-B", "-c", f"import train\n{edit}\n{show}print(show(train.FS[0]))"
    )

    assert len(right) == 64
    assert found.strip() in {right, "refused"}


# Code that something rewrote


REWRITTEN = """
def counted(function):
    '''Put other code into a function, as tools do that check types or count lines.'''
    code = function.__code__
    function.__code__ = code.replace(co_consts=(*code.co_consts[:-1], 99))
    return function

class Net:
    @counted
    def step(self, hp, t): return t + 1
"""


def test_rewritten_code_is_told_from_an_edit_where_python_holds_what_was_imported(
    imports: Import,
) -> None:
    module = imports(REWRITTEN)

    with pytest.raises(ChangedSourceError) as caught:
        fingerprint(module.Net())

    words = str(caught.value)
    assert "'Net.step' at line 9 of" in words
    assert "is not what its import has made, which is as the file says" in words
    assert "leave off the decorator or tool that replaces code" in words
    assert words.endswith("(the two differ in constants)")


def test_where_python_holds_nothing_both_causes_are_named(
    imports: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = imports(REWRITTEN)

    with pytest.raises(ChangedSourceError) as caught:
        fingerprint(module.Net())

    words = str(caught.value)
    assert "is not what runs: reload what was edited since it was imported" in words
    assert "or leave off a decorator that rewrites code" in words
    assert words.endswith("(the two differ in constants)")


def consts(code: CodeType) -> CodeType:
    return code.replace(co_consts=(*code.co_consts, 99))


def argument(code: CodeType) -> CodeType:
    return code.replace(co_varnames=(*code.co_varnames[:-1], "other"))


def read(code: CodeType) -> CodeType:
    return code.replace(co_names=(*code.co_names, "check_types"))


def flags(code: CodeType) -> CodeType:
    return code.replace(co_flags=code.co_flags ^ 0x10)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (consts, "the two differ in constants"),
        (argument, "the two differ in names: 'other', 't'"),
        (read, "the two differ in names: 'check_types'"),
        (flags, "the two differ in instructions"),
    ],
)
def test_what_differs_is_said(
    imports: Import, change: Callable[[CodeType], CodeType], what: str
) -> None:
    module = imports("class Net:\n    def step(self, hp, t): return hp\n")
    step: FunctionType = module.Net.step
    step.__code__ = change(step.__code__)

    with pytest.raises(ChangedSourceError, match=what):
        fingerprint(module.Net())


def test_a_function_that_moved_is_told_where_it_stands(imports: Import) -> None:
    module = imports("class Net:\n    def step(self): return 1\n")
    rewrite(module, "\n\nclass Net:\n    def step(self): return 1\n")

    with pytest.raises(
        ChangedSourceError, match=r"is not what runs.* \(it is at line 4 of the file now\)"
    ):
        fingerprint(module.Net())


GENERATED = """
import functools
def checked(function):
    space = {"function": function}
    exec(compile("def step(*args): return function(*args)", "<@checked>", "exec"), space)
    return functools.wraps(function)(space["step"])
class Net:
    @checked
    def step(self, hp, t): return t
"""


def test_a_wrapper_that_was_generated_is_named_as_such(imports: Import) -> None:
    with pytest.raises(InvalidStudyError) as caught:
        fingerprint(imports(GENERATED).Net())

    assert str(caught.value) == (
        "'step' is a wrapper that a decorator generated as '<@checked>', and no file shows what "
        "it does: leave off that decorator, or use one whose wrapper is written in a file"
    )


# Statements that stand for values


STATEMENTS = """
import random, threading
def doubled(rng): return lambda function: function
def kept(cls): return cls
WIDTH = 8
RNG = random.Random(1)
if WIDTH > 4:
    LOCK = threading.Semaphore(2)
else:
    LOCK = threading.Semaphore(3)
for NOISE in [random.Random(4)]: pass
with threading.Lock() as HELD, threading.Lock(): INSIDE = random.Random(5)
@doubled(random.Random(6))
def move(x, rng=random.Random(7)): return x
@kept
class Part:
    rng = random.Random(8)
    @doubled(random.Random(9))
    def turn(self, rng=random.Random(10)): return [random.Random(11) for _ in ()]
class Net:
    def step(self, hp, t):
        return WIDTH, RNG, LOCK, NOISE, HELD, INSIDE, move, Part
UNUSED = 12
"""

HIDDEN = [f"Random({number})" for number in (1, 4, 5, 6, 7, 8, 9, 10, 11)]


@pytest.mark.parametrize("old", [*HIDDEN, "Semaphore(2)", "@kept", "WIDTH > 4"])
def test_a_statement_that_stands_for_a_value_must_be_the_one_that_ran(
    imports: Import, old: str
) -> None:
    """The value has no content of its own, so nothing else could tell that it is another."""
    new = {"@kept": "@doubled(1)", "WIDTH > 4": "WIDTH > 3"}.get(old, f"{old[:-1]}0)")
    module = imports(STATEMENTS)
    before = fingerprint(module.Net())
    rewrite(module, STATEMENTS.replace(old, new))

    if old == "WIDTH > 4":  # only what gives the name its value counts, not what is around it
        assert fingerprint(module.Net()) == before
        return
    with pytest.raises(ChangedSourceError, match=r"reload what was edited since it was imported"):
        fingerprint(module.Net())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNUSED = 12", "UNUSED = [13, 14]"),
        ("UNUSED = 12", "UNUSED = 12\nif UNUSED:\n    print()\nelse:\n    MORE = 1"),
        ("UNUSED = 12\n", ""),
        ("WIDTH = 8", "WIDTH = 9  # a remark"),
    ],
)
def test_an_edit_of_other_statements_is_none(imports: Import, old: str, new: str) -> None:
    """Values count as they are in the process, whatever the file says of them now."""
    module = imports(STATEMENTS)
    before = fingerprint(module.Net())
    rewrite(module, STATEMENTS.replace(old, new))

    assert fingerprint(module.Net()) == before


@pytest.mark.parametrize(
    "last",
    [
        "if N > 1:\n    LOCK = Lock()\nelse:\n    LOCK = None",
        "for LOCK in [Lock()]:\n    if N > 1: break",
        "with Lock(): LOCK = Lock()",
        "LOCK = Lock() if N > 1 else None",
    ],
)
def test_a_statement_is_no_other_because_one_follows(imports: Import, last: str) -> None:
    """A module ends in each branch of its last statement."""
    source = (
        f"from threading import Lock\nN = 2\nclass Net:\n    def f(self): return LOCK\n{last}\n"
    )
    module = imports(source)
    before = fingerprint(module.Net())
    rewrite(module, f"{source}if N:\n    M = 1\n")

    assert fingerprint(module.Net()) == before


def test_the_body_of_a_class_in_a_function_must_be_the_one_that_ran(imports: Import) -> None:
    source = """
import random
def make():
    class Net:
        rng = random.Random(1)
    return Net
Net = make()
"""
    module = imports(source)
    assert fingerprint(module.Net()).digest
    rewrite(module, source.replace("Random(1)", "Random(2)"))

    with pytest.raises(ChangedSourceError, match=r"the source at line 4 of"):
        fingerprint(module.Net())


def test_a_constant_counts_by_the_value_that_runs(imports: Import) -> None:
    source = "WIDTH = 8\nclass Net:\n    def step(self): return WIDTH\n"
    module = imports(source)
    before = fingerprint(module.Net())
    rewrite(module, source.replace("8", "16"))

    assert fingerprint(module.Net()) == before
    importlib.reload(module)
    assert difference(before, fingerprint(module.Net())) == ("WIDTH changed",)


def test_a_reloaded_statement_counts(imports: Import) -> None:
    module = imports(STATEMENTS)
    before = fingerprint(module.Net())
    rewrite(module, STATEMENTS.replace("Random(1)", "Random(100)"))
    importlib.reload(module)

    assert difference(before, fingerprint(module.Net())) == ("RNG changed",)


@pytest.mark.parametrize("reason", ["not written", "unreadable", "of another Python", "missing"])
def test_without_cached_bytecode_statements_are_taken_at_their_word(
    imports: Import, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """Old bytecode that no import could replace must not refuse a module that is as its file."""
    module = imports(STATEMENTS)
    cached = Path(str(module.__cached__))
    data = cached.read_bytes()
    edited = STATEMENTS.replace("Random(1)", "Random(100)")
    module = imports(edited)
    match reason:
        case "not written":
            cached.write_bytes(data)
            monkeypatch.setattr(sys, "dont_write_bytecode", True)
        case "unreadable":
            cached.write_bytes(data[:100])
        case "of another Python":
            cached.write_bytes(b"1234" + data[4:])
        case _:
            cached.unlink()

    assert fingerprint(module.Net()).digest


def test_a_script_is_compared_with_the_code_that_it_is_running(tmp_path: Path) -> None:
    edit = """
from pathlib import Path
place = Path(__file__)
place.write_text(place.read_text().replace("Random(1{})".format(""), "Random(100)"))
from dasktune.study.fingerprint import fingerprint
try: print(fingerprint(Net()))
except Exception as error: print(type(error).__name__, error)
"""
    (tmp_path / "script.py").write_text(STATEMENTS + edit, encoding="utf-8")

    first, second = in_process(tmp_path, "-B", "script.py"), in_process(tmp_path, "script.py")

    assert first.startswith("ChangedSourceError the source at line 6 of ")
    assert second.startswith("Fingerprint(")


def test_a_script_that_goes_on_in_another_thread_is_found(tmp_path: Path) -> None:
    run = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from dasktune.study.fingerprint import fingerprint
place = Path(__file__)
place.write_text(place.read_text().replace("Random(1{})".format(""), "Random(100)"))
with ThreadPoolExecutor(1) as pool: print(type(pool.submit(fingerprint, Net()).exception()))
"""
    (tmp_path / "script.py").write_text(STATEMENTS + run, encoding="utf-8")

    assert "ChangedSourceError" in in_process(tmp_path, "script.py")


def test_what_a_script_executes_is_not_taken_for_the_script(tmp_path: Path) -> None:
    run = f"exec(compile({SHOW!r}, 'cell', 'exec'))\n"
    (tmp_path / "script.py").write_text(STATEMENTS + run, encoding="utf-8")

    assert in_process(tmp_path, "script.py").startswith("Fingerprint(")


def test_refusals_are_bad_studies() -> None:
    assert issubclass(ChangedSourceError, InvalidStudyError)
