"""Names of files in a store, and what may become part of one: nothing that could leave its folder.

Called by the store before anything becomes part of a path or of an object's key: what a caller
gives is checked here, what another writer has put into a record when the record is read.
"""

import re
from hashlib import sha256
from typing import TypeGuard

from dasktune.errors import InvalidStudyError
from dasktune.units import Digest

STATES, TIMELINES, LOCKS, PROOFS = "states", "timelines", "locks", "proofs"
PINS, NEEDS = "pins", "needs"
"""Folders of a store."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_BLOB = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})\.state")
_RECORD = re.compile(r"([0-9a-f]{64})\.json")
_OF_A_STORE = {
    TIMELINES: re.compile(r".+\.jsonl"),
    PINS: re.compile(r".+\.json"),
    NEEDS: re.compile(r".+\.json"),
    STATES: re.compile(rf"{_BLOB.pattern}|{_RECORD.pattern}"),
    PROOFS: re.compile(r"dasktune-[0-9a-f]{32}"),  # as the runner calls a run
}


def blob_name(key: Digest, sha256: str) -> str:
    """Return where the blob of a state lies."""
    return f"{STATES}/{key}.{sha256}.state"


def record_name(key: Digest) -> str:
    """Return where the record of a state lies."""
    return f"{STATES}/{key}.json"


def proof_name(token: str) -> str:
    """Return where a proof lies."""
    return f"{PROOFS}/{checked_name(token, 'token')}"


def blob_of(name: str) -> tuple[Digest, str] | None:
    """Return the key and the SHA-256 in the name of a blob, without its folder."""
    match = _BLOB.fullmatch(name)
    return (Digest(match[1]), match[2]) if match else None


def key_of(name: str) -> Digest | None:
    """Return the key in the name of a record, without its folder."""
    match = _RECORD.fullmatch(name)
    return Digest(match[1]) if match else None


def is_of_a_store(folder: str, name: str) -> bool:
    """Say whether a file of that name in that folder is taken for one of a store.

    By names alone: digests are nobody else's, while any `.jsonl` among timelines and any `.json`
    among pins counts, whoever wrote it. No folder of locks tells anything.
    """
    names = _OF_A_STORE.get(folder)
    return names is not None and names.fullmatch(name) is not None


def numbered(name: str, suffix: str) -> int | None:
    """Return the number that is the name of a segment or a lock; None for any other file."""
    stem = name.removesuffix(suffix)
    number = int(stem) if stem.isascii() and stem.isdecimal() else 0
    return number if number and number_name(number, suffix) == name else None


def number_name(number: int, suffix: str) -> str:
    """Return the name of a segment or a lock, without its folder."""
    return f"{number:08d}{suffix}"


def checked_key(key: object) -> Digest:
    """Return the key of a state.

    Raises:
        InvalidStudyError: It is no digest.
    """
    return Digest(checked_digest(key, "key"))


def checked_digest(digest: object, what: str) -> str:
    """Return what SHA-256 has given.

    Raises:
        InvalidStudyError: It cannot have.
    """
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidStudyError(
            f"{what} is {digest!r}; it must be 64 lower-case hexadecimal digits"
        )
    return digest


def checked_name(name: object, what: str) -> str:
    """Return the name of a study or a token.

    Raises:
        InvalidStudyError: It could not safely be the name of a file.
    """
    if not is_name(name):
        raise InvalidStudyError(
            f"{what} is {name!r}; it must be at most 200 letters, digits, '.', '_' and '-', and "
            "begin with a letter or digit"
        )
    return name


def is_name(name: object) -> TypeGuard[str]:
    """Say whether something could be the name of a study or a token."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def proof_of(token: str) -> bytes:
    """Return what a store holds under the name of a proof."""
    return sha256(f"dasktune-proof-1:{token}".encode()).hexdigest().encode()
