"""Make the uniform numbers from which everything random is derived.

Called by the random sampler and by exploration. A hash instead of a generator: a number depends on
what it is for, never on how many were taken before it.
"""

from hashlib import blake2b


def unit_of(purpose: bytes) -> float:
    """Give a number of [0, 1), always the same one for the same purpose, as if drawn uniformly."""
    digest = blake2b(purpose, digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
