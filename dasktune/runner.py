"""Run studies on real machines: join core, backend and store, and go on from what is stored.

The one door through which a user's call reaches everything below. What happened is journaled before
it is acted on; the same call with the same store replays the journal and goes on.
"""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast, overload

from distributed import Client

from dasktune.clusters.local import local_workers
from dasktune.display import watching
from dasktune.errors import BackendError, InvalidStudyError
from dasktune.runtime.dask import DaskBackend
from dasktune.runtime.interrupt import interrupts, interrupts_ignored
from dasktune.runtime.payload import Payload, early_imports, pack
from dasktune.runtime.place import Place, placed
from dasktune.runtime.refusal import refuse_unguarded_script, refuse_what_cannot_travel
from dasktune.runtime.room import Room
from dasktune.runtime.serial import SerialBackend
from dasktune.runtime.stage import Workplace
from dasktune.runtime.stalls import Stalls
from dasktune.runtime.task import facts_of_process
from dasktune.store.journal_file import Journal
from dasktune.store.store import Store
from dasktune.study.commands import Command
from dasktune.study.core import StudyCore
from dasktune.study.drive import drive
from dasktune.study.events import BY_USER, Event
from dasktune.study.extension import (
    as_begun,
    extended,
    has_failed_in,
    is_spent,
    last_timeline,
    once_more,
    refuse_other_code,
)
from dasktune.study.given import studies_in
from dasktune.study.header import changes_since, families_in, is_header, write_header
from dasktune.study.journal import write_entry
from dasktune.study.result import Result, results_of
from dasktune.study.study import Study
from dasktune.study.timeline import Entry, replay
from dasktune.units import Digest, Seconds

if TYPE_CHECKING:
    from dasktune.study.ports import Trainable

logger = logging.getLogger(__name__)

DEFAULT_STORE = "./dasktune-store"
"""Where states and journals are, if the user does not say."""


@overload
def run(
    study: Study,
    *,
    client: Client | None = None,
    store: str | Path | Store = DEFAULT_STORE,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    mends_allocator: bool | None = None,
    on_event: Callable[[Entry], None] | None = None,
    verbose: bool = False,
) -> Result: ...
@overload
def run(
    study: Sequence[Study],
    *,
    client: Client | None = None,
    store: str | Path | Store = DEFAULT_STORE,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    mends_allocator: bool | None = None,
    on_event: Callable[[Entry], None] | None = None,
    verbose: bool = False,
) -> list[Result]: ...
def run(  # noqa: PLR0913  (all keywords: where and how, in one place)
    study: Study | Sequence[Study],
    *,
    client: Client | None = None,
    store: str | Path | Store = DEFAULT_STORE,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    mends_allocator: bool | None = None,
    on_event: Callable[[Entry], None] | None = None,
    verbose: bool = False,
) -> Result | list[Result]:
    """Run one study, or several that share steps and workers, to the end.

    The same call with the same store goes on where an earlier one was stopped, killed or
    interrupted; what has finished answers from the store, and what failed tries again. Ctrl-C stops
    at the next step boundary, a second one at once; nothing committed is lost.

    Args:
        study: One study, or a sequence.
        client: Of a running cluster, which is joined and never closed; None: workers on this
            computer are started, and stopped at the end.
        store: Where states and journals are kept; a path or a URL that every worker can reach. For
            `s3://` the usual variables of the environment (AWS_ACCESS_KEY_ID, …) are taken, here
            and by workers that are started here; elsewhere give a `dasktune.Store` with
            `storage_options`.
        workers: How many workers to start on this computer, by default one a core; 0 runs the
            stages in this process, one at a time, for debugging.
        resources: What each slot takes of a worker's resources, such as `{"GPU": 0.5}`; by default
            a GPU on workers that offer any.
        mends_allocator: Whether to let worker processes keep the memory that training frees and
            takes again at every step; by default if no other client uses them now.
        on_event: Told every entry of the timeline, as it is decided.
        verbose: Whether to show a table of trials besides the line that says how the run gets on.

    Returns:
        A result, or a list of them for a sequence.

    Raises:
        InvalidStudyError: Something does not fit, before any work starts.
        BackendError: The workers, the store or the journal failed.
    """
    place = placed(
        client=client,
        store=store,
        workers=workers,
        resources=resources,
        mends_allocator=mends_allocator,
        on_event=on_event,
        verbose=verbose,
    )
    results = _run(studies_in(study, "run()"), place, _begun)
    return results[0] if isinstance(study, Study) else results


