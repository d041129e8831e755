"""Let a sampler of Optuna propose configurations: TPE, Gaussian processes, CMA-ES, NSGA-II, ...

Called by users as `dasktune.Optuna`. Describes and checks; the run is in `optuna_run`, which is
imported, and Optuna with it, when a sampler is made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, cast, final

from dasktune.errors import InvalidStudyError
from dasktune.samplers.sampler import Sampler, SamplerContext, SamplerRun

_RIGHT = "such as optuna.samplers.TPESampler or lambda seed: TPESampler(seed=seed, group=True)"


@final
@dataclass(frozen=True, slots=True, repr=False)
class Optuna(Sampler):
    """Any sampler of Optuna: `Optuna(optuna.samplers.GPSampler)`; by default TPE.

    The sampler hears what Optuna's users expect: a trial that its tuner completed is COMPLETE with
    the scores of its last report; one that was stopped, or rests at a rung, is PRUNED with all its
    reports, and goes on when it reports again; one whose training raised is FAIL, which samplers
    ignore. One that diverged must keep samplers away from where it was drawn: TPE sees it PRUNED
    without a report, which ranks last; CMA-ES, GP and NSGA-II, which see completed trials only, see
    it COMPLETE with the worst score of any trial so far. Scores always are to be maximized. With
    several metrics there are no PRUNED trials: only completed ones (or those that diverged) count.
    The last report's metrics are the trial's `user_attrs`, so `constraints_func` can use them.

    Every ask makes a new sampler, with a seed of its own, which remembers what it keeps in Optuna's
    storage, as all of Optuna's do, and nothing else. A resumed study goes on with the draws of an
    uninterrupted one. Samplers that keep notes in the storage (CMA-ES, NSGA-II, QMC, your own) are
    asked for the recorded draws once more then; TPE and GP are not.

    A finite space is drawn to its last configuration: where a sampler keeps repeating itself, one
    that was not drawn yet is taken at random.

    References:
        Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.
        Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011, section 4.
    """

    factory: Callable[..., object] | None = None
    """A class of `optuna.samplers` that takes `seed=`, or a function from a seed to a sampler."""
    draws_ahead: bool = field(init=False, compare=False)
    """Random and quasi-random draws depend on no report."""

    def __post_init__(self) -> None:
        """Check the factory by making a sampler.

        Raises:
            InvalidStudyError: Optuna is missing, or the factory makes no sampler of it.
        """
        sampler = self._make(0)
        _optuna().check(sampler)
        object.__setattr__(self, "draws_ahead", _optuna().draws_ahead(sampler))

    def start(self, context: SamplerContext) -> "SamplerRun":
        """Begin a run of this policy.

        Raises:
            InvalidStudyError: There are several metrics, and Optuna's sampler takes one.
        """
        run: SamplerRun = _optuna().started(self._make, context)
        return run

    def __repr__(self) -> str:
        return f"Optuna({'TPESampler' if self.factory is None else _name(self.factory)})"

    def _make(self, seed: int) -> Any:  # noqa: ANN401  (a name of Optuna's must not be needed here)
        factory = _optuna().TPESampler if self.factory is None else self.factory
        if not callable(factory):
            raise InvalidStudyError(
                f"factory is {factory!r}; it must be a function from a seed to a sampler of "
                f"Optuna, or a class of them, {_RIGHT}"
            )
        made = factory.func if isinstance(factory, partial) else factory
        try:
            return factory(seed=seed) if isinstance(made, type) else factory(seed)
        except (TypeError, ImportError) as error:
            raise InvalidStudyError(
                f"factory {_name(factory)} makes no sampler for a seed ({error}); it must be a "
                f"class that takes seed=, or a function of the seed, {_RIGHT}"
            ) from error


def _optuna() -> ModuleType:
    """Return the module that imports Optuna."""
    try:
        return import_module("dasktune.samplers.optuna_run")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dasktune"):
            raise
        raise InvalidStudyError(
            f"dasktune.Optuna needs {error.name}, which is not installed: "
            "pip install 'dasktune[optuna]'"
        ) from error


def _name(factory: object) -> str:
    """Return a text for a factory that is the same in every process."""
    if isinstance(factory, partial):
        given = [f"{name}={_plain(value)}" for name, value in sorted(factory.keywords.items())]
        texts = [_name(factory.func), *map(_plain, factory.args), *given]
        return f"partial({', '.join(texts)})"
    named = factory if hasattr(factory, "__qualname__") else type(factory)
    return str(cast("type", named).__qualname__)


def _plain(value: object) -> str:
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if is_plain else _name(value)
