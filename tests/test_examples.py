"""Examples do what they say: each prints what stands beside it, and the same from the store.

In an expected output `…` stands for what differs from run to run, or from one processor to another.
What one worker or a simulation prints is there in full. Of several workers, asynchronous tuners
hear in no fixed order: which trials go on, how many epochs that takes and at times who wins are
another run's.
"""

import gzip
import importlib
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from distributed import Client, LocalCluster
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import dasktune as dt
from dasktune.store.recorded import load_results
from dasktune.study.commands import RunPath
from tests.oracles import grid_of, n_distinct
from tests.simulator.test_oracles import FASHION

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(script: Path, folder: Path, *arguments: str) -> str:
    return output_of([sys.executable, str(script), *arguments], folder)


def output_of(command: list[str], folder: Path) -> str:
    done = ended(command, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )


def matches(expected: str, actual: str) -> bool:
    """Compare with an expected output in which `…` stands for anything within a line."""
    pattern = "".join(
        ".*?" if part == "…" else re.escape(part) for part in re.split("(…)", expected)
    )
    return re.fullmatch(pattern, actual) is not None


EPOCHS = re.compile(r"(\d+) epochs.*[,;] (\d+) (?:distinct|unique|if each .*?)[,;] (\d+) trained")


def epochs_in(printed: str) -> tuple[int, int, int]:
    """Epochs that were requested, distinct and trained."""
    found = EPOCHS.search(printed)
    assert found is not None, printed
    requested, distinct, trained = map(int, found.groups())
    return requested, distinct, trained


