"""The command as users call it: real processes, in a folder of their own."""

import logging
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from threading import Thread

import pytest
from distributed import LocalCluster

from dasktune import cli
from dasktune.store.store import Store

PATIENCE_S = 100.0

TRAIN = '''
import os, time
from pathlib import Path
import dasktune as dt
from dasktune.runtime import task

HERE = Path(__file__).parent if "__file__" in globals() else Path.cwd()

class Walk:
    """Multiplies; writes down each step, and waits at step 3 while there is a gate;
    writes down there that it is to stop."""

    def __init__(self, folder): self.folder = folder
    def setup(self, hp, seed): self.x = 1.0
    def step(self, hp, t):
        self.x *= 1 - hp["lr"]
        log = os.open(self.folder + "/steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{t} {hp['lr']} {self.x!r}\\n".encode())
        os.close(log)
        while t == 3 and os.path.exists(self.folder + "/gate"):
            if task.STOPPED: open(self.folder + "/heard", "w").close()
            time.sleep(0.01)
    def evaluate(self): return {"loss": abs(self.x)}
    def state_dict(self): return {"x": self.x}
    def load_state_dict(self, state): self.x = state["x"]

def late(t): return 0.1 if t < 5 else 0.3

SPACE = {"lr": dt.choice([0.1, dt.step_decay(0.1, factor=2, at=[4]), late])}
GIVEN = {"space": SPACE, "metric": "loss", "mode": "min", "sampler": dt.Grid()}
study = dt.Study(Walk(os.environ["HERE"]), tuner=dt.FullTraining(9), name="walk", **GIVEN)
other = dt.Study(Walk(os.environ["HERE"]), tuner=dt.FullTraining(6), name="other", **GIVEN)
both = [study, other]
nothing = 3
'''
OUTCOME = """walk: completed, all 3 trials are over
  best: trial 2, loss 0.141777 at step 9
    lr = late
  steps: 27 requested, 18 distinct, {} trained; merge rate 1.50
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "HERE": str(folder), "PYTHONWARNINGS": "ignore", "TERM": "xterm"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dasktune", *arguments]


def called(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    answer = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer


def steps_in(folder: Path) -> list[str]:
    return sorted((folder / "steps").read_text(encoding="utf-8").splitlines())


FILES = {
    "broken.py": "def (:\n",
    "raises.py": "def read():\n    raise ValueError('no data')\nread()\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "mistake.py": TRAIN.replace('"metric": "loss"', '"metric": 3'),
    "unguarded.py": "import dasktune as dt\nfrom train import study\ndt.run(study)\n",
}


@pytest.fixture
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, for commands that are called in this process."""
    for name, source in FILES.items():
        (folder / name).write_text(source, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HERE", str(folder))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(cli, "_CONNECT_S", 0.2)
    before, level = set(sys.modules), logging.getLogger("dasktune").level
    yield folder
    logging.getLogger("dasktune").setLevel(level)
    for name in [name for name in sys.modules if name in {Path(f).stem for f in FILES} | {"train"}]:
        assert name not in before
        del sys.modules[name]


def exit_code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code


Told = Callable[..., tuple[object, str, str]]
"""Calls a command in this process; gives its exit code, output and errors."""


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    def tell(*arguments: str) -> tuple[object, str, str]:
        capsys.readouterr()
        code = exit_code(*arguments)
        return (code, *capsys.readouterr())

    return tell


# --- run


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.cluster)])
def test_run_prints_what_came_of_it_and_nothing_else(folder: Path, workers: int) -> None:
    answer = called(folder, "run", "train.py:study", "--workers", str(workers))

    assert (answer.returncode, answer.stdout) == (0, OUTCOME.format(18))
    # On a slow machine a run may last longer than ten seconds; then it shows how far it is.
    progress = ("walk: 3 trials", "nothing runs: ")
    assert [line for line in answer.stderr.splitlines() if not line.startswith(progress)] == []
    assert len(steps_in(folder)) == len(set(steps_in(folder))) == 18

    again = called(folder, "run", "train:study", "--workers", str(workers))  # a module's name

    assert (again.returncode, again.stdout) == (0, OUTCOME.format(18))
    assert len(steps_in(folder)) == 18


