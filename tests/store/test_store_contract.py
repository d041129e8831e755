"""One contract for stores on a disk, in memory, and on S3."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from dasktune.store.objects import Objects
from dasktune.store.store import Store
from tests.store.contracts import StoreContract

# A process of its own: its threads and log stay out of the tests.
_SERVER = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="module")
def s3_options() -> Iterator[dict[str, object]]:
    """How to reach an S3 on this computer, which ends with the module's tests."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            options: dict[str, object] = {
                "key": "test",
                "secret": "test",
                "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"},
            }
            fsspec.filesystem("s3", **options).mkdir("bucket")
            yield options
        finally:
            fsspec.filesystem("s3").clear_instance_cache()
            server.kill()


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store(tmp_path / "a store")


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        url = f"memory://{uuid4().hex}/store/"
        yield Store(url)
        memory = fsspec.filesystem("memory")
        if memory.exists(url):
            memory.rm(url, recursive=True)


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3_options: dict[str, object]) -> Store:
        return Store(f"s3://bucket/{uuid4().hex}/a store", storage_options=s3_options)

    def test_what_others_write_is_seen_whatever_was_listed_before(
        self, s3_options: dict[str, object]
    ) -> None:
        url = f"s3://bucket/{uuid4().hex}"
        mine = Objects(url, s3_options)
        others = Objects(url, {**s3_options, "skip_instance_cache": True})
        mine.put("states/x", b"one")
        assert mine.listing("states")["x"].size_bytes == 3

        others.put("states/x", b"longer")
        others.put("states/y", b"")

        assert mine.size_bytes("states/x") == 6
        assert mine.read("states/y") == b""
        assert mine.listing("states").keys() == {"x", "y"}

    def test_an_upload_that_is_broken_off_leaves_nothing(
        self, s3_options: dict[str, object]
    ) -> None:
        """Also when the file that was being written is closed by the garbage collector."""
        options = {**s3_options, "default_block_size": 5 * 2**20}  # the least that S3 takes
        objects = Objects(f"s3://bucket/{uuid4().hex}", options)

        with pytest.raises(KeyboardInterrupt):
            objects.write(BrokenOff(), lambda digest: f"states/{digest}")
        gc.collect()

        assert objects.listing("states") == {}


class BrokenOff:
    """Content that ends early on its second way, as if the process were asked to end."""

    size_bytes = 12 * 2**20

    def __init__(self) -> None:
        self._is_second = False

    def chunks(self) -> Iterator[memoryview]:
        yield memoryview(bytes(6 * 2**20))
        if self._is_second:
            raise KeyboardInterrupt
        self._is_second = True
        yield memoryview(bytes(6 * 2**20))
