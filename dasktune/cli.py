"""The command `dasktune`: run, check and explain studies, and clean a store.

Reads arguments, calls the function that does it, prints what came of it. Errors of dasktune end as
one sentence on the standard error, with exit code 2. What is printed on the standard output is the
answer; how a run gets on is shown on the standard error.
"""

import argparse
import importlib
import importlib.util
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from dask.utils import parse_bytes
from distributed import Client

from dasktune.errors import BackendError, DasktuneError, InvalidStudyError
from dasktune.explain import explain
from dasktune.runner import DEFAULT_STORE, run
from dasktune.runtime.check import check
from dasktune.store.recorded import load_results
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.result import Result
from dasktune.study.study import Study
from dasktune.trial import TrialStatus

_OK, _FOUND, _WRONG, _INTERRUPTED = 0, 1, 2, 130
"""Exit codes; 130 is what shells say of a program that Ctrl-C has ended."""

_CONNECT_S = 10.0

_SHOWN = 3
"""How many trials that failed are named."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command, and exit.

    Args:
        arguments: Without the program's name; by default those of the process.
    """
    options = _parser().parse_args(arguments)
    perform: Callable[[argparse.Namespace], int] = options.perform
    try:
        code = perform(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except DasktuneError as error:
        print(f"dasktune: {error}", file=sys.stderr)
        code = _WRONG
    except KeyboardInterrupt:  # what it means for a run was said where it was caught
        code = _INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough; at exit Python would flush once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _OK
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dasktune", description="Tune deep-learning models without training any step twice."
    )
    parser.add_argument("--version", action="version", version=f"dasktune {version('dasktune')}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    where = "MODULE:STUDY, where MODULE is a module's name or a path to a .py file"

    one = commands.add_parser("run", help="run a study, or go on with it")
    one.add_argument("study", metavar="MODULE:STUDY", help=f"a study, or a list of them: {where}")
    one.add_argument("--client", metavar="ADDRESS", help="join the cluster of a Dask scheduler")
    one.add_argument("--store", metavar="URL", default=DEFAULT_STORE, help="default: %(default)s")
    one.add_argument(
        "--store-limit",
        metavar="SIZE",
        type=_size,
        help="how large its states may be, such as 20GB; the cheapest to make again go first",
    )
    one.add_argument("--workers", metavar="N", type=int, help="workers here; 0: in this process")
    one.add_argument("--verbose", action="store_true", help="show a table of trials")
    one.add_argument("--quiet", action="store_true", help="show nothing but warnings")
    one.set_defaults(perform=_run)

    one = commands.add_parser("check", help="prove that a study's training code can be split")
    one.add_argument("study", metavar="MODULE:STUDY", help=where)
    one.add_argument("--steps", metavar="K", type=int, default=3, help="default: %(default)s")
    one.set_defaults(perform=_check)

    one = commands.add_parser("explain", help="say why things happened in a study")
    one.add_argument("store", metavar="STORE", help="a folder or URL")
    one.add_argument("study", metavar="STUDY", help="its name")
    one.add_argument("--trial", metavar="N", type=int, help="why its stages ran, were shared")
    one.add_argument("--other", metavar="M", type=int, help="how far trials N and M are the same")
    one.set_defaults(perform=_explain)

    one = commands.add_parser("clean", help="remove what killed runs have left in a store")
    one.add_argument("store", metavar="STORE", help="a folder or URL")
    one.add_argument("--dry-run", action="store_true", help="only say how much it is")
    one.set_defaults(perform=_clean)
    return parser


def _size(text: str) -> int:
    try:
        return int(parse_bytes(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 500MB or 20GB") from error


# --- run


def _run(options: argparse.Namespace) -> int:
    if options.quiet:
        logging.getLogger("dasktune").setLevel(logging.WARNING)
    studies = load_studies(options.study)
    with ExitStack() as stack:
        client = None
        if options.client is not None:
            client = stack.enter_context(_connected(options.client))
        results = run(
            studies,
            client=client,
            store=Store(options.store, limit_bytes=options.store_limit),
            workers=options.workers,
            verbose=options.verbose,
        )
    for result in results:
        print("\n".join(_outcome(result, options.store)))
    statuses = {result.status for result in results}
    if statuses <= {StudyStatus.COMPLETED}:
        return _OK
    return _FOUND if StudyStatus.FAILED in statuses else _INTERRUPTED


def _connected(address: str) -> Client:
    try:
        return Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise BackendError(
            f"no Dask scheduler answers at {address!r} ({error}); give its address, such as "
            "tcp://127.0.0.1:8786"
        ) from error


def _outcome(result: Result, store: str) -> Iterator[str]:
    if result.status in (None, StudyStatus.RUNNING):
        yield f"{result.study.name}: not over; the same call goes on from here"
    else:
        yield f"{result.study.name}: {result.status.value}, {result.reason}"
    best = result.best
    if best is not None:
        metric = result.study.metric
        value = best.metrics[metric]
        yield f"  best: trial {best.number}, {metric} {value:.6g} at step {best.steps}"
        for name, text in best.configuration.text.items():
            yield f"    {name} = {text}"
    yield (
        f"  steps: {result.steps_requested} requested, {result.steps_unique} distinct, "
        f"{result.steps_executed} trained; merge rate {result.merge_rate:.2f}"
    )
    failed = [trial for trial in result.trials if trial.status is TrialStatus.FAILED]
    for trial in failed[:_SHOWN]:
        yield f"  trial {trial.number} failed: {trial.reason.splitlines()[0]}"
    if failed:
        more = f"{len(failed)} trials failed; " if len(failed) > _SHOWN else ""
        yield f"  {more}dasktune explain {store} {result.study.name} --trial N tells where"


# --- check


def _check(options: argparse.Namespace) -> int:
    studies = load_studies(options.study)
    reports = [check(study.trainable, study, steps=options.steps) for study in studies]
    for report in reports:
        print(report)
    return _OK if all(report.is_clean for report in reports) else _FOUND


# --- explain


def _explain(options: argparse.Namespace) -> int:
    if options.other is not None and options.trial is None:
        raise InvalidStudyError("--other is given without --trial; give both")
    results = load_results(options.study, options.store)
    names = [result.study.name for result in results]
    wanted = [options.study] if options.study in names else names
    print(
        "\n".join(
            explain(results, study=name, trial=options.trial, other=options.other)
            for name in wanted
        )
    )
    return _OK


# --- clean


def _clean(options: argparse.Namespace) -> int:
    store = Store(options.store)
    cleaned = store.clean(dry_run=options.dry_run)
    files = "1 file" if cleaned.n_files == 1 else f"{cleaned.n_files} files"
    would = "would be removed from" if options.dry_run else "removed from"
    print(f"{files} with {cleaned.size_bytes} bytes {would} {store.url}")
    return _OK


# --- the user's module


def load_studies(place: str) -> list[Study]:
    """Return the studies that a module holds under a name.

    Args:
        place: `MODULE:STUDY`, with a module's name or a path to a .py file.

    Raises:
        InvalidStudyError: There is no such module or study, or the module raises.
    """
    where, separator, name = place.rpartition(":")
    if not separator or not where or not name.isidentifier():
        raise InvalidStudyError(
            f"{place!r} names no study: write MODULE:STUDY, such as train.py:study"
        )
    module = _imported(where)
    value = vars(module).get(name)
    values = list(value) if isinstance(value, list | tuple) else [value]
    studies = [each for each in values if isinstance(each, Study)]
    if not studies or len(studies) < len(values):
        known = ", ".join(key for key, each in vars(module).items() if isinstance(each, Study))
        kind = "not there" if name not in vars(module) else f"a {type(value).__name__}"
        raise InvalidStudyError(
            f"{name} in {where} is {kind}; it must be a study or a list of studies (the studies "
            f"there are: {known or 'none'})"
        )
    return studies


def _imported(where: str) -> ModuleType:
    is_path = where.endswith(".py") or "/" in where
    path = Path(where).expanduser().absolute()
    if is_path and not path.is_file():
        raise InvalidStudyError(f"there is no file {where!r}: give a path to a .py file")
    sys.path.insert(0, str(path.parent if is_path else Path.cwd()))
    try:
        return _from_file(path) if is_path else importlib.import_module(where)
    except DasktuneError:
        raise
    except SyntaxError as error:
        raise InvalidStudyError(
            f"{where} cannot be read: {error.msg} ({error.filename}, line {error.lineno})"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a module of the user's raises
        raise InvalidStudyError(
            f"{where} cannot be imported: {type(error).__name__}: {error}{_place(error)}"
        ) from error


def _place(error: BaseException) -> str:
    """Say which line of the user's raised an error, if one did."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (__file__, importlib.__file__)
    own = [f for f in frames if not f.filename.startswith("<") and f.filename not in ours]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidStudyError(f"{path} is no Python file: give a path to a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
