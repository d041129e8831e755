"""The global generators: a function of (training seed, step), and untouched by evaluation."""

import random
import subprocess
import sys
from pathlib import Path
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
