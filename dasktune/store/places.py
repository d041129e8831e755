"""Which kind of place a path or a URL names, and what else a store is opened with.

Called by the store when it is opened; nothing is looked at yet.
"""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

from dasktune.errors import InvalidStudyError
from dasktune.store.local_files import LocalFiles
from dasktune.store.medium import Medium
from dasktune.store.objects import Objects


def medium_at(place: object, options: Mapping[str, Any]) -> Medium:
    """Return the place of a store.

    Args:
        place: A folder, or whatever fsspec knows.
        options: What fsspec's file system is told.

    Raises:
        InvalidStudyError: There is no such kind of place, or its library is not installed.
    """
    if not isinstance(place, str | Path):
        raise InvalidStudyError(f"store is {place!r}; it must be a folder, or a URL as text")
    url = str(place)
    protocol, separator, path = url.partition("://")
    if not url or "::" in url:
        raise InvalidStudyError(f"store is {url!r}; it must be one folder, or one URL")
    if not separator:
        return LocalFiles(Path(url).expanduser().absolute())
    if protocol in ("file", "local"):
        return LocalFiles(Path(path).absolute())
    return Objects(url, options)


def checked_options(options: object) -> dict[str, Any]:
    """Return what fsspec's file system is to be told; nothing for None.

    Raises:
        InvalidStudyError: It is no mapping.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidStudyError(
            f"storage_options is {options!r}; it must be a mapping such as {{'anon': True}}"
        )
    return dict(options)


def checked_limit(limit_bytes: int | None) -> int | None:
    """Return how large the states may be together; None: as large as they like.

    Raises:
        InvalidStudyError: It is no size.
    """
    given: object = limit_bytes  # such as 1e9, which does as well
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < inf
    if given is None or is_number:
        return limit_bytes
    raise InvalidStudyError(
        f"limit_bytes is {limit_bytes!r}; it must be a number of bytes of at least 0, or None"
    )
