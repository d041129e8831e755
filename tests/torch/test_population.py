from pathlib import Path

import pytest

import dasktune as dt
from dasktune.store.codec import encode
from tests.torch.networks import Convolution


@pytest.mark.torch
@pytest.mark.parametrize("is_synchronous", [True, False])
def test_the_best_of_a_population_trained_alone_has_the_same_state_bit_for_bit(
    tmp_path: Path, *, is_synchronous: bool
) -> None:
    study = dt.Study(
        Convolution(),
        space={"lr": dt.loguniform(1e-3, 0.5), "batch_size": dt.choice([2, 4, 8]), "momentum": 0.9},
        tuner=dt.PopulationBasedTraining(
            max_steps=6, ready_steps=1, quantile=0.5, is_synchronous=is_synchronous
        ),
        metric="loss",
        mode="min",
        n_trials=4,
    )
    result = dt.run(study, store=tmp_path / "population", workers=0)
    assert result.steps_executed == result.steps_unique
    branched = [trial for trial in result.trials if trial.parent is not None and trial.reports]
    assert branched
    for trial in (result.best, branched[-1]):
        assert trial is not None
        alone = dt.Study(
            Convolution(),
            space=dict(trial.configuration.schedules),
            tuner=dt.FullTraining(trial.steps),
            metric="loss",
            mode="min",
            n_trials=1,
            name=f"alone-{trial.number}",
        )
        trained = dt.run(alone, store=tmp_path / "alone", workers=0)
        assert trained.best is not None
        assert encode(trained.load_state(trained.best)) == encode(result.load_state(trial))
        found = dt.run(alone, store=tmp_path / "population", workers=0)
        assert found.steps_executed == 0
        assert found.best is not None
        assert found.best.metrics == trial.metrics
