"""The record as bytes: what is written today is read for ever."""

from math import inf, nan

import pytest

from dasktune.store.record import Record
from dasktune.units import Digest

KEY = Digest("1" * 64)
SHA = "2" * 64

VERSION_1 = (
    '{"check":"e634112dcdaf54c10a463eede822d69455e6b89ee677c357fd127cf4a49219ff",'
    f'"facts":{{"seconds":2.5}},"key":"{KEY}","metrics":{{"loss":0.5,"nan":"nan"}},'
    f'"sha256":"{SHA}","size_bytes":64,"step":7,"version":1}}\n'
).encode()
VERSION_2 = (
    '{"check":"4e79ffe8266969db5c8fffa3730e95820dd64a00e786f9ca0ba1bac419f879a5",'
    f'"facts":{{}},"key":"{KEY}","metrics":null,'
    '"passed":{"10":{"loss":"-inf"},"2":{"accuracy":null,"loss":0.1}},'
    f'"sha256":"{SHA}","size_bytes":64,"step":12,"version":2}}\n'
).encode()


def record_1() -> Record:
    return Record(
        key=KEY,
        step=7,
        sha256=SHA,
        size_bytes=64,
        metrics={"loss": 0.5, "nan": nan},
        facts={"seconds": 2.5},
    )


def record_2() -> Record:
    return Record(
        key=KEY,
        step=12,
        sha256=SHA,
        size_bytes=64,
        passed={2: {"loss": 0.1, "accuracy": None}, 10: {"loss": -inf}},
    )


def test_without_reports_on_the_way_it_is_written_as_version_1() -> None:
    assert record_1().to_bytes() == VERSION_1


def test_version_1_is_read_for_ever() -> None:
    record = Record.from_bytes(VERSION_1)
    assert record.passed == {}
    assert repr(record) == repr(record_1())


def test_version_2_is_written_as_ever() -> None:
    assert record_2().to_bytes() == VERSION_2


def test_version_2_is_read_for_ever() -> None:
    assert Record.from_bytes(VERSION_2) == record_2()


@pytest.mark.parametrize(
    ("good", "bad"), [(b'"10"', b'"11"'), (b'"-inf"', b'"inf"'), (b"0.1", b"0.2"), (b"12", b"13")]
)
def test_a_change_of_any_report_is_seen(good: bytes, bad: bytes) -> None:
    assert good in VERSION_2
    with pytest.raises(ValueError, match="checksum"):
        Record.from_bytes(VERSION_2.replace(good, bad, 1))
