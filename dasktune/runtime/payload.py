"""Send the user's training code as bytes, and make fresh instances of it on a worker.

The user's own modules travel by value, so neither the Dask scheduler nor a worker has to be able to
import them; installed packages travel by name.
"""

import io
import pickle
import sys
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from threading import Lock
from types import CodeType, FunctionType, ModuleType
from typing import ClassVar, cast

import cloudpickle

from dasktune.errors import InvalidStudyError
from dasktune.study.content import user_module
from dasktune.study.ports import Trainable
from dasktune.units import Digest


@dataclass(frozen=True, slots=True)
class Payload:
    """Training code as bytes."""

    content: bytes
    digest: Digest
    """SHA-256 of the content: workers keep what they have by it."""
    local: "_Local | None" = field(default=None, compare=False, repr=False)
    """The same for this process only; it does not travel."""

    def __reduce__(self) -> tuple[type["Payload"], tuple[bytes, Digest]]:
        return Payload, (self.content, self.digest)


def pack(trainable: Trainable) -> Payload:
    """Turn a trainable, as it is now, into bytes.

    Raises:
        InvalidStudyError: Something in it cannot travel.
    """
    with travelling_by_value():
        try:
            content = _with_files(trainable)
            local = _Local.of(trainable)
        except Exception as error:
            raise InvalidStudyError(
                f"trainable {type(trainable).__qualname__} cannot be sent to workers: {error}; "
                "build what cannot travel in setup()"
            ) from error
    return Payload(content, Digest(sha256(content).hexdigest()), local)


def early_imports(payloads: Iterable[Payload]) -> tuple[str, ...]:
    """Return what processes that will train should import while they start."""
    uses_torch = any(b"torch" in payload.content for payload in payloads)
    is_there = uses_torch and find_spec("torch") is not None
    return ("dasktune.runtime.torch_early",) if is_there else ()


def unpack(payload: Payload) -> Trainable:
    """Return a fresh instance of the trainable; where it was packed, of the user's own class.

    Unpickling there what was pickled by value would put copies of its methods into the user's
    class, which have other globals and no source file.
    """
    if payload.local is not None:
        return payload.local.unpack()
    return cast("Trainable", cloudpickle.loads(payload.content))


def _with_files(thing: object) -> bytes:
    file = io.BytesIO()
    _WithFiles(file).dump(thing)
    return file.getvalue()


def _code(code: CodeType) -> tuple[object, ...]:
    """Say how code is made again: as cloudpickle does, but for the file, which it leaves out."""
    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    file = code.co_filename
    return make, tuple(file if type(part) is str and part == _NO_FILE else part for part in parts)


_NO_FILE = "<dynamic-code>"


class _WithFiles(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """Lets tracebacks of workers name the file, and show the line where the file is there too."""

    dispatch_table: ClassVar[object] = ChainMap(
        {CodeType: _code}, cloudpickle.Pickler.dispatch_table
    )


@dataclass(frozen=True, slots=True)
class _Local:
    """Training code for the process that it is in: data is copied, code is what it is."""

    content: bytes
    code: list[object]
    """Classes, functions and modules, by number in the content."""

    @staticmethod
    def of(trainable: Trainable) -> "_Local":
        file = io.BytesIO()
        pickler = _ByReference(file)
        pickler.dump(trainable)
        return _Local(file.getvalue(), list(pickler.code.values()))

    def unpack(self) -> Trainable:
        unpickler = _FromReference(io.BytesIO(self.content))
        unpickler.code = self.code
        return cast("Trainable", unpickler.load())


class _ByReference(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.code: dict[int, object] = {}

    def persistent_id(self, thing: object) -> int | None:
        if not isinstance(thing, type | FunctionType | ModuleType):
            return None
        self.code.setdefault(id(thing), thing)
        return list(self.code).index(id(thing))


class _FromReference(pickle.Unpickler):
    code: list[object]

    def persistent_load(self, number: int) -> object:
        return self.code[number]


def by_value(thing: object) -> bytes:
    """Return something as bytes; what it holds of the user's code is in them by value.

    Only within `travelling_by_value`. The same bytes as cloudpickle's, in half the time.
    """
    file = io.BytesIO()
    _OursByName(file, protocol=pickle.HIGHEST_PROTOCOL).dump(thing)
    return file.getvalue()


class _OursByName(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def reducer_override(self, thing: object) -> object:
        # Of a class and of what is made of it. Ours travel by name: there is nothing to find out.
        if str(getattr(thing, "__module__", "")).startswith("dasktune."):
            return NotImplemented
        return super().reducer_override(thing)


@contextmanager
def travelling_by_value() -> Iterator[None]:
    """Let what is pickled inside carry the user's own modules with it."""
    with ExitStack() as stack:
        for module in _user_modules():
            _begin_by_value(module)
            stack.callback(_end_by_value, module)
        yield


def _begin_by_value(module: ModuleType) -> None:
    with _lock:
        _by_value[module.__name__] += 1
        if _by_value[module.__name__] == 1:
            cloudpickle.register_pickle_by_value(module)


def _end_by_value(module: ModuleType) -> None:
    with _lock:
        _by_value[module.__name__] -= 1
        if not _by_value[module.__name__]:
            cloudpickle.unregister_pickle_by_value(module)


_by_value: Counter[str] = Counter()
"""How many contexts a module travels by value in: they overlap where studies run in threads."""
_lock = Lock()


def _user_modules() -> list[ModuleType]:
    # A script and a notebook travel by value anyway; a module without a file is nobody's source.
    modules = [user_module(name) for name in list(sys.modules) if name not in _MAIN]
    return [
        module for module in modules if getattr(module, "__file__", None) is not None and module
    ]


_MAIN = ("__main__", "__mp_main__")
