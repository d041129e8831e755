"""What goes wrong on purpose: trainables that fail or diverge, and a store whose disk gets full.

Sent to workers by name or by value: no module of the test runner is imported here.
"""

import errno
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import SpecCluster

from dasktune.store.local_files import disk_errors
from dasktune.store.medium import Content, Medium
from dasktune.store.store import Store
from tests.runtime.trainables import Walk, cluster_of

DECAYS_AT = 4
"""The step at which `Raises` and `Diverges` look at the rate: in four of ten trials it decayed."""


def has_decayed(hp: Mapping[str, Any]) -> bool:
    """Say whether the values of step `DECAYS_AT` are those at which something goes wrong."""
    return bool(hp["lr"] < 0.05)


class Refuses(Walk):
    """Raises at its first step."""

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        raise LookupError(f"no step {t} with {hp['lr']}")


class Diverges(Walk):
    """Has lost its weights from the step on at which `Raises` raises; says so as it is told."""

    def __init__(self, folder: str, answer: float | None = math.nan) -> None:
        super().__init__(folder)
        self.answer = answer

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        if t == DECAYS_AT and has_decayed(hp):
            self.weights = self.weights * math.nan

    def evaluate(self) -> Mapping[str, Any]:
        metrics = super().evaluate()
        return {**metrics, "accuracy": self.answer} if math.isnan(self.weights[0]) else metrics


class Unnamed(Walk):
    """Measures something else than the study asks for."""

    def evaluate(self) -> Mapping[str, Any]:
        return {"loss": 1.0}


# --- a disk ---------------------------------------------------------------------------------------


class FillableStore(Store):
    """A store on a disk that has no room, for any process, as long as a file exists."""

    def __init__(self, url: str | Path, marker: str | Path) -> None:
        super().__init__(url)
        self.marker = Path(marker)
        self._medium = _Fillable(self._medium, self.marker)

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[object, ...]]:
        return FillableStore, (self.url, self.marker)


class _Fillable:
    """Files of which none can be written when the disk is full, as the system would say it."""

    def __init__(self, medium: Medium, marker: Path) -> None:
        self._medium = medium
        self._marker = marker

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._medium, name)

    def put(self, name: str, data: bytes) -> None:
        self._take_room(name)
        self._medium.put(name, data)

    def create(self, name: str, data: bytes) -> bool:
        self._take_room(name)
        return self._medium.create(name, data)

    def write(self, content: Content, name_of: Callable[[str], str]) -> str:
        self._take_room("a blob")
        return self._medium.write(content, name_of)

    def _take_room(self, name: str) -> None:
        with disk_errors("write", name):
            if self._marker.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# --- a cluster ------------------------------------------------------------------------------------

PLUGINS = ("register_scheduler_plugin", "register_worker_plugin", "run_function", "broadcast")
"""All that a driver would like to add to a cluster."""


@contextmanager
def refusing(*handlers: str, n_workers: int = 2) -> Iterator[SpecCluster]:
    """A cluster whose administrator has forbidden some of what clients may ask."""
    with (
        dask.config.set({"distributed.scheduler.blocked-handlers": list(handlers)}),
        cluster_of(*({} for _ in range(n_workers))) as cluster,
    ):
        yield cluster
