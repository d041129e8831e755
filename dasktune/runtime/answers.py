"""Turn what came of a stage into the events that the core is told."""

from collections.abc import Iterator

from dasktune.plan.stage import Stage
from dasktune.runtime.stage import Outcome
from dasktune.study.events import Event, Interrupted, StageFailed, StageFinished, StateLost


def events_of(path: int, stage: Stage, outcome: Outcome) -> Iterator[Event]:
    """Yield the events of an outcome, in the order in which the core must hear them.

    Why a stage has come to nothing is told before that its slot is free: the core would give the
    slot the same stage again at once.
    """
    if outcome.lost is not None:
        yield StateLost(state=outcome.lost)
    if outcome.is_full:
        yield Interrupted(reason=f"the store is full ({outcome.error}): make room")
    elif outcome.error is not None:
        yield StageFailed(
            path=path,
            stage=stage.key,
            error=outcome.error,
            traceback=outcome.traceback,
            executed_steps=outcome.executed_steps,
            seconds=outcome.seconds,
        )
        return
    yield StageFinished(
        path=path,
        stage=stage.key,
        reached=stage.start if outcome.is_full else outcome.reached,
        metrics=outcome.metrics,
        executed_steps=outcome.executed_steps,
        seconds=outcome.seconds,
    )
