"""A driver's line to the scheduler of a Dask cluster: what it adds there, sends, asks and hears.

Nothing here waits for a worker: one that is stopped, or hangs, would keep the driver from all the
others. Everything that happens on Dask's threads becomes news, to be taken in on the driver's.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future as Asked
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, TypeAlias

from distributed import Client, SchedulerPlugin, WorkerPlugin

from dasktune.errors import BackendError
from dasktune.runtime.plugins import (
    OPERATION,
    Sharing,
    TrainingCode,
    ask_last_words,
    forget_run,
    n_clients,
)
from dasktune.units import WorkerId

logger = logging.getLogger(__name__)

News: TypeAlias = Callable[[], None]
"""Something that happened on another thread, to be taken in on the driver's."""

REGISTER_WITHIN_S = 10.0
"""How long all workers may take to answer that they have the training code; the rest goes on."""

_LEAVE_WITHIN_S = 3.0

_BATCHING_S = 0.001
"""How long messages may wait to go together; Dask's 10 ms would be most of handing out a path."""


class Link:
    """A driver's line to the scheduler.

    A scheduler may refuse plugins (`distributed.scheduler.blocked-handlers`). Then there is nobody
    who leases workers, or tells drivers of each other; and code travels with each stage.
    """

    def __init__(self, client: Client, topic: str) -> None:
        """Hold a client; nothing is sent yet.

        Args:
            client: Of a running cluster; never closed here.
            topic: Unique to the run.
        """
        self.client = client
        self.topic = topic
        self.news: SimpleQueue[News] = SimpleQueue()
        self.has_leases = False
        """Whether the scheduler leases workers, and passes news between drivers."""
        self.has_code = False
        """Whether workers are given the training code once, and late ones when they join."""
        self._outbox: list[Mapping[str, Any]] = []
        self._asked: set[Asked[Any]] = set()
        self._batching_s: float | None = None
        self._ear: _Ear | None = None
        self._may_have_given_code = False
        self._why_refused = ""
        self._line: object = None
        self.is_cut_off = False
        """Whether the scheduler did not answer when it was last looked for."""

    def is_alone(self) -> bool:
        """Say whether this is known to be the only client of its cluster now."""
        try:
            return bool(self.client.run_on_scheduler(n_clients) <= 1)
        except (ImportError, ValueError):  # not understood, or refused
            return False

    def join(self, code: TrainingCode, hear: Callable[[Mapping[str, Any]], None]) -> None:
        """Add to the cluster what a run needs there, as far as it is allowed.

        Where this is broken off, `leave` takes away what has been added by then.

        Args:
            code: The training code.
            hear: Called on the driver's thread with what is published for this run.

        Raises:
            BackendError: The scheduler cannot read what is sent to it.
        """
        client = self.client
        if self._batching_s is None:
            self._batching_s = client.scheduler_comm.interval
        self._line = client.scheduler_comm
        client.scheduler_comm.interval = _BATCHING_S
        self._may_have_given_code = True
        self.has_code = self._register(code)  # some workers may have it though another refused
        self.has_leases = self._register(Sharing())
        self._close_ear()
        self._ear = _Ear(self.news, hear)
        # Before anybody has a reason to publish: who subscribes is told all from then on, but of
        # what was published before the scheduler keeps no more than 1000 messages a topic.
        client.subscribe_topic(self.topic, self._ear)
        if not self.has_leases:
            logger.warning(
                "this Dask cluster refuses dasktune's scheduler plugin (%s): other drivers on it "
                "are not known, so workers are not divided with them: stages of several drivers "
                "take turns in a worker, and each has to load its state again; steps that both "
                "want at the same time may be trained twice, and workers that leave are noticed a "
                "second late",
                self._why_refused,
            )

    def has_changed(self) -> bool | None:
        """Say whether the scheduler is there, if that is new; None: it is as it was.

        Raises:
            BackendError: It does not come back.
        """
        status = self.client.status
        if status == "closed":
            raise BackendError(
                "the Dask scheduler is gone and did not come back; nothing committed is lost: "
                "start a cluster and make the same call again"
            )
        # One that died and is back before anybody looked has another line.
        line = self.client.scheduler_comm if status == "running" else None
        is_there = line is not None and self._line in (None, line)
        self._line = line if is_there else None
        if is_there is not self.is_cut_off:
            return None
        self.is_cut_off = not is_there
        if is_there:
            logger.warning("the Dask scheduler answers again; the study goes on")
        else:
            logger.warning("the Dask scheduler does not answer; waiting for it to come back")
        return is_there

    def leave(self) -> None:
        """Take away what was added; the client stays open."""
        for asked in list(self._asked):
            asked.cancel()
        is_subscribed = self._ear is not None
        self._close_ear()
        if self.client.status != "running":
            return
        if self._batching_s is not None:
            self.client.scheduler_comm.interval = self._batching_s
        self.send("leave")
        self.flush()
        if is_subscribed:
            self.client.unsubscribe_topic(self.topic)
        if self._may_have_given_code:
            self._finish(self.client._unregister_worker_plugin(self.topic))
            if not self.has_code:  # it came with each stage: no plugin takes it away
                self._finish(self.client._run(forget_run, self.topic, wait=False))

    def _finish(self, removal: Coroutine[Any, Any, Any]) -> None:
        """Wait until workers keep nothing of the run, but not for ever."""
        try:
            self._begin(removal).result(_LEAVE_WITHIN_S)
        except Exception as error:  # one is closing or stopped, all never had it, or it is refused
            logger.debug("some worker keeps the training code", exc_info=error)

    def _close_ear(self) -> None:
        if self._ear is not None:
            self._ear.close()
            self._ear = None

    def send(self, verb: str, **facts: Any) -> None:  # noqa: ANN401  (whatever msgpack takes)
        """Send something to the scheduler plugin, if it is there, with the next `flush`."""
        if self.has_leases:
            message = {"op": OPERATION, "verb": verb, "topic": self.topic, **facts}
            self._outbox.append(message)

    def flush(self) -> None:
        """Let go what was to be sent, all together: each part would wake Dask's thread anew."""
        if self._outbox:
            messages, self._outbox = self._outbox, []
            self.client.loop.add_callback(self._send_all, messages)

    def _send_all(self, messages: Iterable[Mapping[str, Any]]) -> None:
        # By the line that the plugin was joined by, or not at all: a scheduler that does not have
        # it yet breaks the line off at such a message, and all that was said begins anew anyway.
        if self._line is None or self.client.scheduler_comm is not self._line:
            return
        for message in messages:
            self.client._send_to_scheduler_safe(message)

    def signal(self, worker: WorkerId, signal: Callable[..., object], *facts: object) -> None:
        """Let a worker's process hear something; whether it does is not known.

        Args:
            worker: Its address.
            signal: A coroutine function.
            facts: Its arguments.
        """
        self.let(self.client._run(signal, *facts, workers=[worker], wait=False, on_error="ignore"))

    def let(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine in Dask's event loop, also after this run has left the cluster."""
        self._begin(coroutine)

    async def last_words(self, worker: WorkerId) -> list[tuple[int, bytes]]:
        """Return what came of the stages of this run on a worker that is gone, by path.

        Raises:
            OSError: There is nobody any more.
            ValueError: The scheduler refuses the question.
        """
        said = await self.client._run_on_scheduler(ask_last_words, worker, self.topic)
        return list(said)

    def ask(self, question: Coroutine[Any, Any, Any], hear: Callable[[Asked[Any]], None]) -> None:
        """Run a coroutine in Dask's event loop.

        Args:
            question: The coroutine.
            hear: Called on the driver's thread once it has ended.
        """
        asked = self._begin(question)
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        asked.add_done_callback(lambda _: self.news.put(lambda: hear(asked)))

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> Asked[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.client.loop.asyncio_loop)

    def _register(self, plugin: SchedulerPlugin | WorkerPlugin) -> bool:
        """Register a plugin; return whether the cluster takes it."""
        is_code = isinstance(plugin, WorkerPlugin)
        register = getattr(
            self.client, "_register_worker_plugin" if is_code else "_register_scheduler_plugin"
        )
        try:
            self._begin(register(plugin, plugin.name, not is_code)).result(REGISTER_WITHIN_S)
        except OSError as error:  # too late among them; the scheduler has it, for whoever comes
            logger.warning(
                "not all workers have answered that they have the training code (%s); they are "
                "used once they have it",
                str(error) or f"waited {REGISTER_WITHIN_S:g} s",
            )
        except ImportError as error:
            raise BackendError(
                "the Dask scheduler or a worker cannot import what dasktune needs there "
                f"({error}); install the same version of it wherever the cluster runs"
            ) from error
        except Exception as error:  # whatever an administrator has put in the way
            logger.debug("%s is refused", type(plugin).__name__, exc_info=error)
            self._why_refused = f"{type(error).__name__}: {error}"
            return False
        return True


class _Ear:
    """Hears what is published for a run, until it is closed: then it holds nothing of the run.

    Dask's clients never forget whom they told, also after they were told to.
    """

    def __init__(self, news: SimpleQueue[News], hear: Callable[[Mapping[str, Any]], None]) -> None:
        self._put: Callable[[Mapping[str, Any]], None] | None
        self._put = lambda published: news.put(lambda: hear(published))

    def __call__(self, event: tuple[float, Mapping[str, Any]]) -> None:
        put = self._put
        if put is not None:
            put(event[1])

    def close(self) -> None:
        self._put = None


@contextmanager
def undone_by(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what is done inside if it is broken off, by Ctrl-C too."""
    try:
        yield
    except BaseException:
        undo()
        raise
