"""How a store remembers which states studies want kept: a list of keys for each study."""

import json
import logging
from collections.abc import Collection

from dasktune.errors import InvalidStudyError
from dasktune.store.medium import Medium
from dasktune.store.names import PINS, checked_key, is_of_a_store
from dasktune.units import Digest

logger = logging.getLogger(__name__)


def pins_name(study: str) -> str:
    """Return where a study's list is."""
    return f"{PINS}/{study}.json"


def pins_to_bytes(keys: Collection[Digest]) -> bytes:
    """Write a list."""
    return json.dumps(sorted(checked_key(key) for key in keys)).encode()


def all_pins(medium: Medium) -> frozenset[Digest]:
    """Return the states that any study has pinned."""
    names = [name for name in medium.listing(PINS) if is_of_a_store(PINS, name)]
    lists = (medium.read(f"{PINS}/{name}") or b"[]" for name in names)
    return frozenset(key for data in lists for key in pins_from_bytes(data))


def pins_from_bytes(data: bytes) -> list[Digest]:
    """Read a list; one that is unreadable keeps nothing."""
    try:
        return [checked_key(key) for key in json.loads(data)]
    except (ValueError, TypeError, RecursionError, InvalidStudyError) as error:
        logger.warning("a list of states to be kept is unreadable: %s", error)
        return []
