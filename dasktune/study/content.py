"""Say what a value is to a fingerprint: the name of an installed thing, or its content.

Called by `fingerprint` and `closure`. A view shows one level of a value: a content of its own, and
the values that it consists of under labels which also tell its path. Values without a content that
is the same in every process are refused with their path.

*Installed* is what lies in site-packages or the standard library, is built in, frozen or an
extension module, or belongs to dasktune. All else is the user's, editable installs included.

Nothing of the user's is executed, with one exception: a user's module that a function imports is
imported, because otherwise the answer would depend on what the process has imported before.
"""

import importlib
import importlib.machinery
import importlib.util
import re
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, cached_property, partial, partialmethod
from hashlib import sha256
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

from dasktune.errors import InvalidStudyError

Foreign: TypeAlias = Any
"""An object of the user's, asked for attributes that its type promises to nobody."""

View: TypeAlias = tuple[str, list[tuple[str, object]]]
"""One level of a value: its own content, and (label, value) for all that it consists of."""

SCALARS = frozenset({type(None), type(...), bool, int, float, complex, str, bytes})
"""Types whose literal is their whole content."""

_REPR_IS_CONTENT = frozenset(
    {
        "array.array",
        "builtins.bytearray",
        "builtins.range",
        "datetime.date",
        "datetime.datetime",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "decimal.Decimal",
        "fractions.Fraction",
        "numpy.dtype",
        "torch.device",
        "torch.dtype",
        "uuid.UUID",
        "zoneinfo.ZoneInfo",
    }
)
_ATTRIBUTES_ARE_CONTENT = frozenset({"argparse.Namespace", "types.SimpleNamespace"})
_CACHES = frozenset({"functools._lru_cache_wrapper"})
_WITHOUT_EFFECT = frozenset({"logging.Logger"})
"""What can't change the result of a training, whatever it holds."""

