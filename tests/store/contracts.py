"""What every store must do, wherever it keeps its files."""

import json
import logging
import pickle
from collections.abc import Iterator
from hashlib import sha256
from math import inf, isnan, nan
from typing import Any, TypeAlias

import numpy as np
import pytest

from dasktune.errors import BackendError, InvalidStudyError, StageError
from dasktune.store import leftovers, pins
from dasktune.store.journal_file import SEGMENT_BYTES
from dasktune.store.medium import Medium
from dasktune.store.record import Metrics, Passed
from dasktune.store.store import Store
from dasktune.units import Digest

Anything: TypeAlias = Any
"""What a caller may give by mistake, or a store may return."""

KEY, OTHER = Digest("1" * 64), Digest("2" * 64)
FACTS = {"seconds": 2.5, "knobs": {"threads": 1}, "versions": {"numpy": np.__version__}}


def state_of(number: int, size: int = 100) -> dict[str, Any]:
    """A state that differs from those of other numbers."""
    return {"number": number, "weights": np.full(size, number, dtype=np.float64)}


def number_in(state: Anything) -> int | None:
    """The number of a state, which is whole; None for no state."""
    if state is None:
        return None
    number: int = state["number"]
    assert (state["weights"] == number).all()
    return number


def files_of(store: Store) -> Medium:
    """Where a store keeps its files, to damage them."""
    return store._medium


def blob_names(store: Store, key: Digest = KEY) -> list[str]:
    """Names of all blobs of a key."""
    names = files_of(store).listing("states")
    return [f"states/{name}" for name in names if name.startswith(f"{key}.") and "state" in name]


