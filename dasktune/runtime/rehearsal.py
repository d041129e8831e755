"""Make instances of a trainable and let them train as the engine does, to look at what they do.

Called by `check`. One more run is made in another process, where text has other hashes and objects
other addresses. What the user's code raises becomes a finding.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import cloudpickle

from dasktune.errors import StageError
from dasktune.runtime.generators import SETUP, seed_generators
from dasktune.runtime.payload import Payload, unpack
from dasktune.space.configuration import Configuration
from dasktune.store.codec import decode, encode
from dasktune.study.ports import Trainable
from dasktune.units import Seconds, Step

_T = TypeVar("_T")

_PATIENCE_S: Seconds = 600.0
"""How long a run in another process may take; then nothing is said about it."""


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


class Rehearsal:
    """Makes instances, and lets them train, as the engine does."""

    def __init__(
        self, stack: ExitStack, configuration: Configuration, seed: int, n_steps: int
    ) -> None:
        self.configuration, self.seed, self.n_steps = configuration, seed, n_steps
        self.payload: Payload | None = None
        self._stack = stack

    def fresh(self) -> Trainable:
        """Return a new instance, set up with the values of step 0."""
        assert self.payload is not None
        instance = unpack(self.payload)
        close = getattr(instance, "close", None)
        if callable(close):
            self._stack.callback(close)
        seed_generators(self.seed, SETUP)
        values = self.configuration.at(0)
        asked("setup()", lambda: instance.setup(values, self.seed))
        return instance

    def loaded(self, state: bytes) -> Trainable:
        """Return a new instance that has loaded a state."""
        instance = self.fresh()
        asked("load_state_dict()", lambda: instance.load_state_dict(decode(state)))
        return instance

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


def asked(what: str, ask: Callable[[], _T]) -> _T:
    """Ask something of the user's code."""
    try:
        return ask()
    except Exception as error:  # the user's code may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise FoundError(
            "running", f"{what} raised {type(error).__name__}: {error} ({place})"
        ) from error


def elsewhere(rehearsal: Rehearsal) -> bytes | None:
    """Return the last state of a run in another process; None if there can be none here."""
    assert rehearsal.payload is not None
    # Another seed for the hashes of text: sets of text have another order there.
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with tempfile.TemporaryDirectory() as folder:
        order, answer = Path(folder) / "order", Path(folder) / "answer"
        content = (rehearsal.payload, rehearsal.configuration, rehearsal.seed, rehearsal.n_steps)
        order.write_bytes(cloudpickle.dumps(content))
        command = f"from dasktune.runtime.rehearsal import answer_order as a; a({str(folder)!r})"
        try:
            subprocess.run(
                [sys.executable, "-c", command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_PATIENCE_S,
                check=False,
            )
            state, finding = pickle.loads(answer.read_bytes())
        except (OSError, subprocess.SubprocessError):
            return None
    if finding is not None:
        raise FoundError("running", f"in another process, {finding.text}")
    return cast("bytes", state)


def answer_order(folder: str) -> None:
    """Train as another process has ordered, and leave the last state, or what went wrong."""
    payload, configuration, seed, n_steps = pickle.loads((Path(folder) / "order").read_bytes())
    with ExitStack() as stack:
        rehearsal = Rehearsal(stack, configuration, seed, n_steps)
        rehearsal.payload = payload
        answer: tuple[bytes | None, Finding | None]
        try:
            instance = rehearsal.fresh()
            for step in range(n_steps):
                rehearsal.state(instance)  # as often as where it is compared
                rehearsal.advance(instance, step)
            answer = rehearsal.state(instance), None
        except FoundError as error:
            answer = None, error.finding
    (Path(folder) / "answer").write_bytes(pickle.dumps(answer))
