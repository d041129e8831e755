"""Make instances of a trainable and let them train as a stage does, to look at what they do.

Called by `check`. One more run is made in another process, where text has other hashes and objects
other addresses. What the user's code raises becomes a finding.

As few instances live at once as a comparison needs: a model may fill half of a device.
"""

import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from dasktune.errors import StageError
from dasktune.runtime.generators import SETUP, seed_generators
from dasktune.runtime.payload import Payload, by_value, travelling_by_value, unpack
from dasktune.runtime.stage import KNOBS
from dasktune.space.configuration import Configuration
from dasktune.store.codec import decode, encode
from dasktune.study.content import is_installed_module
from dasktune.study.ports import Trainable
from dasktune.study.training_code import training_code
from dasktune.units import Seconds, Step

_T = TypeVar("_T")

_MOST_CITED = 300
"""Characters of another process's last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it must be."""

    about: str
    """What was looked at: sending, running, repeating, keeping, splitting, looking, evaluating or
    metrics."""
    text: str
    """What was found, and the cure, in one sentence."""


class FoundError(Exception):
    """A finding after which others make no sense."""

    def __init__(self, about: str, text: str) -> None:
        super().__init__(text)
        self.finding = Finding(about=about, text=text)


class AloneError(Exception):
    """No other process can be started here; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Makes instances, and lets them train, as a stage does."""

    payload: Payload
    """The training code."""
    configuration: Configuration
    seed: int
    """The training seed."""
    n_steps: int

    @contextmanager
    def fresh(self, state: bytes | None = None) -> Iterator[Trainable]:
        """Give a new instance, set up with the values of step 0, and close it in the end.

        Args:
            state: It loads this state, if one is given.
        """
        _make_room()
        instance = _unpacked(self.payload)
        try:
            apply_system = getattr(instance, "apply_system", None)
            if callable(apply_system):
                asked("apply_system()", lambda: apply_system(KNOBS))
            seed_generators(self.seed, SETUP)
            values = self.configuration.at(0)
            with training_code(self.payload.digest):
                asked("setup()", lambda: instance.setup(values, self.seed))
            if state is not None:
                asked("load_state_dict()", lambda: instance.load_state_dict(decode(state)))
            yield instance
        except BaseException:
            with suppress(Exception):  # what came first says more
                _close(instance)
            raise
        asked("close()", lambda: _close(instance))

    def advance(self, instance: Trainable, step: Step) -> None:
        """Train one step."""
        seed_generators(self.seed, step)
        values = self.configuration.at(step)
        asked(f"step {step}", lambda: instance.step(values, step))

    def state(self, instance: Trainable) -> bytes:
        """Return what an instance says its state is."""
        state = asked("state_dict()", instance.state_dict)
        if state is None:
            raise FoundError("keeping", "state_dict() returned None: return the state, or {}")
        try:
            return encode(state)
        except StageError as error:
            raise FoundError("keeping", f"the state cannot be kept: {error}") from error

    def trained(self, *, looks: bool, note: Callable[[str], object] = lambda _doing: None) -> bytes:
        """Train a new instance to the end, and return its last state.

        Args:
            looks: Whether the state is asked for before each step too.
            note: Told before each part what is being done.
        """
        note("setup()")
        with self.fresh() as instance:
            for step in range(self.n_steps):
                note(f"step {step}")
                if looks:
                    self.state(instance)
                self.advance(instance, step)
            note("the last state_dict()")
            state = self.state(instance)
            note("close()")
        return state


def _unpacked(payload: Payload) -> Trainable:
    try:
        return unpack(payload)
    except Exception as error:  # whatever an object's own way of unpickling raises
        raise FoundError(
            "sending",
            f"the training code cannot be unpickled ({_words(error)}): build what is not the same "
            "everywhere in setup(), which runs where training does",
        ) from error


def _close(instance: Trainable) -> None:
    close = getattr(instance, "close", None)
    if callable(close):
        close()


