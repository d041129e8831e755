import re
import subprocess
import sys
from pathlib import Path

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
def test_the_readme_runs(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "readme.py").write_text(NETWORK + block[1])
    printed = run(tmp_path / "readme.py", tmp_path)
    assert "study fashion: 20 trials" in printed
    assert "asked to train to step 2" in printed


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
