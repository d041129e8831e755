"""Put into words why things happened: why a stage of a trial ran, was shared, was stopped.

Called by people, through `dasktune.explain`. Reads studies and results; decides nothing: every
reason was returned by the decision that it explains.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dasktune.errors import InvalidStudyError
from dasktune.plan.history import same_until
from dasktune.plan.merging import distinct_steps, why_shared
from dasktune.plan.stage import Stage
from dasktune.space.arguments import whole
from dasktune.space.configuration import Configuration
from dasktune.space.value import shown
from dasktune.study.commands import AskTrial, RunPath
from dasktune.study.core import StudyCore
from dasktune.study.events import StageFailed, StageFinished, StudyStarted
from dasktune.study.result import Result, TrialResult
from dasktune.study.study import Study
from dasktune.units import Digest, Seconds


def explain(
    subject: Study | Result | Sequence[Result],
    *,
    trial: int | None = None,
    other: int | None = None,
    study: str | None = None,
) -> str:
    """Say in words what a study is going to do, or why things happened in it.

    Args:
        subject: A study, before it runs; or the result of a run, or all results of one.
        trial: Number of the trial whose stages are explained; None: the whole study.
        other: Number of a second trial: how far the two share their training.
        study: Name of the study that the numbers belong to, where there are several.

    Raises:
        InvalidStudyError: There is no such study or trial, or nothing to explain was given.
    """
    if isinstance(subject, Study):
        if trial is not None:
            raise InvalidStudyError(
                f"trial is {trial}; a study has no trials before it runs: explain its result"
            )
        return "\n".join(_outlook(subject))
    results = _results(subject)
    result = _chosen(results, study)
    if trial is None:
        return "\n".join([*_outlook(result.study), *_outcome(result)])
    one = _trial(result, trial)
    if other is not None:
        two = _trial(result, other)
        shared = why_shared(one.configuration, two.configuration, result.study.max_steps)
        return f"trials {trial} and {other}: {shared}"
    return "\n".join(_life(results, result, one))


# --- a study ------------------------------------------------------------------------------------


def _outlook(study: Study) -> Iterator[str]:
    size = study.space.size
    n = study.n_trials if size is None else min(study.n_trials, size)
    space = "endless" if size is None else f"{size}"
    yield (
        f"study {study.name}: {n} trials of {space} configurations, drawn by {study.sampler}; "
        f"{study.metric} is to be {'greatest' if study.mode == 'max' else 'least'}"
    )
    if n < study.n_trials:
        yield f"  the space has only {size} configurations; {study.n_trials} trials were asked for"
    yield f"  {study.tuner}"
    yield from _rungs(study, n)
    for name in () if study.tuner.branches else study.space.continuous_at_start():
        yield (
            f"  no two trials can share a step: {name} is drawn from a continuous range at step 0; "
            "give it a choice of values, or a step="
        )


def _rungs(study: Study, n: int) -> Iterator[str]:
    """Say how many trials train how far, and how much of that is shared."""
    steps = study.tuner.decision_steps
    configurations = _drawn_ahead(study)
    before = 0
    for step, n_asked in zip(steps, study.tuner.outlook(n), strict=True):
        line = f"  steps {before} to {step}: {n_asked} trials, {n_asked * (step - before)} steps"
        if configurations:
            alone, distinct = step * len(configurations), distinct_steps(configurations, step)
            line += f"; if all came to step {step}, {distinct} of {alone} steps would be distinct"
        yield line
        before = step


def _drawn_ahead(study: Study) -> list[Configuration]:
    """Return the configurations of a study whose draws do not wait for reports."""
    if not study.sampler.draws_ahead:
        return []
    core = StudyCore([study])
    core.handle(StudyStarted(study=0), 0.0)
    return [record.configuration for record in core.runs[0].trials]


def _outcome(result: Result) -> Iterator[str]:
    status = result.status.value if result.status is not None else "not started"
    yield f"  {status}: {result.reason}"
    asked = defaultdict(set)
    for _, command in result.timeline.commands():
        if isinstance(command, AskTrial) and _is_of(command, result):
            asked[command.step].add(command.trial.number)
    for at in result.study.tuner.decision_steps:
        told = sum(
            any(report.step == at for report in result.trials[number].reports)
            for number in asked[at]
        )
        yield f"  step {at}: {len(asked[at])} trials asked, {told} reported"
    yield (
        f"  {result.steps_requested} steps requested, {result.steps_unique} distinct: "
        f"merge rate {result.merge_rate:.2f}"
    )
    if result.best is not None:
        metric = result.study.metric
        yield (
            f"  best: trial {result.best.number}, {metric} {result.best.metrics[metric]:.6g} "
            f"at step {result.best.steps}"
        )


def _results(subject: object) -> list[Result]:
    items = list(subject) if isinstance(subject, Sequence) else [subject]
    results = [item for item in items if isinstance(item, Result)]
    if not results or len(results) < len(items):
        raise InvalidStudyError(
            f"explain() got {shown(subject)}; it must be a study, a result, or all results of one "
            "run in a list"
        )
    return results


def _chosen(results: list[Result], study: str | None) -> Result:
    names = [result.study.name for result in results]
    if study is None and len(results) == 1:
        return results[0]
    if study not in names:
        raise InvalidStudyError(f"study is {study!r}; it must be one of {', '.join(names)}")
    return results[names.index(study)]


def _trial(result: Result, number: int) -> TrialResult:
    if not 0 <= whole(number, "trial") < len(result.trials):
        raise InvalidStudyError(
            f"trial is {number}; the study has trials 0 to {len(result.trials) - 1}"
        )
    return result.trials[number]


# --- a trial ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Attempt:
    """A stage that was handed out, and what came of it."""

    stage: Stage
    at_s: Seconds
    place: str
    reason: str
    outcome: str = "no answer"


def _life(results: list[Result], result: Result, one: TrialResult) -> Iterator[str]:
    yield f"trial {one.number} of {result.study.name}: {one.status.value}, {one.reason}"
    for name, text in one.configuration.text.items():
        yield f"  {name} = {text}"
    if one.parent is not None:
        yield f"  follows trial {one.parent} up to step {one.branch_step}"
    for at_s, command in result.timeline.commands():
        if (
            isinstance(command, AskTrial)
            and command.trial.number == one.number
            and _is_of(command, result)
        ):
            yield f"  {at_s:g} s: asked to train to step {command.step}: {command.reason}"
    for attempt in _attempts(result):
        stage = attempt.stage
        if _is_on_path(stage, result, one):
            yield (
                f"  {attempt.at_s:g} s: steps {stage.start} to {stage.stop} on {attempt.place}: "
                f"{attempt.outcome}; {attempt.reason}; {_sharers(stage, results, one)}"
            )
    for report in one.reports:
        values = ", ".join(f"{name} {value:.6g}" for name, value in sorted(report.metrics.items()))
        yield f"  step {report.step}: {values}"


def _is_of(command: AskTrial, result: Result) -> bool:
    return command.trial.study == result.index


def _attempts(result: Result) -> list[_Attempt]:
    """Return all stages handed out in a run, in the order of their beginning."""
    attempts: list[_Attempt] = []
    open_: dict[tuple[int, Digest], _Attempt] = {}
    for entry in result.timeline.entries:
        event = entry.event
        if isinstance(event, StageFinished | StageFailed):
            attempt = open_.get((event.path, event.stage))
            if attempt is not None:
                attempt.outcome = _outcome_of(event, attempt.stage)
        for command in entry.commands:
            if isinstance(command, RunPath):
                for stage in command.stages:
                    attempt = _Attempt(stage, entry.at_s, command.worker, command.reason)
                    open_[command.path, stage.key] = attempt
                    attempts.append(attempt)
    return attempts


def _outcome_of(event: StageFinished | StageFailed, stage: Stage) -> str:
    if isinstance(event, StageFailed):
        return f"failed: {event.error}"
    if event.reached < stage.stop:
        return f"stopped at step {event.reached}"
    if event.executed_steps < stage.n_steps:
        return f"found in the store but for {event.executed_steps} steps"
    return "evaluated" if stage.n_steps == 0 else "trained"


def _is_on_path(stage: Stage, result: Result, one: TrialResult) -> bool:
    return (
        stage.family == result.study.family
        and stage.start < max(one.steps_requested, 1)
        and same_until(stage.configuration, one.configuration, stage.stop) == stage.stop
    )


_MOST_NAMED = 8


def _sharers(stage: Stage, results: list[Result], one: TrialResult) -> str:
    """Name the trials that a stage served besides this one."""
    names = [
        f"{other.number}" if len(results) == 1 else f"{result.study.name}/{other.number}"
        for result in results
        for other in result.trials
        if other is not one and _is_served(stage, result, other)
    ]
    if not names:
        return "for this trial alone"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"shared with {len(names)}: {', '.join(names[:_MOST_NAMED])}{more}"


def _is_served(stage: Stage, result: Result, other: TrialResult) -> bool:
    return other.steps_requested >= max(stage.stop, 1) and _is_on_path(stage, result, other)
