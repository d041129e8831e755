"""Read a journal without the studies that made it: what they were is told by its first line.

Called by the command line, for `explain`. The core is rebuilt as for a resumed run, so the results
are those of the run.
"""

from collections.abc import Iterable

from dasktune.errors import BackendError
from dasktune.study.extension import last_timeline
from dasktune.study.header import is_header, read_header
from dasktune.study.result import Result, results_of
from dasktune.study.timeline import replay


def recall(lines: Iterable[str]) -> list[Result]:
    """Return the results of a journal's studies as they stand at its last line.

    Raises:
        BackendError: The journal does not say what its studies were, or does not fit them.
    """
    kept = last_timeline(lines)
    if not kept or not is_header(kept[0]):
        raise BackendError(
            "the journal does not say in its first line what its studies were, as one that "
            "dasktune.run writes does; ask where their code is: dasktune.explain(result)"
        )
    core, timeline = replay(read_header(kept[0]), kept)
    return results_of(core, timeline)