def extend(  # noqa: PLR0913  (the keywords of `run`)
    study: Study,
    *,
    client: Client | None = None,
    store: str | Path | Store = DEFAULT_STORE,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    mends_allocator: bool | None = None,
    on_event: Callable[[Entry], None] | None = None,
    verbose: bool = False,
) -> Result:
    """Go on with a study as it is described now: more trials, more steps, a larger space.

    The trials that there were come first, as they were drawn, and find their states and metrics in
    the store; the tuner decides anew about all of them. The same call again goes on where this one
    was stopped, and so does `run` with the study as it is now.

    Args:
        study: Of the name of a study in the store, with the same training code.
        client: Of a running cluster; this and what follows is as for `run`.
        store: Where the study is.
        workers: How many to start on this computer.
        resources: What each slot takes of a worker's resources.
        mends_allocator: Whether worker processes keep the memory that training frees.
        on_event: Told every entry of the timeline.
        verbose: Whether to show a table of trials.

    Raises:
        InvalidStudyError: There is no such study, its code has changed, or one of its trials has
            no place in the new space.
        BackendError: The workers, the store or the journal failed.
    """
    place = placed(
        client=client,
        store=store,
        workers=workers,
        resources=resources,
        mends_allocator=mends_allocator,
        on_event=on_event,
        verbose=verbose,
    )
    if not isinstance(study, Study):
        raise InvalidStudyError(f"extend() got {study!r}; it must be a study, one at a time")
    return _run([study], place, _extended)[0]


_Chosen: TypeAlias = tuple[list[str], list[Study]]
"""The timeline to go on with, empty for a new one, and the studies that it is of."""


def _begun(journal: Journal, studies: list[Study]) -> _Chosen:
    """Go on with the last timeline of a journal, if its studies are these.

    Where all that there is has failed, studies that are otherwise now begin anew.
    """
    lines = last_timeline(journal.lines())
    if not lines or not is_header(lines[0]):
        return lines, studies
    if changes_since(lines[0], studies) and is_spent(journal.lines()):
        return [], studies
    return lines, as_begun(lines[0], studies)


def _extended(journal: Journal, studies: list[Study]) -> _Chosen:
    """Begin a timeline that takes the trials of the last one over, unless this was done before."""
    (study,) = studies
    lines = last_timeline(journal.lines())
    if not lines or not is_header(lines[0]):
        raise InvalidStudyError(
            f"there is no study {study.name!r} in the store to extend; dasktune.run(study) begins "
            "one"
        )
    if not changes_since(lines[0], studies):
        return lines, as_begun(lines[0], studies)
    if families_in(lines[0]) != [study.family]:
        refuse_other_code(lines[0], study, is_spent=is_spent(journal.lines()))
    return [], [extended(lines, study)]


