"""A driver whose line to the scheduler breaks where only the driver notices: a laptop that slept.

The scheduler holds the old line for a while, and Dask, when it drops it, strikes out the client
that is back by then. A relay between the two breaks lines on one side only.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from distributed import Client, SpecCluster

from dasktune.runner import run
from dasktune.runtime import stalls
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from dasktune.study.events import StageFinished
from dasktune.study.timeline import Entry
from tests.runtime.trainables import (
    Notes,
    Walk,
    assert_exact,
    cluster_of,
    leased,
    study_of,
    tasks_of,
    truth,
    wait_until,
)

pytestmark = pytest.mark.cluster


class Relay:
    """Passes on what comes to it, until a line is broken."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._lines: list[tuple[socket.socket, socket.socket]] = []
        self._half_open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._upstream)
                self._lines.append((near, far))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        if all(source is not far for far in self._half_open) and sink not in self._half_open:
            _end(sink)

    def break_near(self) -> None:
        """Let everybody on the near side lose the line, and nobody on the far side."""
        lines, self._lines = self._lines, []
        assert lines, "there is no line"
        self._half_open += [far for _, far in lines]
        for near, _ in lines:
            _end(near)

    def break_far(self) -> None:
        """Let the far side notice."""
        ends, self._half_open = self._half_open, []
        for far in ends:
            _end(far)

    def close(self) -> None:
        self._server.close()
        for line in self._lines:
            for end in line:
                _end(end)
        self.break_far()


def _end(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()


@pytest.fixture
def cluster() -> Iterator[SpecCluster]:
    with cluster_of({}, {}) as cluster:
        yield cluster


@pytest.fixture
def relay(cluster: SpecCluster) -> Iterator[Relay]:
    host, port = cluster.scheduler_address.removeprefix("tcp://").split(":")
    relay = Relay((host, int(port)))
    yield relay
    relay.close()


@pytest.mark.parametrize("notices_after_s", [0.0, 1.5, 600.0])
def test_a_line_that_breaks_on_one_side_costs_no_step_and_no_word_that_is_wrong(
    cluster: SpecCluster,
    relay: Relay,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    notices_after_s: float,
) -> None:
    monkeypatch.setattr(stalls, "STALLED_AFTER_S", 30.0)  # a machine may pause for three seconds
    walk = Walk(str(tmp_path), pace_s=0.05)
    states = truth(study_of(walk))
    notes = Notes(tmp_path)
    store = Store(tmp_path / "store")
    noticing = threading.Timer(notices_after_s, relay.break_far)

    def look(entry: Entry) -> None:
        if isinstance(entry.event, StageFinished) and noticing.ident is None:
            relay.break_near()
            noticing.start()

    with Client(f"tcp://127.0.0.1:{relay.port}") as client:
        result = run(study_of(walk), store=store, client=client, on_event=look)
        wait_until(lambda: not tasks_of(cluster) and not leased(cluster))
    noticing.cancel()
    assert noticing.ident is not None, "no line was broken"
    assert result.status is StudyStatus.COMPLETED
    assert_exact(result, store, states)
    assert not notes.repeated
    said = [record.getMessage() for record in caplog.records if record.name.startswith("dasktune")]
    assert not [text for text in said if "nothing runs" in text]
