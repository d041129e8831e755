"""Read results of studies from the journals in a store, without the code that made them.

Called by users (`dasktune.load_result`), in another script than the one that ran the study, and by
the command line. Reads only, and takes no lock: a study may be running meanwhile, and the store may
be one that this process cannot write to. A damaged state is said to be so, and stays for those who
can make it again.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from dasktune.errors import InvalidStudyError
from dasktune.store.codec import State
from dasktune.store.store import Store
from dasktune.study.header import is_header, read_header
from dasktune.study.recall import recall
from dasktune.study.result import Result
from dasktune.units import Digest


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
    return [replace(result, states=_StatesToRead(store=opened)) for result in results]


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatesToRead:
    """The states of a store that is not changed."""

    store: Store

    def load(self, key: Digest) -> State | None:
        """Return a state; None if it is not stored.

        Raises:
            BackendError: It is damaged, or the store cannot be read.
        """
        return self.store.peek(key)


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
