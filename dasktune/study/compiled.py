"""Match the code that runs with the syntax that it was compiled from.

Called by `closure`. A function knows a file and a line; what stands there now need not be what was
imported. So a module that Python compiled by itself is compiled once more from its file as it is,
and a function must have the code that this gives. Modules that something else made (rewritten
assertions, checkers of types, cells of a notebook, archives) are taken at their word.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType
from typing import TypeAlias, cast

from dasktune.errors import InvalidStudyError

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
"""Whatever makes a function."""

Codes: TypeAlias = Mapping[tuple[str, int], list[CodeType]]
"""The code of functions by qualified name and first line."""


class ChangedSourceError(InvalidStudyError):
    """The file of a function says something else than what runs: nothing can stand for it."""


def codes_of(tree: ast.Module) -> Codes:
    """Compile a module as an import does, and give the code of all functions in it."""
    found: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
    pending = [compile(tree, "<module>", "exec", dont_inherit=True)]
    while pending:
        code = pending.pop()
        found[code.co_qualname, code.co_firstlineno].append(code)
        pending += _inner(code)
    return found


def is_as_imported(function: FunctionType) -> bool:
    """Say whether the code of a function must be what its file, compiled, gives."""
    namespace, filename = function.__globals__, function.__code__.co_filename
    spec = namespace.get("__spec__")  # a script has none
    loader = namespace.get("__loader__") if spec is None else getattr(spec, "loader", None)
    return type(loader) is SourceFileLoader and namespace.get("__file__") == filename


def refuse_if_changed(function: FunctionType, codes: Codes) -> None:
    """Refuse a function that runs something else than its file says.

    Args:
        function: Of the user's.
        codes: What its file gives now.

    Raises:
        ChangedSourceError: The file was edited since, or something has rewritten the code.
    """
    code = function.__code__
    same = codes.get((code.co_qualname, code.co_firstlineno), [])
    if len(same) > 1:  # lambdas of one line
        places = list(code.co_positions())
        same = [other for other in same if list(other.co_positions()) == places]
    if not any(_does_the_same(code, other) for other in same):
        raise ChangedSourceError(
            f"the source of {code.co_qualname!r} at line {code.co_firstlineno} of "
            f"{code.co_filename!r} is not what runs: reload what was edited since it was imported "
            "and make the trainable anew, or leave off a decorator that rewrites code"
        )


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _does_the_same(a: CodeType, b: CodeType) -> bool:
    """Say whether two codes are one, wherever they are written."""
    return _essence(a) == _essence(b)


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


def lambdas_at(code: CodeType, candidates: list[FunctionNode]) -> list[FunctionNode]:
    """Keep the lambda whose body holds the positions of the code, of nested ones the innermost."""
    places = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line and end_line and column is not None and end_column
    ]
    if not places:  # Python 3.12 has none for a constant, and may run without any
        return [node for node in candidates if _symbols(_lambda_code(node)) == _symbols(code)]
    first, last = min(start for start, _ in places), max(end for _, end in places)
    around = {
        (body.lineno, body.col_offset): node
        for node in candidates
        if isinstance(body := node.body, ast.expr)
        and (body.lineno, body.col_offset) <= first
        and last <= (body.end_lineno or 0, body.end_col_offset or 0)
    }
    return [around[max(around)]] if around else []


def _lambda_code(node: FunctionNode) -> CodeType:
    whole = compile(ast.Expression(cast("ast.Lambda", node)), "", "eval")
    return next(code for code in whole.co_consts if isinstance(code, CodeType))


def _symbols(code: CodeType) -> str:
    inner = [value.co_name if isinstance(value, CodeType) else value for value in code.co_consts]
    return ascii((inner, code.co_names, code.co_varnames))
