"""What killed writers leave in a store: unfinished files, and blobs that no record names.

Called by `Store.clean`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dasktune.errors import InvalidStudyError
from dasktune.store.local_files import TEMPORARY
from dasktune.store.medium import Entry, Medium
from dasktune.store.names import (
    LOCKS,
    NEEDS,
    PINS,
    PROOFS,
    STATES,
    TIMELINES,
    blob_of,
    is_of_a_store,
    key_of,
)
from dasktune.store.pins import NEEDED_FOR_S
from dasktune.units import Digest, Seconds

_FOLDERS = (STATES, TIMELINES, LOCKS, PINS, NEEDS, PROOFS)
_UNFINISHED = re.compile(rf"\.[0-9a-f]{{32}}{re.escape(TEMPORARY)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What `clean` removed."""

    n_files: int
    """Files or objects."""
    size_bytes: int
    """All of them together."""


def refuse_no_store(medium: Medium) -> None:
    """Make sure that a store has been written at a place: a paper's folder may have proofs too.

    Raises:
        InvalidStudyError: None has.
    """
    if medium.was_written():
        return
    for folder in (TIMELINES, PINS, STATES):
        if any(is_of_a_store(folder, name) for name in medium.listing(folder)):
            return
    raise InvalidStudyError(
        f"store is {medium.url!r}, where no store is: give the folder or the URL of one"
    )


def leftovers(
    medium: Medium,
    digest_of: Callable[[Digest], str | None],
    *,
    age_s: Seconds,
    proof_age_s: Seconds,
) -> Iterator[tuple[str, int]]:
    """Yield the name and size in bytes of each file that nobody needs.

    What has no name that a store gives is somebody's own, and stays.

    Args:
        medium: Where to look.
        digest_of: Reads the record of a key now: a listing may be older than a record.
        age_s: What is younger stays.
        proof_age_s: The same for proofs, which are in nobody's work and still of use.
    """
    of_use_s = {PROOFS: proof_age_s, NEEDS: NEEDED_FOR_S}
    for folder in _FOLDERS:
        files = medium.listing(folder)
        unfinished = filter(_UNFINISHED.fullmatch, files)
        for name in unfinished:
            if files[name].age_s >= age_s:
                yield f"{folder}/{name}", files[name].size_bytes
        if folder in of_use_s:
            for name in files:
                if is_of_a_store(folder, name) and files[name].age_s >= of_use_s[folder]:
                    yield f"{folder}/{name}", files[name].size_bytes
        elif folder == STATES:
            for name in _superseded(files, digest_of):
                if files[name].age_s >= age_s:
                    yield f"{folder}/{name}", files[name].size_bytes


def _superseded(
    files: dict[str, Entry], digest_of: Callable[[Digest], str | None]
) -> Iterator[str]:
    with_record = {key_of(name) for name in files}
    blobs = {name: blob for name in files if (blob := blob_of(name))}
    n_blobs = Counter(key for key, _ in blobs.values())
    for name, (key, digest) in blobs.items():
        # The only blob of a key with a record is the one that the record names: nothing to read.
        is_named = n_blobs[key] == 1 and key in with_record
        if not is_named and digest_of(key) != digest:
            yield name
