"""Match the code that runs with the syntax that it was compiled from.

Called by `closure`. A function knows a file and a line; what stands there now need not be what was
imported. So a module that Python compiled by itself is compiled once more from its file as it is,
and a function must have the code that this gives. Modules that something else made (rewritten
assertions, checkers of types, cells of a notebook, archives) are taken at their word.

Statements leave no code behind: they are compared with what `executed` finds of their module.
"""

import __future__

import ast
import dis
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import SourceFileLoader
from itertools import zip_longest
from types import CodeType, FunctionType
from typing import Any, TypeAlias, cast

from dasktune.errors import InvalidStudyError

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
"""Whatever makes a function."""

Codes: TypeAlias = Mapping[tuple[str, int], list[CodeType]]
"""The code of functions and classes by qualified name and first line."""

Done: TypeAlias = Mapping[int, list[tuple[str, object]]]
"""Instructions by line, with their arguments."""

_SILENT = frozenset(
    {"EXTENDED_ARG", "JUMP_FORWARD", "NOP", "RESUME", "RETURN_CONST", "RETURN_VALUE"}
)
"""Instructions that depend on what else is in a module, such as whether a statement is its last."""

_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


def not_what_runs(namespace: Mapping[str, Any], executed: "ModuleCode | None" = None) -> str:
    """Say that a source of this module isn't what runs, and what to do about it.

    Args:
        namespace: The globals of the module.
        executed: What the import gave, if this is what runs.
    """
    if namespace.get("__name__") == "__main__":
        return (
            "is not what runs: it was edited since the script was started; start the script "
            "again: what has finished answers from the store"
        )
    words = (
        "is not what runs: reload what was edited since it was imported and make the trainable anew"
    )
    if executed is not None and executed.is_taken_again:
        words += ", or delete its bytecode in __pycache__ if it was not edited"
    return words


class ChangedSourceError(InvalidStudyError):
    """The file of a function says something else than what runs: nothing can stand for it."""


@dataclass(frozen=True, kw_only=True)
class ModuleCode:
    """What a module was, or would be, run from."""

    code: CodeType | None
    """None: nothing is known of it."""
    is_taken_again: bool = False
    """Whether it is bytecode that the next import runs without a look into the file."""
    is_of_file: bool = False
    """Whether it is surely of the file as it is now, whatever compiler has made it."""

    @cached_property
    def codes(self) -> Codes:
        """Its functions and classes; none if nothing is known."""
        found: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
        for inner in self._all():
            found[inner.co_qualname, inner.co_firstlineno].append(inner)
        return found

    @cached_property
    def done(self) -> Done:
        """Instructions of its statements, by line, with their arguments."""
        return _done([] if self.code is None else [self.code])

    @cached_property
    def done_inside(self) -> Done:
        """Instructions of all that is in its functions and classes, likewise."""
        return _done(inner for inner in self._all() if inner is not self.code)

    def _all(self) -> Iterator[CodeType]:
        pending = [] if self.code is None else [self.code]
        while pending:
            inner = pending.pop()
            yield inner
            pending += _inner(inner)


def is_as_imported(namespace: Mapping[str, Any], filename: str) -> bool:
    """Say whether the code of a module must be what this file, compiled, gives."""
    spec = namespace.get("__spec__")  # a script has none
    loader = namespace.get("__loader__") if spec is None else getattr(spec, "loader", None)
    return type(loader) is SourceFileLoader and namespace.get("__file__") == filename


def refuse_if_changed(function: FunctionType, file: ModuleCode, executed: ModuleCode) -> None:
    """Refuse a function that runs something else than its file says.

    Args:
        function: Of the user's.
        file: What its file gives now.
        executed: What the import gave.

    Raises:
        ChangedSourceError: The file was edited since, or something has rewritten the code.
    """
    code, namespace = function.__code__, function.__globals__
    if _holds(file.codes, code):
        return
    is_as_run = _holds(executed.codes, code)
    if is_as_run and executed.is_of_file:  # another release of Python may have compiled it
        return
    written, ran = (_called(code.co_qualname, known.codes) for known in (file, executed))
    what = _what_differs(code, written)
    place = f"{code.co_qualname!r} at line {code.co_firstlineno} of {code.co_filename!r}"
    if ran and all(map(_is_same, ran, written)) and len(ran) == len(written):
        raise ChangedSourceError(
            f"the code of {place} is not what its import has made, which is as the file says: "
            "make the trainable anew if it is older than a reload, else leave off the decorator "
            f"or tool that replaces code ({what})"
        )
    advice = not_what_runs(namespace, executed if is_as_run else None)
    is_moved = any(_does_the_same(code, other) for other in written)
    if not (is_as_run or is_moved):
        advice += ", or leave off a decorator that rewrites code"
    raise ChangedSourceError(f"the source of {place} {advice} ({what})")


