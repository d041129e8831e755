"""Where states, metrics and timelines are kept: on a disk, or wherever fsspec reaches.

Called by stages (commit, load), the driver (journal, lock, eviction) and the command line. Below:

    states/KEY.SHA256.state     a blob: a state as `store.codec` writes it; never changed
    states/KEY.json             the record: which blob stands for the key, metrics on the way, facts
    timelines/STUDY.jsonl       the journal of a study; on object stores STUDY/NUMBER.jsonl
    locks/STUDY.lock            who drives a study; on object stores STUDY/NUMBER.json
    pins/STUDY.json             states that a study wants kept, such as its best
    needs/STUDY.json            states that a run needs, which are kept for a day
    proofs/TOKEN                what workers read to prove that they share the store

A state is there if and only if its record is, and its blob fits the record's checksum. Order of
writing: blob, record; of removing: record, blob. So a crash between two steps leaves at most files
that nothing refers to, and `clean` removes those. Several attempts may commit one key: the first
record stands, and every blob stays valid. Nothing is unpickled unless the store is opened so.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dasktune.errors import BackendError, StageError
from dasktune.store.blobs import LostBlobError, read_blob
from dasktune.store.codec import Encoding, State, decode
from dasktune.store.eviction import choose_evictions
from dasktune.store.journal_file import FileJournal, Journal, SegmentJournal
from dasktune.store.leftovers import Cleaned, leftovers, refuse_no_store
from dasktune.store.local_files import LocalFiles
from dasktune.store.lock import StudyLock, study_lock
from dasktune.store.names import (
    NEEDS,
    PINS,
    STATES,
    TIMELINES,
    blob_name,
    blob_of,
    checked_key,
    checked_name,
    is_name,
    key_of,
    proof_name,
    proof_of,
    record_name,
)
from dasktune.store.pins import all_pins, write_list
from dasktune.store.places import checked_limit, checked_options, medium_at
from dasktune.store.record import Metrics, Passed, Record, checked_metrics, checked_passed
from dasktune.units import Digest, Seconds, Step

logger = logging.getLogger(__name__)

_EVICTED_TO = 0.9
"""Fraction of the limit that eviction goes down to, so that it need not run at each commit."""


class Store:
    """States by key, journals and locks by study; the same from every process that opens it."""

    def __init__(
        self,
        url: str | Path = "./dasktune-store",
        *,
        limit_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        allow_pickle: bool = False,
    ) -> None:
        """Open a store; nothing is written yet.

        Args:
            url: A folder, or whatever fsspec knows, such as `s3://bucket/prefix`.
            limit_bytes: How large the states may be together before `evict` drops some; by
                default there is no limit.
            storage_options: What fsspec's file system is told, such as credentials; workers get it.
            allow_pickle: Keep in states what only pickle can keep, and unpickle what others kept
                so, which can execute anything: only for stores that you alone can write to.

        Raises:
            InvalidStudyError: There is no such kind of place, its library is not installed, or an
                argument is not what it must be.
        """
        self._options = checked_options(storage_options)
        self._medium = medium_at(url, self._options)
        self._allow_pickle = allow_pickle
        self.limit_bytes = checked_limit(limit_bytes)
        """How large the states may be together; None: as large as they like."""

    @property
    def url(self) -> str:
        """Where the store is; a local path is absolute."""
        return self._medium.url

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., "Store"], tuple[object, ...]]:
        return _opened, (self.url, self.limit_bytes, self._options, self._allow_pickle)

    # --- states

    def commit(
        self,
        key: Digest,
        step: Step,
        state: State,
        *,
        metrics: Metrics | None = None,
        facts: Mapping[str, Any] | None = None,
        passed: Passed | None = None,
    ) -> Record:
        """Keep a state; it is durable when this returns.

        Args:
            key: Names the state by its history.
            step: Steps of training that it has behind it.
            state: What the codec takes; not None.
            metrics: Of the state, if they were taken.
            facts: How it was made; `seconds` is what it costs to make it again.
            passed: Metrics of earlier states of its history, by step.

        Returns:
            The record that stands: an earlier one, if another attempt has committed the key.

        Raises:
            StageError: The state holds something that cannot be kept; the message says where.
            StoreFullError: There is no room; nothing was written.
            BackendError: The store cannot be written to.
        """
        if state is None:
            raise StageError("state is None; state_dict() must return it, or {} if there is none")
        encoding = Encoding(state, allow_pickle=self._allow_pickle)
        # The record is made first with no blob, so that wrong facts are found before the work.
        record = Record(
            key=checked_key(key),
            step=step,
            sha256="",
            size_bytes=encoding.size_bytes,
            metrics=checked_metrics(metrics),
            facts=dict(facts or {}),
            passed=checked_passed(passed),
        )
        record.to_bytes()
        with self._medium.writing():
            digest = self._medium.write(encoding, lambda digest: blob_name(key, digest))
            return self._publish(replace(record, sha256=digest))

    def add_metrics(
        self, key: Digest, metrics: Metrics | None = None, passed: Passed | None = None
    ) -> Record | None:
        """Record metrics of a stored state, and of states on the way to it; others stay.

        Returns:
            Its record; None if it isn't stored.

        Raises:
            BackendError: The store cannot be written to.
        """
        record = self.record(key)
        if record is None:
            return None
        more = record.with_metrics(checked_metrics(metrics)).with_passed(checked_passed(passed))
        with self._medium.writing():
            self._medium.put(record_name(key), more.to_bytes())
        return more

    def record(self, key: Digest) -> Record | None:
        """Return what is known of a state; None if it isn't stored, or its record is unreadable."""
        data = self._medium.read(record_name(checked_key(key)))
        if data is None:
            return None
        try:
            record = Record.from_bytes(data)
            if record.key != key:
                raise ValueError(f"it is about {record.key!r}")
        except ValueError as error:
            logger.warning("the record of state %s is unreadable: %s", key, error)
            return None
        return record

    def load(self, key: Digest) -> State | None:
        """Return a state; None if it isn't stored, or what is stored is damaged.

        A damaged state is logged and forgotten: from then on it has no record, for anybody.

        Raises:
            BackendError: The store cannot be read, or the state needs what is not here or allowed.
        """
        try:
            return self.peek(key)
        except LostBlobError as error:
            logger.warning("state %s is lost, and will be made again: %s", key, error.reason)
            # The same attempt: whole records differ from themselves where a metric is NaN.
            if self._digest_of(key) == error.record.sha256:
                self._medium.remove(record_name(key))
            return None

    def peek(self, key: Digest) -> State | None:
        """Return a state, and change nothing in the store; None if it isn't stored.

        Raises:
            BackendError: It is damaged, or as `load`.
        """
        record = self.record(key)
        if record is None:
            return None
        memory = read_blob(self._medium, record)
        return decode(memory, allow_pickle=self._allow_pickle, in_place=True)

    def drop(self, key: Digest) -> None:
        """Forget a state, and give its space back; nothing happens if it isn't stored."""
        record = self.record(key)
        self._medium.remove(record_name(key))
        if record is not None:
            self._medium.remove(blob_name(key, record.sha256))

    def keys(self) -> frozenset[Digest]:
        """Return the keys of all states that have a record and a blob, by one listing."""
        names = self._medium.listing(STATES)
        with_blob = {blob[0] for blob in map(blob_of, names) if blob}
        return frozenset(key for key in map(key_of, names) if key in with_blob)

    def records(self) -> Iterator[Record]:
        """Yield the records of all states, by key."""
        for key in sorted(self.keys()):
            record = self.record(key)
            if record is not None:
                yield record

    # --- room

    def used_bytes(self) -> int:
        """Return the size of all states, unfinished and superseded ones included."""
        return sum(
            entry.size_bytes
            for name, entry in self._medium.listing(STATES).items()
            if not key_of(name)
        )

    def evict(
        self,
        protected: Collection[Digest] = (),
        *,
        recompute_s: Callable[[Record], Seconds] | None = None,
    ) -> tuple[Record, ...]:
        """Drop states until the rest is a tenth below the limit; do nothing below the limit.

        Those go first that cost the fewest seconds to make again for each byte. Logged if what is
        protected alone exceeds the limit.

        Args:
            protected: States that must stay, such as those with open requests.
            recompute_s: How long it takes to make a state again; by default the `seconds` among
                its facts.

        Returns:
            The records of the states that were dropped: each is lost from now on.
        """
        if self.limit_bytes is None or self.used_bytes() <= self.limit_bytes:
            return ()
        self.clean()
        if (used_bytes := self.used_bytes()) <= self.limit_bytes:
            return ()
        chosen = choose_evictions(
            self.records(),
            used_bytes - int(self.limit_bytes * _EVICTED_TO),
            protected=protected,
            recompute_s=recompute_s or (lambda record: record.seconds),
        )
        for record in chosen:
            logger.info(
                "state %s is dropped: %d bytes, made in %.3g s, and the store may hold %d bytes",
                record.key,
                record.size_bytes,
                record.seconds,
                self.limit_bytes,
            )
            self.drop(record.key)
        left_bytes = used_bytes - sum(record.size_bytes for record in chosen)
        if left_bytes > self.limit_bytes:
            logger.warning(
                "the store holds %d bytes and may hold %d, but every state in it is needed",
                left_bytes,
                self.limit_bytes,
            )
        return tuple(chosen)

    def clean(self, *, older_than_s: Seconds = 3600.0, dry_run: bool = False) -> Cleaned:
        """Remove what killed writers left: unfinished files, and blobs that no record names.

        Args:
            older_than_s: What is younger may still be in work and stays, where it isn't certain
                that nobody is writing; it is certain on disks with locks, if nobody is.
            dry_run: Only count.

        Raises:
            InvalidStudyError: There is no store.
        """
        refuse_no_store(self._medium)
        n_files = size_bytes = 0
        with self._medium.alone() as is_alone:
            found = leftovers(
                self._medium,
                self._digest_of,
                age_s=0.0 if is_alone else older_than_s,
                proof_age_s=older_than_s,
            )
            for name, size in found:
                if not dry_run:
                    self._medium.remove(name)
                n_files, size_bytes = n_files + 1, size_bytes + size
        return Cleaned(n_files=n_files, size_bytes=size_bytes)

    # --- studies

    def journal(self, study: str, lock: StudyLock | None = None) -> Journal:
        """Return the journal of a study's timeline; whoever appends gives the study's lock."""
        name = f"{TIMELINES}/{checked_name(study, 'study')}"
        if isinstance(self._medium, LocalFiles):
            return FileJournal(self._medium.path(f"{name}.jsonl"), lock)
        return SegmentJournal(self._medium, name, lock)

    def studies(self) -> tuple[str, ...]:
        """Return the names of all studies that have a journal, sorted."""
        # A file of its own, or a folder of segments.
        parts = (name.partition("/") for name in self._medium.listing(TIMELINES))
        names = {study if segment else study.removesuffix(".jsonl") for study, _, segment in parts}
        return tuple(sorted(filter(is_name, names)))

    def lock(self, study: str) -> StudyLock:
        """Take the lock of a study.

        Raises:
            BackendError: Somebody else has it; the message says who, where, and since when.
        """
        return study_lock(self._medium, checked_name(study, "study"))

    def pin(self, study: str, keys: Collection[Digest]) -> None:
        """Keep states from eviction by whomever, for a study; replaces what it kept before."""
        write_list(self._medium, PINS, study, keys)

    def need(self, study: str, keys: Collection[Digest]) -> None:
        """Keep states from eviction for a day, for the run of a study; replaces what it needed."""
        write_list(self._medium, NEEDS, study, keys)

    def pinned(self) -> frozenset[Digest]:
        """Return the states that studies have pinned or need; an unreadable list keeps nothing."""
        return all_pins(self._medium)

    def write_proof(self, token: str) -> None:
        """Write something that only who shares this store can read."""
        with self._medium.writing():
            self._medium.put(proof_name(token), proof_of(token))

    def read_proof(self, token: str) -> None:
        """Make sure that this process reads what another wrote with the same token.

        Raises:
            BackendError: It does not: the store is not shared.
        """
        if self._medium.read(proof_name(token)) != proof_of(token):
            raise BackendError(
                f"this process does not find in {self.url!r} what another has written there: give "
                "a store that every worker reaches, such as a folder on a shared disk or a bucket"
            )

    def _publish(self, record: Record) -> Record:
        """Let a record stand for its key, unless another does; return the one that stands."""
        name, data = record_name(record.key), record.to_bytes()
        if self._medium.create(name, data):
            return record
        standing = self.record(record.key)
        if standing is None or not self._has_blob(standing):
            self._medium.put(name, data)
            return record
        if standing.sha256 != record.sha256:
            return standing
        merged = standing.with_metrics(record.metrics).with_passed(record.passed)
        if merged.to_bytes() != standing.to_bytes():
            self._medium.put(name, merged.to_bytes())
        return merged

    def _has_blob(self, record: Record) -> bool:
        return self._medium.size_bytes(blob_name(record.key, record.sha256)) == record.size_bytes

    def _digest_of(self, key: Digest) -> str | None:
        record = self.record(key)
        return None if record is None else record.sha256


def _opened(
    url: str, limit_bytes: int | None, options: Mapping[str, Any], allow_pickle: bool
) -> Store:
    return Store(url, limit_bytes=limit_bytes, storage_options=options, allow_pickle=allow_pickle)
