"""What a user gives where studies are taken: one, or several that share steps and workers.

Called by everything that takes studies to their end, on real machines or simulated ones.
"""

from collections.abc import Sequence

from dasktune.errors import InvalidStudyError
from dasktune.space.value import shown
from dasktune.study.study import Study


def studies_in(given: object, caller: str) -> list[Study]:
    """Return what is to run together.

    Args:
        given: As the user gave it.
        caller: The function that it was given to, for the message.

    Raises:
        InvalidStudyError: It is no study, and no sequence of studies.
    """
    items = list(given) if isinstance(given, Sequence) else [given]
    studies = [item for item in items if isinstance(item, Study)]
    if not studies or len(studies) < len(items):
        raise InvalidStudyError(
            f"{caller} got {shown(given)}; it must be a study, or a list of studies, at least one"
        )
    return studies
