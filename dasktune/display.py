"""Show how a run gets on: one live line, a table on request, plain lines in a file.

Called by `runner` with every entry of the timeline; shows what `dasktune.progress` has counted, and
never slows a study: it draws at most every so many seconds of the clock that it is handed, and the
seldomer the longer a drawing took. Writes to the standard error, so that a script's own output
stays as it is. Says nothing at all where the logger `dasktune` is set to WARNING or above.
"""

import importlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import nsmallest
from html import escape
from io import StringIO
from types import ModuleType
from typing import Any, Protocol, TextIO
from uuid import uuid4

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dasktune.progress import Progress
from dasktune.study.study import Study
from dasktune.study.timeline import Entry
from dasktune.trial import TrialStatus
from dasktune.trial_progress import TrialProgress
from dasktune.units import Seconds

STOPPING = "stopping at the next step boundary; Ctrl-C again stops at once"
KEPT = "what was committed is kept; the same call goes on from here"

_SHARE = 0.02
"""Fraction of the time that drawing may take."""
_LINE_AFTER_S, _LINE_EVERY_S = 10.0, 30.0
_DRAW_EVERY_S, _NOTEBOOK_EVERY_S = 0.1, 0.5
_ROWS = 20
_COLUMNS = ("trial", "status", "steps", "metric", "hyper-parameters")


# --- words


def line(progress: Progress, left_s: Seconds | None = None) -> str:
    """Say in one line how a run gets on.

    Args:
        progress: Its counts.
        left_s: Seconds that the rest is thought to take; None: not known.
    """
    names = ", ".join(study.name for study in progress.studies)
    n = progress.by_status
    statuses = ", ".join(f"{n[status]} {status.value}" for status in TrialStatus if n[status])
    is_over = bool(progress.end_reason)
    parts = [
        *([STOPPING] if progress.is_stopping and not is_over else []),
        f"{names}: {_count(len(progress.trials), 'trial')}" + (f" ({statuses})" * bool(statuses)),
        f"steps: {progress.steps_done} done, {progress.steps_owed} owed, "
        f"{progress.steps_saved} saved by sharing",
        *([] if is_over else [f"{progress.n_busy} of {_count(progress.n_slots, 'worker')} busy"]),
        *([] if is_over or not progress.stall else [progress.stall]),
        *(_best(progress, study) for study in progress.studies if study.name in progress.best),
    ]
    if left_s is not None:
        parts.append(f"about {duration(left_s)} left")
    return " | ".join(parts)


def duration(seconds: Seconds) -> str:
    """Say how long something takes, as exactly as anybody wants to know."""
    for unit, size_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size_s:
            whole, rest = divmod(round(seconds / size_s * 10), 10)
            return f"{whole} {unit}" if whole >= 10 or not rest else f"{whole}.{rest} {unit}"  # noqa: PLR2004
    return f"{seconds:.0f} s"


def rows(progress: Progress, most: int) -> list[tuple[str, ...]]:
    """Return the cells of a table of trials: those in training first, then the best ones.

    Args:
        progress: The counts of a run.
        most: How many rows.
    """
    chosen = nsmallest(most, progress.trials.values(), key=lambda trial: _rank(progress, trial))
    return [_cells(progress, trial) for trial in chosen]


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _best(progress: Progress, study: Study) -> str:
    best = progress.best[study.name]
    whose = f"{study.name} " if len(progress.studies) > 1 else ""
    trial = "" if best.trial is None else f", trial {best.trial}"
    return f"best {whose}{study.metric} {best.value:.6g} (step {best.step}{trial})"


def _rank(progress: Progress, trial: TrialProgress) -> tuple[bool, float, object]:
    study = progress.studies[trial.id.study]
    score = study.score(trial.metrics) if study.metric in trial.metrics else None
    last = float("inf")
    return trial.status is not TrialStatus.WAITING, last if score is None else -score, trial.id


def _cells(progress: Progress, trial: TrialProgress) -> tuple[str, ...]:
    study = progress.studies[trial.id.study]
    value = trial.metrics.get(study.metric)
    configuration = trial.configuration or study.space.configuration(trial.point)
    whose = f"{study.name}/" if len(progress.studies) > 1 else ""
    return (
        f"{whose}{trial.id.number}",
        trial.status.value,
        f"{trial.step}/{trial.asked}",
        "" if value is None else f"{study.metric} {value:.6g}",
        ", ".join(f"{name}={text}" for name, text in configuration.text.items()),
    )


