"""What a run writes into its store for workers to read: who finds it shares the store."""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from dasktune.store.store import Store
from dasktune.units import Seconds

logger = logging.getLogger(__name__)

AGAIN_AFTER_S: Seconds = 300.0
"""How old a proof may be when a worker is asked for it. Whoever cleans the store takes proofs of an
hour along: nobody can tell those of runs that go on from those of runs that have ended."""


class Proof:
    """The proof of one run, kept young enough to be there when it is read."""

    def __init__(self, store: Store, token: str, clock: Callable[[], Seconds] = monotonic) -> None:
        """Begin; nothing is written yet.

        Args:
            store: The driver's.
            token: Unique to the run.
            clock: Seconds that only grow.
        """
        self._store = store
        self._token = token
        self._clock = clock
        self._written_s: Seconds | None = None
        self._writing = asyncio.Lock()

    def write(self) -> None:
        """Write it.

        Raises:
            BackendError: The store cannot be written to.
        """
        self._store.write_proof(self._token)
        self._written_s = self._clock()

    async def make_sure(self) -> None:
        """Write it again unless it is young; many may ask at a time, and the event loop goes on.

        A store that cannot be written to is logged only: the old proof may still be there.
        """
        async with self._writing:
            if self._written_s is not None and self._clock() - self._written_s < AGAIN_AFTER_S:
                return
            try:
                await asyncio.to_thread(self.write)
            except Exception as error:  # whatever a file system raises
                logger.warning("workers may not find what they are to read: %s", error)
