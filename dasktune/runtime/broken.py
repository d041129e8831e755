"""Tell errors that break a process for good from those that only end a stage.

After an assertion that failed on the device, or an access to memory that is not there, every call
of CUDA in the process fails, as the driver's interface says of such errors: the context is lost,
and only a new process gets another one.
"""

_MAX_CHAIN = 20
_LASTING = (
    "device-side assert",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "invalid program counter",
    "hardware stack error",
    "launch failure",
    "launch timed out",
    "uncorrectable ECC error",
)
"""How the driver words the errors after which it gives the context up; all others pass."""


def breaks_process(error: BaseException | None) -> bool:
    """Say whether an error, or one that it came of, leaves no GPU to the process that it is in.

    Running out of a GPU's memory, or an operation that it does not have, is no such error: what was
    allocated can be freed, and the process goes on.
    """
    for _ in range(_MAX_CHAIN):
        if error is None:
            return False
        if _is_of_device(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_of_device(error: BaseException) -> bool:
    text = str(error)
    return (
        isinstance(error, RuntimeError)
        and text.startswith("CUDA error")
        and any(words in text for words in _LASTING)
    )