# --- where it is shown


class Screen(Protocol):
    """Something that shows a run."""

    every_s: Seconds
    """How often it is drawn at most."""

    def draw(self, progress: Progress, left_s: Seconds | None) -> None:
        """Show how the run gets on."""

    def interrupt(self) -> None:
        """Say that the run is about to stop; called in a signal handler."""

    def close(self, progress: Progress, farewell: str) -> None:
        """Show the end, and what there is to say to it, if anything."""


class Silence:
    """Nothing is shown."""

    every_s = float("inf")

    def draw(self, progress: Progress, left_s: Seconds | None) -> None:
        """Show nothing."""

    def interrupt(self) -> None:
        """Show nothing."""

    def close(self, progress: Progress, farewell: str) -> None:
        """Show nothing."""


class Lines:
    """Lines of text, now and then: for files, pipes, and where a debugger may want the terminal."""

    every_s = _LINE_EVERY_S

    def __init__(self, stream: TextIO, *, has_table: bool) -> None:
        self._stream = stream
        self._has_table = has_table

    def draw(self, progress: Progress, left_s: Seconds | None) -> None:
        """Write a line."""
        self._write(line(progress, left_s))

    def interrupt(self) -> None:
        """Write past the stream, which may be in use: signals come in the middle of anything."""
        with suppress(OSError, ValueError):
            os.write(self._stream.fileno(), f"\n{STOPPING}\n".encode())

    def close(self, progress: Progress, farewell: str) -> None:
        """Write the table, if it is wanted."""
        if self._has_table:
            text = StringIO()  # written like the lines: a console of its own ends the process
            Console(file=text, width=120, color_system=None).print(
                _table(progress, len(progress.trials))
            )
            self._write(text.getvalue().removesuffix("\n"))
            self._write(line(progress))
        if farewell:
            self._write(farewell)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # nobody reads any more: no reason to stop a study
            print(text, file=self._stream, flush=True)


