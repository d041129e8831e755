"""Choose among the proposals of another sampler by what they promise for each new step.

A configuration that shares its first steps with trials that were trained costs only the rest. This
wrapper asks its sampler for several proposals, and takes the one with the greatest expected
improvement for each step that nobody has asked for yet. Where nothing is shared all proposals
promise and cost the same, and the first is taken: the sampler's own choice.

What a proposal promises is told by its nearest relative: the trial with which it shares the most
steps. Scores are taken to be jointly normal with a correlation that is the part of the steps that
is shared; improvement over the best score is then the closed form of Jones et al., "Efficient
Global Optimization of Expensive Black-Box Functions", Journal of Global Optimization 13, 1998,
section 4.1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import erf, exp, pi, sqrt
from typing import Self, final

from dasktune.errors import InvalidStudyError
from dasktune.samplers.sampler import NewSteps, Sampler, SamplerContext, SamplerRun
from dasktune.space.arguments import whole
from dasktune.space.configuration import Configuration
from dasktune.space.schedule import same_until
from dasktune.space.search_space import Point
from dasktune.trial import Report, TrialStatus
from dasktune.units import Step

_FEWEST = 4
"""Reports at one step from which anything is concluded; until then first proposals are taken."""


@final
@dataclass(frozen=True, slots=True)
class PrefixAware(Sampler):
    """Prefer proposals that promise much for few new steps."""

    sampler: Sampler
    """Who proposes."""
    n_candidates: int = 24
    """Proposals for each trial, at least 2."""

    def __post_init__(self) -> None:
        """Refuse what proposes nothing."""
        if not isinstance(self.sampler, Sampler):
            raise InvalidStudyError(
                f"sampler is {self.sampler!r}; it must be one, such as dasktune.Random()"
            )
        whole(self.n_candidates, "n_candidates", 2)

    def start(self, context: SamplerContext) -> "SamplerRun":
        """Begin a run of this policy."""
        return _Run(self, context, self.sampler.start(context))


class _Run(SamplerRun):
    def __init__(self, policy: PrefixAware, context: SamplerContext, inner: SamplerRun) -> None:
        self._policy = policy
        self._context = context
        self._inner = inner
        self._configurations: dict[int, Configuration] = {}
        self._scores: dict[Step, dict[int, float]] = {}

    def ask(self, number: int, new_steps: NewSteps, attempt: int = 0) -> Point | None:
        n = self._policy.n_candidates
        points = []
        for i in range(attempt * n, (attempt + 1) * n):
            point = self._inner.ask(number, new_steps, i)
            if point is not None and point not in points:
                points.append(point)
        if not points:
            return None
        known = self._known()
        if known is None:
            return points[0]
        stop = self._context.max_steps
        worth = []
        for point in points:
            configuration = self._context.space.configuration(point)
            promise = known.promise(configuration, self._configurations)
            worth.append(promise / max(1, new_steps(configuration, stop)))
        return points[worth.index(max(worth))]

    def _known(self) -> "_Known | None":
        """Return what was reported at the furthest step that enough trials have reported."""
        for step in sorted(self._scores, reverse=True):
            if len(self._scores[step]) >= _FEWEST:
                return _Known(step, self._scores[step])
        return None

    def record(self, number: int, point: Point) -> None:
        self._inner.record(number, point)
        self._configurations[number] = self._context.space.configuration(point)

    def tell(self, report: Report, *, rests: bool) -> None:
        self._inner.tell(report, rests=rests)
        self._scores.setdefault(report.step, {})[report.trial] = report.score

    def end(self, trial: int, status: TrialStatus) -> None:
        self._inner.end(trial, status)

    def copy(self) -> Self:
        twin = type(self)(self._policy, self._context, self._inner.copy())
        twin._configurations = self._configurations.copy()
        twin._scores = {step: scores.copy() for step, scores in self._scores.items()}
        return twin


class _Known:
    """What trials scored at one step."""

    def __init__(self, step: Step, scores: Mapping[int, float]) -> None:
        self._step = step
        self._scores = scores
        self._mean = sum(scores.values()) / len(scores)
        squares = sum((score - self._mean) ** 2 for score in scores.values())
        self._spread = sqrt(squares / len(scores))
        self._best = max(scores.values())

    def promise(
        self, configuration: Configuration, configurations: Mapping[int, Configuration]
    ) -> float:
        """Return the expected improvement of a configuration over the best score."""
        correlation, score = max(
            (_shared(configuration, configurations[trial], self._step) / self._step, score)
            for trial, score in self._scores.items()
        )
        mean = self._mean + correlation * (score - self._mean)
        return _improvement(mean, self._spread * sqrt(1 - correlation**2), self._best)


def _shared(a: Configuration, b: Configuration, stop: Step) -> Step:
    if a.names != b.names:
        return 0
    for (_, mine), (_, other) in zip(a.schedules, b.schedules, strict=True):
        stop = same_until(mine, other, stop)
    return stop


def _improvement(mean: float, spread: float, best: float) -> float:
    """Return E[max(0, y - best)] of a normal y."""
    if spread <= 0:
        return max(0.0, mean - best)
    z = (mean - best) / spread
    return (mean - best) * 0.5 * (1 + erf(z / sqrt(2))) + spread * exp(-z * z / 2) / sqrt(2 * pi)
