"""Where a run takes place, as the user said it: checked before any work starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from distributed import Client

from dasktune.errors import InvalidStudyError
from dasktune.space.arguments import whole
from dasktune.store.store import Store
from dasktune.study.timeline import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The keywords of `dasktune.run`, which explains them."""

    client: Client | None
    store: Store
    workers: int | None
    resources: Mapping[str, float] | None
    mends_allocator: bool | None
    on_event: Callable[[Entry], None] | None
    verbose: bool


def placed(  # noqa: PLR0913  (as many as `run` has)
    *,
    client: Client | None,
    store: str | Path | Store,
    workers: int | None,
    resources: Mapping[str, float] | None,
    mends_allocator: bool | None,
    on_event: Callable[[Entry], None] | None,
    verbose: bool,
) -> Place:
    """Open the store, and refuse what cannot be a place.

    Raises:
        InvalidStudyError: Something is not what it must be.
    """
    if client is not None:
        _refuse_useless(client)
    if workers is not None:
        whole(workers, "workers", 0)
        if client is not None:
            raise InvalidStudyError(
                f"workers is {workers} and a client is given too; the client's cluster has its "
                "workers"
            )
    if on_event is not None and not callable(on_event):
        raise InvalidStudyError(f"on_event is {on_event!r}; it must be a function of an entry")
    return Place(
        client=client,
        store=_opened(store),
        workers=workers,
        resources=None if resources is None else _amounts(resources),
        mends_allocator=mends_allocator,
        on_event=on_event,
        verbose=verbose,
    )


def _opened(store: object) -> Store:
    if isinstance(store, Store):
        return store
    if not isinstance(store, str | Path) or store == "":
        raise InvalidStudyError(f"store is {store!r}; it must be a folder, a URL or a Store")
    return Store(store)


def _refuse_useless(client: object) -> None:
    if not isinstance(client, Client):
        raise InvalidStudyError(
            f"client is {client!r}; it must be a distributed.Client: Client(address) or "
            "Client(cluster)"
        )
    if client.asynchronous:
        raise InvalidStudyError(
            f"client is asynchronous ({client!r}); run() waits for the study, so give a client "
            "made without asynchronous=True, outside of coroutines"
        )
    if client.status != "running":
        raise InvalidStudyError(f"client is {client.status}; give one that is connected")


def _amounts(resources: object) -> Mapping[str, float]:
    # They are compared on the scheduler, where a mistake would cost others their connection.
    if not isinstance(resources, Mapping):
        raise InvalidStudyError(f'resources is {resources!r}; it must be like {{"GPU": 1}}')
    for name, amount in resources.items():
        is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not isinstance(name, str) or not is_number or not isfinite(amount) or amount < 0:
            raise InvalidStudyError(
                f"resources[{name!r}] is {amount!r}; amounts must be finite numbers of at least 0, "
                'by name, such as {"GPU": 0.5}'
            )
    return dict(resources)