class Terminal:
    """A line that changes in place, below a table on request; drawn by a thread of its own."""

    every_s = _DRAW_EVERY_S

    def __init__(self, console: Console, clock: Callable[[], Seconds], *, has_table: bool) -> None:
        self._console = console
        self._clock = clock
        self._has_table = has_table
        self._shown: Callable[[], RenderableType] = lambda: Text("starting")
        self._live = Live(
            console=console,
            get_renderable=self._now,
            refresh_per_second=4,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self._live.start()

    def draw(self, progress: Progress, left_s: Seconds | None) -> None:
        """Keep what the thread shows next: values only, since counts go on changing."""
        at_s, static = self._clock(), line(progress)
        table = _table(progress, self._n_rows()) if self._has_table else None

        def shown() -> RenderableType:
            left = "" if left_s is None else f" | about {duration(self._left(left_s, at_s))} left"
            text = Text(static + left, no_wrap=True, overflow="ellipsis")
            return text if table is None else Group(table, text)

        self._shown = shown

    def interrupt(self) -> None:
        """Let the thread say it: signals come in the middle of anything."""
        self._shown = lambda: Text(STOPPING)

    def close(self, progress: Progress, farewell: str) -> None:
        """Leave the last line, and the whole table, on the screen."""
        text = Text(line(progress))
        self._shown = lambda: text
        if self._has_table:
            table = _table(progress, len(progress.trials))
            self._shown = lambda: Group(table, text)
            self._live.vertical_overflow = "visible"
        with suppress(OSError, ValueError):  # the terminal is gone: nobody reads any more
            self._live.stop()
            if farewell:
                self._console.print(Text(farewell))

    def _now(self) -> RenderableType:
        return self._shown()

    def _n_rows(self) -> int:
        return max(1, min(_ROWS, self._console.size.height - 6))

    def _left(self, left_s: Seconds, at_s: Seconds) -> Seconds:
        return max(0.0, left_s - (self._clock() - at_s))


class Notebook:
    """A line, and a table on request, below a cell of a notebook."""

    every_s = _NOTEBOOK_EVERY_S

    def __init__(self, display: ModuleType, *, has_table: bool) -> None:
        self._display = display
        self._has_table = has_table
        self._id = uuid4().hex
        self._is_there = False

    def draw(self, progress: Progress, left_s: Seconds | None) -> None:
        """Change what is shown."""
        self._show(progress, line(progress, left_s), _ROWS)

    def interrupt(self) -> None:
        """Show nothing yet: the next drawing says it."""

    def close(self, progress: Progress, farewell: str) -> None:
        """Show the end."""
        text = line(progress) + (f" | {farewell}" if farewell else "")
        self._show(progress, text, len(progress.trials))

    def _show(self, progress: Progress, text: str, most: int) -> None:
        html = f"<div>{escape(text)}</div>"
        if self._has_table:
            body = "".join(_html_row("td", cells) for cells in rows(progress, most))
            html = f"<table>{_html_row('th', _COLUMNS)}{body}</table>{html}"
        data = {"text/plain": text, "text/html": html}
        self._display.display(data, raw=True, display_id=self._id, update=self._is_there)
        self._is_there = True


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _table(progress: Progress, most: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, overflow="fold" if name == _COLUMNS[-1] else "ellipsis")
    for cells in rows(progress, most):
        table.add_row(*map(Text, cells))  # not as markup: names are the user's
    return table


# --- a run


class Watch:
    """Shows one run: told every entry, and when the user interrupts it."""

    def __init__(
        self, studies: Sequence[Study], screen: Screen, clock: Callable[[], Seconds]
    ) -> None:
        self.progress = Progress(studies)
        self._screen = screen
        self._clock = clock
        self._next_s = clock() + (_LINE_AFTER_S if isinstance(screen, Lines) else 0.0)

    def recall(self, entries: Sequence[Entry]) -> None:
        """Take in what happened in earlier runs."""
        for entry in entries:
            self.progress.take(entry)

    def take(self, entry: Entry) -> None:
        """Take in an entry; show it if it is time to."""
        self.progress.take(entry)
        now = self._clock()
        if now >= self._next_s:
            self._screen.draw(self.progress, self.progress.left_s)
            took_s = self._clock() - now
            self._next_s = now + max(self._screen.every_s, took_s / _SHARE)

    def stalls(self, why: str) -> None:
        """Show at once why nothing runs; empty: something does again."""
        self.progress.stall = why
        self._screen.draw(self.progress, self.progress.left_s)

    def interrupt(self) -> None:
        """Say that the run is about to stop; safe in a signal handler."""
        self._screen.interrupt()

    def close(self, *, at_once: bool) -> None:
        """Show the end.

        Args:
            at_once: Whether the user has broken off the run.
        """
        farewell = ""
        if at_once:
            farewell = f"stopped at once: {KEPT}"
        elif self.progress.is_stopping:
            farewell = f"interrupted: {KEPT}"
        self._screen.close(self.progress, farewell)


@contextmanager
def watching(
    studies: Sequence[Study],
    *,
    verbose: bool = False,
    in_process: bool = False,
    clock: Callable[[], Seconds] = time.monotonic,
) -> Iterator[Watch]:
    """Show a run for as long as the context lasts, where there is somebody to look.

    Args:
        studies: Those of the run, in its order.
        verbose: Whether a table of trials is wanted.
        in_process: Whether stages run in this process, where a debugger may want the terminal.
        clock: Seconds that only grow.
    """
    watch = Watch(studies, _screen(clock, verbose=verbose, in_process=in_process), clock)
    at_once = False
    try:
        yield watch
    except KeyboardInterrupt:
        at_once = True
        raise
    finally:
        watch.close(at_once=at_once)


def _screen(clock: Callable[[], Seconds], *, verbose: bool, in_process: bool) -> Screen:
    stream: TextIO | None = sys.stderr
    if stream is None or logging.getLogger("dasktune").level >= logging.WARNING:
        return Silence()
    if _is_notebook(sys.modules):
        return Notebook(importlib.import_module("IPython.display"), has_table=verbose)
    console = Console(file=stream, stderr=True)
    if in_process or not console.is_terminal or console.is_dumb_terminal:
        return Lines(stream, has_table=verbose)
    return Terminal(console, clock, has_table=verbose)


def _is_notebook(modules: Mapping[str, Any]) -> bool:
    """Say whether this is the kernel of a notebook, and not a shell in a terminal."""
    get_shell = getattr(modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and getattr(get_shell(), "kernel", None) is not None
