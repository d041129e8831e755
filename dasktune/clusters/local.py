"""Worker processes on this computer: one slot each, set up for training.

What Dask's defaults get wrong for training is set right here, on clusters that we start:

* one thread a worker, and one for the numerical libraries in it, so that results repeat and
  workers do not fight for cores;
* no daemonic processes, in which torch's data loaders could not start theirs;
* no memory manager, which would pause or kill a worker for memory that torch holds on purpose;
* no work stealing: a path stays where its model is;
* the allocator's defaults: Dask starts workers with a trim threshold at which every step of a
  training loop returns its memory to the kernel and faults it in again.

The number of workers is fixed. Dask's own adaptive scaling does not fit: its target knows no
resources, it expects each stage to last as the latest ones did whatever their length, and it scales
down by starting running stages anew elsewhere. The Kubernetes operator builds on it, scales only
its default group, and takes its victims from any.
"""

import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
from distributed import Client, Nanny, Scheduler, SpecCluster

from dasktune.errors import BackendError
from dasktune.space.arguments import whole

_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # so that its sums repeat
    # Workers import the user's script before they are told their GPU. By this, torch can be asked
    # there whether there are GPUs, and CUDA does not fix then which ones it sees (parts of GPUs
    # that have names of their own, MIG, excepted).
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}

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
    "distributed.nanny.pre-spawn-environ": _ENVIRONMENT,
}

_DASKS_THRESHOLD = "65536"
"""What Dask sets by itself."""

_SCHEDULER = {
    "host": "127.0.0.1",
    "dashboard": False,
    "dashboard_address": "127.0.0.1:0",  # by itself Dask wants one port, and warns if it is taken
}


@contextmanager
def local_workers(n_workers: int | None = None, *, imports: Sequence[str] = ()) -> Iterator[Client]:
    """Start workers on this computer, and stop them at the end.

    Where there are GPUs, each worker sees one of them and offers it as `GPU: 1`. Workers beyond the
    number of GPUs share them: each offers a whole one, and nothing divides its memory among them.

    Args:
        n_workers: How many; None: one for each GPU, or where there is none one for each core that
            this process may use.
        imports: Modules that each worker imports while it starts: what the first stage would
            import anyway, so that other preparations go on meanwhile.

    Raises:
        BackendError: They could not be started.
    """
    gpus = visible_gpus(os.environ, Path("/proc/driver/nvidia/gpus"))
    n = whole(n_workers, "workers", 1) if n_workers is not None else len(gpus) or _n_cores()
    with _environment_kept(), dask.config.set(_SETTINGS):
        try:
            cluster = SpecCluster(
                workers={i: worker_options(i, gpus, imports) for i in range(n)},
                scheduler={"cls": Scheduler, "options": _SCHEDULER},
                silence_logs=logging.ERROR,
                name="dasktune-local",
            )
        except RuntimeError as error:
            raise BackendError(
                f"workers could not be started ({error}); if this is a script, call run() under "
                'if __name__ == "__main__":, since workers import the script'
            ) from error
        with cluster, Client(cluster) as client:
            try:
                yield client
            except KeyboardInterrupt:
                _kill(cluster)  # closing in order would wait for what the workers are doing
                raise


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Take back what nannies write into the environment of this process when they start workers.

    It would have precedence over the settings of the next cluster, ours or not.
    """
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    if before["MALLOC_TRIM_THRESHOLD_"] == _DASKS_THRESHOLD:
        del os.environ["MALLOC_TRIM_THRESHOLD_"]  # left by an earlier cluster that was not ours
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _kill(cluster: SpecCluster) -> None:
    for nanny in cluster.workers.values():
        process = getattr(nanny, "process", None)
        if process is not None and process.pid:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def visible_gpus(environment: Mapping[str, str], driver_folder: Path) -> list[str]:
    """Return how CUDA names the GPUs that this process may use.

    Args:
        environment: `CUDA_VISIBLE_DEVICES` in it decides if it is there; empty means none.
        driver_folder: Where the driver has a folder for each GPU of the computer.
    """
    said = environment.get("CUDA_VISIBLE_DEVICES")
    if said is not None:
        return [name.strip() for name in said.split(",") if name.strip() not in ("", "-1")]
    if not driver_folder.is_dir():
        return []
    return [str(i) for i in range(len(list(driver_folder.iterdir())))]


def worker_options(
    number: int, gpus: Sequence[str], imports: Sequence[str] = ()
) -> dict[str, object]:
    """Say how a worker is to be started.

    Args:
        number: Which worker, from 0.
        gpus: How CUDA names the GPUs that the workers share out; may be empty.
        imports: Modules that it imports while it starts.
    """
    options: dict[str, object] = {
        "preload": [
            *dask.config.get("distributed.worker.preload"),
            "dasktune.clusters.heartbeats",
            *imports,
        ],
        "nthreads": 1,
        "memory_limit": 0,
        "host": "127.0.0.1",
        "dashboard": False,
        "silence_logs": logging.ERROR,
    }
    # This comes after the import of the user's script: CUDA itself may be asked again, which knows
    # whether it works. If it was used there, it goes on to see all GPUs, and the place among them
    # says which one is meant.
    environment = {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
    if gpus:
        place = number % len(gpus)
        options["resources"] = {"GPU": 1}
        environment |= {"CUDA_VISIBLE_DEVICES": gpus[place], "DASKTUNE_GPU": str(place)}
    options["env"] = environment
    return {"cls": Nanny, "options": options}


def _n_cores() -> int:
    # Containers and batch systems give a process fewer cores than the computer has.
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
