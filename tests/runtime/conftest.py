"""Clusters that other people started, and where they listen."""

import socket
from collections.abc import Iterator

import pytest
from distributed import Client, SpecCluster

from tests.runtime.trainables import cluster_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[SpecCluster]:
    """Four workers; who asks for `one` gets one of them, for `two` two."""
    with cluster_of({"one": 1, "two": 1}, {"two": 1}, {}, {}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: SpecCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


@pytest.fixture
def port() -> Iterator[int]:
    """A port for a server that allows addresses to be used again; nobody else gets it meanwhile."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])
