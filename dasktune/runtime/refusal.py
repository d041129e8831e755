"""Refuse, before any task is sent, what cannot or should not travel with the training code.

Called by the runner and by `check`. What travels is asked from the pickler itself: it sees every
object before it is written, so a lock deep inside, a global that a method reads, or a large array
is found whatever holds it, and no copy of the array is made. Only when something is refused is it
looked for by name: in attributes, items, closures and globals.
"""

import ast
import gc
import io
import linecache
import socket
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

import cloudpickle

from dasktune.errors import InvalidStudyError
from dasktune.runtime.payload import travelling_by_value
from dasktune.study.content import (
    contents,
    functions_in,
    is_installed_class,
    is_installed_function,
    is_installed_module,
)

LIMIT_BYTES = 10 * 2**20
"""How large one object may be that travels with the training code."""

_Object: TypeAlias = Any
"""Whatever training code may hold."""

_LOCKS = ("_thread.lock", "_thread.RLock", "multiprocessing.synchronize.SemLock")
_MOST_VISITED = 200_000


def refuse_what_cannot_travel(trainable: object) -> None:
    """Look through what would be sent to workers.

    Raises:
        InvalidStudyError: There is a lock, an open file, a socket, a generator or something else
            that cannot be sent, or something over 10 MB; the message says where.
    """
    with travelling_by_value():
        found = _sniffed(trainable)
        if isinstance(found, int) and found <= LIMIT_BYTES:
            return
        refusal = _RefusalError(None, _too_large(found)) if isinstance(found, int) else found
        place = ""
        if refusal.thing is not None:
            place = path_to(trainable, refusal.thing)
        place = place or _holder(trainable, refusal)
    raise InvalidStudyError(_sentence(place, refusal)) from refusal.__cause__


def _sniffed(thing: object) -> "_RefusalError | int":
    """Return why something cannot travel, or how many bytes it is as it travels."""
    nowhere = _Nowhere()
    sniffer = _Sniffer(nowhere)
    try:
        sniffer.dump(thing)
    except _RefusalError as found:
        return found
    except Exception as error:  # whatever an object's own way of pickling raises
        refusal = _RefusalError(sniffer.last, f"cannot be sent to workers ({error})")
        refusal.__cause__ = error
        return refusal
    return nowhere.size_bytes


class _Nowhere:
    """A file that counts what is written and keeps nothing of it."""

    size_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Count."""
        size_bytes = memoryview(data).nbytes
        self.size_bytes += size_bytes
        return size_bytes


class _RefusalError(Exception):
    """Something was found; ends the pickling."""

    def __init__(self, thing: object, reason: str) -> None:
        super().__init__(reason)
        self.thing = thing
        self.reason = reason


class _Sniffer(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles into nowhere that is kept, and looks at each object first."""

    last: object = None
    """The object that was begun last."""

    def persistent_id(self, thing: object) -> None:
        """Refuse an object, or let it be pickled as usual."""
        if type(thing) in _HARMLESS:
            return
        reason = _reason(thing)
        if reason:
            raise _RefusalError(thing, reason)
        self.last = thing


_HARMLESS = frozenset({int, float, bool, type(None), dict, list, tuple, set, frozenset, complex})


def _reason(thing: _Object) -> str:
    """Say why an object must not travel; nothing if it may."""
    kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
    if isinstance(thing, io.IOBase) and not isinstance(thing, io.BytesIO | io.StringIO):
        return f"is an open file ({getattr(thing, 'name', '?')!r}), which no other process has"
    if kind in _LOCKS or isinstance(thing, _multiprocessing_locks()):
        return "is a lock, which only means something in its own process"
    if isinstance(thing, socket.socket):
        return "is a socket, which no other process has"
    if isinstance(thing, GeneratorType | CoroutineType | AsyncGeneratorType):
        return f"is a generator ({thing.__qualname__}), which cannot be sent"
    size = size_bytes(thing)
    return _too_large(size) if size > LIMIT_BYTES else ""


def _too_large(size: int) -> str:
    return (
        f"has {size / 2**20:.1f} MB and would be sent to every worker, where "
        f"{LIMIT_BYTES // 2**20} MB are allowed"
    )


def _multiprocessing_locks() -> tuple[type, ...]:
    module = sys.modules.get("multiprocessing.synchronize")
    return (module.SemLock,) if module is not None else ()


def size_bytes(thing: _Object) -> int:
    """Return the memory of an array, a tensor, bytes or text; 0 for what holds other things."""
    if isinstance(thing, bytes | bytearray | str):
        return len(thing)
    if isinstance(thing, memoryview):
        return thing.nbytes
    if isinstance(thing, type) or not hasattr(type(thing), "nbytes"):
        return 0
    with suppress(Exception):  # somebody else's attribute
        return int(thing.nbytes)
    return 0


# --- where it is


def _sentence(place: str, refusal: _RefusalError) -> str:
    thing = refusal.thing
    name = place or (
        "the training code" if thing is None else f"an object of {type(thing).__qualname__} in it"
    )
    verb = "load" if " MB " in refusal.reason else "make"
    return f"{name} {refusal.reason}: {verb} it in setup(), which runs where training does"


def _holder(trainable: object, refusal: _RefusalError) -> str:
    """Name the attribute that brings along what was refused, though no path to it is found."""
    sizes: list[tuple[int, str]] = []
    for value, path in _attributes(trainable, "trainable"):
        found = _sniffed(value)
        if refusal.thing is None and isinstance(found, int):
            sizes.append((found, path))
        elif refusal.thing is not None and not isinstance(found, int):
            return path
    size, path = max(sizes, default=(0, ""))
    return path if size > LIMIT_BYTES // 2 else ""


