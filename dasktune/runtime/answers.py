"""Turn what came of a stage into the events that the core is told."""

from collections.abc import Iterator

from dasktune.plan.stage import Stage
from dasktune.runtime.stage import Outcome
from dasktune.study.events import Event, StageFailed, StageFinished, StateLost


def events_of(path: int, stage: Stage, outcome: Outcome) -> Iterator[Event]:
    """Yield the events of an outcome, in the order in which the core must hear them."""
    if outcome.error is not None:
        yield StageFailed(
            path=path, stage=stage.key, error=outcome.error, traceback=outcome.traceback
        )
        return
    yield StageFinished(
        path=path,
        stage=stage.key,
        reached=outcome.reached,
        metrics=outcome.metrics,
        executed_steps=outcome.executed_steps,
        seconds=outcome.seconds,
    )
    if outcome.lost is not None:
        yield StateLost(state=outcome.lost)