@pytest.fixture
def n_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Says how many Python processes began since it was asked last: scripts, and their workers."""
    folder, log = tmp_path / "site", tmp_path / "started"
    folder.mkdir()
    log.touch()
    # Python imports a module of this name as it starts.
    (folder / "sitecustomize.py").write_text(f"with open({str(log)!r}, 'a') as f: f.write('.')\n")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )
    n_before = 0

    def since() -> int:
        nonlocal n_before
        n, n_before = log.stat().st_size - n_before, log.stat().st_size
        return n

    return since


def committed(folder: Path) -> dict[str, bytes]:
    """All states and decisions in the store of an example."""
    files = [f for part in ("states", "timelines") for f in folder.glob(f"*-store/{part}/**/*")]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


def assert_answers_again(
    again: Callable[[], str], folder: Path, n_started: Callable[[], int]
) -> str:
    """Nothing is trained where no worker is started and nothing is committed or decided."""
    assert n_started() > 1
    before = committed(folder)
    assert before
    printed = again()
    assert n_started() == 1
    assert committed(folder) == before
    return printed


def test_every_example_has_its_output_beside_it() -> None:
    outputs = sorted(EXAMPLES.glob("*.out"))
    assert outputs == [script.with_suffix(".out") for script in sorted(EXAMPLES.glob("*.py"))]


def test_the_simulated_search_prints_what_stands_beside_it(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "simulate.py", tmp_path)
    assert printed == (EXAMPLES / "simulate.out").read_text()


@pytest.mark.cluster
@pytest.mark.slow
def test_make_demo_prints_what_stands_beside_it_and_answers_again_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_started: Callable[[], int]
) -> None:
    folder = tmp_path / "checkout"
    (folder / "examples").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "examples/quickstart.py"):
        shutil.copyfile(ROOT / name, folder / name)
    pretend_installed(folder / ".venv")
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of the make that runs the tests
        monkeypatch.delenv(name, raising=False)

    def demo() -> str:
        return output_of(["make", "--silent", "demo"], folder)

    first = demo()
    assert matches((EXAMPLES / "quickstart.out").read_text(), first), first
    requested, distinct, trained = epochs_in(first)
    assert requested > distinct == trained
    assert f"merge rate {requested / distinct:.2f}\n" in first

    again = assert_answers_again(demo, folder, n_started)
    assert again.splitlines()[:-1] == first.splitlines()[:-1]
    said = "this call: the answer came from the store, nothing was trained; … s\n"
    assert matches(said, again.splitlines(keepends=True)[-1])
    assert (folder / ".venv" / "calls").read_text() == "examples/quickstart.py\n" * 2


def pretend_installed(venv: Path) -> None:
    """Put there what `make` looks for: a Python, ours, which notes what it is called with."""
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {venv}/calls\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (venv / ".installed").touch()


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("name", ["pbt", "tuners", "bohb"])
def test_a_search_prints_what_stands_beside_it_and_answers_again_from_the_store(
    tmp_path: Path, n_started: Callable[[], int], name: str
) -> None:
    expected = (EXAMPLES / f"{name}.out").read_text()
    first = run(EXAMPLES / f"{name}.py", tmp_path)
    assert matches(expected, first), first
    requested, distinct, trained = epochs_in(first)
    assert requested > distinct >= trained

    again = assert_answers_again(
        lambda: run(EXAMPLES / f"{name}.py", tmp_path), tmp_path, n_started
    )
    assert again == first


@pytest.mark.slow
def test_tensorboard_reads_what_all_trials_have_reported(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "with_tensorboard.py", tmp_path)
    assert printed == (EXAMPLES / "with_tensorboard.out").read_text()

    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    (result,) = load_results("descent", tmp_path / "dasktune-store")
    curves = {
        f"loss/trial {trial.number}": [(r.step, r.metrics["loss"]) for r in trial.reports]
        for trial in result.trials
    }
    assert len(curves) == 3
    assert set(events.Tags()["scalars"]) == {*curves, "steps saved"}
    for name, curve in curves.items():
        read = [(scalar.step, scalar.value) for scalar in events.Scalars(name)]
        assert read == [(step, pytest.approx(value)) for step, value in curve]
    saved = events.Scalars("steps saved")[-1]
    assert saved.step == result.steps_unique
    assert saved.value == result.steps_requested - result.steps_unique > 0


FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(scope="module")
def fashion_mnist() -> Iterator[ModuleType]:
    """The example as a module."""
    spec = spec_from_file_location("fashion_mnist", EXAMPLES / "fashion_mnist.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_search_on_images_has_36_trials_that_share_half_their_epochs(
    fashion_mnist: ModuleType,
) -> None:
    study = fashion_mnist.study(10_000)
    points = list(study.space.points())
    configurations = [study.space.configuration(point) for point in points]
    histories = [
        tuple((one.at(t)["batch_size"], one.at(t)["lr"]) for t in range(18))
        for one in configurations
    ]

    assert sorted(histories) == sorted(grid_of(FASHION["late"], 18))
    assert {one.at(t)["momentum"] for one in configurations for t in range(18)} == {0.9}
    assert (len(histories), n_distinct(histories)) == (36, 323)
    assert "36 trials of 36 configurations" in dt.explain(study)
    assert "if all came to step 18, 323 of 648 steps would be distinct" in dt.explain(study)
    whole = dt.Study(
        study.trainable,
        space=study.space,
        sampler=dt.Grid(),
        tuner=dt.FullTraining(18),
        metric="accuracy",
        mode="max",
    )
    result = dt.simulate(whole, dt.World(workers=2))
    assert (result.steps_requested, result.steps_executed) == (648, 323)
    assert f"{result.merge_rate:.2f}" == "2.01"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "patterns",
        pytest.param(
            "clothes",
            marks=pytest.mark.skipif(
                not FASHION_MNIST.is_dir(), reason="dataset-fashion-mnist is not installed"
            ),
        ),
    ],
)
def test_the_search_on_images_prints_what_stands_beside_it_and_trains_no_epoch_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_started: Callable[[], int], kind: str
) -> None:
    if kind == "clothes":
        monkeypatch.delenv("FASHION_MNIST", raising=False)
    else:
        write_patterns(tmp_path / "images")
        monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "images"))

    first = run(EXAMPLES / "fashion_mnist.py", tmp_path, "--images", "300")

    assert_found(first)
    again = assert_answers_again(
        lambda: run(EXAMPLES / "fashion_mnist.py", tmp_path, "--images", "300"), tmp_path, n_started
    )
    assert again == first


def assert_found(printed: str) -> None:
    assert matches((EXAMPLES / "fashion_mnist.out").read_text(), printed), printed
    best = re.search(r"accuracy ([\d.]+)", printed)
    assert best is not None
    assert float(best[1]) > 0.5  # one in ten comes by chance
    requested, unique, trained = epochs_in(printed)
    assert requested > unique == trained


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Dask's own cluster, as it closes
def test_the_search_on_images_joins_a_cluster_and_leaves_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_patterns(tmp_path / "images")
    # Where training runs the images are needed, and only there.
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "images"))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        cluster.wait_for_workers(2)
        workers = set(cluster.scheduler.workers)
        with Client(cluster) as client:  # or the first to have torch may train everything
            client.run(importlib.import_module, "dasktune.runtime.torch_early")
        monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "nothing"))
        printed = run(
            EXAMPLES / "fashion_mnist.py",
            tmp_path,
            *("--client", cluster.scheduler_address, "--images", "300"),
        )

        assert_found(printed)
        assert cluster.status.name == "running"
        assert set(cluster.scheduler.workers) == workers
    (result,) = load_results("fashion-300", tmp_path / "dasktune-store")
    paths = [one for _, one in result.timeline.commands() if isinstance(one, RunPath)]
    assert {path.worker for path in paths} == workers


TORCHVISION = """
import gzip, os
from pathlib import Path
import torch
class FashionMNIST:
    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        assert transform is target_transform is None
        if download:
            Path(root, "FashionMNIST", "raw").mkdir(parents=True, exist_ok=True)
            with open(Path(root, "asked"), "a") as asked:
                asked.write(f"{os.getpid()} {train}\\n")
        n = 300 if train else 200
        self.targets = torch.arange(n) % 10
        made = torch.Generator().manual_seed(0)
        patterns = torch.randint(0, 256, (10, 28, 28), generator=made)
        noise = torch.randint(0, 256, (n, 28, 28), generator=made)
        self.data = ((patterns[self.targets] + noise) // 2).to(torch.uint8)
"""


@pytest.mark.cluster
@pytest.mark.slow
def test_where_the_images_are_not_torchvision_downloads_them_before_any_worker_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_started: Callable[[], int]
) -> None:
    del n_started  # its folder is where Python looks first
    package = tmp_path / "site" / "torchvision"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "datasets.py").write_text(TORCHVISION)
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "nothing"))
    monkeypatch.setenv("HOME", str(tmp_path))

    printed = run(EXAMPLES / "fashion_mnist.py", tmp_path, "--images", "300")

    assert_found(printed)
    asked = (tmp_path / ".cache" / "fashion-mnist" / "asked").read_text().splitlines()
    assert asked[0].endswith(" False")
    assert len({line.split()[0] for line in asked}) > 1


def test_where_the_images_are_not_and_torchvision_neither_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_started: Callable[[], int]
) -> None:
    (tmp_path / "site" / "torchvision.py").write_text("raise ImportError\n")
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "nothing"))

    done = ended([sys.executable, str(EXAMPLES / "fashion_mnist.py")], tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Fashion-MNIST is not in {tmp_path / 'nothing'}: install Debian's package "
        "dataset-fashion-mnist, or torchvision, which downloads it\n"
    )
    assert n_started() == 1
    assert not list(tmp_path.glob("dasktune-store"))


def write_patterns(folder: Path) -> None:
    """Write what stands in for Fashion-MNIST where it is not: the same four files, but no clothes.

    Each class is one fixed random pattern with noise on it. It is easy to learn, the same on all
    computers, and what accuracy it gives says nothing of any real data.
    """
    folder.mkdir()
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (10, 28, 28))
    for part, n in (("train", 300), ("t10k", 200)):
        labels = np.arange(n) % 10
        noisy = (patterns[labels] + rng.integers(0, 256, (n, 28, 28))) // 2
        for name, data, header in (
            ("images-idx3", noisy, struct.pack(">4i", 0x803, n, 28, 28)),
            ("labels-idx1", labels, struct.pack(">2i", 0x801, n)),
        ):
            content = header + data.astype(np.uint8).tobytes()
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content))


PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.cluster
@pytest.mark.slow
def test_the_readme_runs(tmp_path: Path) -> None:
    block = PYTHON.search((ROOT / "README.md").read_text())
    assert block is not None
    (tmp_path / "readme.py").write_text(NETWORK + block[1])
    printed = run(tmp_path / "readme.py", tmp_path)
    assert "study fashion: 20 trials" in printed
    assert "asked to train to step 2" in printed


PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_runs_and_its_tests_pass(tmp_path: Path, page: Path) -> None:
    blocks = PYTHON.findall(page.read_text())
    assert blocks
    # One module, as a reader would type it from top to bottom: with pytest, which runs its tests.
    (tmp_path / f"test_{page.stem}.py").write_text(NETWORK + "\n\n".join(blocks))
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)  # the same draws each time
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_{page.stem}.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    n_tests = re.search(r"(\d+) passed", done.stdout)
    assert n_tests is not None


NETWORK = '''
class Network:
    """Learns the sum of its learning rates."""

    def setup(self, hp, seed):
        self.learnt = 0.0

    def step(self, hp, t):
        self.learnt += hp["lr"]

    def evaluate(self):
        return {"accuracy": self.learnt}

    def state_dict(self):
        return {"learnt": self.learnt}

    def load_state_dict(self, state):
        self.learnt = state["learnt"]


'''


def test_every_example_and_benchmark_says_how_to_run_it() -> None:
    scripts = [*EXAMPLES.glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    assert scripts
    for script in scripts:
        assert f"{script.parent.name}/{script.name}" in script.read_text(), script
