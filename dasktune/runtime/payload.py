"""Send the user's training code as bytes, and make fresh instances of it on a worker.

The user's own modules travel by value, so neither the Dask scheduler nor a worker has to be able to
import them; installed packages travel by name.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from types import ModuleType
from typing import cast

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


def pack(trainable: Trainable) -> Payload:
    """Turn a trainable, as it is now, into bytes.

    Raises:
        InvalidStudyError: Something in it cannot travel.
    """
    with travelling_by_value():
        try:
            content = cloudpickle.dumps(trainable)
        except Exception as error:
            raise InvalidStudyError(
                f"trainable {type(trainable).__qualname__} cannot be sent to workers: {error}; "
                "build what cannot travel in setup()"
            ) from error
    return Payload(content, Digest(sha256(content).hexdigest()))


def unpack(payload: Payload) -> Trainable:
    """Return a fresh instance of the trainable."""
    return cast("Trainable", cloudpickle.loads(payload.content))


@contextmanager
def travelling_by_value() -> Iterator[None]:
    """Let what is pickled inside carry the user's own modules with it."""
    with ExitStack() as stack:
        for module in _user_modules():
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _user_modules() -> list[ModuleType]:
    # A script and a notebook travel by value anyway; a module without a file is nobody's source.
    modules = [user_module(name) for name in list(sys.modules) if name not in _MAIN]
    return [
        module for module in modules if getattr(module, "__file__", None) is not None and module
    ]


_MAIN = ("__main__", "__mp_main__")