def _holds(codes: Codes, code: CodeType) -> bool:
    """Say whether a code is among others, at its place."""
    same = codes.get((code.co_qualname, code.co_firstlineno), [])
    if len(same) > 1 and _places(code):  # lambdas of one line
        columns = list(code.co_positions())
        same = [o for o in same if not _places(o) or list(o.co_positions()) == columns]
    return any(_does_the_same(code, other) for other in same)


def is_statement_changed(
    node: ast.AST, qualname: str, file: ModuleCode, executed: ModuleCode
) -> bool:
    """Say whether a statement of a module is another one than was run, if this is known.

    Args:
        node: As the file has it now; functions and classes with their decorators.
        qualname: Of a class; it may be inside a function.
        file: What the file gives now.
        executed: What the import gave.
    """
    if executed.code is None or executed.is_of_file:
        return False
    lines = lines_of(node)
    if any(file.done.get(line) != executed.done.get(line) for line in lines):
        return True
    # The module does nothing on the lines of what is inside a function or a class: these do.
    inside = (line for part in _evaluated_outside(node) for line in lines_of(part))
    if any(file.done_inside.get(line) != executed.done_inside.get(line) for line in inside):
        return True
    key = (qualname, lines.start)
    ours, theirs = (known.codes.get(key, []) for known in (file, executed))
    return list(map(_essence, ours)) != list(map(_essence, theirs))


def _evaluated_outside(node: ast.AST) -> list[ast.AST]:
    """List what a function or a class has in its head, which runs where it is made."""
    decorators = getattr(node, "decorator_list", [])
    match node:
        case ast.ClassDef():
            return [*decorators, *node.bases, *node.keywords]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            given = [default for default in node.args.kw_defaults if default is not None]
            return [*decorators, *node.args.defaults, *given]
    return []


def lines_of(node: ast.AST) -> range:
    """Give the lines of a statement, with its decorators."""
    parts = [part for part in ast.walk(node) if isinstance(part, ast.stmt | ast.expr)]
    first = min(getattr(part, "lineno", sys.maxsize) for part in parts)
    return range(first, 1 + max(getattr(part, "end_lineno", None) or 0 for part in parts))


def _called(qualname: str, codes: Codes) -> list[CodeType]:
    found = sorted((key for key in codes if key[0] == qualname), key=lambda key: key[1])
    return [code for key in found for code in codes[key]]


def _what_differs(code: CodeType, written: list[CodeType]) -> str:
    if not written:
        return "no such function is in the file"
    moved = [other for other in written if _does_the_same(code, other)]
    if moved:
        return f"it is at line {moved[0].co_firstlineno} of the file now"
    nearest = min(written, key=lambda other: abs(other.co_firstlineno - code.co_firstlineno))
    names = sorted(_names(code) ^ _names(nearest))
    if names:
        return f"the two differ in names: {', '.join(map(repr, names[:8]))}"
    is_constant = _values(code) != _values(nearest)
    return f"the two differ in {'constants' if is_constant else 'instructions'}"


def _names(code: CodeType) -> set[str]:
    own = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
    return own.union(*map(_names, _inner(code)))


def _values(code: CodeType) -> list[object]:
    own = [_constant(value) for value in code.co_consts if not isinstance(value, CodeType)]
    return [*own, *map(_values, _inner(code))]


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


# Equal code


def _does_the_same(a: CodeType, b: CodeType) -> bool:
    """Say whether two codes are one, wherever they are written."""
    return _essence(a) == _essence(b)


def _is_same(a: CodeType, b: CodeType) -> bool:
    return a.co_firstlineno == b.co_firstlineno and _does_the_same(a, b)


