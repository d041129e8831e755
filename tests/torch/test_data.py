"""Reading data sets once, and making batches of them, here or in workers."""

import builtins
import importlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset, random_split

import dasktune as dt
from dasktune.errors import StageError
from dasktune.store.codec import encode
from dasktune.study.training_code import training_code
from dasktune.torch import TorchTrainable, datasets
from dasktune.torch.batches import Batch
from dasktune.torch.loader import Knobs, Loader
from tests.torch.engine import advance, fresh, trained
from tests.torch.networks import HP, Augmented, Content, Noisy, examples

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
BATCHES = [Batch(samples=(3, 1, 4), seed=0), Batch(samples=(1,), seed=1)]


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Each test begins as a new process does."""
    datasets._kept.clear()
    yield
    datasets._kept.clear()


def constant(_step: int) -> Mapping[str, Any]:
    return {"lr": 0.1, "batch_size": 4}


reads: list[str] = []
"""What was read, by whom."""


class Reading(TorchTrainable):
    """Says when it reads; splits its data at random."""

    def __init__(self, n: int = 12) -> None:
        self.n = n

    def model(self, hp: HP) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Dropout(0.5))

    def train_data(self) -> "Subset[tuple[Tensor, ...]]":
        reads.append(f"train {self.n}")
        return random_split(examples(self.n, 0), [0.5, 0.5])[0]

    def eval_data(self) -> "Subset[tuple[Tensor, ...]]":
        reads.append(f"eval {self.n}")
        return random_split(examples(self.n, 0), [0.5, 0.5])[1]


def test_data_is_read_once_in_a_process_and_only_when_needed() -> None:
    reads.clear()
    first = fresh(Reading(), constant)
    assert reads == []

    for instance in (first, fresh(Reading(), constant, seed=1), fresh(Reading(), constant)):
        advance(instance, constant, range(2))
    assert reads == ["train 12"]

    first.evaluate()
    fresh(Reading(), constant).evaluate()
    assert reads == ["train 12", "eval 12"]

    fresh(Reading(14), constant).evaluate()
    assert reads == ["train 12", "eval 12", "eval 14"]


def test_instances_that_one_trainable_is_made_of_read_their_own() -> None:
    """Folds of an ensemble, say: within a study all have the fingerprint of the whole."""
    reads.clear()
    with training_code("ensemble"):
        for n in (16, 18, 16):
            fresh(Reading(n), constant).evaluate()
    assert reads == ["eval 16", "eval 18"]


def test_another_class_of_the_same_name_reads_its_own() -> None:
    def define(n: int) -> TorchTrainable:
        class Local(Reading):
            def eval_data(self) -> Content:
                return examples(n, 0)

            def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
                return {"n": len(targets)}

        return Local()

    assert fresh(define(3), constant).evaluate() == {"n": 3}
    assert fresh(define(5), constant).evaluate() == {"n": 5}


def test_data_sets_that_were_not_used_for_longest_go_first() -> None:
    full = range(12, 12 + datasets._MAX_KEPT)
    for n in [*full, 12, 99]:
        fresh(Reading(n), constant).evaluate()

    assert len(datasets._kept) == datasets._MAX_KEPT
    reads.clear()
    for n in (12, 99, 14, 13):
        fresh(Reading(n), constant).evaluate()
    assert reads == ["eval 13"]


def test_reading_leaves_no_trace_in_training() -> None:
    reading = trained(Reading(), constant, 3)
    assert trained(Reading(), constant, 3) == reading
    datasets._kept.clear()

    assert trained(Reading(), constant, 3, cuts=[1, 2], looks=[0]) == reading


def test_random_splits_fit_whoever_calls_first_and_whatever_the_seed() -> None:
    def indices(*hooks: str, seed: int) -> dict[str, list[int]]:
        datasets._kept.clear()
        torch.manual_seed(seed)
        instance = fresh(Reading(), constant, seed=seed)
        loaders = {hook: instance._loader(hook) for hook in hooks}  # type: ignore[arg-type]
        assert loaders.keys() == set(hooks)
        return {name: list(data.indices) for (_, name), data in datasets._kept.items()}  # type: ignore[attr-defined]

    split = indices("train_data", "eval_data", seed=0)

    assert sorted(split["train_data"] + split["eval_data"]) == list(range(12))
    assert indices("eval_data", "train_data", seed=1) == split


def test_a_data_hook_that_sets_an_attribute_is_refused() -> None:
    class Setting(Reading):
        def train_data(self) -> Content:
            self.mean = 0.5
            return super().train_data()

    with pytest.raises(StageError, match=r"train_data\(\) set the attribute 'mean'"):
        advance(fresh(Setting(), constant), constant, [0])


def test_an_instance_that_cannot_be_pickled_works_without_keeping() -> None:
    instance = Reading()
    instance.stream = (i for i in range(3))  # type: ignore[attr-defined]
    instance.setup(constant(0), 0)
    instance.evaluate()

    assert not datasets._kept


MINE = """
import builtins
from torch import nn, zeros
from torch.utils.data import TensorDataset
from dasktune.torch import TorchTrainable

N = 4

class Mine(TorchTrainable):
    def model(self, hp):
        return nn.Linear(2, 2)

    def train_data(self):
        builtins.reads = getattr(builtins, "reads", 0) + 1
        return TensorDataset(zeros(N, 2), zeros(N).long())

    eval_data = train_data

    def metrics(self, outputs, targets):
        return {"n": len(targets)}
