"""However often a study is extended, stopped, failed and extended again, it keeps its trials."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.samplers import TPESampler

import dasktune as dt
from dasktune.errors import InvalidStudyError
from dasktune.runner import extend, run
from dasktune.samplers.sampler import Sampler
from dasktune.study.commands import DrawTrial, StudyStatus
from dasktune.study.result import Result
from dasktune.study.study import Study
from dasktune.study.timeline import Entry
from dasktune.tuners.tuner import Tuner
from tests.runtime.trainables import Walk, study_of
from tests.worlds import OneByOne, OwnTuner

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "one by one": lambda seed: OneByOne(is_reversed=bool(seed % 2)),
    "prefix-aware": lambda _: dt.PrefixAware(dt.Random(), n_candidates=2),
    "optuna": lambda _: dt.Optuna(lambda seed: TPESampler(seed=seed, n_startup_trials=2)),
}
"""By the seed of the study. None draws again what it drew, if the seed is another one."""
# Those that ask for one trial after the other, so that few are drawn when a timeline breaks off.
TUNERS: list[Tuner] = [
    dt.ASHA(min_steps=2, max_steps=6, reduction_factor=2),
    dt.ASHA(min_steps=2, max_steps=8, reduction_factor=2),
    dt.ASHA(min_steps=3, max_steps=9, reduction_factor=2),
]


class Fragile(Walk):
    """Cannot be trained while something is broken."""

    def happen(self, hp: object, t: int) -> None:  # noqa: ARG002
        if Path(self.folder, "broken").exists():
            raise OSError("no data")


class Mended(Fragile):
    """Other code for the same."""

    def happen(self, hp: object, t: int) -> None:
        """Take whatever there is."""


class StoppedError(Exception):
    """The driver ends here."""


@dataclass
class Life:
    """A study from its beginning, with every trial that it has had."""

    folder: Path
    sampler: str
    drawn: dict[int, dt.Configuration] = field(default_factory=dict)
    """By number."""

    def study(
        self, n_trials: int, tuner: Tuner, *, seed: int = 0, code: type[Walk] = Fragile
    ) -> Study:
        return study_of(
            code(str(self.folder)),
            sampler=SAMPLERS[self.sampler](seed),
            tuner=tuner,
            n_trials=n_trials,
            seed=seed,
            retries=0,
        )

    def go_on(
        self,
        verb: Callable[..., Result],
        study: Study,
        *,
        stop_after: int | None = None,
        is_broken: bool = False,
    ) -> Result | None:
        """Run or extend; None if it was stopped after so many events."""
        broken = self.folder / "broken"
        broken.touch() if is_broken else broken.unlink(missing_ok=True)
        found: dict[int, dt.Configuration] = {}
        n_seen = 0

        def on_event(entry: Entry) -> None:
            nonlocal n_seen
            n_seen += 1
            for command in entry.commands:
                if isinstance(command, DrawTrial):
                    found[command.trial.number] = study.space.configuration(command.point)
            if n_seen == stop_after:
                raise StoppedError

        result = None
        try:
            result = verb(study, store=self.folder / "store", workers=0, on_event=on_event)
            found = {trial.number: trial.configuration for trial in result.trials}
        except StoppedError:
            pass
        for number, configuration in found.items():
            assert self.drawn.setdefault(number, configuration) == configuration
        return result


@pytest.fixture(params=SAMPLERS)
def life(request: pytest.FixtureRequest, tmp_path: Path) -> Life:
    return Life(tmp_path, request.param)


FIRST, LONGER, LONGEST = TUNERS
STARTS_LATER = dt.ASHA(min_steps=5, max_steps=8, reduction_factor=2)


@given(
    sampler=st.sampled_from(list(SAMPLERS)),
    turns=st.lists(
        st.fixed_dictionaries(
            {
                "more": st.integers(0, 1),
                "tuner": st.sampled_from(TUNERS),
                "seed": st.integers(0, 2),
                "stop_after": st.none() | st.integers(1, 9),
                "is_broken": st.booleans(),
            }
        ),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=30, deadline=None)
def test_every_trial_stays_with_its_number_and_configuration(
    sampler: str, turns: list[dict[str, Any]]
) -> None:
    with TemporaryDirectory() as folder:
        life = Life(Path(folder), sampler)
        n = 3
        life.go_on(run, life.study(n, FIRST))
        for turn in turns:
            n += turn.pop("more")
            study = life.study(n, turn.pop("tuner"), seed=turn.pop("seed"))
            life.go_on(extend, study, **turn)

        after = life.go_on(extend, life.study(n, LONGEST, seed=3))

        assert after is not None
        assert {t.number: t.configuration for t in after.trials}.items() >= life.drawn.items()
        assert len(after.trials) == n


def test_an_extension_that_stopped_early_is_extended_with_all_trials(life: Life) -> None:
    before = life.go_on(run, life.study(5, FIRST))
    assert before is not None
    assert life.go_on(extend, life.study(6, LONGER, seed=1), stop_after=2) is None

    after = life.go_on(extend, life.study(7, LONGER, seed=1))

    assert after is not None
    assert configurations(after)[:5] == configurations(before)


def failed_extension(life: Life) -> Result:
    """Extend a study of eight trials so that none of them can be trained further."""
    before = life.go_on(run, life.study(8, dt.FullTraining(3)))
    assert before is not None
    failed = life.go_on(extend, life.study(8, STARTS_LATER, seed=1), is_broken=True)
    assert failed is not None
    assert failed.status is StudyStatus.FAILED
    assert len(failed.trials) < len(before.trials), "it ends before it comes to all of them"
    return before


@pytest.mark.parametrize("n_failures", [1, 2])
def test_an_extension_that_failed_tries_again_with_all_trials(life: Life, n_failures: int) -> None:
    before = failed_extension(life)
    for _ in range(n_failures - 1):
        life.go_on(run, life.study(8, STARTS_LATER, seed=1), is_broken=True)

    after = life.go_on(run, life.study(8, STARTS_LATER, seed=1))

    assert after is not None
    assert after.status is StudyStatus.COMPLETED
    assert configurations(after) == configurations(before)


@pytest.mark.parametrize("code", [Fragile, Mended])
def test_a_failed_extension_is_not_begun_anew(life: Life, code: type[Walk]) -> None:
    before = failed_extension(life)
    # It tries again, and fails.
    life.go_on(run, life.study(8, STARTS_LATER, seed=1), is_broken=True)

    with pytest.raises(InvalidStudyError, match="was begun otherwise"):
        life.go_on(run, life.study(8, LONGER, code=code))

    after = life.go_on(extend, life.study(8, LONGER))
    assert after is not None
    assert configurations(after) == configurations(before)


def configurations(result: Result) -> list[dt.Configuration]:
    return [trial.configuration for trial in result.trials]


# --- other code


@pytest.mark.parametrize("tuner", [STARTS_LATER, OwnTuner(8)], ids=["ours", "mine"])
@pytest.mark.parametrize("n_failures", [1, 2, 3])
def test_a_study_that_only_ever_failed_is_begun_anew_with_mended_code(
    life: Life, tuner: Tuner, n_failures: int
) -> None:
    for _ in range(n_failures):
        failed = life.go_on(run, life.study(4, tuner), is_broken=True)
        assert failed is not None
        assert failed.status is StudyStatus.FAILED
    mended = life.study(4, tuner, code=Mended)

    words = r"it has failed, so dasktune\.run\(study\) begins it anew"
    with pytest.raises(InvalidStudyError, match=words) as refused:
        life.go_on(extend, mended)
    assert "another name" not in str(refused.value)
    life.drawn.clear()
    after = life.go_on(run, mended)

    assert after is not None
    assert after.status is StudyStatus.COMPLETED
    assert len(after.trials) == 4


def test_mended_code_does_not_extend_what_has_come_to_something(life: Life) -> None:
    failed_extension(life)

    with pytest.raises(InvalidStudyError, match=r"give the new study another name$"):
        life.go_on(extend, life.study(8, LONGER, code=Mended))