class StoreContract:
    """A subclass gives a fixture `store`: empty, and its own."""

    @pytest.fixture
    def store(self) -> Store | Iterator[Store]:
        """An empty store."""
        raise NotImplementedError

    # --- states

    def test_a_committed_state_comes_back_with_its_record(self, store: Store) -> None:
        record = store.commit(KEY, 7, state_of(1), metrics={"loss": 0.5}, facts=FACTS)

        assert number_in(store.load(KEY)) == 1
        assert store.record(KEY) == record
        assert (record.key, record.step, record.metrics) == (KEY, 7, {"loss": 0.5})
        assert (record.facts, record.seconds) == (FACTS, 2.5)
        assert store.keys() == {KEY}
        assert list(store.records()) == [record]
        assert store.used_bytes() == record.size_bytes

    def test_what_is_loaded_can_be_trained_on(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))

        loaded = store.load(KEY)
        assert loaded is not None
        loaded["weights"] += 1

        assert number_in(store.load(KEY)) == 1

    def test_a_store_sent_to_another_process_is_the_same_store(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))

        sent = pickle.loads(pickle.dumps(store))

        assert number_in(sent.load(KEY)) == 1
        assert sent.url == store.url
        assert sent.limit_bytes == store.limit_bytes

    def test_what_was_not_committed_is_absent(self, store: Store) -> None:
        assert store.load(KEY) is None
        assert store.record(KEY) is None
        assert store.keys() == set()
        assert store.used_bytes() == 0
        assert list(store.records()) == []
        assert store.studies() == ()
        store.drop(KEY)

    def test_the_first_commit_stands_and_later_ones_are_told(self, store: Store) -> None:
        first = store.commit(KEY, 1, state_of(1), metrics={"loss": 1.0})

        second = store.commit(KEY, 1, state_of(2), metrics={"loss": 2.0})

        assert second == first == store.record(KEY)
        assert number_in(store.load(KEY)) == 1

    def test_metrics_of_a_later_attempt_with_the_same_state_are_kept(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))
        store.commit(KEY, 1, state_of(1), metrics={"loss": 0.5})
        store.commit(KEY, 1, state_of(1))

        record = store.record(KEY)

        assert record is not None
        assert record.metrics == {"loss": 0.5}
        assert len(blob_names(store)) == 1

    def test_metrics_are_added_to_those_there_are(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1), facts=FACTS)
        store.add_metrics(KEY, {"loss": 0.5})
        record = store.add_metrics(KEY, {"accuracy": np.float64(0.75), "none": None, "n": 3})
        assert record is not None

        assert record == store.record(KEY)
        assert record.metrics == {"loss": 0.5, "accuracy": 0.75, "none": None, "n": 3}
        assert record.facts == FACTS
        assert number_in(store.load(KEY)) == 1

    def test_what_was_reported_on_the_way_comes_back_to_the_bit(self, store: Store) -> None:
        passed: dict[int, dict[str, float | None]] = {
            2: {"loss": inf, "accuracy": 0.1 + 0.2},
            10: {"loss": -inf, "accuracy": -0.0},
            9: {"loss": np.float64(1e-320), "accuracy": None},
            3: {},
        }
        record = store.commit(KEY, 12, state_of(1), metrics={"loss": 0.5}, passed=passed)

        assert store.record(KEY) == record
        assert record.passed == passed
        assert repr(record.passed[10]["accuracy"]) == "-0.0"
        assert record.metrics == {"loss": 0.5}
        store.commit(OTHER, 12, state_of(1), passed={1: {"loss": nan}})
        other = store.record(OTHER)
        assert other is not None
        assert isnan(other.passed[1]["loss"] or 0)

    def test_of_what_was_reported_on_the_way_the_first_stands_and_more_is_added(
        self, store: Store
    ) -> None:
        store.commit(KEY, 9, state_of(1), facts=FACTS, passed={2: {"loss": 2.0}})
        store.commit(KEY, 9, state_of(1), passed={2: {"loss": 0.0}, 4: {"loss": 4.0}})
        store.commit(KEY, 9, state_of(2), passed={5: {"loss": 5.0}})  # another state
        store.commit(KEY, 9, state_of(1))
        more = store.add_metrics(KEY, passed={4: {"loss": 0.0}, 6: {"loss": 6.0}})
        record = store.add_metrics(KEY, {"loss": 9.0})
        assert more is not None
        assert record is not None

        assert record == store.record(KEY)
        assert record.passed == more.passed == {t: {"loss": float(t)} for t in (2, 4, 6)}
        assert (record.metrics, record.facts) == ({"loss": 9.0}, FACTS)
        assert more.metrics is None

    @pytest.mark.parametrize(
        "passed", [{"1": {"loss": 0.5}}, {0: {}}, {True: {}}, {1.0: {}}, {1: {"loss": "0.5"}}]
    )
    def test_what_was_not_reported_at_a_step_is_refused(
        self, store: Store, passed: Anything
    ) -> None:
        with pytest.raises(InvalidStudyError, match=r"passed|metric"):
            store.commit(KEY, 1, state_of(1), passed=passed)
        assert blob_names(store) == []

    def test_metrics_of_an_absent_state_are_recorded_nowhere(self, store: Store) -> None:
        assert store.add_metrics(KEY, {"loss": 0.5}) is None
        assert store.record(KEY) is None

    def test_metrics_that_are_not_finite_come_back(self, store: Store) -> None:
        store.commit(KEY, 1, {}, metrics={"a": nan, "b": inf, "c": -inf, "d": 1e-320})

        record = store.record(KEY)

        assert record is not None
        assert record.metrics is not None
        values = list(record.metrics.values())
        assert isnan(values[0] or 0)
        assert values[1:] == [inf, -inf, 1e-320]

    def test_a_dropped_state_is_gone_and_can_come_again(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))
        store.commit(OTHER, 1, state_of(2))

        store.drop(KEY)

        assert store.load(KEY) is None
        assert blob_names(store) == []
        assert store.keys() == {OTHER}
        store.commit(KEY, 1, state_of(3))
        assert number_in(store.load(KEY)) == 3

    @pytest.mark.parametrize("metrics", [{"loss": "0.5"}, {1: 0.5}, {"loss": [0.5]}])
    def test_metrics_that_are_no_numbers_are_refused(self, store: Store, metrics: Anything) -> None:
        with pytest.raises(InvalidStudyError, match=r"metric"):
            store.commit(KEY, 1, state_of(1), metrics=metrics)
        assert blob_names(store) == []

    @pytest.mark.parametrize("facts", [{"x": object()}, {"x": nan}, {1: 1, "a": 1}])
    def test_facts_that_json_cannot_say_are_refused(self, store: Store, facts: Anything) -> None:
        with pytest.raises(InvalidStudyError, match=r"facts"):
            store.commit(KEY, 1, state_of(1), facts=facts)
        assert blob_names(store) == []

    def test_facts_by_number_come_back_by_text(self, store: Store) -> None:
        store.commit(KEY, 1, {}, facts={"seconds_by_step": {2: 0.5, 10: 0.25}})

        record = store.record(KEY)

        assert record is not None
        assert record.facts == {"seconds_by_step": {"2": 0.5, "10": 0.25}}

    def test_a_state_that_cannot_be_kept_leaves_nothing(self, store: Store) -> None:
        with pytest.raises(StageError, match=r'state\["x"\]'):
            store.commit(KEY, 1, {"x": object()})
        with pytest.raises(StageError, match=r"state_dict"):
            store.commit(KEY, 1, None)

        assert store.record(KEY) is None
        assert blob_names(store) == []

    @pytest.mark.parametrize(
        "key", ["", "1" * 63, "A" * 64, "../" + "1" * 61, "1" * 64 + "\n", "1" * 64 + "/x", None]
    )
    def test_keys_are_digests_and_nothing_else(self, store: Store, key: Anything) -> None:
        for call in (store.load, store.record, store.drop, lambda key: store.commit(key, 1, {})):
            with pytest.raises(InvalidStudyError, match=r"64"):
                call(key)

    # --- damage

    def test_a_damaged_blob_means_absent_and_the_next_commit_stands(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number, damage in enumerate([_flipped, _shorter, _longer, _emptied]):
            store.commit(KEY, 1, state_of(number))
            (name,) = blob_names(store)
            data = files_of(store).read(name)
            assert data is not None
            files_of(store).put(name, damage(data))

            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert store.load(KEY) is None

            assert KEY in caplog.text
            assert store.record(KEY) is None
            store.commit(KEY, 1, state_of(number))
            assert number_in(store.load(KEY)) == number
            store.drop(KEY)

    def test_a_missing_blob_means_absent(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))
        files_of(store).remove(blob_names(store)[0])

        assert store.keys() == set()
        assert store.load(KEY) is None
        assert store.record(KEY) is None

    def test_a_commit_replaces_a_record_without_a_blob(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))
        files_of(store).remove(blob_names(store)[0])

        store.commit(KEY, 1, state_of(2))

        assert number_in(store.load(KEY)) == 2

    def test_a_damaged_record_means_absent_and_the_next_commit_stands(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = f"states/{KEY}.json"
        store.commit(KEY, 3, state_of(1), metrics={"loss": 0.5}, passed={2: {"loss": 0.25}})
        good = files_of(store).read(name)
        assert good is not None
        bad = [b"", b"null", b"[]", b"{}", b"\xff", good[:-9], good.replace(b"0.5", b"0.6")]
        bad += [good.replace(b"0.25", b"0.35"), good.replace(b'"2"', b'"1"')]
        store.commit(OTHER, 1, state_of(1))
        other = files_of(store).read(f"states/{OTHER}.json")
        assert other is not None
        for data in [*bad, b"[" * 100_000, other]:
            files_of(store).put(name, data)

            with caplog.at_level(logging.WARNING):
                assert store.record(KEY) is None
                assert store.load(KEY) is None
            assert KEY in caplog.text

            store.commit(KEY, 1, state_of(2))
            assert number_in(store.load(KEY)) == 2

    def test_a_record_of_a_newer_version_is_no_damage(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))
        record = files_of(store).read(f"states/{KEY}.json")
        assert record is not None
        files_of(store).put(f"states/{KEY}.json", _of_version_3(record))

        with pytest.raises(BackendError, match=r"newer"):
            store.load(KEY)

    @pytest.mark.parametrize("metrics", [{"loss": 1.0}, {"loss": 1.0, "gap": nan}])
    @pytest.mark.parametrize("passed", [{}, {1: {"loss": nan}}])
    def test_a_state_without_its_blob_is_forgotten_whatever_was_measured(
        self, store: Store, metrics: Metrics, passed: Passed
    ) -> None:
        store.commit(KEY, 2, state_of(1), metrics=metrics, passed=passed)
        files_of(store).remove(blob_names(store)[0])

        assert store.load(KEY) is None
        assert store.record(KEY) is None

    def test_another_attempts_record_outlives_the_damage_of_the_first(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After the look at a blob, and before its record is removed, somebody makes it again."""
        store.commit(KEY, 1, state_of(1))
        files_of(store).remove(blob_names(store)[0])
        medium = files_of(store)
        read_aligned = medium.read_aligned

        def late(name: str, size_bytes: int) -> memoryview | None:
            found = read_aligned(name, size_bytes)
            if not blob_names(store):
                store.commit(KEY, 1, state_of(2))
            return found

        monkeypatch.setattr(medium, "read_aligned", late)
        assert store.load(KEY) is None
        monkeypatch.undo()

        assert number_in(store.load(KEY)) == 2

    def test_looking_at_a_damaged_state_says_so_and_changes_nothing(self, store: Store) -> None:
        record = store.commit(KEY, 7, state_of(1), metrics={"loss": nan})
        assert number_in(store.peek(KEY)) == 1
        assert store.peek(OTHER) is None
        (name,) = blob_names(store)
        files_of(store).put(name, _flipped(files_of(store).read(name) or b""))

        with pytest.raises(BackendError, match=rf"{KEY} at step 7 .*cannot be read.*checksum"):
            store.peek(KEY)
        files_of(store).remove(name)
        with pytest.raises(BackendError, match=r"cannot be read.*no blob") as caught:
            store.peek(KEY)

        assert repr(store.record(KEY)) == repr(record)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    # --- what others may have written

    @pytest.mark.parametrize(
        "change",
        [
            {"sha256": "a/../../../x"},
            {"sha256": "a" * 63},
            {"sha256": None},
            {"size_bytes": "1"},
            {"size_bytes": -1},
            {"size_bytes": 1.0},
            {"size_bytes": 10**400},
            {"step": "1"},
            {"step": None},
            {"step": True},
            {"facts": []},
            {"facts": None},
            {"key": "../x"},
            {"metrics": [1]},
            {"metrics": {"loss": 10**400}},
            {"metrics": {"loss": []}},
            {"passed": {"0": {}}},
            {"passed": {" 1": {}}},
            {"passed": {"x": {}}},
            {"passed": {"1": 5}},
            {"passed": []},
        ],
        ids=str,
    )
    def test_a_record_that_nobody_here_would_write_means_absent(
        self, store: Store, change: dict[str, object]
    ) -> None:
        store.commit(KEY, 1, state_of(1), facts={"seconds": 1.0})
        name = f"states/{KEY}.json"
        record = files_of(store).read(name)
        assert record is not None
        files_of(store).put(name, _changed(record, **change))
        store.limit_bytes = 10

        assert store.record(KEY) is None
        assert store.load(KEY) is None
        assert list(store.records()) == []
        assert store.evict() == ()
        store.commit(KEY, 1, state_of(2))
        assert number_in(store.load(KEY)) == 2

    @pytest.mark.parametrize("seconds", [10**400, "1", None, [], True])
    def test_seconds_that_are_none_make_a_state_cheap(
        self, store: Store, seconds: Anything
    ) -> None:
        store.commit(KEY, 1, state_of(1), facts={"seconds": seconds})
        store.limit_bytes = 10

        assert [record.key for record in store.evict()] == [KEY]

    def test_a_metric_that_no_float_can_hold_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidStudyError, match=r"metric 'loss'"):
            store.commit(KEY, 1, {}, metrics={"loss": 10**400})

    def test_pinned_states_are_known_to_everybody(self, store: Store) -> None:
        assert store.pinned() == set()
        store.pin("one", {KEY})
        store.pin("two", {KEY, OTHER})
        assert store.pinned() == {KEY, OTHER}
        store.pin("two", ())
        assert store.pinned() == {KEY}

    def test_what_a_run_needs_is_kept_until_it_has_been_silent_for_long(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.pin("one", {KEY})
        store.need("one", {OTHER})
        store.need("two", {OTHER})
        store.need("one", ())
        assert store.pinned() == {KEY, OTHER}
        assert store.clean(older_than_s=0.0).n_files == 0

        for module in (pins, leftovers):
            monkeypatch.setattr(module, "NEEDED_FOR_S", 0.0)
        assert store.pinned() == {KEY}
        assert store.clean(older_than_s=0.0).n_files == 1
        assert store.pinned() == {KEY}

    @pytest.mark.parametrize(
        "data",
        [b"", b"{", b"5", b'["x"]', b"[[1]]", b"\xff", b"[" * 100_000],
        ids=lambda data: str(data[:9]),
    )
    def test_pins_that_cannot_be_read_pin_nothing(self, store: Store, data: bytes) -> None:
        store.pin("one", {KEY})
        files_of(store).put("pins/two.json", data)

        assert store.pinned() == {KEY}

    @pytest.mark.parametrize("name", [".x", "a b.jsonl", "\N{SNOWMAN}.jsonl", "-.jsonl"])
    def test_a_file_that_no_study_has_made_is_no_study(self, store: Store, name: str) -> None:
        store.journal("study").append("one")
        files_of(store).put(f"timelines/{name}", b"x\n")

        assert store.studies() == ("study",)

    # --- room

    @pytest.mark.parametrize("dry_run", [True, False])
    def test_what_is_no_store_is_not_cleaned(self, store: Store, dry_run: bool) -> None:
        with pytest.raises(InvalidStudyError, match=r"where no store is: give the folder"):
            store.clean(dry_run=dry_run)
        assert files_of(store).listing("") == {}

        files_of(store).put("proofs/of-a-theorem", b"QED")
        files_of(store).put("states/texas.json", b"{}")
        with pytest.raises(InvalidStudyError, match=r"where no store is"):
            store.clean(older_than_s=0.0, dry_run=dry_run)
        assert files_of(store).read("proofs/of-a-theorem") == b"QED"

    def test_a_store_of_any_kind_is_cleaned(self, store: Store) -> None:
        files_of(store).put(f"states/{KEY}.json", b"damaged")
        assert store.clean().n_files == 0
        files_of(store).remove(f"states/{KEY}.json")
        store.journal("study").append("one")
        assert store.clean().n_files == 0

    def test_superseded_blobs_are_cleaned_and_states_stay(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))
        record = store.commit(KEY, 1, state_of(2))
        store.commit(OTHER, 1, state_of(3))
        files_of(store).remove(f"states/{OTHER}.json")
        store.journal("a").append("x")
        store.write_proof(f"dasktune-{1:032x}")
        files_of(store).put(f"proofs/dasktune-{2:032x}", b"")

        cleaned = store.clean(older_than_s=0.0)

        assert cleaned.n_files == 4  # two blobs, two proofs
        assert store.used_bytes() == record.size_bytes
        assert number_in(store.load(KEY)) == 1
        assert list(store.journal("a").lines()) == ["x"]

    @pytest.mark.parametrize(
        "name",
        [
            "proofs/of-a-theorem",
            "proofs/theorem.tmp",
            "proofs/dasktune-talk.pdf",
            f"proofs/dasktune-{1:032x}.tex",
            f"proofs/old/dasktune-{1:032x}",
            "states/texas.json",
            "states/.notes.tmp",
            "pins/mine.txt",
            "timelines/mine.tmp",
        ],
    )
    def test_what_no_store_has_written_is_nobodys_leftover(self, store: Store, name: str) -> None:
        store.commit(KEY, 1, state_of(1))
        files_of(store).put(name, b"QED")

        assert store.clean(older_than_s=0.0).n_files == 0
        assert files_of(store).read(name) == b"QED"

    def test_eviction_does_nothing_below_the_limit(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1))
        assert store.evict() == ()

        store.limit_bytes = store.used_bytes()
        assert store.evict() == ()

    def test_cheap_states_go_first_and_protected_ones_never(self, store: Store) -> None:
        keys = [Digest(f"{number:064x}") for number in range(6)]
        seconds = [5.0, 1.0, 4.0, 0.5, 3.0, 2.0]
        for key, cost_s in zip(keys, seconds, strict=True):
            size = store.commit(key, 1, state_of(1), facts={"seconds": cost_s}).size_bytes
        store.limit_bytes = 4 * size

        evicted = store.evict({keys[3]})

        # A tenth below the limit: three go, for four would not fit.
        assert [record.key for record in evicted] == [keys[1], keys[5], keys[4]]
        assert store.keys() == {keys[0], keys[2], keys[3]}
        assert number_in(store.load(keys[3])) == 1

    def test_seconds_count_by_byte(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1, 10_000), facts={"seconds": 10.0})
        store.commit(OTHER, 1, state_of(1, 10), facts={"seconds": 1.0})
        store.limit_bytes = store.used_bytes() - 1

        assert [record.key for record in store.evict()] == [KEY]

    def test_the_caller_may_know_better_what_a_state_costs(self, store: Store) -> None:
        store.commit(KEY, 1, state_of(1), facts={"seconds": 10.0})
        store.commit(OTHER, 1, state_of(1), facts={"seconds": 1.0})
        store.limit_bytes = store.used_bytes() - 1

        evicted = store.evict(recompute_s=lambda record: -record.seconds)

        assert [record.key for record in evicted] == [KEY]

    def test_a_store_full_of_protected_states_says_so(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.commit(KEY, 1, state_of(1))
        store.limit_bytes = 10

        with caplog.at_level(logging.WARNING):
            assert store.evict({KEY}) == ()

        assert "is needed" in caplog.text
        assert number_in(store.load(KEY)) == 1

    # --- studies

    def test_a_journal_keeps_lines_in_order(self, store: Store) -> None:
        journal = store.journal("fashion")
        journal.append("one")
        journal.append("two", "", "drei: é")

        for reader in (journal, store.journal("fashion")):
            assert list(reader.lines()) == ["one", "two", "", "drei: é"]

    def test_lines_that_are_written_are_there_before_and_after_they_are_synced(
        self, store: Store
    ) -> None:
        journal = store.journal("written")
        journal.append("first")
        journal.write("second", "third")
        assert list(store.journal("written").lines()) == ["first", "second", "third"]
        journal.sync_soon()
        journal.append("fourth")
        journal.close()
        journal.sync_soon()
        assert list(store.journal("written").lines()) == ["first", "second", "third", "fourth"]

    def test_a_journal_that_is_opened_again_goes_on(self, store: Store) -> None:
        for number in range(3):
            journal = store.journal("fashion")
            journal.append(str(number))
            journal.close()
            journal.append("again")
            journal.close()

        lines = list(store.journal("fashion").lines())

        assert lines == ["0", "again", "1", "again", "2", "again"]

    def test_a_long_journal_keeps_all_lines(self, store: Store) -> None:
        journal = store.journal("fashion")
        lines = [f"{number} " + "x" * (SEGMENT_BYTES // 3) for number in range(9)]
        for line in lines:
            journal.append(line)
            assert list(store.journal("fashion").lines())[-1] == line

        assert list(journal.lines()) == lines
        journal.close()

    def test_studies_have_journals_of_their_own(self, store: Store) -> None:
        for name in ("b", "a.jsonl", "a"):
            journal = store.journal(name)
            journal.append(name)
            journal.close()

        assert list(store.journal("a").lines()) == ["a"]
        assert list(store.journal("a.jsonl").lines()) == ["a.jsonl"]
        assert list(store.journal("none").lines()) == []
        assert store.studies() == ("a", "a.jsonl", "b")

    @pytest.mark.parametrize("line", ["a\nb", "a\r", "\0"])
    def test_a_line_is_one_line(self, store: Store, line: str) -> None:
        journal = store.journal("fashion")
        journal.append("before")
        with pytest.raises(InvalidStudyError, match=r"line break"):
            journal.append("with it", line)

        assert list(journal.lines()) == ["before"]
        journal.close()

    @pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "a\n", "x" * 201, None])
    def test_names_cannot_leave_the_store(self, store: Store, name: Anything) -> None:
        for call in (store.journal, store.lock, store.write_proof, store.read_proof):
            with pytest.raises(InvalidStudyError, match=r"letters"):
                call(name)

    def test_a_study_has_one_driver_at_a_time(self, store: Store) -> None:
        with store.lock("fashion") as lock:
            lock.check()
            with pytest.raises(BackendError, match=r"'fashion' is being run by process \d+ on "):
                store.lock("fashion")
            store.lock("other").release()

        with store.lock("fashion") as lock:
            lock.check()
        lock.release()
        with pytest.raises(BackendError, match=r"released"):
            lock.check()

    def test_a_proof_is_read_by_who_shares_the_store(self, store: Store) -> None:
        with pytest.raises(BackendError, match=r"every worker reaches"):
            store.read_proof("token-1")
        store.write_proof("token-1")

        store.read_proof("token-1")
        with pytest.raises(BackendError, match=r"every worker reaches"):
            store.read_proof("token-2")


def _flipped(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def _shorter(data: bytes) -> bytes:
    return data[:-1]


def _longer(data: bytes) -> bytes:
    return data + b"\0"


def _emptied(data: bytes) -> bytes:
    return data[:0]


def _of_version_3(record: bytes) -> bytes:
    return _changed(record, version=3, new=1)


def _changed(record: bytes, **changes: object) -> bytes:
    """A record with other fields and a checksum that fits."""
    plain = json.loads(record) | changes
    del plain["check"]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return json.dumps(plain | {"check": sha256(text.encode()).hexdigest()}).encode()
