"""Give random draws a seed of their own, so that nobody else's draws depend on them.

Used wherever the order of things is not part of the training: reading data sets (once in a
process, or never), making batches (here or in a loader worker, ahead of time), evaluating (or not).
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch


def derived_seed(*parts: object) -> int:
    """Make a seed of 63 bits, the same in every process, from numbers and words."""
    text = ":".join(map(str, parts))
    return int.from_bytes(sha256(text.encode()).digest()[:8]) >> 1


@contextmanager
def seeded(seed: int, *, on_devices: bool = True) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's global generators; put them back afterwards.

    Args:
        seed: What to seed them with.
        on_devices: Whether those of GPUs too. To put one of these back is a trace of its own:
            cuDNN's recurrent layers then draw anew what their dropout begins with.
    """
    numpy = sys.modules.get("numpy")
    devices = torch.cuda.default_generators if on_devices else ()  # none before CUDA is used
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    torch_state = torch.get_rng_state()
    device_states = [generator.get_state() for generator in devices]
    try:
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % (1 << 32))
        torch.default_generator.manual_seed(seed)
        for generator in devices:
            generator.manual_seed(seed)
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for generator, state in zip(devices, device_states, strict=True):
            generator.set_state(state)
