"""Seed the global generators for each step, and shield them around evaluation.

Training must depend on (training seed, step) and nothing else: not on the trial, the worker, or
where a stage begins. Nothing is loaded for it: a library that training code imports later, inside
`setup` or a step, is seeded as soon as it is there, as if it had been there before.
"""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType
from typing import Any

SETUP = -1
"""Stands for `setup` where a step is asked for."""


def seed_generators(training_seed: int, step: int) -> None:
    """Seed Python's, NumPy's and torch's global generators for a step, or for `SETUP`."""
    seed = int.from_bytes(sha256(f"dasktune-seed-1:{training_seed}:{step}".encode()).digest()[:8])
    random.seed(seed)
    for name, seed_library in _SEEDING.items():
        module = _loaded(name)
        if module is None:
            _LATE.expect(name, seed)
        else:
            seed_library(module, seed)


def _seed_numpy(numpy: ModuleType, seed: int) -> None:
    numpy.random.seed(seed % (1 << 32))


def _seed_torch(torch: ModuleType, seed: int) -> None:
    if not _has_devices():
        # The same; where there are no devices torch would note for each kind of them who asked.
        torch.default_generator.manual_seed(seed >> 1)
        return
    torch.manual_seed(seed >> 1)  # also of every device that torch counts
    for generator in torch.cuda.default_generators:  # it may count fewer than CUDA sees
        generator.manual_seed(seed >> 1)


_SEEDING: dict[str, Callable[[ModuleType, int], None]] = {
    "numpy": _seed_numpy,
    "torch": _seed_torch,
}


@contextmanager
def shielded_generators() -> Iterator[None]:
    """Leave the global generators as they were, whatever happens inside."""
    numpy, torch = _loaded("numpy"), _loaded("torch")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.get_rng_state() if torch is not None else None
    devices = torch.cuda.default_generators if torch is not None else ()  # none before CUDA is used
    device_states = [generator.get_state() for generator in devices]
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)
        for generator, state in zip(devices, device_states, strict=True):
            generator.set_state(state)


def keep_libraries_off(*packages: str) -> None:
    """Let libraries that draw on other threads draw from a generator of their own.

    At each heartbeat a Dask worker's event loop measures the size of a message by a sample of it,
    drawn from Python's global generator: in the middle of a step that would change its result.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and vars(module).get("random") is random:
            vars(module)["random"] = _LIBRARIES


def _unshared() -> ModuleType:
    """Return the module `random` with another generator behind its functions."""
    module, generator = ModuleType("random"), random.Random()
    for name, thing in vars(random).items():
        is_method = isinstance(getattr(thing, "__self__", None), random.Random)
        setattr(module, name, getattr(generator, name) if is_method else thing)
    return module


_LIBRARIES = _unshared()


class _LateLibraries(MetaPathFinder):
    """Seeds libraries that are imported after a step began.

    Finds nothing itself: it is asked first, and has what the others find seeded once it is loaded.
    It stays in `sys.meta_path`: another thread may be going through that list.
    """

    def __init__(self) -> None:
        self._seeds: dict[str, tuple[int, int]] = {}  # and the thread that trains

    def expect(self, name: str, seed: int) -> None:
        """Have a library seeded as soon as it is loaded."""
        self._seeds[name] = seed, get_ident()
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return what the other finders find, if it is an expected library."""
        if fullname not in self._seeds:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            self._seed_after_loading(fullname, spec.loader)
        return spec

    def _seed_after_loading(self, name: str, loader: Any) -> None:  # noqa: ANN401
        load = loader.exec_module

        def load_and_seed(module: ModuleType) -> None:
            del loader.exec_module  # it was set on this loader, which is for this module alone
            python_state = random.getstate()
            try:
                load(module)
            finally:
                if get_ident() == self._seeds[name][1]:  # else a step may be drawing meanwhile
                    random.setstate(python_state)  # what a library draws at first is its own
            seed, _ = self._seeds.pop(name)  # of the step that is on now
            _SEEDING[name](module, seed)

        loader.exec_module = load_and_seed


_LATE = _LateLibraries()


@cache
def _has_devices() -> bool:
    """Say whether torch may have generators besides the one of the CPU."""
    accelerator = getattr(sys.modules["torch"], "accelerator", None)  # older versions have none
    return accelerator is None or bool(accelerator.is_available())


def _loaded(name: str) -> ModuleType | None:
    return sys.modules.get(name)
