"""Workers of our own on this computer: one slot each, set up for training, stopped at the end."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import dasktune as dt
from dasktune.clusters.local import local_workers, visible_gpus, worker_options
from dasktune.runner import run
from dasktune.store.store import Store
from dasktune.study.commands import StudyStatus
from tests.runtime.trainables import Notes, Spawns, assert_exact, study_of, truth


@pytest.mark.cluster
def test_a_study_on_workers_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As an earlier cluster of Dask's leaves it in the environment of the process that started it.
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    seen: dict[str, Any] = {}
    asked = {
        "daemon": "__import__('multiprocessing').current_process().daemon",
        "threads": "__import__('os').environ['OMP_NUM_THREADS']",
        "trim": "__import__('os').environ['MALLOC_TRIM_THRESHOLD_']",
        "mmap": "__import__('os').environ['MALLOC_MMAP_THRESHOLD_']",
        "pid": "__import__('os').getpid()",
    }

    @contextmanager
    def looked_at(n_workers: int | None, **options: Any) -> Iterator[Client]:  # noqa: ANN401
        with local_workers(n_workers, **options) as client:
            scheduler: Any = client.cluster.scheduler
            workers = scheduler.workers.values()
            seen["slots"] = [worker.nthreads for worker in workers]
            seen["limits"] = [worker.memory_limit for worker in workers]
            seen["steals"] = any("steal" in callback for callback in scheduler.periodic_callbacks)
            seen["deaths"] = scheduler.allowed_failures
            for name, text in asked.items():
                seen[name] = list(client.run(eval, text).values())
            yield client

    monkeypatch.setattr("dasktune.runner.local_workers", looked_at)
    study = study_of(Spawns(str(tmp_path)))
    states = truth(study)
    notes = Notes(tmp_path)
    result = run(study, store=tmp_path / "store", workers=2)
    assert result.status is StudyStatus.COMPLETED
    store = Store(tmp_path / "store")
    assert_exact(result, store, states)
    assert len(notes.calls) == result.steps_unique == notes.n_distinct
    assert {call.pid for call in notes.calls} <= set(seen["pid"])

    assert seen["slots"] == [1, 1]
    assert seen["limits"] == [0, 0]  # no memory manager
    assert not seen["steals"]
    assert seen["deaths"] > 1000
    assert seen["daemon"] == [False, False]  # torch's loader workers can start in them
    assert seen["threads"] == ["1", "1"]
    assert {int(value) for value in seen["trim"] + seen["mmap"]} == {1 << 30}
    facts = [record.facts for record in store.records()]
    assert {fact["trim_threshold"] for fact in facts} == {str(1 << 30)}
    assert all(not Path(f"/proc/{pid}").exists() for pid in seen["pid"])


@pytest.mark.cluster
def test_workers_import_what_they_are_told_to_while_they_start() -> None:
    with local_workers(1, imports=["colorsys"]) as client:
        assert list(client.run(eval, "'colorsys' in __import__('sys').modules").values()) == [True]


def test_a_number_of_workers_that_cannot_be_is_refused() -> None:
    for n_workers in (-1, 0, 1.5, True):
        with (
            pytest.raises(dt.InvalidStudyError, match="workers must be"),
            local_workers(n_workers),  # type: ignore[arg-type]
        ):
            pass


def test_gpus_are_those_that_this_process_may_use(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({}, tmp_path / "nothing") == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-8a"}, tmp_path) == ["3", "GPU-8a"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == []


CUDA_ITSELF = {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
"""Once the script is imported, CUDA is asked whether it works: NVML knows only what is built in."""


def test_each_worker_is_told_its_gpu_by_name_and_by_its_place_among_all() -> None:
    told: list[Any] = [worker_options(i, ["3", "GPU-8a"])["options"] for i in range(3)]
    assert [one["env"] for one in told] == [
        {"CUDA_VISIBLE_DEVICES": "3", "DASKTUNE_GPU": "0", **CUDA_ITSELF},
        {"CUDA_VISIBLE_DEVICES": "GPU-8a", "DASKTUNE_GPU": "1", **CUDA_ITSELF},
        {"CUDA_VISIBLE_DEVICES": "3", "DASKTUNE_GPU": "0", **CUDA_ITSELF},
    ]
    assert all(one["resources"] == {"GPU": 1} for one in told)
    without: Any = worker_options(0, [])["options"]
    assert without["env"] == CUDA_ITSELF
    assert "resources" not in without


PLACES = """
import os
import sys

# As a worker imports it, before it is told its GPU: what is looked at here must not fix anything.
EARLY = {name: os.environ.get(name) for name in (
    "CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK", "CUBLAS_WORKSPACE_CONFIG")}

def found():
    early = sys.modules["__mp_main__"].EARLY
    return early, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["DASKTUNE_GPU"]

if __name__ == "__main__":
    from dasktune.clusters.local import local_workers
    with local_workers(2) as client:
        code = "__import__('sys').modules['__mp_main__'].found()"
        print(sorted(client.run(eval, code).values(), key=str))
"""


@pytest.mark.cluster
def test_what_a_worker_is_told_before_and_after_it_imports_the_script(tmp_path: Path) -> None:
    script = tmp_path / "places.py"
    script.write_text(PLACES)
    answer = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "CUDA_VISIBLE_DEVICES": "5,6"},
        check=True, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    early = {
        "CUDA_VISIBLE_DEVICES": "5,6",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    assert ast.literal_eval(answer.stdout) == [(early, "5", "0"), (early, "6", "1")]


@pytest.mark.cluster
def test_a_script_without_a_guard_gets_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import dasktune as dt\n"
        "from tests.runtime.trainables import Walk, study_of\n"
        f"dt.run(study_of(Walk({str(tmp_path)!r})), workers=1, store={str(tmp_path / 's')!r})\n"
    )
    answer = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert answer.returncode == 1, answer
    assert answer.stderr.count("\n") == 1
    assert 'under if __name__ == "__main__":' in answer.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.cluster
def test_the_environment_of_this_process_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    before = dict(os.environ)
    with local_workers(1) as client:
        found = client.run(lambda: os.environ["MALLOC_TRIM_THRESHOLD_"])
    assert set(found.values()) == {str(1 << 30)}
    assert dict(os.environ) == before


@pytest.mark.cluster
def test_a_heartbeat_in_vain_is_not_shown_as_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    async def beat(dask_worker: Any) -> None:  # noqa: ANN401  (Dask gives the worker by this name)
        class Gone:
            async def heartbeat_worker(self, **_: object) -> None:
                raise OSError("the scheduler is closed")

        scheduler, dask_worker.scheduler = dask_worker.scheduler, Gone()
        await dask_worker.heartbeat()
        dask_worker.scheduler = scheduler

    with local_workers(1) as client:
        client.run(beat)

    assert capfd.readouterr().err == ""
