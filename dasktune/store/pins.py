"""How a store remembers which states studies want kept: a list of keys for each study."""

import json
import logging
from collections.abc import Collection

from dasktune.errors import InvalidStudyError
from dasktune.store.names import checked_key
from dasktune.units import Digest

logger = logging.getLogger(__name__)

PINS = "pins"
"""Folder of the lists."""


def pins_name(study: str) -> str:
    """Return where a study's list is."""
    return f"{PINS}/{study}.json"


def pins_to_bytes(keys: Collection[Digest]) -> bytes:
    """Write a list."""
    return json.dumps(sorted(checked_key(key) for key in keys)).encode()


def pins_from_bytes(data: bytes) -> list[Digest]:
    """Read a list; one that is unreadable keeps nothing."""
    try:
        return [checked_key(key) for key in json.loads(data)]
    except (ValueError, TypeError, InvalidStudyError) as error:
        logger.warning("a list of states to be kept is unreadable: %s", error)
        return []