def _run(
    studies: list[Study],
    place: Place,
    choose: Callable[[Journal, list[Study]], _Chosen],
) -> list[Result]:
    """Run studies with the timeline that `choose` makes of their journal."""
    refuse_unguarded_script(starts_workers=place.client is None and place.workers != 0)
    for one in studies:
        refuse_what_cannot_travel(one.trainable)
    payloads = {one.fingerprint.digest: pack(cast("Trainable", one.trainable)) for one in studies}
    _warn_of_what_cannot_be_shared(studies)
    opened = place.store
    name = journal_name(studies)
    with ExitStack() as stack:
        journal = opened.journal(name, stack.enter_context(opened.lock(name)))
        stack.callback(journal.close)
        lines, studies = choose(journal, studies)
        header = [] if lines else [write_header(studies)]
        core, timeline = replay(studies, lines)
        if has_failed_in(core):
            _say_what_failed(core)
            studies = once_more(core)
            header = [write_header(studies)]
            core, timeline = replay(studies, [])
        watch = stack.enter_context(
            watching(studies, verbose=place.verbose, in_process=place.workers == 0)
        )
        watch.recall(timeline.entries)
        if all(one.has_ended for one in core.runs):
            logger.info("%s has finished before: the result comes from the store", name)
        else:
            room = Room(opened, name)
            backend = _backend(stack, place, payloads, since_s=core.now)
            if isinstance(backend, DaskBackend):
                backend.on_look = Stalls(core, backend.why_waiting, watch.stalls).look

            def interrupt() -> None:
                watch.interrupt()
                backend.interrupt()

            stack.enter_context(interrupts(interrupt))

            def record(at_s: Seconds, event: Event, commands: tuple[Command, ...]) -> None:
                # Before it is acted on; to the disk while the workers act: a power failure in
                # between loses decisions, and no state.
                journal.write(*header, write_entry(at_s, event, commands))
                header.clear()
                timeline.record(at_s, event, commands)
                watch.take(timeline.entries[-1])
                if place.on_event is not None:
                    place.on_event(timeline.entries[-1])
                for loss in room.after(event, core):
                    backend.inject(loss)

            drive(core, backend, record, resumes=bool(timeline.entries), settled=journal.sync_soon)
            room.at_end(core)
            if core.why_stopped not in (None, BY_USER):
                raise BackendError(f"{core.why_stopped}, then make the same call again")
        return results_of(core, timeline, opened)


def _say_what_failed(core: StudyCore) -> None:
    for one in core.runs:
        logger.warning(
            "%s failed before (%s): it tries again with the %d trials that it had",
            one.study.name,
            one.reason,
            len(one.trials),
        )


def _warn_of_what_cannot_be_shared(studies: Sequence[Study]) -> None:
    for study in studies:
        if study.tuner.branches:
            continue
        for name in study.space.continuous_at_start():
            logger.warning(
                "%s: no two trials can share a step: %s is drawn from a continuous range at step 0",
                study.name,
                name,
            )


def _backend(
    stack: ExitStack,
    place: Place,
    payloads: Mapping[Digest, Payload],
    *,
    since_s: Seconds,
) -> SerialBackend | DaskBackend:
    """Return what performs commands; the stack closes it, and the workers that it needed."""
    backend: SerialBackend | DaskBackend
    store = place.store
    looks_inside = bool(store.keys())  # of an earlier run, or another study
    if place.workers == 0:
        backend = SerialBackend(
            Workplace(store=store, facts=facts_of_process()),
            payloads,
            since_s=since_s,
            looks_inside=looks_inside,
        )
    else:
        client = place.client
        if client is None:
            with interrupts_ignored():
                imports = early_imports(payloads.values())
                client = stack.enter_context(local_workers(place.workers, imports=imports))
        backend = DaskBackend(
            client,
            topic=f"dasktune-{uuid.uuid4().hex}",
            store=store,
            payloads=payloads,
            resources=place.resources,
            mends_allocator=place.mends_allocator,
            since_s=since_s,
            looks_inside=looks_inside,
        )
    stack.callback(backend.close)
    return backend


def journal_name(studies: Sequence[Study]) -> str:
    """Return the name under which a run of these studies is journaled and locked."""
    names = [study.name for study in studies]
    if len(names) == 1:
        return names[0]
    digest = sha256("\0".join(names).encode()).hexdigest()[:16]
    return f"{names[0][:100]}-and-{len(names) - 1}-more-{digest}"
