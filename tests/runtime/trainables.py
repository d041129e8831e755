"""Small trainables that note every step they train, and what is to be compared with what they gave.

`Walk` depends on all that the engine must keep in order: global generators, values of each step,
state. Each step is noted in a file, with the state that it begins with, so that a step that was
trained twice is the same line twice, whoever trained it. `truth` trains by hand, without the
runtime, and gives the state after each step of each configuration.
"""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Nanny, Scheduler, SpecCluster

import dasktune as dt
from dasktune.plan.history import key_of
from dasktune.runner import run
from dasktune.runtime.generators import SETUP, seed_generators
from dasktune.runtime.payload import pack, unpack
from dasktune.runtime.plugins import Sharing
from dasktune.store.codec import encode
from dasktune.store.store import Store
from dasktune.study.result import Result
from dasktune.study.study import Study
from dasktune.trial import TrialStatus
from tests.worlds import SPACE, small_study

LIMIT_S = 60.0
"""How long anything here waits for something that should happen at once."""


def wait_until(condition: Callable[[], object], what: str = "it did not happen") -> None:
    """Poll until something holds."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.005)


class Walk:
    """A noisy walk with momentum; lasts as long as told, and can be held at a step."""

    def __init__(self, folder: str, pace_s: float = 0.0) -> None:
        self.folder = folder
        self.pace_s = pace_s

    def setup(self, hp: Mapping[str, Any], seed: int) -> None:
        self.weights = np.random.standard_normal(6) + seed + hp["lr"]
        self.velocity = np.zeros(6)
        self.drawn = [random.random()]

    def step(self, hp: Mapping[str, Any], t: int) -> None:
        before = sha256(encode(self.state_dict())).hexdigest()
        values = ",".join(f"{name}={hp[name]}" for name in sorted(hp))
        with Path(self.folder, "steps").open("a") as notes:
            notes.write(f"{os.getpid()} {t} {before} {values}\n")
        self.happen(hp, t)
        time.sleep(self.pace_s)
        while self._is_held(t):
            time.sleep(0.005)
        self.drawn = [*self.drawn[-2:], random.random()]
        noise = np.random.standard_normal(6) + self.drawn[-1]
        self.velocity = hp["momentum"] * self.velocity - hp["lr"] * (self.weights - noise)
        self.weights = self.weights + self.velocity

    def _is_held(self, t: int) -> bool:
        folder = Path(self.folder)
        limits = [int(path.name.removeprefix("most-")) for path in folder.glob("most-*")]
        has_all = limits and len((folder / "steps").read_text().splitlines()) > min(limits)
        return bool(has_all) or (folder / f"hold-{t}").exists()

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        """What goes wrong at a step; nothing here."""

    def evaluate(self) -> Mapping[str, Any]:
        random.random()
        np.random.random(3)  # the generators are shielded
        return {"accuracy": float(np.exp(-np.abs(self.weights).sum())), "drawn": self.drawn[-1]}

    def state_dict(self) -> object:
        return {"weights": self.weights, "velocity": self.velocity, "drawn": self.drawn}

    def load_state_dict(self, state: Any) -> None:  # noqa: ANN401
        self.weights, self.velocity = state["weights"], state["velocity"]
        self.drawn = list(state["drawn"])


class Raises(Walk):
    """Raises at step 4 of the schedules that decay at step 3."""

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        if t == 4 and hp["lr"] < 0.05:
            raise ArithmeticError(f"no luck with {hp['lr']}")


class Kills(Walk):
    """Ends its process at the first step of the schedules that decay at step 3."""

    def happen(self, hp: Mapping[str, Any], t: int) -> None:
        if t == 3 and hp["lr"] < 0.05:
            os._exit(1)


class Answers(Walk):
    """Gives another answer after the decay at step 3 than it should."""

    def __init__(self, folder: str, answer: str) -> None:
        super().__init__(folder)
        self.answer = answer

    def evaluate(self) -> Mapping[str, Any]:
        if self.velocity @ self.velocity > 0 and self.drawn[-1] > 0:
            return {"text": [1], "nan": {"accuracy": float("nan")}, "none": {"accuracy": None},
                    "unnamed": {"loss": 1.0}, "word": {"accuracy": "good"}}[self.answer]  # type: ignore[return-value]  # fmt: skip
        return super().evaluate()


class Spawns(Walk):
    """Starts a child process in each step, as torch's data loaders do."""

    def happen(self, hp: Mapping[str, Any], t: int) -> None:  # noqa: ARG002
        child = multiprocessing.get_context("fork").Process(target=os.getpid)
        child.start()
        child.join()
        assert child.exitcode == 0


# --- what was trained -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A step() that was made."""

    pid: int
    t: int
    before: str
    """SHA-256 of the state that it began with."""
    values: str

    @property
    def what(self) -> tuple[int, str, str]:
        """The step, whoever made it."""
        return self.t, self.before, self.values


