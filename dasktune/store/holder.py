"""Who has a lock: a process on a machine, as it says itself and as others read it.

Called by `store.lock`. What is read may come from anybody, and is shown to a person.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

UNREADABLE = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading a holder raises if it is none."""

_LONGEST = 1000
"""Characters in a text about a holder; what is longer was not written by this module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has a lock."""

    host: str
    """Name of the machine."""
    pid: int
    """The process."""
    since: str
    """When it took the lock: date and time, UTC."""
    machine: str = ""
    """Names the machine since its last start, and the namespace in which `pid` counts."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


def this_process() -> Holder:
    """Return this process as a holder, from now on."""
    return Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        since=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=_machine(),
    )


def read_holder(data: bytes) -> Holder | None:
    """Return who says that he has a lock; None if that cannot be read."""
    # Its owner may be about to write it.
    with contextlib.suppress(*UNREADABLE):
        return holder_of(json.loads(data))
    return None


def holder_of(plain: Mapping[str, Any]) -> Holder:
    """Return a holder as somebody has written it, whose every word may be shown.

    Raises:
        ValueError, TypeError: It is none.
    """
    holder = Holder(**plain)
    texts: tuple[Any, ...] = (holder.host, holder.since, holder.machine)
    for text in texts:
        if not isinstance(text, str) or not text.isprintable() or len(text) > _LONGEST:
            raise ValueError("a holder must be named by a few words")
    if type(holder.pid) is not int or not 0 < holder.pid < 2**31:
        raise ValueError("a holder must have the number of a process")
    return holder


def is_dead(holder: Holder) -> bool:
    """Say whether a process is certainly gone: only a process of this machine can be."""
    if not holder.machine or holder.machine != _machine():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _machine() -> str:
    parts = list(_machine_parts())
    return "/".join(parts) if len(parts) == 3 else ""  # noqa: PLR2004 - all that are known


def _machine_parts() -> Iterator[str]:
    # Pods of one node may share the name of the host, but not the namespace of processes.
    yield socket.gethostname()
    with contextlib.suppress(OSError):
        yield Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        yield str(Path("/proc/self/ns/pid").readlink())
