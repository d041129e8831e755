"""What runs is compared with what stands in the file now, by what Python still holds of it."""

import ast
import importlib
import importlib.util
import marshal
import os
import py_compile
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from dasktune.errors import InvalidStudyError
from dasktune.study.compiled import QUIET_NAME, ChangedSourceError, quiet
from dasktune.study.fingerprint import difference, fingerprint
from dasktune.study.source_file import parse

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


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_whoever_is_quiet_at_the_same_time_leaves_the_filters_as_they_were(
    order: tuple[int, ...],
) -> None:
    """Threads leave in any order, one of which is the user's and has filters of its own."""
    with warnings.catch_warnings():
        before, filters = list(warnings.filters), warnings.filters
        blocks = [ExitStack(), ExitStack(), ExitStack()]
        blocks[0].enter_context(quiet())
        blocks[1].enter_context(warnings.catch_warnings(action="error"))
        blocks[2].enter_context(quiet())
        with pytest.raises(UserWarning, match="mine"):
            warnings.warn("mine", stacklevel=1)
        for number in order:
            blocks[number].close()

        assert warnings.filters is filters
        assert list(warnings.filters) == before


def test_only_what_is_compiled_quietly_is_silent() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with quiet():
            compile("1 is 1", QUIET_NAME, "eval")
            compile("2 is 2", "elsewhere", "eval")
            warnings.filters.clear()  # type: ignore[attr-defined]

    assert [warning.filename for warning in heard] == ["elsewhere"]


def test_threads_that_read_sources_silence_nobody() -> None:
    before, interval = list(warnings.filters), sys.getswitchinterval()

    def read(number: int) -> object:
        lines = (f"def f{i}(x): return x is {number}" for i in range(60))
        file = parse("\n".join(lines))
        return file and file.code

    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, range(50)))
    finally:
        sys.setswitchinterval(interval)

    assert list(warnings.filters) == before


@pytest.mark.parametrize("n_failures", [1, 19, 20])
def test_a_text_is_parsed_again_where_another_thread_was_in_the_way(
    monkeypatch: pytest.MonkeyPatch, n_failures: int
) -> None:
    source, read, failures = (
        f"NUMBER = {n_failures}",
        ast.parse,
        [SystemError("depth")] * n_failures,
    )

    def fail_first(source: str, filename: str) -> ast.Module:
        if failures:
            raise failures.pop()
        return read(source, filename)

    monkeypatch.setattr(ast, "parse", fail_first)
    if n_failures == 20:
        with pytest.raises(SystemError, match="depth"):
            parse(source)
    else:
        file = parse(source)
        assert file is not None
        assert list(file.bindings) == ["NUMBER"]


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


# Bytecode beside the file


def put_bytecode(module: Path, code: CodeType, *, age: int = 0, flags: int = 0) -> None:
    """Cache bytecode as an import does, so many seconds after its source was written."""
    status = module.stat()
    parts = (flags, int(status.st_mtime), status.st_size)
    header = importlib.util.MAGIC_NUMBER + b"".join(part.to_bytes(4, "little") for part in parts)
    if flags & 1:
        header = header[:8] + importlib.util.source_hash(module.read_bytes())
    cached = Path(importlib.util.cache_from_source(str(module)))
    cached.write_bytes(header + marshal.dumps(code))
    written = int(status.st_mtime) + age
    os.utime(cached, (written, written))


