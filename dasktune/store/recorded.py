"""Read results of studies from the journals in a store, without the code that made them.

Called by users (`dasktune.load_result`), in another script than the one that ran the study, and by
the command line. Reads only, and takes no lock: a study may be running meanwhile.
"""

from dataclasses import replace
from pathlib import Path

from dasktune.errors import InvalidStudyError
from dasktune.store.store import Store
from dasktune.study.header import is_header, read_header
from dasktune.study.recall import recall
from dasktune.study.result import Result


def load_result(name: str, store: str | Path | Store = "./dasktune-store") -> Result:
    """Return the result of a study as it stands in its journal, finished or not.

    Its states can be loaded by `load_state`, and it can be the `warm_start` of another study. Its
    training code is not here, so it has no `best_model()`.

    Args:
        name: Of the study.
        store: Where it was run; a path, a URL, or an open store.

    Raises:
        InvalidStudyError: There is no such study in the store.
        BackendError: Its journal cannot be read.

    Example:
        A second study that learns from the first::

            earlier = dasktune.load_result("fashion")
            study = dasktune.Study(..., warm_start=[earlier])
    """
    results = load_results(name, store)
    found = {result.study.name: result for result in results}
    if name in found:
        return found[name]
    raise InvalidStudyError(
        f"study is {name!r}, which names a run of several: {', '.join(found)}; name one of these"
    )


def load_results(name: str, store: str | Path | Store) -> list[Result]:
    """Return the results of all studies that ran together with one of this name.

    Args:
        name: Of a study, or of the journal of a run.
        store: Where it was run.

    Raises:
        InvalidStudyError: There is no such study in the store, or several journals have one.
        BackendError: Its journal cannot be read.
    """
    opened = store if isinstance(store, Store) else Store(store)
    results = recall(opened.journal(_journal_of(opened, name)).lines())
    return [replace(result, states=opened) for result in results]


def _journal_of(store: Store, study: str) -> str:
    """Return the name of the journal that a study has, alone or with others."""
    names = store.studies()
    if study in names:
        return study
    found = [name for name in names if study in _studies_in(store, name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(names) or "none"
    if found:
        raise InvalidStudyError(f"study {study!r} is in {', '.join(found)}: name one of these")
    raise InvalidStudyError(f"study is {study!r}; the studies in {store.url} are: {known}")


def _studies_in(store: Store, journal: str) -> list[str]:
    first = next(store.journal(journal).lines(), "")
    return [study.name for study in read_header(first)] if is_header(first) else []