def test_a_list_of_studies_runs_as_one_plan(inside: Path, told: Told) -> None:
    code, out, _ = told("run", "./train.py:both", "--store", "shared", "--workers", "0")

    assert code == 0
    assert out.startswith("walk: completed")
    assert "\nother: completed, all 3 trials are over\n" in out
    assert len(steps_in(inside)) == 18
    assert (inside / "shared").is_dir()

    assert told("explain", "shared", "walk")[1].startswith("study walk: 3 trials")
    assert told("explain", "shared", "other")[1].startswith("study other: 3 trials")
    assert "shared with 5: walk/0, walk/1" in told("explain", "shared", "other", "--trial", "2")[1]


@pytest.mark.usefixtures("inside")
def test_verbose_shows_a_table_in_a_file_too(told: Told) -> None:
    _, out, err = told("run", "train.py:study", "--workers", "0", "--verbose")

    assert out == OUTCOME.format(18)
    lines = err.splitlines()
    assert lines[0].split() == ["trial", "status", "steps", "metric", "hyper-parameters"]
    assert lines[1].split() == ["2", "completed", "9/9", "loss", "0.141777", "lr=late"]
    assert lines[-1] == (
        "walk: 3 trials (3 completed) | steps: 18 done, 0 owed, 9 saved by sharing | "
        "best loss 0.141777 (step 9, trial 2)"
    )


@pytest.mark.usefixtures("inside")
def test_the_store_stays_below_its_limit(told: Told) -> None:
    told("run", "train.py:study", "--workers", "0", "--store", "free")
    run = told("run", "train.py:study", "--workers", "0", "--store", "store", "--store-limit", "1B")

    assert run[0] == 0
    assert len(Store("free").keys()) > len(Store("store").keys()) == 1  # the best


@pytest.mark.usefixtures("inside")
def test_quiet_shows_nothing_in_spite_of_verbose(told: Told) -> None:
    answer = told("run", "train.py:study", "--workers", "0", "--verbose", "--quiet")

    assert answer == (0, OUTCOME.format(18), "")


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_run_joins_a_cluster_and_leaves_it_open(folder: Path) -> None:
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        answer = called(folder, "run", "train.py:study", "--client", address)

        assert (answer.returncode, answer.stdout) == (0, OUTCOME.format(18)), answer.stderr
        assert cluster.status.name == "running"
        assert len(cluster.scheduler.workers) == 1


# --- what is wrong is said in one sentence

WRONG = {
    "no colon": (["run", "train.py"], "'train.py' names no study: write MODULE:STUDY"),
    "no file": (["run", "nowhere.py:study"], "there is no file 'nowhere.py'"),
    "no module": (["run", "nowhere:study"], "nowhere cannot be imported: ModuleNotFoundError: No"),
    "no name": (["run", "train.py:stady"], "stady in train.py is not there; it must be a study"),
    "names known": (["check", "train.py:stady"], "(the studies there are: study, other)"),
    "no study": (["run", "train.py:nothing"], "nothing in train.py is a int; it must be a study"),
    "syntax": (["run", "broken.py:study"], "broken.py cannot be read: "),
    "raises": (["run", "raises.py:study"], "raises.py cannot be imported: ValueError: no data ("),
    "line": (["run", "raises.py:study"], "raises.py, line 2)"),
    "exits": (["run", "exits.py:study"], "exits.py cannot be imported: SystemExit: 3"),
    "mistake": (["run", "mistake.py:study"], "metric is 3; it must be the name of a result"),
    "workers": (["run", "train.py:study", "--workers", "-1"], "workers"),
    "both": (
        ["run", "train.py:study", "--client", "tcp://127.0.0.1:9", "--workers", "1"],
        "no Dask scheduler answers at 'tcp://127.0.0.1:9'",
    ),
    "store": (["run", "train.py:study", "--store", "gopher://x", "--workers", "0"], "gopher"),
    "unguarded": (["run", "unguarded.py:study"], "unguarded.py, line 3, runs a study when it is"),
    "steps": (["check", "train.py:study", "--steps", "0"], "steps must be at least 1, got 0"),
    "unknown": (["explain", "store", "walk"], "study is 'walk'; the studies in "),
    "other": (["explain", "store", "walk", "--other", "1"], "--other is given without --trial"),
}


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(case: str, told: Told) -> None:
    arguments, words = WRONG[case]

    code, out, err = told(*arguments)

    assert (code, out) == (2, "")
    assert err.startswith("dasktune: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["run"],
        ["run", "a:b", "--workers", "x"],
        ["run", "a:b", "--store-limit", "much"],
    ],
)
def test_wrong_arguments_are_answered_with_the_usage(arguments: list[str], told: Told) -> None:
    code, _, err = told(*arguments)

    assert code == 2
    assert err.startswith("usage: dasktune")