class Notes:
    """The steps that were trained in a folder from now on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "steps"
        self._skipped = len(self._lines())

    def _lines(self) -> list[str]:
        text = self._path.read_text() if self._path.exists() else ""
        # Somebody may be writing: of a line that crosses a page the beginning can be there alone.
        return text[: text.rfind("\n") + 1].splitlines()

    @property
    def calls(self) -> list[Call]:
        """All calls of step(), in order."""
        split = [line.split(" ", 3) for line in self._lines()[self._skipped :]]
        return [Call(int(pid), int(t), before, values) for pid, t, before, values in split]

    @property
    def n_distinct(self) -> int:
        """How many different steps were trained."""
        return len({call.what for call in self.calls})

    @property
    def repeated(self) -> Counter[tuple[int, str, str]]:
        """Steps that were trained more than once, and how often more."""
        return +(Counter(c.what for c in self.calls) - Counter({c.what for c in self.calls}))

    def in_flight(self, pids: Iterable[int], store: Store) -> Counter[tuple[int, str, str]]:
        """Steps that processes had trained since their last commit when they ended."""
        kept = {record.sha256 for record in store.records()}
        found: Counter[tuple[int, str, str]] = Counter()
        for pid in pids:
            for call in reversed([call for call in self.calls if call.pid == pid]):
                found[call.what] += 1
                if call.t == 0 or call.before in kept:
                    break
        return found

    @contextmanager
    def held(self, *steps: int) -> Iterator[None]:
        """Let whoever comes to these steps wait there."""
        paths = [self.folder / f"hold-{t}" for t in steps]
        for path in paths:
            path.touch()
        try:
            yield
        finally:
            for path in paths:
                path.unlink(missing_ok=True)

    @contextmanager
    def at_most(self, n: int) -> Iterator[None]:
        """Let whoever begins with a step after `n` more wait there."""
        limit = self.folder / f"most-{len(self._lines()) + n}"
        limit.touch()
        try:
            yield
        finally:
            limit.unlink()

    def wait_for(self, n: int, t: int | None = None) -> list[Call]:
        """Wait until so many calls, of a step or of any, have been made."""

        def found() -> list[Call]:
            return [call for call in self.calls if t is None or call.t == t]

        wait_until(lambda: len(found()) >= n, f"no {n} calls of step {t}: {self.calls}")
        return found()

    @contextmanager
    def killing(self, t: int) -> Iterator[Future[int]]:
        """Hold whoever comes to a step, kill one of them, and let the others go; gives its pid."""

        def kill_one() -> int:
            with hold:
                pid = self.wait_for(1, t)[-1].pid
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not Path(f"/proc/{pid}").exists())
            return pid

        with ThreadPoolExecutor(1) as pool, ExitStack() as hold:
            hold.enter_context(self.held(t))
            yield pool.submit(kill_one)


@dataclass(frozen=True)
class Made:
    """A state as it must be."""

    step: int
    sha256: str
    metrics: Mapping[str, float]


def truth(study: Study) -> dict[str, Made]:
    """Train every configuration of a study alone and in one go, by hand: each state by key.

    What it notes in the folder counts as any other call: take `Notes` afterwards.
    """
    states: dict[str, Made] = {}
    payload = pack(study.trainable)  # type: ignore[arg-type]
    for point in study.space.points():
        configuration = study.space.configuration(point)
        trainable = unpack(payload)
        seed_generators(study.training_seed, SETUP)
        trainable.setup(configuration.at(0), study.training_seed)
        for t in range(study.max_steps):
            seed_generators(study.training_seed, t)
            trainable.step(configuration.at(t), t)
            key = key_of(study.family, configuration, t + 1)
            digest = sha256(encode(trainable.state_dict())).hexdigest()
            states[key] = Made(t + 1, digest, trainable.evaluate())
    return states


def assert_exact(
    result: Result, store: Store, states: Mapping[str, Made], *, has_ends: bool = True
) -> None:
    """All that is stored, and all that was reported, is what it must be, bit for bit.

    The last states of all trials are there, unless it is said that they need not be.
    """
    records = {record.key: record for record in store.records()}
    for key, record in records.items():
        if key not in states:
            continue  # of another study
        made = states[key]
        assert (record.step, record.sha256) == (made.step, made.sha256), f"{record}, not {made}"
        assert record.metrics is None or record.metrics == made.metrics, f"{record}, not {made}"
    study = result.study
    for trial in result.trials:
        for report in trial.reports:
            made = states[key_of(study.family, trial.configuration, report.step)]
            assert report.metrics == made.metrics
        if has_ends and trial.status is TrialStatus.COMPLETED:
            end = key_of(study.family, trial.configuration, trial.steps_requested)
            assert store.load(end) is not None


def study_of(trainable: object, **changes: Any) -> Study:  # noqa: ANN401
    """Ten trials of eight steps that part at steps 0, 3, 5 and 6."""
    return small_study(trainable=trainable, **changes)


# --- drivers in processes of their own ------------------------------------------------------------

SPACES: dict[str, dict[str, object]] = {
    "all": SPACE,
    "early": SPACE | {"lr": dt.choice([dt.constant(0.1), dt.step_decay(0.1, factor=0.1, at=[3])])},
    "late": SPACE
    | {
        "lr": dt.choice(
            [dt.step_decay(0.1, factor=0.1, at=[3]), dt.piecewise({0: 0.1, 6: 0.01}), 0.2]
        )
    },
}
TUNERS: dict[str, Any] = {
    "full": dt.FullTraining(8),
    "halving": dt.SuccessiveHalving(rungs=[2, 4, 8], reduction_factor=2),
    "asha": dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2),
}
LONG: dict[str, Any] = {"long": dt.FullTraining(10_000)}
"""For drivers that are killed before they are through."""


@dataclass(frozen=True)
class Plan:
    """What a driver runs."""

    folder: str
    store: str
    address: str | None = None
    """Of a scheduler; None: in the driver's process."""
    space: str = "all"
    tuner: str = "full"
    pace_s: float = 0.0
    name: str = "study"
    changes: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] | None = None
    patience_s: float = 30.0
    """How long the client tries to reach a scheduler, or to reach it again."""

    def study(self) -> Study:
        return study_of(
            Walk(self.folder, self.pace_s),
            space=SPACES[self.space],
            tuner=(TUNERS | LONG)[self.tuner],
            name=self.name,
            **self.changes,
        )

    def run(self) -> Result:
        if self.address is None:
            return run(self.study(), store=self.store, workers=0)
        with Client(self.address, timeout=self.patience_s) as client:
            return run(self.study(), store=self.store, client=client, resources=self.resources)


