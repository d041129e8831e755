"""Worker processes on this computer: one slot each, set up for training.

What Dask's defaults get wrong for training is set right here, on clusters that we start:

* one thread a worker, and one for the numerical libraries in it, so that results repeat and
  workers do not fight for cores;
* no daemonic processes, in which torch's data loaders could not start theirs;
* no memory manager, which would pause or kill a worker for memory that torch holds on purpose;
* no work stealing: a path stays where its model is;
* the allocator's defaults: Dask starts workers with a trim threshold at which every step of a
  training loop returns its memory to the kernel and faults it in again.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import dask
from distributed import Client, LocalCluster

from dasktune.errors import BackendError
from dasktune.space.arguments import whole

_SETTINGS = {
    "distributed.worker.daemon": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-saturation": "inf",
    # Each stage is retried by our own rules; a worker that dies must not condemn what waited there.
    "distributed.scheduler.allowed-failures": 1_000_000,
    "distributed.nanny.pre-spawn-environ": {
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    },
}


@contextmanager
def local_workers(n_workers: int | None = None) -> Iterator[Client]:
    """Start workers on this computer, and stop them at the end.

    Args:
        n_workers: How many; None: one for each core that this process may use.

    Raises:
        BackendError: They could not be started.
    """
    n = len(os.sched_getaffinity(0)) if n_workers is None else whole(n_workers, "workers", 1)
    with dask.config.set(_SETTINGS):
        try:
            cluster = LocalCluster(
                n_workers=n,
                threads_per_worker=1,
                processes=True,
                memory_limit=0,
                dashboard_address=None,
                host="127.0.0.1",
                silence_logs=logging.ERROR,
            )
        except RuntimeError as error:
            raise BackendError(
                f"workers could not be started ({error}); if this is a script, call run() under "
                'if __name__ == "__main__":, since workers import the script'
            ) from error
        with cluster, Client(cluster) as client:
            yield client
