"""An S3 on this computer."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import fsspec

BUCKET = "bucket"

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


@contextmanager
def s3_server() -> Iterator[str]:
    """Start an S3 with an empty bucket; yields its address, and ends with all it holds."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server:
        try:
            assert server.stdout is not None
            address = f"http://127.0.0.1:{int(server.stdout.readline())}"
            fsspec.filesystem("s3", **options_of(address)).mkdir(BUCKET)
            yield address
        finally:
            fsspec.filesystem("s3").clear_instance_cache()
            server.kill()


def options_of(address: str) -> dict[str, object]:
    """What fsspec is told to reach it."""
    return {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": address}}


def environment_of(address: str) -> dict[str, str]:
    """What an environment says to reach it, as for any program that uses S3."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_ENDPOINT_URL": address,
    }
