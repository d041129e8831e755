"""Read one file of the user's: where its functions, classes and module-level names are written.

Called by `closure`. A text that isn't Python, or not any more, gives a file in which nothing is
found and which compiles to nothing.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import cached_property, lru_cache
from typing import Any

from dasktune.study.compiled import (
    QUIET_NAME,
    ChangedSourceError,
    FunctionNode,
    ModuleCode,
    lines_of,
    not_what_runs,
    quiet,
)


class SourceFile:
    """One parsed source, with its functions by first line and its classes by qualified name."""

    def __init__(self, tree: ast.Module | None) -> None:
        self.tree = tree
        """None: the text doesn't parse."""
        self.functions: dict[int, list[FunctionNode]] = defaultdict(list)
        self.classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
        self.bindings: dict[str, list[ast.AST]] = defaultdict(list)
        if tree is None:
            return
        for node, name in _binding_nodes(tree.body):
            self.bindings[name].append(node)
        stack: list[tuple[ast.AST, str]] = [(tree, "")]
        while stack:
            node, prefix = stack.pop()
            stack.extend(
                (child, self._enter(child, prefix)) for child in ast.iter_child_nodes(node)
            )

    @cached_property
    def code(self) -> ModuleCode | None:
        """What an import would run; None: the compiler refuses it, so it was never imported."""
        try:
            return None if self.tree is None else _compile(self.tree)
        except SyntaxError:
            return None

    def endings(self, node: ast.AST) -> Iterator[ModuleCode]:
        """Compile what stands up to a statement, with nothing and with something behind it.

        The compiler writes the last statement of a module in another way than it writes others.
        """
        body = self.tree.body if self.tree else []
        last = lines_of(node)[-1]
        head = [statement for statement in body if statement.lineno <= last]
        behind = _tree("_ = 0")
        for more in ([], ast.increment_lineno(behind, last).body):
            yield _compile(ast.Module(body=[*head, *more], type_ignores=[]))

    def _enter(self, node: ast.AST, prefix: str) -> str:
        if isinstance(node, ast.ClassDef):
            self.classes[prefix + node.name].append(node)
            return f"{prefix}{node.name}."
        if isinstance(node, FunctionNode):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            line = min(place.lineno for place in [node, *decorators])
            self.functions[line].append(node)
            return f"{prefix}{getattr(node, 'name', '<lambda>')}.<locals>."
        return prefix


def _compile(tree: ast.Module) -> ModuleCode:
    with quiet():
        return ModuleCode(code=compile(tree, QUIET_NAME, "exec", dont_inherit=True))


def compiled(file: SourceFile, filename: str, namespace: Mapping[str, Any]) -> ModuleCode:
    """Compile a file that was imported.

    Args:
        file: The file as it is now.
        filename: Where it is.
        namespace: The globals of its module.

    Raises:
        ChangedSourceError: It doesn't compile, so it was another when it was imported.
    """
    if file.code is None:
        advice = not_what_runs(namespace)
        raise ChangedSourceError(f"the source of {filename!r} {advice} (it doesn't compile)")
    return file.code


_TRIES = 20
"""A mismatch takes two threads that parse at once, and seldom befalls one twice."""


def _tree(source: str) -> ast.Module:
    """Parse, and again if another thread was in the way.

    Python before 3.11.8 and 3.12.2 counts the depth of trees for all threads together, and finds a
    mismatch when they parse at once (python/cpython#106905).
    """
    for _ in range(_TRIES - 1):
        with suppress(SystemError), quiet():
            return ast.parse(source, QUIET_NAME)
    with quiet():
        return ast.parse(source, QUIET_NAME)


@lru_cache(maxsize=64)  # for studies that are made one after the other
def parse(source: str) -> SourceFile | None:
    """Parse a source; None if there is none."""
    if not source:
        return None
    try:
        tree = _tree(source)
    except (SyntaxError, ValueError):  # the latter for null characters, in some versions
        return SourceFile(None)
    return SourceFile(tree)


def _binding_nodes(body: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Pair the module-level names with what gives them their values, also inside if, try, with."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node, node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                alone = copy(node)
                alone.names = [alias]
                yield alone, alias.asname or alias.name.partition(".")[0]
        elif getattr(node, "body", None) is None or isinstance(node, ast.expr):
            names = (name for name in ast.walk(node) if isinstance(name, ast.Name))
            yield from ((node, name.id) for name in names if isinstance(name.ctx, ast.Store))
        else:
            children = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.For):  # its body is no part of what its target is
                children[:2] = [ast.Assign(targets=[node.target], value=node.iter)]
            yield from _binding_nodes(children)
