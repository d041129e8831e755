"""Read the blob of a state, and tell what is wrong with one that cannot be read.

Called by the store.
"""

from hashlib import sha256

from dasktune.errors import BackendError
from dasktune.store.medium import Medium
from dasktune.store.names import blob_name
from dasktune.store.record import Record


class LostBlobError(BackendError):
    """A state has a record, and its blob is missing or damaged."""

    def __init__(self, record: Record, reason: str, url: str) -> None:
        super().__init__(record, reason, url)
        self.record = record
        self.reason = reason
        self._url = url

    def __str__(self) -> str:
        return (
            f"state {self.record.key} at step {self.record.step} in {self._url!r} cannot be read, "
            f"as {self.reason}: the next run that needs it makes it again"
        )


def read_blob(medium: Medium, record: Record) -> memoryview:
    """Return the blob that a record names, in aligned memory.

    Raises:
        LostBlobError: It is missing or damaged.
        BackendError: The place does not answer.
    """
    reason = ""
    for _ in range(2):  # what is damaged on the way here may arrive whole the second time
        memory = medium.read_aligned(blob_name(record.key, record.sha256), record.size_bytes)
        if memory is None:
            reason = f"there is no blob of {record.size_bytes} bytes"
        elif sha256(memory).hexdigest() != record.sha256:
            reason = "the checksum of its blob does not fit"
        else:
            return memory
    raise LostBlobError(record, reason, medium.url)