def test_the_version_is_that_of_the_package(told: Told) -> None:
    assert told("--version") == (0, f"dasktune {version('dasktune')}\n", "")


# --- check, explain, clean


def test_check_says_what_is_right_and_exits_with_0(folder: Path) -> None:
    answer = called(folder, "check", "train.py:study", "--steps", "2")

    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("Walk, 2 steps: training split at any step gives the same bits")


def test_check_says_what_is_forgotten_and_exits_with_1(inside: Path, told: Told) -> None:
    source = TRAIN.replace('{"x": self.x}', '{"y": 0}').replace('state["x"]', "1.0")
    (inside / "train.py").write_text(source, encoding="utf-8")

    code, out, err = told("check", "train.py:study")

    assert (code, err) == (1, "")
    assert out.startswith("Walk, 3 steps:\n  metrics: evaluate() gives {'loss': '0.9'}")


@pytest.mark.cluster
def test_explain_prints_the_traceback_of_a_trial_that_failed_on_a_worker(
    folder: Path, told: Told
) -> None:
    line = '        self.x *= 1 - hp["lr"]\n'
    raises = "        if t == 5 and hp['lr'] == 0.3: raise ArithmeticError(f'too fast at {t}')\n"
    source = TRAIN.replace(line, raises + line)
    (folder / "train.py").write_text(source, encoding="utf-8")

    answer = called(folder, "run", "train.py:study", "--workers", "1", "--store", "store")

    assert answer.stdout.startswith("walk: completed, all 3 trials are over\n")
    assert answer.stdout.endswith(
        "\n  trial 2 failed: ArithmeticError: too fast at 5\n"
        "  dasktune explain store walk --trial N tells where\n"
    )
    _, out, _ = told("explain", str(folder / "store"), "walk", "--trial", "2")
    assert out.startswith(
        "trial 2 of walk: failed, ArithmeticError: too fast at 5\n"
        "Traceback (most recent call last):\n"
    )
    raising = source[: source.index(raises)].count("\n") + 1
    assert f'  File "{folder}/train.py", line {raising}, in step\n{raises.strip()}\n' in (
        out.replace("\n    ", "\n")
    )
    assert "\nArithmeticError: too fast at 5\n" in out
    assert "Traceback" not in told("explain", str(folder / "store"), "walk", "--trial", "0")[1]


EXPLAINED = """study walk: 3 trials of 3 configurations, drawn by Grid(); loss is to be least
  FullTraining(max_steps=9, report_every=None)
  steps 0 to 9: 3 trials, 27 steps; if all came to step 9, 18 of 27 steps would be distinct
  completed: all 3 trials are over
  step 9: 3 trials asked, 3 reported
  27 steps requested, 18 distinct: merge rate 1.50
  best: trial 2, loss 0.141777 at step 9
"""


def test_explain_needs_the_store_and_not_the_code(inside: Path, told: Told) -> None:
    told("run", "train.py:study", "--workers", "0", "--store", "store")
    (inside / "train.py").unlink()
    del sys.modules["train"]

    assert called(inside, "explain", "store", "walk").stdout == EXPLAINED
    one = told("explain", "store", "walk", "--trial", "2")[1].splitlines()
    assert one[0] == "trial 2 of walk: completed, trained to the end"
    assert one[1] == "  lr = late"
    assert one[-1] == "  step 9: loss 0.141777"
    assert told("explain", "store", "walk", "--trial", "2", "--other", "1")[1] == (
        "trials 2 and 1: they share steps 0 to 3: at step 4 lr is 0.1 in one and 0.2 in the other\n"
    )
    assert told("explain", "store", "walk", "--trial", "9") == (
        2,
        "",
        "dasktune: trial is 9; the study has trials 0 to 2\n",
    )


def test_a_reader_that_has_seen_enough_is_no_error(inside: Path, told: Told) -> None:
    told("run", "train.py:study", "--workers", "0", "--store", "store")

    process = subprocess.Popen(
        command("explain", "store", "walk"),
        cwd=inside,
        env=environment(inside),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()

    _, error = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, error) == (0, "")


def test_without_an_output_a_run_ends_well(inside: Path) -> None:
    answer = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *command("run", "train.py:study", "--workers=0")],
        cwd=inside,
        env=environment(inside),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )

    assert (answer.returncode, answer.stderr) == (0, "")


