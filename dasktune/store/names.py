"""Names of files in a store, and what may become part of one: nothing that could leave its folder.

Called by the store before anything becomes part of a path or of an object's key.
"""

import re
from hashlib import sha256

from dasktune.errors import InvalidStudyError
from dasktune.units import Digest

STATES, PROOFS = "states", "proofs"
"""Folders of a store."""

_KEY = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_BLOB = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})\.state")
_RECORD = re.compile(r"([0-9a-f]{64})\.json")


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


def checked_key(key: object) -> Digest:
    """Return the key of a state.

    Raises:
        InvalidStudyError: It is no digest.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidStudyError(f"key is {key!r}; it must be 64 lower-case hexadecimal digits")
    return Digest(key)


def checked_name(name: object, what: str) -> str:
    """Return the name of a study or a token.

    Raises:
        InvalidStudyError: It could not safely be the name of a file.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidStudyError(
            f"{what} is {name!r}; it must be at most 200 letters, digits, '.', '_' and '-', and "
            "begin with a letter or digit"
        )
    return name


def proof_of(token: str) -> bytes:
    """Return what a store holds under the name of a proof."""
    return sha256(f"dasktune-proof-1:{token}".encode()).hexdigest().encode()