def _make_room() -> None:
    """Give back the memory of devices that instances had which are gone."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()  # modules often hold themselves
        torch.cuda.empty_cache()


def asked(what: str, ask: Callable[[], _T]) -> _T:
    """Ask something of the user's code."""
    try:
        return ask()
    except Exception as error:  # the user's code may raise anything
        raise FoundError("running", f"{what} raised {_words(error)}{_place(error)}") from error


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: BaseException) -> str:
    """Say where the user's own code was when something was raised, if it was there."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not is_installed_module(frame.f_globals.get("__name__", "")):
            file = Path(frame.f_code.co_filename).name
            # Code that came by value knows its module and not its file.
            known = frame.f_globals.get("__name__", file) if file.startswith("<") else file
            place = f" ({known}, line {line})"
    return place


# --- another process


def elsewhere(rehearsal: Rehearsal, patience_s: Seconds) -> bytes:
    """Return the last state of a run in another process.

    Args:
        rehearsal: What to run.
        patience_s: After so many seconds the other process is ended.

    Raises:
        FoundError: It did not come to its end, or not in time.
        AloneError: There can be no other process.
    """
    _make_room()
    if not sys.executable:
        raise AloneError("this Python does not know its own program")
    with travelling_by_value():
        try:
            order = by_value(rehearsal)
        except Exception as error:  # of a schedule: the trainable is bytes already
            raise FoundError(
                "sending", f"the schedules cannot be sent to workers ({_words(error)})"
            ) from error
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "order").write_bytes(order)
            return _answer_of(folder, patience_s)
    except OSError as error:
        raise AloneError(_words(error)) from error


def _answer_of(folder: Path, patience_s: Seconds) -> bytes:
    """Have an order carried out by another process."""
    try:
        with (folder / "stderr").open("wb") as said:
            ended = subprocess.run(
                [sys.executable, "-c", _command(folder)],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,  # a pipe would stay open for as long as a child of the child
                timeout=patience_s,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise FoundError(
            "repeating",
            f"a run in another process was given up after {patience_s:.0f} s{_during(folder)}, "
            "many times what it took in this one: whether it gives the same states was not "
            "checked; perhaps it waits for what only one process can have (a lock, a port, a "
            "device)",
        ) from error
    if not (folder / "answer").exists():
        raise _ended(folder, ended.returncode)
    state, finding = pickle.loads((folder / "answer").read_bytes())
    if finding is not None:
        raise FoundError(finding.about, f"in another process, {finding.text}")
    return cast("bytes", state)


def _environment() -> dict[str, str]:
    # Another seed for the hashes of text: sets of text have another order there.
    return {
        **os.environ,
        "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _command(folder: Path) -> str:
    answer = f"from dasktune.runtime.rehearsal import answer_order as a; a({str(folder)!r})"
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return answer
    # How sums are rounded depends on it, and code without apply_system() leaves it as it is.
    return f"import torch; torch.set_num_threads({torch.get_num_threads()}); {answer}"


def _ended(folder: Path, code: int) -> FoundError:
    """Say how a process ended that left no answer."""
    said = (folder / "stderr").read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line.strip() for line in reversed(said) if line.strip()), "")
    about = "running" if (folder / "doing").exists() else "sending"
    how, too = f"ended with exit code {code}", "as a worker would"
    if code < 0:
        how, too = f"was ended by {_signal(-code)}", "as a worker would be"
    if how.endswith("SIGKILL"):
        too = f"perhaps for want of memory, {too}"
    words = f": {last[:_MOST_CITED]}" if last else ""
    return FoundError(about, f"another process {how}{_during(folder)}, {too}{words}")


def _signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _during(folder: Path) -> str:
    doing = folder / "doing"
    if not doing.exists():
        return " before it had unpickled the training code"
    return f" in {doing.read_text(encoding='utf-8')}"


def answer_order(folder: str) -> None:
    """Train as another process has ordered, and leave the last state, or what went wrong."""
    place = Path(folder)
    answer: tuple[bytes | None, Finding | None]
    try:
        answer = _carried_out(place), None
    except FoundError as error:
        answer = None, error.finding
    part = place / "part"
    part.write_bytes(pickle.dumps(answer))
    part.replace(place / "answer")


def _carried_out(place: Path) -> bytes:
    rehearsal: Rehearsal = pickle.loads((place / "order").read_bytes())
    _unpacked(rehearsal.payload)  # once by itself: what ends the process here is told apart
    return rehearsal.trained(looks=True, note=(place / "doing").write_text)
