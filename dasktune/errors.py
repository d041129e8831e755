"""The errors a caller can meet, told apart by what the caller can do about them.

Every message is one sentence: what is wrong, the value, and what would be right. Preemption,
stopping and pruning are events or commands, never exceptions.
"""


class DasktuneError(Exception):
    """Root of all errors raised on purpose by dasktune."""


class InvalidStudyError(DasktuneError, ValueError):
    """The input is wrong: fix it and call again."""


class StageError(DasktuneError):
    """Work failed: a stage raised, or gave an answer that no study can use."""


class BackendError(DasktuneError):
    """The world failed: workers, storage or records are not what they must be."""