_PYTHON_CLASS = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`: all classes written in Python have it, most written in C don't."""

_LIBRARY_FOLDERS = frozenset({"site-packages", "dist-packages"})
_LIBRARY_ROOTS = (
    Path(importlib.__file__).resolve().parents[1],  # sysconfig knows, but loads what isn't pure
    (Path(sys.prefix) / "lib").resolve(),
    (Path(sys.base_prefix) / "lib").resolve(),
)


# What is installed, and its name


def is_installed_module(name: str) -> bool:
    """Say whether a module counts by its name only."""
    if name == "__main__":  # even if a command that is installed runs the user's script
        return False
    if name.partition(".")[0] == "dasktune" or name in sys.builtin_module_names:
        return True
    top = name.partition(".")[0]
    if top != name and is_installed_module(top):
        return True  # some packages make up modules that have no place, or an odd one
    module = sys.modules.get(name)
    if getattr(getattr(module, "__spec__", None), "origin", None) == "frozen":
        return True
    folders = getattr(module, "__path__", ())
    places = [
        getattr(module, "__file__", None),
        *(folders if isinstance(folders, Iterable) else ()),
    ]
    return any(_is_installed_file(place) for place in places if isinstance(place, str))


def is_installed_class(cls: type) -> bool:
    """Say whether a class counts by its name only."""
    return is_installed_module(cls.__module__)


def is_installed_function(function: FunctionType) -> bool:
    """Say whether a function counts by its name only: where its code lies, whoever wraps it."""
    filename = function.__code__.co_filename
    owner = str(function.__globals__.get("__name__"))
    if filename.startswith("<") or owner.partition(".")[0] == "dasktune":
        return is_installed_module(owner)
    return _is_installed_file(filename)


def is_generated(function: FunctionType) -> bool:
    """Say whether no file holds a method of a class: a dataclass, or Python itself, made it."""
    code = function.__code__
    return code.co_name == "__annotate__" or code.co_filename.startswith(("<string", "<attrs"))


@cache
def _is_installed_file(filename: str) -> bool:
    if _LIBRARY_FOLDERS.intersection(PurePath(filename).parts):
        return True
    if filename.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
        return True
    path = Path(filename).resolve()
    return any(root in path.parents for root in _LIBRARY_ROOTS)


def public_name(module: str, qualname: str, thing: object) -> str:
    """Name an installed thing by the outermost package that offers it.

    Libraries move things between their private modules: `torch.nn.modules.linear.Linear` is known
    as `torch.nn.Linear`, and `pathlib._local.Path` as `pathlib.Path`.
    """
    pieces = module.split(".")
    for depth in range(1, len(pieces) + 1):
        package = ".".join(pieces[:depth])
        first, *rest = qualname.split(".")
        found = vars(sys.modules[package]).get(first) if package in sys.modules else None
        for name in rest:
            found = getattr(found, name, None)
        if found is thing:
            return f"{package}.{qualname}"
    return f"{module}.{qualname}"


def user_module(name: str) -> ModuleType | None:
    """Give a module of the user's, imported if need be; None if installed or not importable."""
    if name not in sys.modules:
        try:
            top = name.partition(".")[0]
            spec = None if top in sys.modules else importlib.util.find_spec(top)
            place = getattr(spec, "origin", None)
            if is_installed_module(top) or (place and _is_installed_file(place)):
                return None
            importlib.import_module(name)
        except (Exception, SystemExit):  # whatever a module raises, only its name can count then
            return None
    return None if is_installed_module(name) else sys.modules.get(name)


# What a value consists of


def view(value: object, path: str) -> View:
    """Show one level of a value that is no scalar, class, function or module.

    Args:
        value: Any object.
        path: How the user reaches it, for the message.

    Raises:
        InvalidStudyError: Its content isn't the same in every process, or can't be read.
    """
    for kind in _KINDS:
        shown = kind(value)
        if shown is not None:
            return shown
    raise InvalidStudyError(
        f"{path} is an object of {_name_of(type(value))}, which has no content that is "
        "the same in every process: build it in setup(), where it is no part of the fingerprint"
    )


def plain(value: Foreign) -> str | None:
    """Write a scalar, or a list or tuple of scalars, as text; None for all else."""
    if type(value) in SCALARS:
        return _literal(value)
    if type(value) in {list, tuple} and all(type(item) in SCALARS for item in value):
        return f"{type(value).__name__} [{','.join(map(_literal, value))}]"
    return None


def functions_in(attribute: object) -> Iterator[FunctionType]:
    """Yield the functions that an attribute of a class is made of, wrapped ones too."""
    match attribute:
        case FunctionType():
            yield attribute
            yield from functions_in(vars(attribute).get("__wrapped__"))
        case staticmethod() | classmethod():
            yield from functions_in(attribute.__func__)
        case property():
            for function in (attribute.fget, attribute.fset, attribute.fdel):
                yield from functions_in(function)
        case cached_property() | partialmethod():
            yield from functions_in(attribute.func)


def wrapped_code(function: FunctionType) -> Iterator[FunctionType | type]:
    """Yield the user's functions and classes that an installed wrapper holds."""
    cells = [content for cell in function.__closure__ or () for content in contents(cell)]
    held = [*vars(function).values(), *cells]
    for item in list(held):  # a registry, or a pipeline
        inner = list(item.values()) if isinstance(item, dict | MappingProxyType) else item
        held += inner if isinstance(inner, list | tuple) else ()
    for item in held:
        thing = item.__func__ if isinstance(item, MethodType) else item
        if isinstance(thing, FunctionType) and not is_installed_function(thing):
            yield thing
        if isinstance(thing, type) and not is_installed_class(thing):
            yield thing


def contents(cell: CellType) -> list[object]:
    """Give what a closure's cell holds: one value, or none if its name isn't bound yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _literal(value: object) -> str:
    text = hex(value) if type(value) is int else ascii(value)
    return f"{type(value).__name__} {text}"


def _callable(value: Foreign) -> View | None:
    match value:
        case partial():
            parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
            return "partial", [(f".{name}", part) for name, part in parts.items()]
        case MethodType():
            return "method", [(".__func__", value.__func__), (".__self__", value.__self__)]
        case BuiltinFunctionType() if not isinstance(value.__self__, ModuleType | None):
            return f"method {value.__name__}", [(".__self__", value.__self__)]
        case BuiltinFunctionType():
            module = value.__module__ or "builtins"
            return f"installed {public_name(module, value.__name__, value)}", []
    cls = type(value)
    inner = (
        [getattr(value, "__wrapped__", None)] if _name_of(cls) in _CACHES else functions_in(value)
    )
    children: list[tuple[str, object]] = [(".__func__", function) for function in inner]
    return (cls.__name__, children) if children else None


def _singleton(value: Foreign) -> View | None:
    """Show what its installed module holds under its own name, like numpy's `tanh`."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    module = getattr(value, "__module__", None) or type(value).__module__
    if not isinstance(name, str) or not isinstance(module, str) or not is_installed_module(module):
        return None
    known = public_name(module, name, value)
    owner = sys.modules.get(known.removesuffix(f".{name}"))
    for attribute in name.split("."):
        owner = getattr(owner, attribute, None)
    return (f"installed {known}", []) if owner is value else None


def _array(value: Foreign) -> View | None:
    """Show an array or a tensor by dtype, shape and bytes."""
    makers = (cls for cls in type(value).__mro__ if {"tobytes", "numpy"} & vars(cls).keys())
    maker = next(makers, None)
    if maker is None or not is_installed_class(maker):
        return None
    cls = type(value)
    children = [("<class>", cls), *([] if is_installed_class(cls) else _attributes(value))]
    try:
        dtype = value.dtype
        if getattr(dtype, "hasobject", False):  # its bytes are addresses
            return f"array {tuple(value.shape)}", [*children, (".tolist()", value.tolist())]
        data = sha256(_array_bytes(value)).hexdigest()
        return f"array {dtype} {tuple(value.shape)} {data}", children
    except (AttributeError, RuntimeError, TypeError):  # sparse, without data, not a tensor at all
        return None


def _array_bytes(value: Foreign) -> bytes:
    if not hasattr(value, "tobytes"):
        value = value.detach().cpu() if hasattr(value, "detach") else value
        try:
            value = value.numpy()
        except TypeError:  # bfloat16 and the like, unknown to numpy, fit into float32
            value = value.float().numpy()
    return bytes(value.tobytes())


def _text(value: Foreign) -> View | None:
    cls = type(value)
    if isinstance(value, PurePath):
        return f"path {value.as_posix()!a}", []
    if isinstance(value, re.Pattern):
        return "pattern", [(".pattern", value.pattern), (".flags", int(value.flags))]
    if _WITHOUT_EFFECT & _names_of(cls):
        return "without effect", []
    if _name_of(cls) in _REPR_IS_CONTENT or "numpy.dtype" in _names_of(cls):
        return ascii(value), []
    return None


def _container(value: Foreign) -> View | None:
    order = ""
    match value:
        case Enum():
            name, number = value._name_, value._value_
            children = [("<class>", type(value)), *([] if name else [("<value>", number)])]
            return f"member {name}", children
        case dict() | MappingProxyType():
            base: Foreign = dict if isinstance(value, dict) else MappingProxyType
            children = _items(value, base)
            order = f" {''.join([label for label, _ in children])}"
        case list() | tuple() | deque():
            base = next(kind for kind in (list, tuple, deque) if isinstance(value, kind))
            children = [(f"[{i}]", item) for i, item in enumerate(base.__iter__(value))]
            children += [(".maxlen", value.maxlen)] if isinstance(value, deque) else []
        case set() | frozenset():
            base = set if isinstance(value, set) else frozenset
            children = [("<item>", item) for item in base.__iter__(value)]
        case int() | float() | complex() | str() | bytes():
            base = next(kind for kind in type(value).__mro__ if kind in SCALARS)
            return base.__repr__(value), [("<class>", type(value)), *_attributes(value)]
        case _:
            return None
    kind = [] if type(value) is base else [("<class>", type(value)), *_attributes(value)]
    return f"{base.__name__}{order}", [*kind, *children]


def _items(value: Foreign, base: Foreign) -> list[tuple[str, object]]:
    items = (OrderedDict if isinstance(value, OrderedDict) else base).items(value)
    return [
        (f"[{key!a}]", item) if type(key) in SCALARS else (f"<item {i}>", (key, item))
        for i, (key, item) in enumerate(items)
    ]


def _object(value: object) -> View | None:
    """Show an object by its class and its attributes, if these are all that it has."""
    cls = type(value)
    if is_installed_class(cls):
        is_known = cls.__module__.partition(".")[0] == "dasktune" or is_dataclass(cls)
        if not is_known and _name_of(cls) not in _ATTRIBUTES_ARE_CONTENT:
            return None
    elif any(is_installed_class(base) and _is_opaque(base) for base in cls.__mro__[:-1]):
        return None
    return "object", [("<class>", cls), *_attributes(value)]


def _is_opaque(base: type) -> bool:
    """Say whether a class keeps something in its objects that no attribute shows."""
    place = getattr(sys.modules.get(base.__module__), "__file__", None) or ""
    return not (base.__flags__ & _PYTHON_CLASS and place.endswith(".py"))


def _attributes(value: object) -> list[tuple[str, object]]:
    """List what an object holds in its dict and its slots, by name."""
    found = dict(getattr(value, "__dict__", {}))
    found.pop("__orig_class__", None)  # how typing remembers `Net[int]()`
    for cls in type(value).__mro__:
        for name, slot in vars(cls).items():
            if isinstance(slot, MemberDescriptorType) and name != "__dict__":
                with suppress(AttributeError):  # a slot that nothing was put into
                    found[name] = slot.__get__(value)
    return [(f".{name}", found[name]) for name in sorted(found)]


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _names_of(cls: type) -> set[str]:
    return {_name_of(base) for base in cls.__mro__}


_KINDS: tuple[Callable[[Foreign], View | None], ...] = (
    _callable,
    _array,
    _text,
    _container,
    _object,
    _singleton,
)
