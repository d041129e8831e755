"""The global generators: a function of (training seed, step), and untouched by evaluation."""

import importlib
import json
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from types import ModuleType

import numpy as np
import pytest

from dasktune.runtime import generators
from dasktune.runtime.generators import (
    SETUP,
    keep_libraries_off,
    seed_generators,
    shielded_generators,
)
from tests.runtime.trainables import Walk, study_of, truth


def draws() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def test_what_is_drawn_depends_on_training_seed_and_step_only() -> None:
    seen = {}
    for seed in (0, 1, -3):
        for step in (SETUP, 0, 1, 10**9):
            draws()
            seed_generators(seed, step)
            seen[seed, step] = draws()
    assert len(set(seen.values())) == len(seen)
    for (seed, step), drawn in seen.items():
        seed_generators(seed, step)
        assert draws() == drawn


def test_seeds_are_pinned() -> None:
    # They decide results: another value here makes every stored state another one's.
    seed_generators(0, 0)
    assert draws() == (0.7684607495764555, 0.12474108992006483)


@pytest.mark.torch
def test_torch_is_seeded_where_it_is_loaded() -> None:
    torch = pytest.importorskip("torch")
    seed_generators(3, 4)
    first = torch.rand(2).tolist()
    with shielded_generators():
        torch.rand(5)
    second = torch.rand(2).tolist()
    seed_generators(3, 4)
    assert torch.rand(4).tolist() == first + second


@pytest.mark.torch
@pytest.mark.parametrize("has_devices", [True, False])
def test_torch_draws_the_same_with_devices_and_without(
    monkeypatch: pytest.MonkeyPatch, *, has_devices: bool
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(generators, "_has_devices", lambda: has_devices)
    seed_generators(3, 4)
    assert torch.initial_seed() == 6112854359223626493
    assert torch.rand(1).item() == 0.18912887573242188


def test_evaluation_moves_nothing_also_if_it_raises() -> None:
    seed_generators(0, 3)
    expected = [draws(), draws()]
    seed_generators(0, 3)
    found = [draws()]
    with pytest.raises(ZeroDivisionError), shielded_generators():
        _ = draws()[0] / 0
    assert [*found, draws()] == expected


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys; from dasktune.runtime.generators import *;"
        "seed_generators(0, 1); print([m for m in ('numpy', 'torch') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == "[]"


def test_a_library_that_is_kept_off_draws_from_a_generator_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library, stranger = ModuleType("some_library.part"), ModuleType("stranger")
    for module in (library, stranger):
        vars(module)["random"] = random
        monkeypatch.setitem(sys.modules, module.__name__, module)
    keep_libraries_off("some_library")
    state = random.getstate()
    theirs = vars(library)["random"]
    theirs.seed(1)
    theirs.shuffle(theirs.sample(range(99), 10))
    assert 0 <= theirs.uniform(0, 1) + theirs.Random(3).random() < 2
    assert random.getstate() == state
    assert vars(stranger)["random"] is random


def test_another_training_seed_gives_other_states_under_other_keys(tmp_path: Path) -> None:
    one, two = (
        truth(study_of(Walk(str(tmp_path)), training_seed=seed, space={"lr": 0.1, "momentum": 0.9}))
        for seed in (0, 1)
    )
    assert not one.keys() & two.keys()
    assert not {m.sha256 for m in one.values()} & {m.sha256 for m in two.values()}


LATE = """
import json, sys
from pathlib import Path
import dasktune as dt
from dasktune.store.store import Store

class InSetup:
    def setup(self, hp, seed):
        import torch
        self.weights = torch.rand(3)

    def step(self, hp, t):
        self.weights += hp["lr"]

    def evaluate(self):
        return {"accuracy": float(self.weights.sum())}

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]

class InStep(InSetup):
    def setup(self, hp, seed):
        self.weights = 0.0

    def step(self, hp, t):
        import torch
        self.weights = self.weights + hp["lr"] * torch.rand(3)

made = []
for lr in map(float, sys.argv[2:]):
    study = dt.Study(
        globals()[sys.argv[1]](), space={"lr": dt.piecewise({0: 0.5, 2: lr})}, n_trials=1,
        tuner=dt.SuccessiveHalving(min_steps=2, max_steps=4), metric="accuracy", mode="max",
    )
    folder = f"store-{lr}"
    assert "torch" in sys.modules or not made
    dt.run(study, store=folder, workers=0)
    made += [(record.key, record.sha256) for record in Store(Path(folder)).records()]
print(json.dumps(made))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("place", ["InSetup", "InStep"])
def test_a_library_that_training_code_imports_late_is_seeded_all_the_same(
    tmp_path: Path, place: str
) -> None:
    """One key has one content, whichever trial comes first in a process."""
    (tmp_path / "late.py").write_text(LATE)
    made = set()
    for order in (["0.1", "0.2"], ["0.2", "0.1"]):
        folder = tmp_path / "-".join(order)
        folder.mkdir()
        answer = subprocess.run(
            [sys.executable, str(tmp_path / "late.py"), place, *order],
            cwd=folder, check=True, capture_output=True, text=True,
        )  # fmt: skip
        made |= {(key, content) for key, content in json.loads(answer.stdout)}

    assert len({key for key, _ in made}) == 3  # one state is common
    assert len(made) == 3


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that counts as a library to seed; it draws when it is loaded, and fails at first."""
    (tmp_path / "late_library.py").write_text(
        "import builtins, random\n"
        "random.random()\n"
        "seeds = []\n"
        "if not hasattr(builtins, 'may_load'): raise ImportError('not yet')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(
        generators._SEEDING, "late_library", lambda module, seed: module.seeds.append(seed)
    )
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(generators._LATE, "_seeds", {})
    monkeypatch.delitem(sys.modules, "late_library", raising=False)
    return "late_library"


def test_a_late_library_is_seeded_once_and_leaves_other_generators(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed_generators(0, 0)
    seed_generators(0, 1)
    expected = random.getstate()
    assert find_spec(late) is not None  # asking whether it is there loads nothing
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(late)
    monkeypatch.setattr("builtins.may_load", True, raising=False)
    module = importlib.import_module(late)

    assert random.getstate() == expected
    seed_generators(0, 0)
    seed_generators(0, 1)
    assert module.seeds[0] == module.seeds[2] != module.seeds[1]
    assert len(module.seeds) == 3
    assert importlib.import_module(late) is module
    assert "exec_module" not in vars(module.__loader__)
    sys.modules.pop(late)


def test_a_library_that_another_thread_imports_takes_nothing_back_from_a_step(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.may_load", True, raising=False)
    seed_generators(0, 5)
    _, second = random.random(), random.random()
    seed_generators(0, 5)
    thread = Thread(target=importlib.import_module, args=(late,))
    thread.start()
    thread.join()  # what was drawn meanwhile, here by the library itself, stays drawn

    assert random.random() == second
    sys.modules.pop(late)


@pytest.mark.torch
def test_every_device_that_cuda_sees_is_seeded_and_shielded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    devices = tuple(torch.Generator() for _ in range(2))
    monkeypatch.setattr(generators, "_has_devices", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", devices)
    seed_generators(3, 4)
    assert {device.initial_seed() for device in devices} == {torch.initial_seed()}
    before = [device.get_state() for device in devices]
    with shielded_generators():
        for device in devices:
            torch.rand(3, generator=device)
    assert all(map(torch.equal, before, [device.get_state() for device in devices]))
