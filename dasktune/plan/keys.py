"""Name every state of training by its content: a chain of links, and a digest for each state.

A history is named by a chain: the first link holds the family (fingerprint of the user's code and
training seed) and the values of step 0; each step at which any value changes adds a link made of
the previous link, the step and the changed values. A *state* is (link, step): what a checkpoint
holds after `step` steps. Nothing else enters: no trial, study, worker, time or system parameter.
Called by the search plan; pure.

References:
    [1] Shin et al., "Hippo: Sharing Computations in Hyper-Parameter Optimization", PVLDB 15(5),
        2022: search plans that merge equal prefixes. The chain by value is our own: the paper
        compares functions, we compare what they give.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import NewType

from dasktune.units import Digest, Step

Link = NewType("Link", bytes)
"""SHA-256 of a history up to the last change in it; 32 bytes."""


@dataclass(frozen=True, slots=True)
class Family:
    """What all histories must have in common before their values are compared."""

    fingerprint: str
    """Digest of the user's training code."""
    training_seed: int
    """Seed of the generators that training itself uses."""


def first_link(family: Family, tokens: Iterable[tuple[str, str]]) -> Link:
    """Start a chain from (name, token) pairs of step 0, sorted by name."""
    head = f"dasktune-first-1:{_field(family.fingerprint)}{family.training_seed};"
    return Link(sha256((head + _pairs(tokens)).encode()).digest())


def next_link(previous: Link, step: Step, tokens: Iterable[tuple[str, str]]) -> Link:
    """Continue a chain with the (name, token) pairs that change at `step`, sorted by name."""
    head = b"dasktune-next-1:" + previous
    return Link(sha256(head + f"{step};{_pairs(tokens)}".encode()).digest())


def extended(link: Link, changes: Iterable[tuple[Step, Iterable[tuple[str, str]]]]) -> Link:
    """Continue a chain with all changes of a stretch of steps, in order."""
    for step, tokens in changes:
        link = next_link(link, step, tokens)
    return link


def state_key(link: Link, step: Step) -> Digest:
    """Name the state after `step` steps of the history that `link` ends."""
    return Digest(sha256(b"dasktune-state-1:" + link + b"%d" % step).hexdigest())


def _field(text: str) -> str:
    return f"{len(text)}:{text}"


def _pairs(tokens: Iterable[tuple[str, str]]) -> str:
    # Lengths go before contents, so parts moved across a boundary give another text.
    return "".join([f"{len(name)}:{name}{len(token)}:{token}" for name, token in tokens])
