"""How a store remembers which states studies want kept: two lists of keys for each study.

What is pinned stays until the study says otherwise. What is needed is what a run may begin from: it
counts for a day after the run last said so, since a run that was killed may never come back.
"""

import json
import logging
from collections.abc import Collection

from dasktune.errors import InvalidStudyError
from dasktune.store.medium import Medium
from dasktune.store.names import NEEDS, PINS, checked_key, checked_name, is_of_a_store
from dasktune.units import Digest, Seconds

logger = logging.getLogger(__name__)


NEEDED_FOR_S: Seconds = 86_400.0
"""How long what a run needs is kept for it."""


def write_list(medium: Medium, folder: str, study: str, keys: Collection[Digest]) -> None:
    """Replace what a study has pinned (`PINS`) or needs (`NEEDS`)."""
    name = f"{folder}/{checked_name(study, 'study')}.json"
    with medium.writing():
        if keys:
            medium.put(name, json.dumps(sorted(checked_key(key) for key in keys)).encode())
        else:
            medium.remove(name)


def all_pins(medium: Medium) -> frozenset[Digest]:
    """Return the states that any study has pinned, or that its run needs."""
    files = {
        f"{folder}/{name}": entry
        for folder in (PINS, NEEDS)
        for name, entry in medium.listing(folder).items()
        if is_of_a_store(folder, name)
    }
    names = [
        name
        for name, entry in files.items()
        if name.startswith(f"{PINS}/") or entry.age_s < NEEDED_FOR_S
    ]
    lists = (medium.read(name) or b"[]" for name in names)
    return frozenset(key for data in lists for key in pins_from_bytes(data))


def pins_from_bytes(data: bytes) -> list[Digest]:
    """Read a list; one that is unreadable keeps nothing."""
    try:
        return [checked_key(key) for key in json.loads(data)]
    except (ValueError, TypeError, RecursionError, InvalidStudyError) as error:
        logger.warning("a list of states to be kept is unreadable: %s", error)
        return []