def _essence(code: CodeType) -> tuple[object, ...]:
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    # Not `co_linetable`: lines are no part of what is done. `co_code` is without what the
    # interpreter, or a tracer, has put into it.
    return (
        code.co_name,
        code.co_flags,
        code.co_code,
        code.co_exceptiontable,
        *arguments,
        *names,
        *map(_constant, code.co_consts),
    )


def _constant(value: object) -> object:
    """Give what tells constants apart, and is the same for sets in any order."""
    match value:
        case CodeType():
            return _essence(value)
        case tuple():
            return tuple(map(_constant, value))
        case frozenset():
            return frozenset(map(_constant, value))
        case _:
            return repr(value)


def _done(codes: Iterable[CodeType]) -> Done:
    """List instructions by line, but not what depends on the next statement."""
    done: dict[int, list[tuple[str, object]]] = defaultdict(list)
    for code in codes:
        for line, name, argument in _instructions(code):
            done[line].append((name, argument))
    return done


def _instructions(code: CodeType) -> Iterator[tuple[int, str, object]]:
    instructions = list(dis.get_instructions(code))
    for instruction, following in zip_longest(instructions, instructions[1:]):
        is_end = following is not None and following.opname == "RETURN_VALUE"  # returns None
        if is_end or instruction.opname in _SILENT or instruction.positions is None:
            continue
        argument = None if instruction.opcode in _JUMPS else _constant(instruction.argval)
        yield instruction.positions.lineno or 0, instruction.opname, argument


# Lambdas of one line


def lambdas_at(code: CodeType, candidates: list[FunctionNode]) -> list[FunctionNode]:
    """Keep the lambda whose body holds the positions of the code, of nested ones the innermost.

    Code may be without columns: that of a constant is in Python 3.12, and so is all that a process
    without debug ranges compiles or loads. Then the lambda that compiles to the code is kept.
    """
    places = _places(code)
    if not places:
        return (
            candidates
            if len(candidates) == 1
            else [node for node in candidates if _compiles_to(node, code)]
        )
    first, last = min(start for start, _ in places), max(end for _, end in places)
    around = {
        (body.lineno, body.col_offset): node
        for node in candidates
        if isinstance(body := node.body, ast.expr)
        and (body.lineno, body.col_offset) <= first
        and last <= (body.end_lineno or 0, body.end_col_offset or 0)
    }
    return [around[max(around)]] if around else []


def _places(code: CodeType) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Give where the code's instructions begin and end, as far as it knows."""
    return [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line and end_line and column is not None and end_column
    ]


def _compiles_to(node: FunctionNode, code: CodeType) -> bool:
    """Say whether a lambda gives a code, if the names that this takes from outside are there."""
    around = [ast.arg(arg=name) for name in code.co_freevars]
    outside = ast.arguments(posonlyargs=[], args=around, kwonlyargs=[], kw_defaults=[], defaults=[])
    tree = ast.Expression(ast.Lambda(args=outside, body=cast("ast.Lambda", node)))
    flags = code.co_flags & __future__.annotations.compiler_flag
    try:
        ast.fix_missing_locations(tree)
        with quiet():
            whole = compile(tree, QUIET_NAME, "eval", flags, dont_inherit=True)
    except (SyntaxError, ValueError):  # a name that no argument can have
        return False
    found = next(inner for outer in _inner(whole) for inner in _inner(outer))
    return _does_the_same(found.replace(co_flags=code.co_flags), code)


# Warnings

QUIET_NAME = "<dasktune>"
"""The file that `quiet` is for."""

_SILENCE = ("ignore", None, Warning, re.compile(re.escape(QUIET_NAME) + r"\Z"), 0)


@contextmanager
def quiet() -> Iterator[None]:
    """Let the compiler warn of nothing in `QUIET_NAME`; all other warnings stay as they are.

    Whoever imported a source has heard its warnings. `warnings.catch_warnings` would put the
    filters of the process aside, and two threads that overlap leave each other's behind. This adds
    a filter of its own and takes one such away: in any order nothing of anybody else's is touched,
    and what another thread copies meanwhile silences no other file. No lock is needed: the filters
    of two threads are equal, and the list adds and removes one at once.
    """
    filters = cast("list[object]", warnings.filters)
    filters.insert(0, _SILENCE)
    try:
        yield
    finally:
        with suppress(ValueError):  # somebody has emptied the list
            filters.remove(_SILENCE)