"""
TRAIN = """
import builtins, sys, cloudpickle
from pathlib import Path
for name in sys.argv[1:]:
    instance = cloudpickle.loads(Path(name).read_bytes())
    instance.setup({"lr": 0.1, "batch_size": 4}, 0)
    print(instance.evaluate()["n"], builtins.reads)
assert "mine" not in sys.modules
"""


@pytest.mark.slow
def test_data_of_a_class_that_travels_by_value_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of the class is not where training runs; then a name in it gets another value."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("mine")
    cloudpickle.register_pickle_by_value(mine)
    for n in (4, 5):
        mine.N = n  # type: ignore[attr-defined]
        (tmp_path / str(n)).write_bytes(cloudpickle.dumps(mine.Mine()))

    answer = subprocess.run(
        [sys.executable, "-c", TRAIN, "4", "4", "5", "4", "5"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONSAFEPATH": "1"},  # the module must not be found
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.splitlines() == ["4 1", "4 1", "5 2", "4 2", "5 2"]


STUDIED = (
    MINE.replace("zeros(N, 2)", "zeros(size(), 2)").replace("zeros(N)", "zeros(size())")
    + """

def size():
    from its_data import M
    return N + M
"""
)


def test_code_that_changed_in_this_process_reads_its_data_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is the same all the time, and what can be imported is pickled by its name."""
    (tmp_path / "studied.py").write_text(STUDIED)
    (tmp_path / "its_data.py").write_text("M = 10")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.reads", 0, raising=False)
    studied: Any = importlib.import_module("studied")
    helper: Any = importlib.import_module("its_data")
    trainable = studied.Mine()

    def found() -> tuple[float, int]:
        study = dt.Study(
            trainable,
            space={"lr": 0.1, "batch_size": 2, "width": 1},
            tuner=dt.FullTraining(2, report_every=1),
            metric="n",
            mode="max",
            n_trials=1,
        )
        result = dt.run(study, store=tmp_path / f"store{len(stores)}", workers=0)
        stores.append(result)
        assert result.best is not None
        return result.best.metrics["n"], builtins.reads  # type: ignore[attr-defined]

    stores: list[object] = []
    assert found() == (14, 2)
    assert found() == (14, 2)  # training and evaluation data are kept
    studied.N = 5
    assert found() == (15, 4)
    helper.M = 20  # imported where it is used: no pickle shows it
    assert found() == (25, 6)
    studied.N, helper.M = 4, 10
    assert found() == (14, 6)
    for name in ("studied", "its_data"):
        del sys.modules[name]


# Batches


@pytest.mark.parametrize("num_workers", [0, 1])
def test_rows_of_tensors_are_what_collating_samples_gives(num_workers: int) -> None:
    data = TensorDataset(torch.randn(6, 2, 3), torch.arange(6), torch.rand(6).bfloat16())
    fast = Loader(data, None, knobs=Knobs(), device=CPU)
    slow = Loader(Subset(data, range(6)), None, knobs=Knobs(num_workers=num_workers), device=CPU)

    pairs = list(zip(fast.batches(BATCHES), slow.batches(BATCHES), strict=True))

    assert len(pairs) == 2
    assert all(type(left) is type(right) for left, right in pairs)
    assert all(encode(left) == encode(right) for left, right in pairs)


def test_changing_a_batch_in_place_does_not_change_the_data() -> None:
    data = TensorDataset(torch.zeros(6, 2))
    for (rows,) in Loader(data, None, knobs=Knobs(), device=CPU).batches(BATCHES):
        rows.add_(1)

    assert not data.tensors[0].any()


TENSORS = TensorDataset(torch.ones(10, 4), torch.zeros(10, dtype=torch.int64))


@pytest.mark.parametrize(
    ("data", "num_workers"), [(Augmented(10), 0), (Augmented(10), 1), (TENSORS, 0)]
)
def test_a_hook_makes_batches_where_it_is_written(data: Content, num_workers: int) -> None:
    class Collating(Noisy):
        def eval_data(self) -> Content:
            return data

        def collate(self, samples: list[Content]) -> Content:
            return torch.stack([image for image, _ in samples]) * 0, torch.tensor(
                [int(label) for _, label in samples]
            )

        def eval_batch(self, model: nn.Module, batch: Content) -> tuple[Content, Content]:
            assert isinstance(batch, tuple)
            assert not batch[0].any()
            return super().eval_batch(model, batch)

    instance = fresh(Collating(), constant)
    instance.apply_system({"num_workers": num_workers})
    instance.evaluate()
    instance.close()


def test_loader_workers_live_from_the_first_batch_to_close() -> None:
    before = set(multiprocessing.active_children())
    instance = fresh(Noisy(batches_per_step=2), constant)
    instance.apply_system({"num_workers": 2})
    assert set(multiprocessing.active_children()) == before

    advance(instance, constant, [0])
    workers = set(multiprocessing.active_children()) - before
    advance(instance, constant, [1, 2])
    assert len(workers) == 2
    assert set(multiprocessing.active_children()) - before == workers

    instance.close()
    assert set(multiprocessing.active_children()) == before


def test_a_daemonic_process_is_told_why_it_has_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    instance = fresh(Noisy(), constant)
    instance.apply_system({"num_workers": 1})

    with pytest.raises(StageError, match=r"num_workers is 1, but this worker is a daemonic"):
        advance(instance, constant, [0])


def test_threads_are_those_of_the_process() -> None:
    before = torch.get_num_threads()
    Noisy().apply_system({"threads": 1})
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
