"""Whole studies in simulated worlds, and what must hold of them whatever the policies are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan
from random import Random

from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from dasktune.samplers.sampler import Sampler
from dasktune.simulator.simulate import simulate
from dasktune.simulator.world import World
from dasktune.space.configuration import Configuration
from dasktune.space.search_space import SearchSpace
from dasktune.study.result import Result
from dasktune.study.scores import Mode
from dasktune.study.study import Study
from dasktune.study.timeline import replay
from dasktune.testing.laws import SCORES, no_global_chance, same
from dasktune.tuners.tuner import Tuner
from dasktune.units import Step


class Untrained:
    """Stands for training code; the simulator does not call it."""

    def setup(self, hp: Mapping[str, object], seed: int) -> None:
        """Build nothing."""

    def step(self, hp: Mapping[str, object], t: int) -> None:
        """Train nothing."""

    def evaluate(self) -> dict[str, float]:
        """Measure nothing."""
        return {}

    def state_dict(self) -> object:
        """Keep nothing."""
        return None

    def load_state_dict(self, state: object) -> None:
        """Take nothing back."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Search:
    """A study and the world that it runs in."""

    tuner: Tuner
    sampler: Sampler
    space: SearchSpace
    n_trials: int
    seed: int
    n_workers: int
    bad_percent: int
    """How many of a hundred states score NaN."""

    def __repr__(self) -> str:
        space = ", ".join([f"{name!r}: {what.text}" for name, what in self.space.definitions])
        return (
            f"Search(tuner={self.tuner}, sampler={self.sampler}, space={{{space}}}, "
            f"n_trials={self.n_trials}, seed={self.seed}, n_workers={self.n_workers}, "
            f"bad_percent={self.bad_percent})"
        )

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:  # noqa: ARG002
        printer.text(repr(self))  # without it Hypothesis shows a space from within

    def study(self, mode: Mode = "max") -> Study:
        """Return the study."""
        return Study(
            Untrained(),
            space=self.space,
            sampler=self.sampler,
            tuner=self.tuner,
            metric="score",
            mode=mode,
            n_trials=self.n_trials,
            seed=self.seed,
        )

    def curve(self, sign: float) -> Callable[[Configuration, Step], dict[str, float]]:
        """Return what trials score: few different values, equal for equal histories."""

        def curve(configuration: Configuration, step: Step) -> dict[str, float]:
            past = [sorted(configuration.at(t).items()) for t in range(step)]
            number = Random(f"{self.seed}:{past}").randrange(100)
            if number < self.bad_percent:
                return {"score": nan}
            return {"score": sign * SCORES[number % len(SCORES)]}

        return curve

    def result(self, mode: Mode = "max") -> Result:
        """Simulate it; with mode "min" all scores are turned round, so nothing else changes."""
        curve = self.curve(1.0 if mode == "max" else -1.0)
        # Of unequal speeds, so that reports come in another order than trials are asked in.
        speeds = [1.0 + 0.37 * i for i in range(self.n_workers)]
        return simulate(self.study(mode), World(workers=speeds, curve=curve))


def searches(
    tuner: st.SearchStrategy[Tuner],
    sampler: st.SearchStrategy[Sampler],
    space: st.SearchStrategy[SearchSpace],
    most_trials: int = 8,
) -> st.SearchStrategy[Search]:
    """Draw studies of one trial or more, with worlds."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Search:
        return Search(
            tuner=draw(tuner),
            sampler=draw(sampler),
            space=draw(space),
            n_trials=draw(st.integers(1, most_trials)),
            seed=draw(st.integers(0, 99)),
            n_workers=draw(st.integers(1, 3)),
            bad_percent=draw(st.sampled_from([0, 0, 10, 100])),
        )

    return drawn()


def check_it_ends(search: Search) -> None:
    """Demand that a study ends with all its trials over, each for a reason."""
    result = search.result()
    n_drawn = sum(trial.parent is None for trial in result.trials)
    assert n_drawn <= search.n_trials, f"{n_drawn} trials were drawn, of {search.n_trials}"
    for trial in result.trials:
        assert trial.status.is_final, f"trial {trial.number} is {trial.status} at the end"
        assert trial.reason, f"trial {trial.number} does not say why it ended"


def check_modes_mirror(search: Search) -> None:
    """Demand that "min" decides about scores turned round as "max" does about scores."""
    most, least = [list(search.result(mode).timeline.commands()) for mode in ("max", "min")]
    same(least, most, "with mode 'min' and all signs turned a study decides as with mode 'max'")


def check_replay(search: Search) -> None:
    """Demand that a study decides again what its timeline says that it decided.

    Draws are fed to the sampler from the timeline, as when a study is resumed.
    """
    with no_global_chance(0):
        lines = list(search.result().timeline.lines())
    with no_global_chance(1):
        core, timeline = replay([search.study()], lines)
    same(list(timeline.lines()), lines, "a timeline that is replayed stays as it is")
    assert core.runs[0].has_ended, "a study that had ended has ended when it is replayed"


def check_resume(search: Search, share: float) -> None:
    """Demand that a study that is broken off goes on to its end.

    Args:
        search: The study.
        share: How much of its timeline is kept, from 0 to 1.
    """
    straight = search.result()
    lines = list(straight.timeline.lines())
    n_kept = round(share * len(lines))
    core, _ = replay([search.study()], lines[:n_kept])
    for entry in straight.timeline.entries[n_kept:]:
        same(
            core.handle(entry.event, entry.at_s),
            entry.commands,
            f"resumed after {n_kept} of {len(lines)} events, it decides as if nothing had happened",
        )
