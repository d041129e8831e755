"""The allocator of a worker that somebody else started: mended for its only client, else not."""

import platform
import resource
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import dasktune as dt
from dasktune.runner import run
from dasktune.store.store import Store
from tests.runtime.trainables import Walk, cluster_of, study_of, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mends glibc's allocator"),
]

ROUNDS = 200
N_NUMBERS = 1 << 18
"""Two megabytes: for more, NumPy asks for huge pages, of which there are few to fault in."""


def page_faults() -> int:
    """Take and free megabytes as training does; return how often the kernel had to help."""
    np.ones(N_NUMBERS)  # so that the first round is like the others
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(ROUNDS):
        np.ones(N_NUMBERS)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_the_only_client_mends_the_allocator_and_one_of_several_leaves_it_alone(
    tmp_path: Path,
) -> None:
    def mended_in_run(name: str, client: Client) -> set[object]:
        store = Store(tmp_path / name)
        study = study_of(Walk(str(tmp_path)), tuner=dt.FullTraining(1))
        run(study, store=store, client=client)
        return {record.facts["allocator_mended"] for record in store.records()}

    with cluster_of({}) as cluster, Client(cluster) as client:

        def faults_in_worker() -> int:
            # Where stages run: glibc gives each thread a heap of its own.
            return int(client.submit(page_faults, pure=False).result())

        assert faults_in_worker() >= ROUNDS
        with Client(cluster):
            assert mended_in_run("beside another", client) == {False}
        assert faults_in_worker() >= ROUNDS
        wait_until(lambda: set(cluster.scheduler.clients) == {client.id, "fire-and-forget"})
        assert mended_in_run("alone", client) == {True}
        assert faults_in_worker() <= ROUNDS // 20
