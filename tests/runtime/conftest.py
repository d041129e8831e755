"""A cluster that other people started, for the tests of a module."""

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
