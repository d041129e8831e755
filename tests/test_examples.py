import gzip
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(script: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def matches(expected: str, actual: str) -> bool:
    """Compare with an expected output in which `…` stands for what differs from run to run."""
    pattern = "".join(
        ".*?" if part == "…" else re.escape(part) for part in re.split("(…)", expected)
    )
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


def test_the_simulated_search_prints_what_stands_beside_it(tmp_path: Path) -> None:
    printed = run(EXAMPLES / "simulate.py", tmp_path)
    assert printed == (EXAMPLES / "simulate.out").read_text()


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quickstart_prints_what_stands_beside_it_and_answers_again_from_the_store(
    tmp_path: Path,
) -> None:
    expected = (EXAMPLES / "quickstart.out").read_text()
    first = run(EXAMPLES / "quickstart.py", tmp_path)
    assert matches(expected, first), first
    again = run(EXAMPLES / "quickstart.py", tmp_path)
    best = [text.splitlines()[:3] for text in (first, again)]
    assert best[0] == best[1]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["pbt", "tuners", "bohb"])
def test_a_search_prints_what_stands_beside_it_and_answers_again_from_the_store(
    tmp_path: Path, name: str
) -> None:
    expected = (EXAMPLES / f"{name}.out").read_text()
    first = run(EXAMPLES / f"{name}.py", tmp_path)
    assert matches(expected, first), first
    steps = re.search(r"(\d+) epochs.*, (\d+) distinct, (\d+) trained", first)
    steps = steps or re.search(r"(\d+) epochs.*; (\d+) if each .*; (\d+) trained", first)
    assert steps is not None
    requested, distinct, trained = (int(text) for text in steps.groups())
    assert requested > distinct >= trained
    assert run(EXAMPLES / f"{name}.py", tmp_path) == first


FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "clothes":
        monkeypatch.delenv("FASHION_MNIST", raising=False)
    else:
        write_patterns(tmp_path / "images")
        monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "images"))
    expected = (EXAMPLES / "fashion_mnist.out").read_text()

    first = run(EXAMPLES / "fashion_mnist.py", tmp_path, "--images", "300")

    assert matches(expected, first), first
    best = re.search(r"accuracy ([\d.]+)", first)
    epochs = re.search(r"(\d+) epochs requested, (\d+) unique, (\d+) trained", first)
    assert best is not None
    assert epochs is not None
    assert float(best[1]) > 0.5  # one in ten comes by chance
    requested, unique, trained = (int(text) for text in epochs.groups())
    assert requested > unique == trained
    assert run(EXAMPLES / "fashion_mnist.py", tmp_path, "--images", "300") == first


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
@pytest.mark.timeout(300)
def test_the_readme_runs(tmp_path: Path) -> None:
    block = PYTHON.search((ROOT / "README.md").read_text())
    assert block is not None
    (tmp_path / "readme.py").write_text(NETWORK + block[1])
    printed = run(tmp_path / "readme.py", tmp_path)
    assert "study fashion: 20 trials" in printed
    assert "asked to train to step 2" in printed


PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_runs_and_its_tests_pass(tmp_path: Path, page: Path) -> None:
    blocks = PYTHON.findall(page.read_text())
    assert blocks
    # One module, as a reader would type it from top to bottom: with pytest, which runs its tests.
    (tmp_path / f"test_{page.stem}.py").write_text(NETWORK + "\n\n".join(blocks))
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