def otherwise(code: CodeType) -> CodeType:
    """Compile as no release does: with a constant that nothing uses."""
    inner = (otherwise(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_consts=(*inner, "unused"))


@pytest.mark.parametrize("is_replaceable", [True, False])
@pytest.mark.parametrize("flags", [0, 1, 3], ids=["time", "hash", "checked hash"])
def test_bytecode_of_another_compiler_is_that_of_its_file(
    tmp_path: Path,
    imports: Import,
    monkeypatch: pytest.MonkeyPatch,
    flags: int,
    *,
    is_replaceable: bool,
) -> None:
    """Releases of Python that share a magic number don't compile everything alike."""
    expected = fingerprint(imports(STATEMENTS).Net())
    place = tmp_path / "edited.py"
    code = otherwise(compile(STATEMENTS, str(place), "exec"))
    put_bytecode(place, code, age=10, flags=flags)
    del sys.modules["edited"]
    module = importlib.import_module("edited")
    assert "unused" in module.Net.step.__code__.co_consts
    monkeypatch.setattr(sys, "dont_write_bytecode", not is_replaceable)

    assert fingerprint(module.Net()) == expected
    rewrite(module, STATEMENTS.replace("Random(1)", "Random(100)"))
    with pytest.raises(ChangedSourceError):
        fingerprint(module.Net())


def test_an_edit_whose_time_was_set_back_is_one(tmp_path: Path, imports: Import) -> None:
    """Size and time are as the bytecode says, so that Python itself would take it."""
    module = imports(STATEMENTS)
    place = tmp_path / "edited.py"
    date = place.stat().st_mtime_ns
    rewrite(module, STATEMENTS.replace("hp, t", "t, hp"))
    os.utime(place, ns=(date, date))

    with pytest.raises(ChangedSourceError, match=r", or delete its bytecode in __pycache__ if it"):
        fingerprint(module.Net())


@pytest.mark.parametrize("flags", [0, 1], ids=["same second", "unchecked hash"])
def test_bytecode_that_python_would_take_again_is_named(
    tmp_path: Path, imports: Import, flags: int
) -> None:
    source = """
import random
RNG = random.Random(1)
class Net:
    def step(self): return 1
class Other:
    def step(self): return RNG
"""
    imports(source)
    place = tmp_path / "edited.py"
    put_bytecode(place, compile(source, str(place), "exec"), flags=flags)
    del sys.modules["edited"]
    module = importlib.import_module("edited")
    date = place.stat().st_mtime_ns
    rewrite(module, source.replace("1", "2"))
    date = max(date // 10**9 * 10**9 + 999_000_000, date)  # the end of that second
    os.utime(place, ns=(date, date))

    for trainable in (module.Net(), module.Other()):
        with pytest.raises(
            ChangedSourceError, match=r", or delete its bytecode in __pycache__ if it was not"
        ):
            fingerprint(trainable)


def test_what_another_process_caches_later_changes_nothing(imports: Import) -> None:
    module = imports(STATEMENTS)
    before = fingerprint(module.Net())

    rewrite(module, STATEMENTS.replace("Random(1)", "Random(100)"))
    py_compile.compile(str(module.__file__))
    with pytest.raises(ChangedSourceError, match=r"the source at line 6 of"):
        fingerprint(module.Net())

    rewrite(module, STATEMENTS)  # put back, but not the bytecode
    assert fingerprint(module.Net()) == before


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
    ) as caught:
        fingerprint(module.Net())
    assert "decorator" not in str(caught.value)


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


NESTED = """
import random
def kept(rng): return lambda thing: thing
def make():
    # first
    def noise(x, rng=random.Random(1), *, other, more=random.Random(2)): return rng, more
    @kept(random.Random(3))
    def move(x): return noise(x, other=1)
    @kept(random.Random(4))
    class Part(kept(random.Random(5))(object), metaclass=kept(random.Random(6))(type)):
        def turn(self, rng=random.Random(7)): return move(rng)
    turn = lambda x, rng=random.Random(8): Part().turn(x)
    print
    return turn
class Holder:
    def hold(self, rng=random.Random(9)): return rng
    print
HOLD = Holder.hold
TURN = make()
class Net:
    def step(self, hp, t): return TURN(t), HOLD
"""


@pytest.mark.parametrize("number", range(1, 10))
def test_what_runs_in_a_function_where_another_is_made_must_be_what_ran(
    imports: Import, number: int
) -> None:
    """A generator has no content: only the expression of a default tells what it is."""
    module = imports(NESTED)
    before = fingerprint(module.Net())
    rewrite(module, NESTED.replace(f"Random({number})", "Random(0)"))
    os.utime(str(module.__file__), (1, 1))  # else a reload might take the bytecode for new

    with pytest.raises(ChangedSourceError, match=r"reload what was edited since it was imported"):
        fingerprint(module.Net())

    importlib.reload(module)
    assert fingerprint(module.Net()) != before


@pytest.mark.parametrize(
    ("old", "new"), [("# first", "# second"), ("    print\n    return", "    repr\n    return")]
)
def test_other_statements_of_a_function_that_makes_one_count_by_what_they_made(
    imports: Import, old: str, new: str
) -> None:
    module = imports(NESTED)
    before = fingerprint(module.Net())
    rewrite(module, NESTED.replace(old, new))

    assert fingerprint(module.Net()) == before


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


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Random(1{})", "Random(100)"),
        ("return WIDTH{},", "return 8,"),
        ("UNUSED = 12{}", "UNUSED = ("),
    ],
    ids=["statement", "function", "no Python"],
)
def test_whoever_edits_a_running_script_is_told_to_start_it_again(
    tmp_path: Path, old: str, new: str
) -> None:
    edit = f"""
from pathlib import Path
place = Path(__file__)
place.write_text(place.read_text().replace({old!r}.format(""), {new!r}))
from dasktune.study.fingerprint import fingerprint
try: print(fingerprint(Net()))
except Exception as error: print(error)
"""
    (tmp_path / "script.py").write_text(STATEMENTS + edit, encoding="utf-8")

    words = in_process(tmp_path, "script.py")

    assert "start the script again: what has finished answers from the store" in words
    assert "reload" not in words


# What another name hides


@pytest.mark.parametrize("tool", [["cProfile", "-o", "stats"], ["trace", "--listfuncs"]])
def test_a_script_that_a_tool_runs_is_found_though_the_tool_has_its_name(
    tmp_path: Path, tool: list[str]
) -> None:
    source = f"""
from dataclasses import dataclass
@dataclass(frozen=True)
class Config: rate: float = 0.1
class Net:
    def __init__(self): self.config = Config()
    def step(self, hp, t): return self.config
{SHOW}
"""
    (tmp_path / "script.py").write_text(source, encoding="utf-8")

    found = in_process(tmp_path, "-m", *tool, "script.py")

    assert in_process(tmp_path, "script.py").strip() in found


SENT = """
class Net:
    def step(self, t): return t
def step(t): return t
"""


@pytest.mark.parametrize(("name", "what"), [("Net", "class 'Net'"), ("step", "'step'")])
def test_code_that_was_sent_here_without_its_file_is_named_as_such(name: str, what: str) -> None:
    space: dict[str, object] = {"__name__": "nowhere"}
    exec(compile(SENT, "<dynamic-code>", "exec"), space)

    with pytest.raises(InvalidStudyError) as caught:
        fingerprint(space[name])

    assert str(caught.value) == (
        f"the source of {what} isn't found, as its code was sent here from another process: import "
        "the trainable from a module, or make the study in the process that defines it"
    )


def test_refusals_are_bad_studies() -> None:
    assert issubclass(ChangedSourceError, InvalidStudyError)
