"""Studies in a real kernel, as a notebook drives it: cell by cell, through its messages."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

PATIENCE_S = 100.0

DEFINITION = '''
import threading
import numpy as np
import dasktune as dt

class Walk:
    """Multiplies."""

    def setup(self, hp, seed): self.x = 1.0
    def step(self, hp, t): self.x *= 1 - hp["lr"]
    def evaluate(self): return {"loss": abs(self.x)}
    def state_dict(self): return {"x": self.x}
    def load_state_dict(self, state): self.x = state["x"]

def study(trainable, name="walk"):
    space = {"lr": dt.choice([0.1, dt.step_decay(0.1, factor=2, at=[4])])}
    return dt.Study(trainable, space=space, metric="loss", mode="min", sampler=dt.Grid(),
                    tuner=dt.FullTraining(9), name=name)
'''
LINE = (
    "walk: 2 trials (2 completed) | steps: 14 done, 0 owed, 4 saved by sharing | "
    "best loss 0.214991 (step 9, trial 1)"
)
TABLE = (
    "<table><tr><th>trial</th><th>status</th><th>steps</th><th>metric</th>"
    "<th>hyper-parameters</th></tr>"
    "<tr><td>1</td><td>completed</td><td>9/9</td><td>loss 0.214991</td>"
    "<td>lr=step_decay(0.1, factor=2.0, at=[4])</td></tr>"
    "<tr><td>0</td><td>completed</td><td>9/9</td><td>loss 0.38742</td><td>lr=0.1</td></tr>"
    "</table>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a cell gave."""

    displays: list[tuple[str, str, dict[str, str]]]
    """Of each display: the kind of its message, its number, what it shows by type."""
    printed: dict[str, str]
    """What came on the standard output and the standard error, if anything."""
    error: str
    """The exception in one line, if one came through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a class of a cell holds."""

    builds: str = "pass"
    reads: str = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    folder: Path
    client: BlockingKernelClient
    log: Path
    """What the kernel's process wrote past its messages."""

    def complaints(self) -> list[str]:
        """What reached the process's own output, except what the kernel says of itself."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if "[IPKernelApp]" not in line]

    def run(self, cell: str) -> Answer:
        heard: list[dict[str, Any]] = []
        self.client.execute_interactive(
            cell, allow_stdin=False, timeout=PATIENCE_S, output_hook=heard.append
        )
        displays, printed, error = [], dict[str, str](), ""
        for message in heard:
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data"):
                displays.append((kind, content["transient"]["display_id"], content["data"]))
            elif kind == "stream":
                name = content["name"]
                printed[name] = printed.get(name, "") + content["text"]
            elif kind == "error":
                error = f"{content['ename']}: {content['evalue']}"
        return Answer(displays=displays, printed=printed, error=error)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel in a folder of its own, in which the first cell has run."""
    folder, own = tmp_path_factory.mktemp("notebook"), tmp_path_factory.mktemp("kernel")
    # Under tests a kernel leaves out to pass on what reaches its standard error by other ways.
    environment = {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"}
    environment |= {"IPYTHONDIR": str(own), "JUPYTER_RUNTIME_DIR": str(own)}
    manager = KernelManager(connection_file=str(own / "connection.json"))
    log = own / "log"
    with log.open("wb") as stream:
        manager.start_kernel(cwd=str(folder), env=environment, stdout=stream, stderr=stream)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        kernel = Kernel(folder=folder, client=client, log=log)
        assert kernel.run(DEFINITION) == Answer(displays=[], printed={}, error="")
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_cell_shows_one_display_and_writes_nothing_else(kernel: Kernel) -> None:
    answer = kernel.run("result = dt.run(study(Walk()), workers=2)")

    assert (answer.error, answer.printed) == ("", {})
    kinds = [kind for kind, _, _ in answer.displays]
    assert kinds == ["display_data", *["update_display_data"] * (len(kinds) - 1)]
    assert len({number for _, number, _ in answer.displays}) == 1
    assert answer.displays[-1][2] == {"text/plain": LINE, "text/html": f"<div>{LINE}</div>"}
    assert kernel.run("print(result.steps_executed)").printed == {"stdout": "14\n"}
    assert kernel.complaints() == []


@pytest.mark.cluster
@pytest.mark.slow
def test_a_cell_that_is_run_again_defines_the_same_study(kernel: Kernel) -> None:
    kernel.run("dt.run(study(Walk(), 'again'), workers=1)")
    kernel.run(DEFINITION)

    same = kernel.run("print(dt.run(study(Walk(), 'again')).steps_executed)")
    equal = kernel.run(
        "print(dt.run(study(Walk(), 'equal'), workers=0, verbose=True).steps_executed)"
    )

    assert (same.error, same.printed) == ("", {"stdout": "0\n"})
    assert [data["text/plain"] for _, _, data in same.displays] == [LINE.replace("walk", "again")]
    assert (equal.error, equal.printed) == ("", {"stdout": "0\n"})
    said = LINE.replace("walk", "equal")
    assert equal.displays[-1][2] == {
        "text/plain": said,
        "text/html": f"{TABLE}<div>{said}</div>",
    }
    assert kernel.complaints() == []


@pytest.mark.cluster
@pytest.mark.slow
def test_a_cell_that_was_changed_is_other_code(kernel: Kernel) -> None:
    kernel.run("dt.run(study(Walk(), 'changed'), workers=0)")

    kernel.run(DEFINITION.replace('1 - hp["lr"]', '1 - hp["lr"] / 2'))
    answer = kernel.run("dt.run(study(Walk(), 'changed'), workers=0)")

    kernel.run(DEFINITION)
    assert answer.error.startswith(
        "InvalidStudyError: changed was begun otherwise: Walk.step changed; "
    )


REFUSED = {
    "trainable.lock is an object of _thread.lock": Capture(builds="self.lock = threading.Lock()"),
    "trainable.log is an object of _io.TextIOWrapper": Capture(
        builds="self.log = open('log', 'w')"
    ),
    "trainable.data has 12.0 MB": Capture(builds="self.data = np.zeros(12 * 2**20, np.uint8)"),
    "the global LARGE, which Holds.step reads, has 11.0 MB": Capture(reads="LARGE[0]"),
    "the global LOCK, which Holds.step reads, ": Capture(reads="LOCK.locked()"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_cell_captures_is_refused_by_its_name(kernel: Kernel, words: str) -> None:
    capture = REFUSED[words]
    answer = kernel.run(f"""
LARGE, LOCK = np.zeros(11 * 2**20, np.uint8), threading.Lock()
class Holds(Walk):
    def __init__(self): {capture.builds}
    def step(self, hp, t): self.x *= 1 - hp["lr"] * {capture.reads}
dt.run(study(Holds(), "refused"), workers=2)
""")

    assert answer.error.startswith(f"InvalidStudyError: {words}"), answer.error
    assert (answer.displays, answer.printed) == ([], {})
    assert not list(kernel.folder.glob("dasktune-store/**/refused*"))