def _drive(plan: Mapping[str, Any], answer: str) -> None:
    text = ""
    try:
        result = Plan(**plan).run()
        text = f"{result.status.value if result.status else None}: {result.reason}"
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # or it would end before it has answered
        text = f"{type(error).__name__}: {error}"
        raise
    finally:
        Path(answer).write_text(text)


class Driver:
    """A process that runs a plan."""

    def __init__(self, plan: Plan) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["dasktune.runner", "tests.runtime.trainables"])
        self._answer = Path(plan.folder, f"answer-{time.monotonic_ns()}")
        self.process = context.Process(target=_drive, args=(asdict(plan), str(self._answer)))
        self.process.start()
        assert self.process.pid is not None
        self.pid = self.process.pid

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def end(self) -> str:
        """Wait for its end; return what it says."""
        self.process.join(LIMIT_S)
        assert self.process.exitcode is not None, "the driver does not end"
        return self._answer.read_text() if self._answer.exists() else "killed"


@contextmanager
def driving(*plans: Plan) -> Iterator[list[Driver]]:
    """Start drivers; none is left at the end."""
    drivers: list[Driver] = []
    try:
        for plan in plans:
            drivers.append(Driver(plan))  # noqa: PERF401  (those that were started are killed)
        yield drivers
    finally:
        for driver in drivers:
            driver.process.kill()
            driver.process.join()


@contextmanager
def cluster_of(*resources: Mapping[str, float]) -> Iterator[SpecCluster]:
    """A cluster as others start them, with Dask's defaults: a worker for each set of resources."""
    options = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"}
    with SpecCluster(
        scheduler={"cls": Scheduler, "options": options},
        workers={i: worker_of(each) for i, each in enumerate(resources)},
        # Dask would silence all handlers at its logger, that of `caplog` too.
        silence_logs=False,
    ) as cluster:
        yield cluster


def worker_of(resources: Mapping[str, float], *, nthreads: int = 1) -> dict[str, Any]:
    """A worker of a cluster."""
    options = {"host": "127.0.0.1", "nthreads": nthreads, "memory_limit": 0}
    return {"cls": Nanny, "options": {**options, "resources": dict(resources)}}


def leased(cluster: SpecCluster) -> dict[str, set[str]]:
    """Who has leased which workers, by driver, as the scheduler knows it."""
    plugin = cluster.scheduler.plugins.get(Sharing.name)
    drivers: Sequence[Any] = [] if plugin is None else list(plugin._leases._drivers.values())
    return {driver.topic: set(driver.workers) for driver in drivers}


def tasks_of(cluster: SpecCluster) -> list[str]:
    """The keys of our tasks on the scheduler."""
    return [key for key in list(cluster.scheduler.tasks) if str(key).startswith("dasktune")]
