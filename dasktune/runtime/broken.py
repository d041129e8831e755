"""Tell errors that break a process for good from those that only end a stage.

After an assertion that failed on the device, or an access to memory that is not there, every call
of CUDA in the process fails, as the driver's interface says of such errors: the context is lost,
and only a new process gets another one.
"""

import sys

_MAX_CHAIN = 20


def breaks_process(error: BaseException | None) -> bool:
    """Say whether an error, or one that it came of, leaves no GPU to the process that it is in.

    Running out of a GPU's memory is no such error: what was allocated can be freed.
    """
    for _ in range(_MAX_CHAIN):
        if error is None:
            return False
        if _is_of_device(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_of_device(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # looked up: who trains without it need not load it
    if isinstance(error, _classes(torch, "OutOfMemoryError")):
        return False
    if isinstance(error, _classes(torch, "AcceleratorError")):  # older versions have none
        return True
    return isinstance(error, RuntimeError) and str(error).startswith("CUDA error")


def _classes(module: object, name: str) -> tuple[type, ...]:
    found = getattr(module, name, None)
    return (found,) if isinstance(found, type) else ()
