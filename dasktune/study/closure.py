"""Find the syntax of the user's code, and the names by which it refers to more code.

Called by `fingerprint`, which turns what is found here into digests. Sources come from
`linecache`, so files, zipped modules and notebook cells are read alike.

References are an over-approximation by names. A name that a function, a lambda or a comprehension
binds is none; one that a class body binds is, because Python falls back on the module there.
What is reached only through a string (`getattr`, `import_module`) isn't seen.
"""

import ast
import builtins
import linecache
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.util import resolve_name
from itertools import chain
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from dasktune.errors import InvalidStudyError
from dasktune.study.compiled import (
    ChangedSourceError,
    FunctionNode,
    ModuleCode,
    is_as_imported,
    is_statement_changed,
    lambdas_at,
    not_what_runs,
    refuse_if_changed,
)
from dasktune.study.content import user_module
from dasktune.study.executed import executed_code
from dasktune.study.source_file import SourceFile, compiled, parse

Namespace: TypeAlias = Mapping[str, Any]
"""The globals of a module."""

Dotted: TypeAlias = tuple[str, ...]
"""A name and the attributes read from it: `helper.f` is `("helper", "f")`."""

_BINDING_FIELD: dict[type[ast.AST], str] = {
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
"""Where a name is bound without an `ast.Name`."""

LOCATION = frozenset({"__file__", "__name__", "__package__", "__path__", "__spec__"})
"""Names that say where a module is: they differ between a script and its import."""

SENT_HERE = (
    "isn't found, as its code was sent here from another process: import the trainable from a "
    "module, or make the study in the process that defines it"
)
"""What to say of code that `was_sent`."""

_SILENT_FIELDS = frozenset({"ctx", "kind", "type_comment"})


# Normal form and references


def normal_form(node: object, elided: Collection[ast.AST] = ()) -> str:
    """Write a syntax tree as text without positions, docstrings and other idle statements.

    Equal in all Python versions for syntax that they share: absent fields are left out.

    Args:
        node: A tree, a list of trees, or what stands in a field.
        elided: Functions to be replaced by their names, because they count elsewhere.
    """
    if isinstance(node, list):
        return f"[{','.join(normal_form(item, elided) for item in node if not _is_idle(item))}]"
    if not isinstance(node, ast.AST):
        return f"{type(node).__name__} {node!a}"
    if node in elided:
        return f"own {getattr(node, 'name', 'lambda')}"
    fields = ((name, getattr(node, name, None)) for name in node._fields)
    texts = [
        f"{name}={normal_form(value, elided)}"
        for name, value in fields
        if name not in _SILENT_FIELDS and value is not None and value != []
    ]
    return f"{type(node).__name__}({','.join(texts)})"


def _is_idle(item: object) -> bool:
    """Tell statements that do nothing: `pass`, docstrings, strings under fields, `...`."""
    is_constant = isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
    return is_constant or isinstance(item, ast.Pass)


class References:
    """What syntax trees that stand in one scope read from outside themselves.

    Each scope inside has an instance of its own and leaves to the outer one what it doesn't bind
    itself. Imports bind nothing here: `imports` tells what their names stand for.
    """

    def __init__(self, trees: Iterable[ast.AST | None], elided: Collection[ast.AST] = ()) -> None:
        self.loads: set[Dotted] = set()
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self._binds: set[str] = set()
        self._outside: set[str] = set()
        self._elided = elided
        self._visit_all(trees)

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None and node not in self._elided:
                self._visit(node)

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name() | ast.Attribute():
                self._read(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._function(node)
            case ast.ClassDef():
                self._binds.add(node.name)
                self._scope(ast.iter_child_nodes(node), is_class=True)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._visit(node.generators[0].iter)  # evaluated outside, where names mean others
                self._scope(ast.iter_child_nodes(node))
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self._outside.update(names)
                self.loads.update((name,) for name in names)
            case ast.Import() | ast.ImportFrom():
                self.imports.append(node)
            case _:
                if bound := getattr(node, _BINDING_FIELD.get(type(node), ""), None):
                    self._binds.add(bound)
                self._visit_all(ast.iter_child_nodes(node))

    def _read(self, node: ast.expr) -> None:
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            self._visit_all([node])
        elif attributes or isinstance(node.ctx, ast.Load):
            self.loads.add((node.id, *reversed(attributes)))
        else:
            self._binds.add(node.id)

    def _function(self, node: FunctionNode) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        if isinstance(node, ast.Lambda):
            return self._scope([node.args, node.body])
        self._binds.add(node.name)
        self._visit_all([*node.decorator_list, node.returns])
        return self._scope([node.args, *node.body, *getattr(node, "type_params", [])])

    def _scope(self, trees: Iterable[ast.AST], *, is_class: bool = False) -> None:
        scope = References(trees, self._elided)
        # The functions in a class don't see its names, and its body reads a name from the module
        # until it has bound it.
        hidden = set() if is_class else scope._binds - scope._outside
        self.loads |= {dotted for dotted in scope.loads if dotted[0] not in hidden}
        self.imports += scope.imports


def imported(
    statement: ast.Import | ast.ImportFrom, namespace: Namespace
) -> Iterator[tuple[str, Namespace, Dotted]]:
    """Yield each name that an import binds, and where in the user's modules it leads."""
    for alias in statement.names:
        name, top = alias.name, alias.name.partition(".")[0]
        if isinstance(statement, ast.ImportFrom):
            module = _origin(statement, namespace)
            if module is not None:
                if name not in vars(module):
                    user_module(f"{module.__name__}.{name}")  # binds a submodule in its package
                yield alias.asname or name, vars(module), (name,)
        elif user_module(name) is not None:
            path = name.split(".") if alias.asname else [top]
            yield alias.asname or top, sys.modules, tuple(path)


def _origin(statement: ast.ImportFrom, namespace: Namespace) -> ModuleType | None:
    package = namespace.get("__package__")
    if statement.level and not package:
        return None
    return user_module(resolve_name("." * statement.level + (statement.module or ""), package))


def defaults(function: FunctionType, node: FunctionNode) -> Iterator[tuple[str, object, bool]]:
    """Yield parameters with their defaults, except those that repeat a module-level name.

    And whether the expression says all about the default: it may take a local of a function around.
    """
    names = [parameter.arg for parameter in [*node.args.posonlyargs, *node.args.args]]
    written = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
    given = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
    for parameter, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if default is not None:
            written[parameter.arg] = default
    for name, value in (given | (function.__kwdefaults__ or {})).items():
        tree = written.get(name)
        if not isinstance(tree, ast.Name) or function.__globals__.get(tree.id, tree) is not value:
            yield name, value, tree is not None and not _may_take_locals(tree, function)


def _may_take_locals(tree: ast.expr, function: FunctionType) -> bool:
    if "<locals>" not in function.__code__.co_qualname:
        return False
    names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    found = (function.__globals__.get(name, getattr(builtins, name, None)) for name in names)
    # Of a module-level value by such a name nobody knows that it is meant.
    return not all(isinstance(value, ModuleType) or callable(value) for value in found)


# Where code is written


def was_sent(function: FunctionType) -> bool:
    """Say whether cloudpickle made a function: it gives the file of all code this name."""
    return function.__code__.co_filename == "<dynamic-code>"


class Sources:
    """The sources that one fingerprint needs, each read and parsed once."""

    def __init__(self) -> None:
        self._files: dict[str, SourceFile | None] = {}
        self._executed: dict[int, ModuleCode] = {}
        self._modules: dict[str, Namespace] = {}  # by name, as the functions know them

    def _file(self, filename: str, namespace: Namespace) -> SourceFile | None:
        if filename not in self._files:
            linecache.checkcache(filename)
            lines = linecache.getlines(filename, dict(namespace))
            self._files[filename] = parse("".join(lines)) if filename != "<string>" else None
        return self._files[filename]

    def _files_of(self, namespace: Namespace) -> Iterator[SourceFile]:
        """Yield the file of a module, or the cells of a notebook, newest first."""
        names: Iterable[str] = ()
        if namespace.get("__file__"):
            names = (namespace["__file__"],)
        elif namespace.get("__name__") == "__main__":
            entries = reversed(list(linecache.cache.items()))
            # What never was a file has no date of change.
            names = (name for name, entry in entries if len(entry) > 1 and entry[1] is None)
        files = (self._file(name, namespace) for name in names)
        yield from (file for file in files if file is not None and file.tree is not None)

    def _executed_in(self, namespace: Namespace) -> ModuleCode:
        key = id(namespace)
        if key not in self._executed:
            self._executed[key] = executed_code(namespace)
        return self._executed[key]

    def refuse_if_edited(
        self, trees: Iterable[ast.AST], namespace: Namespace, qualname: str = ""
    ) -> None:
        """Refuse statements that are not those that their module was run from, where that is known.

        Args:
            trees: What the file says now; nothing in memory need show it.
            namespace: The globals of the module.
            qualname: Of a class.

        Raises:
            ChangedSourceError: The file was edited since.
        """
        filename = str(namespace.get("__file__"))
        file = self._file(filename, namespace) if is_as_imported(namespace, filename) else None
        if file is None:
            return
        now, executed = compiled(file, filename, namespace), self._executed_in(namespace)
        for tree in trees:
            known = chain([now], file.endings(tree))
            if all(is_statement_changed(tree, qualname, each, executed) for each in known):
                where = f"at line {getattr(tree, 'lineno', 1)} of {filename!r}"
                raise ChangedSourceError(f"the source {where} {not_what_runs(namespace, executed)}")

    def function(self, function: FunctionType) -> FunctionNode:
        """Find the syntax tree of a function.

        Raises:
            InvalidStudyError: It has no source, or its source was edited since it was imported.
        """
        code, namespace = function.__code__, function.__globals__
        self._modules.setdefault(str(namespace.get("__name__")), namespace)
        for filename in (code.co_filename, str(namespace.get("__file__"))):
            if PurePath(filename).name != PurePath(code.co_filename).name:
                continue
            file = self._file(filename, namespace)
            if file and is_as_imported(namespace, code.co_filename):
                now = compiled(file, filename, namespace)
                refuse_if_changed(function, now, self._executed_in(namespace))
            nodes = file.functions[code.co_firstlineno] if file else []
            same = [node for node in nodes if getattr(node, "name", "<lambda>") == code.co_name]
            if code.co_name == "<lambda>":
                same = lambdas_at(code, same)
            if len(same) == 1 or len({normal_form(node) for node in same}) == 1:
                self.refuse_if_edited(same[:1], namespace)  # decorators and defaults
                return same[0]
        if code.co_filename.startswith("<") and hasattr(function, "__wrapped__"):
            raise InvalidStudyError(
                f"{code.co_qualname!r} is a wrapper that a decorator generated as "
                f"{code.co_filename!r}, and no file shows what it does: leave off that decorator, "
                "or use one whose wrapper is written in a file"
            )
        if was_sent(function):
            raise InvalidStudyError(f"the source of {code.co_qualname!r} {SENT_HERE}")
        raise InvalidStudyError(
            f"the source of {code.co_qualname!r} isn't found at line {code.co_firstlineno} of "
            f"{code.co_filename!r}: define it in a file or a notebook cell, on a line of its own, "
            "and reload what was edited since it was imported"
        )

    def functions(self, functions: Iterable[FunctionType]) -> set[ast.AST]:
        """Find the syntax trees of those functions that have one."""
        found: set[ast.AST] = set()
        for function in functions:
            try:
                found.add(self.function(function))
            except ChangedSourceError:
                raise
            except InvalidStudyError:  # made by a library, or by `exec`
                continue
        return found

    def class_(
        self, cls: type, functions: Iterable[FunctionType]
    ) -> tuple[ast.ClassDef, Namespace] | None:
        """Find the syntax tree of a class and the globals that its body sees.

        Args:
            cls: A class of the user's.
            functions: Its methods: their code says where it is written, which no class does.

        Raises:
            ChangedSourceError: Its file no longer compiles.
        """
        qualname = cls.__qualname__
        for function in functions:
            code = function.__code__
            is_own = function.__module__ == cls.__module__
            if is_own and code.co_qualname.startswith(f"{qualname}."):
                file = self._file(code.co_filename, function.__globals__)
                for node in file.classes[qualname] if file else []:
                    if node.lineno <= code.co_firstlineno <= (node.end_lineno or 0):
                        return node, function.__globals__
        # A script that a profiler runs is `__main__` by name only: its functions know its globals.
        module = sys.modules.get(cls.__module__)
        known = [self._modules.get(cls.__module__, {}), {} if module is None else vars(module)]
        for namespace in known:
            for file in self._files_of(namespace):
                if file.classes[qualname]:
                    return max(file.classes[qualname], key=lambda node: node.lineno), namespace
            self.refuse_if_edited([], namespace)  # its file may be no Python any more
        return None

    def bindings(
        self, namespace: Namespace, name: str, value: object
    ) -> tuple[list[ast.AST], Namespace]:
        """Find what binds a module-level name, and the globals of the module that does.

        Follows `from ... import` through the user's modules. An empty list: nothing is found.
        """
        file = next((file for file in self._files_of(namespace) if file.bindings[name]), None)
        nodes = file.bindings[name] if file else []
        stars = next((file.bindings["*"] for file in self._files_of(namespace)), [])
        for node in nodes or stars:
            if isinstance(node, ast.ImportFrom):
                module = _origin(node, namespace)
                origin = name if node.names[0].name == "*" else node.names[0].name
                if module and vars(module).get(origin, self) is value:
                    return self.bindings(vars(module), origin, value)
        return nodes, namespace

    def is_location(self, value: object, trees: Iterable[ast.AST], home: Namespace) -> bool:
        """Say whether a value is text that `trees` compute from where their module `home` is."""
        if not isinstance(value, str | PurePath):
            return False
        names_a_place = PurePath(value).is_absolute() or str(home.get("__name__")) in str(value)
        return names_a_place and self._reads_location(trees, home, set())

    def _reads_location(
        self, trees: Iterable[ast.AST], home: Namespace, seen: set[tuple[int, str]]
    ) -> bool:
        names = {dotted[0] for dotted in References(trees).loads}
        if names & LOCATION:
            return True
        for name in sorted(names & home.keys()):
            value, key = home[name], (id(home), name)
            if key not in seen and not isinstance(value, FunctionType | type | ModuleType):
                seen.add(key)
                if self._reads_location(*self.bindings(home, name, value), seen):
                    return True
        return False
