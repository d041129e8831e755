"""Seed the global generators for each step, and shield them around evaluation.

Training must depend on (training seed, step) and nothing else: not on the trial, the worker, or
where a stage begins. Only the generators of libraries that are loaded are touched.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from types import ModuleType

SETUP = -1
"""Stands for `setup` where a step is asked for."""


def seed_generators(training_seed: int, step: int) -> None:
    """Seed Python's, NumPy's and torch's global generators for a step, or for `SETUP`."""
    seed = int.from_bytes(sha256(f"dasktune-seed-1:{training_seed}:{step}".encode()).digest()[:8])
    random.seed(seed)
    numpy, torch = _loaded("numpy"), _loaded("torch")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
    if torch is not None:
        if _has_devices():
            torch.manual_seed(seed >> 1)  # also of every device
        else:
            # The same; where there are no devices torch would note for each kind of them who asked.
            torch.default_generator.manual_seed(seed >> 1)


@contextmanager
def shielded_generators() -> Iterator[None]:
    """Leave the global generators as they were, whatever happens inside."""
    numpy, torch = _loaded("numpy"), _loaded("torch")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.get_rng_state() if torch is not None else None
    cuda_states = torch.cuda.get_rng_state_all() if _has_cuda(torch) and torch is not None else None
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)
            if cuda_states is not None:
                torch.cuda.set_rng_state_all(cuda_states)


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


@cache
def _has_devices() -> bool:
    """Say whether torch may have generators besides the one of the CPU."""
    accelerator = getattr(sys.modules["torch"], "accelerator", None)  # older versions have none
    return accelerator is None or bool(accelerator.is_available())


def _loaded(name: str) -> ModuleType | None:
    return sys.modules.get(name)


def _has_cuda(torch: ModuleType | None) -> bool:
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
