"""Keep data sets in the process, so that the instance for the next stage does not read them again.

Data sets are found by what made them: the hook, and the trainable as it was before `setup`, its
code and its attributes.
"""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from threading import Lock
from typing import TypeAlias

import cloudpickle

from dasktune.study.training_code import training_code_name
from dasktune.torch.loader import Samples

Origin: TypeAlias = tuple[type, str]
"""The class, as it is in this process, and a name that its code and its attributes decide."""

_MAX_KEPT = 8
"""Data sets; those of four trainables."""

_kept: OrderedDict[tuple[Origin, str], Samples] = OrderedDict()
_lock = Lock()


def origin(trainable: object) -> Origin | None:
    """Identify a trainable within this process; None if it cannot be.

    Its pickle does, which tells apart several instances that one trainable is made of, and holds
    the code of a class of a script or a notebook, and of one that came by value. It lacks that of a
    class that can be imported; in a study the fingerprint has it. Equal ones may differ by accident
    of pickling.
    """
    try:
        content = cloudpickle.dumps(trainable)
    except Exception:  # whatever its attributes raise; it works all the same, only not as fast
        return None
    return type(trainable), f"{training_code_name()} {sha256(content).hexdigest()}"


def kept(maker: Origin | None, hook: str, read: Callable[[], Samples]) -> Samples:
    """Return the data set that is kept for a hook of a trainable, or read it and keep it."""
    if maker is None:
        return read()
    with _lock:
        key = (maker, hook)
        if key not in _kept:
            _kept[key] = read()
        _kept.move_to_end(key)
        while len(_kept) > _MAX_KEPT:
            _kept.popitem(last=False)
        return _kept[key]