def test_clean_counts_first_and_removes_then(inside: Path, told: Told) -> None:
    told("run", "train.py:study", "--workers", "0", "--store", "store")
    orphan = inside / "store" / "states" / f"{'1' * 64}.{'2' * 64}.state"
    orphan.write_bytes(b"12345")
    before = set((inside / "store").rglob("*"))

    words = f"1 file with 5 bytes {{}}removed from {inside / 'store'}\n"
    assert told("clean", "store", "--dry-run")[:2] == (0, words.format("would be "))
    assert set((inside / "store").rglob("*")) == before
    assert told("clean", "store")[:2] == (0, words.format(""))
    assert before - set((inside / "store").rglob("*")) == {orphan}


# --- Ctrl-C


class Terminal:
    """A process that has a terminal for itself, and all that it has written there."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        main, side = pty.openpty()
        self._main = main
        self.process = subprocess.Popen(
            command(*arguments),
            cwd=folder,
            env=environment(folder) | {"COLUMNS": "200", "LINES": "30"},
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)
        self._written = b""
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        return self._written.decode(errors="replace").replace("\r\n", "\n")

    def interrupt(self) -> None:
        """Do as a terminal does: all processes in the foreground get it, workers too."""
        os.killpg(self.process.pid, signal.SIGINT)

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        return code

    def close(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        os.close(self._main)

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(self._main, 65536):
                self._written += data


@pytest.fixture
def terminal(folder: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def make(*arguments: str) -> Terminal:
        opened.append(Terminal(folder, *arguments))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def until(holds: Callable[[], bool], one: Terminal) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert one.process.poll() is None, one.text
        assert time.monotonic() < end_s, one.text
        time.sleep(0.01)


def is_at_the_gate(folder: Path) -> bool:
    steps = folder / "steps"
    return steps.exists() and "\n3 " in steps.read_text(encoding="utf-8")


@pytest.mark.cluster
@pytest.mark.parametrize("workers", ["0", "1"])
def test_ctrl_c_stops_at_a_step_and_the_same_call_goes_on(
    folder: Path, terminal: Callable[..., Terminal], workers: str
) -> None:
    arguments = ["run", "train.py:study", "--workers", workers]
    gate = folder / "gate"
    gate.touch()
    first = terminal(*arguments)
    until(lambda: is_at_the_gate(folder), first)

    first.interrupt()
    until(lambda: "stopping at the next step boundary" in first.text, first)
    assert first.process.poll() is None
    if workers != "0":  # which has heard it itself
        until((folder / "heard").exists, first)
    gate.unlink()

    assert first.wait() == 130
    assert "interrupted: what was committed is kept; the same call goes on from here" in first.text
    assert "walk: not over; the same call goes on from here" in first.text
    assert "Traceback" not in first.text
    assert len(steps_in(folder)) == 4

    second = called(folder, *arguments)

    assert (second.returncode, second.stdout) == (0, OUTCOME.format(18))
    assert len(steps_in(folder)) == len(set(steps_in(folder))) == 18


def test_a_second_ctrl_c_stops_at_once(folder: Path, terminal: Callable[..., Terminal]) -> None:
    gate = folder / "gate"
    gate.touch()
    first = terminal("run", "train.py:study", "--workers", "0")
    until(lambda: is_at_the_gate(folder), first)
    first.interrupt()
    until(lambda: "Ctrl-C again stops at once" in first.text, first)

    first.interrupt()

    assert first.wait() == 130
    assert "stopped at once: what was committed is kept; the same call goes on" in first.text
    assert "Traceback" not in first.text
    gate.unlink()
    second = called(folder, "run", "train.py:study", "--workers", "0")
    assert (second.returncode, second.stdout) == (0, OUTCOME.format(18))
    assert len(set(steps_in(folder))) == 18


@pytest.mark.cluster
def test_a_terminal_has_one_live_line(terminal: Callable[..., Terminal]) -> None:
    one = terminal("run", "train.py:study", "--workers", "1", "--verbose")

    assert one.wait() == 0

    assert "walk: 3 trials (3 completed) | steps: 18 done, 0 owed, 9 saved by sharing" in one.text
    assert "\x1b[2K" in one.text  # the line is written over
    assert "lr=step_decay(0.1, factor=2.0, at=[4])" in one.text
    assert one.text.endswith(OUTCOME.format(18))
