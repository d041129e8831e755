"""Which kind of place a path or a URL names.

Called by the store when it is opened; nothing is looked at yet.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dasktune.errors import InvalidStudyError
from dasktune.store.local_files import LocalFiles
from dasktune.store.medium import Medium
from dasktune.store.objects import Objects


def medium_at(url: str, options: Mapping[str, Any]) -> Medium:
    """Return the place of a store.

    Args:
        url: A folder, or whatever fsspec knows.
        options: What fsspec's file system is told.

    Raises:
        InvalidStudyError: There is no such kind of place, or its library is not installed.
    """
    protocol, separator, path = url.partition("://")
    if not url or "::" in url:
        raise InvalidStudyError(f"store is {url!r}; it must be one folder, or one URL")
    if not separator:
        return LocalFiles(Path(url).expanduser().absolute())
    if protocol in ("file", "local"):
        return LocalFiles(Path(path).absolute())
    return Objects(url, options)
