"""The trials that were not asked for yet, for tuners that let one begin when a worker is free."""


class Newcomers:
    """Trials from 0 on, each handed out once, but for those that are over before their turn."""

    __slots__ = ("_n_begun", "_n_trials", "_over")

    def __init__(self, n_trials: int) -> None:
        self._n_trials = n_trials
        self._n_begun = 0
        self._over: set[int] = set()

    def next(self) -> int | None:
        """Hand out the trial of lowest number; None if none is left."""
        while self._n_begun in self._over:
            self._over.discard(self._n_begun)
            self._n_begun += 1
        if self._n_begun >= self._n_trials:
            return None
        self._n_begun += 1
        return self._n_begun - 1

    def drop(self, trial: int) -> bool:
        """Never hand out a trial that is over; return whether its turn was still to come."""
        if trial < self._n_begun:
            return False
        self._over.add(trial)
        return True

    def copy(self) -> "Newcomers":
        """Return the same trials, handed out from here by themselves."""
        twin = Newcomers(self._n_trials)
        twin._n_begun = self._n_begun
        twin._over = self._over.copy()
        return twin