def path_to(trainable: object, thing: object) -> str:
    """Say how the user reaches an object from a trainable; empty if no way is found."""
    pending: deque[tuple[_Object, str]] = deque([(trainable, "trainable")])
    seen: dict[int, object] = {}
    with _no_collection():
        while pending and len(seen) < _MOST_VISITED:
            at, path = pending.popleft()
            if at is thing:
                return path
            if id(at) not in seen:
                seen[id(at)] = at
                pending.extend(_children(at, path))
    return ""


class _no_collection:  # noqa: N801  (reads as a statement)
    """No collection meanwhile: a walk makes many small objects and no garbage worth it."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()


def _children(thing: _Object, path: str) -> Iterator[tuple[_Object, str]]:
    match thing:
        case FunctionType():
            yield from _of_function(thing, path)
        case MethodType():
            yield thing.__self__, f"{path}.__self__"
            yield thing.__func__, path
        case partial():
            yield thing.func, f"{path}.func"
            yield from _children(thing.args, f"{path}.args")
            yield from _children(thing.keywords, f"{path}.keywords")
        case type():
            yield from _of_class(thing, path)
        case ModuleType():
            pass
        case dict() | Mapping():
            with suppress(Exception):
                yield from ((value, f"{path}[{key!r}]") for key, value in list(thing.items()))
            yield from _attributes(thing, path)
        case list() | tuple() | set() | frozenset() | deque():
            yield from ((item, f"{path}[{i}]") for i, item in enumerate(list(thing)))
            yield from _attributes(thing, path)
        case _:
            yield from _attributes(thing, path)


def _attributes(thing: _Object, path: str) -> Iterator[tuple[_Object, str]]:
    attributes = getattr(thing, "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((value, f"{path}.{name}") for name, value in list(attributes.items()))
    for cls in type(thing).__mro__:
        for name, slot in vars(cls).items():
            if isinstance(slot, MemberDescriptorType):
                with suppress(AttributeError):
                    yield slot.__get__(thing), f"{path}.{name}"
    if not is_installed_class(type(thing)):
        yield type(thing), type(thing).__qualname__


def _of_class(cls: type, path: str) -> Iterator[tuple[_Object, str]]:
    if is_installed_class(cls):
        return
    for name, value in list(vars(cls).items()):
        yield value, f"{path}.{name}"
        for function in functions_in(value):
            yield function, f"{path}.{name}"
    yield from ((base, base.__qualname__) for base in cls.__bases__)


def _of_function(function: FunctionType, path: str) -> Iterator[tuple[_Object, str]]:
    if is_installed_function(function):
        return
    name = function.__qualname__
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        for value in contents(cell):
            yield value, f"the variable {variable} that {name} has from around it"
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield value, f"a default of {name}"
    yield from _attributes(function, path)
    for dotted in sorted(_names_in(function.__code__)):
        value = function.__globals__.get(dotted)
        if isinstance(value, ModuleType) and not is_installed_module(value.__name__):
            for other in sorted(_names_in(function.__code__) & vars(value).keys()):
                yield vars(value)[other], f"{dotted}.{other}, which {name} reads,"
        elif value is not None:
            yield value, f"the global {dotted}, which {name} reads,"


def _names_in(code: CodeType) -> set[str]:
    """Return the names that code, and the code inside it, reads from outside."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


# --- scripts


class UnguardedScriptError(InvalidStudyError, SystemExit):
    """A script calls `run` without a guard: it ends with one sentence, and without a traceback."""

    def __init__(self, sentence: str) -> None:
        InvalidStudyError.__init__(self, sentence)
        self.code = f"dasktune: {sentence}"


def refuse_unguarded_script(*, starts_workers: bool) -> None:
    """Look whether the script that is calling would call again where it is imported.

    Args:
        starts_workers: Whether worker processes of ours will import the main script.

    Raises:
        UnguardedScriptError: It calls outside `if __name__ == "__main__":`, and workers or the
            command line import it.
    """
    main = vars(sys.modules["__main__"])
    module: FrameType | None = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_name
        if name == "<module>":
            module = frame
            if starts_workers and frame.f_globals is main and main.get("__file__"):
                source = "".join(linecache.getlines(frame.f_code.co_filename))
                if source and not is_guarded(source, frame.f_lineno):
                    raise _unguarded(frame)
        is_import = frame.f_globals.get("__name__") == "dasktune.cli" and name == "_imported"
        if is_import and module is not None:
            raise _unguarded(module)
        frame = frame.f_back


def _unguarded(frame: FrameType) -> UnguardedScriptError:
    return UnguardedScriptError(
        f"{frame.f_code.co_filename}, line {frame.f_lineno}, runs a study when it is imported, as "
        'workers and the command line do: put the call under if __name__ == "__main__":'
    )


def is_guarded(source: str, line: int) -> bool:
    """Say whether a line of a script runs only where the script is the main one."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return True  # not what is running: nothing is known
    for node in tree.body:
        if node.lineno > line:
            break
        asks = isinstance(node, ast.If) and any(
            isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(node.test)
        )
        # Also a guard that ends the script for all others, before the line.
        if asks and (line <= (node.end_lineno or line) or _ends(node)):
            return True
    return False


def _ends(node: ast.AST) -> bool:
    """Say whether a guard may leave the script."""
    return any(isinstance(each, ast.Raise) or _is_exit(each) for each in ast.walk(node))


def _is_exit(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"exit", "_exit"}
