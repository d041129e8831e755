"""Notice what a trainable does to its process: to the global generators, and to torch's threads.

Called by `check`. Only libraries that are loaded are asked.
"""

import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dasktune.runtime.generators import shielded_generators
from dasktune.store.codec import encode


@contextmanager
def noticed_draws(moved: list[str]) -> Iterator[None]:
    """Put into a list the libraries whose global generator is not as it was; put it back."""
    with shielded_generators():
        before = _global_states()
        yield
        after = _global_states()
        moved += [name for name, state in after.items() if state != before.get(name, state)]


def _global_states() -> dict[str, bytes]:
    states: dict[str, bytes] = {"Python": pickle.dumps(random.getstate())}
    numpy: Any = sys.modules.get("numpy")
    torch: Any = sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = pickle.dumps(numpy.random.get_state())
    if torch is not None:
        states["torch"] = encode(torch.get_rng_state())
        for number, generator in enumerate(torch.cuda.default_generators):  # none before its use
            states[f"torch on cuda:{number}"] = encode(generator.get_state())
    return states


@contextmanager
def same_threads() -> Iterator[None]:
    """Leave torch with as many threads as it had: a trainable may have set another number."""
    torch: Any = sys.modules.get("torch")
    n_threads = None if torch is None else torch.get_num_threads()
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(n_threads)
