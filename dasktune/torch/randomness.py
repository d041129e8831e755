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
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's global generators; put them back afterwards."""
    numpy = sys.modules.get("numpy")
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    torch_state = torch.get_rng_state()
    cuda_states = [torch.cuda.get_rng_state(device) for device in devices]
    try:
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % (1 << 32))
        torch.default_generator.manual_seed(seed)
        if cuda_states:
            torch.cuda.manual_seed_all(seed)
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        for device, state in zip(devices, cuda_states, strict=True):
            torch.cuda.set_rng_state(state, device)
