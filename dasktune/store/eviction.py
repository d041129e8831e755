"""Which states to give up when the store is too large. Pure; called by the store."""

from collections.abc import Callable, Collection, Iterable

from dasktune.store.record import Record
from dasktune.units import Digest, Seconds


def choose_evictions(
    records: Iterable[Record],
    excess_bytes: int,
    *,
    protected: Collection[Digest],
    recompute_s: Callable[[Record], Seconds],
) -> list[Record]:
    """Return the states to drop, the cheapest to make again for each byte first.

    Each is judged as if it alone were dropped: a state whose start is dropped too costs more than
    it says. All that may be dropped are returned if they are too few.

    Args:
        records: All that are stored.
        excess_bytes: How much must go.
        protected: States that must stay.
        recompute_s: How long it takes to make a state again.
    """
    may_go = [record for record in records if record.key not in protected]
    # Of equal ones the larger goes first, then by key: the choice depends on nothing else.
    may_go.sort(key=lambda r: (recompute_s(r) / max(r.size_bytes, 1), -r.size_bytes, r.key))
    chosen = []
    for record in may_go:
        if excess_bytes <= 0:
            break
        chosen.append(record)
        excess_bytes -= record.size_bytes
    return chosen
